//! Codes with a scale and a zero point for each hidden channel of an MLP, at the input of `mlp.fc2`.
//!
//! GELU's output lies in [-0.17, amax], so that symmetric codes leave almost half of their range unused. A
//! zero point uses it, and a scale for each channel gives small channels finer steps. The weight takes the
//! factors of the scales, so a strength balances the error of the input against that of the weight.

use swinq_model::quantized::amax_of;
use swinq_model::{HostTensor, SiteSpec};

use super::layer::{
    Codes, channel_squares, column_magnitudes, column_squares, diagonal_range, every, weight_error,
};
use super::norm::factors;
use super::sample::Rows;
use crate::channels::fold_factors;
use crate::error::CalibError;
use crate::weight::weight_scales;

/// The strengths that are tried; at 0 all channels share one scale.
const STRENGTHS: [f64; 8] = [0.0, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0];

/// The codes whose estimated error at the layer's output is least for the best of their ranges, with channels
/// taken as independent. They have the range in which no value of the calibration is clipped.
pub fn best_codes(rows: &Rows, weight: &HostTensor, spec: &SiteSpec) -> Result<Codes, CalibError> {
    let width = rows.width;
    let thin = every(2, &rows.fit, width);
    let magnitudes = column_magnitudes(&weight.data, width);
    let mut best: Option<(f64, Codes)> = None;
    for strength in STRENGTHS {
        let codes = candidate(rows, &magnitudes, strength);
        let Codes::Channels { factors, .. } = &codes else { unreachable!("a candidate has channels") };
        let weight = fold_factors(weight, factors);
        let squares = column_squares(&weight.data, width);
        let (_, error) = diagonal_range(&codes, codes.amax(), &thin, &squares);
        let scales = weight_scales(&weight, spec)?;
        let square = channel_squares(&codes.divided(&thin, width), width);
        let error = error + weight_error(&weight, &scales, spec, &square);
        if best.as_ref().is_none_or(|(least, _)| error < *least) {
            best = Some((error, codes));
        }
    }
    Ok(best.expect("there is a strength").1)
}

/// The codes of one strength, with the range in which no value of the calibration is clipped.
///
/// A channel's values lie in `[low, high]`, which includes 0; its width is `high - low`. The factors are
/// those of widths for magnitudes ([`factors`]).
pub fn candidate(rows: &Rows, columns: &[f32], strength: f64) -> Codes {
    let low: Vec<f32> = rows.low.iter().map(|low| low.min(0.0)).collect();
    let high: Vec<f32> = rows.high.iter().map(|high| high.max(0.0)).collect();
    let widths: Vec<f32> = low.iter().zip(&high).map(|(low, high)| high - low).collect();
    let factors = match strength {
        0.0 => vec![1.0; columns.len()],
        _ => factors(&widths, columns, strength),
    };
    let step =
        widths.iter().zip(&factors).fold(0.0f32, |step, (width, factor)| step.max(width / factor / 255.0));
    Codes::Channels { amax: amax_of(step), factors, low }
}
