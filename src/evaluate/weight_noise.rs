//! Quantization noise of weights: the distance of a checkpoint's codes from the float weights that they were made of.

use std::collections::BTreeMap;

use swinq_eval::Distortion;
use swinq_model::quantized::{Int8Weight, Param};
use swinq_model::site::all_linears;
use swinq_model::{QuantizedModel, Site};

/// Signal-to-noise ratio in dB of every quantized weight of `model` against `float`. Empty if `model` was not made from
/// `float`. A weight that is not a rounding of the float weight, because training or a change of its channels moved
/// it, is left out.
pub(super) fn measure(model: &QuantizedModel, float: &QuantizedModel) -> BTreeMap<Site, f64> {
    let same = model.provenance.source.sha256 == float.provenance.source.sha256 && !float.is_quantized();
    if !same || model.config != float.config {
        return BTreeMap::new();
    }
    let noise = |linear: swinq_model::Linear| {
        let name = linear.weight_name();
        let (Param::Int8(codes), Param::Float(exact)) = (model.params.get(&name)?, float.params.get(&name)?)
        else {
            return None;
        };
        // The codes are those of the weight times the factors of its input channels.
        let factors = model.weight_factors(linear).unwrap_or(&[1.0]);
        let exact: Vec<f32> = exact.data.iter().zip(factors.iter().cycle()).map(|(w, f)| w * f).collect();
        Some((Site::Weight(linear), sqnr_db(codes, &exact)?))
    };
    all_linears(&model.config).into_iter().filter_map(noise).collect()
}

/// The ratio; `None` if a code that is not clipped differs from the exact quotient by a step or more.
fn sqnr_db(weight: &Int8Weight, exact: &[f32]) -> Option<f64> {
    let (_, columns) = weight.matrix();
    let largest = weight.codes.iter().map(|code| code.unsigned_abs()).max()?;
    for (i, (&code, &value)) in weight.codes.iter().zip(exact).enumerate() {
        let quotient = value / weight.scale(i / columns);
        if code.unsigned_abs() < largest && (quotient - f32::from(code)).abs() >= 1.0 {
            return None;
        }
    }
    let mut distortion = Distortion::default();
    distortion.update(exact, &weight.dequantize().data).ok()?;
    Some(distortion.sqnr_db())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_roundings_of_the_weight_have_a_ratio() {
        let weight = Int8Weight { shape: vec![2, 2], codes: vec![127, -3, 127, 64], scales: vec![0.5, 0.25] };
        let exact = [63.5, -1.6, 40.0, 16.1];
        let noise = 0.1f64.powi(2) + 8.25f64.powi(2) + 0.1f64.powi(2);
        let signal: f64 = exact.iter().map(|&x: &f32| f64::from(x).powi(2)).sum();
        let expected = 10.0 * (signal / noise).log10();
        assert!((sqnr_db(&weight, &exact).unwrap() - expected).abs() < 1e-4);
        assert_eq!(sqnr_db(&weight, &[63.5, -2.1, 40.0, 16.1]), None, "-2.1 / 0.5 does not round to -3");
    }
}
