//! Quantization of weights.

use rayon::prelude::*;
use swinq_model::quantized::Int8Weight;
use swinq_model::{Calibrator, Granularity, HostTensor, Linear, SiteSpec};

use crate::calibrator::amax_for_codes;
use crate::error::CalibError;
use crate::histogram::Histogram;

/// The scales of `weight` (output channels first): `s = amax / Q`, with `Q` of [`SiteSpec::largest_code`].
///
/// The site's calibrator chooses `amax` from the magnitudes of each output channel or of the whole tensor,
/// depending on the site's granularity. If the largest magnitude is zero or so small that the reciprocal of
/// its `s` is not finite, the scale is 1.
///
/// # Errors
/// [`CalibError::Weight`] if a value is not finite, or if the calibrator chooses an unusable range, such as
/// 0, for a channel with larger values.
pub fn weight_scales(weight: &HostTensor, spec: &SiteSpec) -> Result<Vec<f32>, CalibError> {
    let (_, columns) = weight.matrix();
    let scale =
        |(channel, values): (usize, &[f32])| {
            channel_scale(values, spec.calibrator, spec.largest_code())
                .map_err(|problem| CalibError::Weight { shape: weight.shape.clone(), channel, problem })
        };
    match spec.granularity {
        _ if weight.data.is_empty() => Ok(Vec::new()),
        Granularity::Tensor => Ok(vec![scale((0, &weight.data))?]),
        Granularity::Channel => weight.data.par_chunks(columns).enumerate().map(scale).collect(),
    }
}

/// The scale of the values of one channel or tensor; the error is the problem and the next step.
fn channel_scale(values: &[f32], calibrator: Calibrator, largest_code: u8) -> Result<f32, String> {
    if let Some(value) = values.iter().find(|v| !v.is_finite()) {
        return Err(format!(
            "holds {value}; use another checkpoint, because this one is damaged or its training diverged"
        ));
    }
    let max = values.iter().fold(0f32, |max, v| max.max(v.abs()));
    let scale = |amax: f32| amax / f32::from(largest_code);
    if !scale(max).recip().is_finite() {
        return Ok(1.0);
    }
    let amax =
        if calibrator == Calibrator::Max { max } else { choose_amax(values, calibrator, largest_code)? };
    if !scale(amax).recip().is_finite() {
        return Err(format!(
            "calibrator {calibrator} chose amax {amax}, but the largest magnitude is {max}; use `max` for this weight"
        ));
    }
    Ok(scale(amax))
}

/// The range that `calibrator` chooses from the magnitudes of `values`.
fn choose_amax(values: &[f32], calibrator: Calibrator, largest_code: u8) -> Result<f32, String> {
    let mut histogram = Histogram::new();
    histogram.add(values).map_err(|e| e.to_string())?;
    amax_for_codes(&histogram, calibrator, largest_code).map_err(|e| e.to_string())
}

/// Quantizes `weight` (output channels first) with the settings of its site.
///
/// The scales are those of [`weight_scales`]. The codes are `round_ties_even(clamp(w * r, -Q, Q))` with the
/// f32 reciprocal `r = 1 / s`.
///
/// # Errors
/// The errors of [`weight_scales`].
pub fn quantize_weight(weight: &HostTensor, spec: &SiteSpec) -> Result<Int8Weight, CalibError> {
    Ok(quantize_by_scales(weight, weight_scales(weight, spec)?, spec.largest_code()))
}

/// [`quantize_weight`] for the weight of `layer`.
///
/// # Errors
/// [`CalibError::WeightSite`], which names the site.
pub(crate) fn quantize_for(
    layer: Linear,
    weight: &HostTensor,
    spec: &SiteSpec,
) -> Result<Int8Weight, CalibError> {
    quantize_weight(weight, spec).map_err(|error| error.of_weight(layer))
}

/// Quantizes `weight` (output channels first) with given scales: one for the whole tensor, or one per output
/// channel. The codes are computed as in [`quantize_weight`].
pub fn quantize_by_scales(weight: &HostTensor, scales: Vec<f32>, largest_code: u8) -> Int8Weight {
    let limit = f32::from(largest_code);
    let run = weight.data.len().checked_div(scales.len()).unwrap_or(0).max(1);
    let mut codes = vec![0i8; weight.data.len()];
    let rows = codes.par_chunks_mut(run).zip(weight.data.par_chunks(run)).zip(&scales);
    rows.for_each(|((codes, values), scale)| {
        let inverse = scale.recip();
        let code = |w: &f32| round((w * inverse).clamp(-limit, limit)) as i8;
        codes.iter_mut().zip(values).for_each(|(to, w)| *to = code(w));
    });
    Int8Weight { shape: weight.shape.clone(), codes, scales }
}

/// Rounds a number of magnitude below 2^22, ties to even. Unlike [`f32::round_ties_even`] it needs no call on
/// processors without an instruction for it.
#[inline(always)]
pub(crate) fn round(x: f32) -> f32 {
    const ONES: f32 = 12_582_912.0; // 1.5 * 2^23: the unit in the last place is 1
    (x + ONES) - ONES
}
