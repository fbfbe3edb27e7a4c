//! Quantized weights against the number contract, value by value.

use crate::common;
use swinq_calib::{CalibError, quantize_weight, weight_scales};
use swinq_model::{Calibrator, Granularity, HostTensor, Kind, Ptq, SiteSpec};

fn spec(bits: u8, granularity: Granularity, calibrator: Calibrator) -> SiteSpec {
    SiteSpec { enabled: true, bits, granularity, calibrator, amax: None, kind: Kind::S8, ptq: Ptq::Basic }
}

/// Channels of very different ranges, one of zeros and one of subnormal values.
fn weight() -> HostTensor {
    let sample = common::samples().swap_remove(2);
    let row = |r: usize| sample.values[r * 240..(r + 1) * 240].iter();
    let mut data: Vec<f32> = (0..6).flat_map(|r| row(r).map(move |v| v * 10f32.powi(r as i32 - 3))).collect();
    data.extend([0.0; 240]);
    data.extend([f32::from_bits(77); 240]);
    HostTensor::new([8, 15, 4, 4], data)
}

#[test]
fn max_per_channel_and_per_tensor_follow_the_contract() {
    for (bits, limit) in [(8, 127.0f32), (7, 63.0), (4, 7.0)] {
        for granularity in [Granularity::Channel, Granularity::Tensor] {
            let weight = weight();
            let quantized = quantize_weight(&weight, &spec(bits, granularity, Calibrator::Max)).unwrap();
            assert_eq!(quantized.shape, weight.shape);
            let max = |values: &[f32]| values.iter().fold(0f32, |m, v| m.max(v.abs()));
            let runs = if granularity == Granularity::Channel { 240 } else { weight.data.len() };
            let expected: Vec<f32> = weight
                .data
                .chunks(runs)
                .map(|row| if max(row) < 1e-30 { 1.0 } else { max(row) / limit })
                .collect();
            assert_eq!(quantized.scales, expected);
            for (i, (w, code)) in weight.data.iter().zip(&quantized.codes).enumerate() {
                let r = 1.0 / expected[i / runs];
                assert_eq!(
                    f32::from(*code),
                    (w * r).max(-limit).min(limit).round_ties_even(),
                    "value {i}: {w}"
                );
            }
            let largest = quantized.codes.iter().map(|c| c.unsigned_abs()).max().unwrap();
            assert_eq!(f32::from(largest), limit);
        }
    }
}

#[test]
fn dequantized_weights_differ_by_at_most_half_a_scale() {
    let weight = weight();
    let quantized = quantize_weight(&weight, &spec(8, Granularity::Channel, Calibrator::Max)).unwrap();
    let restored = quantized.dequantize();
    for (i, (w, back)) in weight.data.iter().zip(&restored.data).enumerate() {
        let bound = if i / 240 < 6 { quantized.scale(i / 240) * 0.5 * (1.0 + 1e-4) } else { 1e-37 };
        assert!((w - back).abs() <= bound, "value {i}: {w} {back}");
    }
    assert!(quantized.codes[6 * 240..].iter().all(|c| *c == 0));
    assert_eq!(quantized.scales[6..], [1.0, 1.0]);
}

#[test]
fn calibrators_choose_a_range_for_each_channel() {
    let weight = weight();
    let of = |calibrator| weight_scales(&weight, &spec(4, Granularity::Channel, calibrator)).unwrap();
    let error = |calibrator| {
        let restored =
            quantize_weight(&weight, &spec(4, Granularity::Channel, calibrator)).unwrap().dequantize();
        let channel = |r: usize| -> f64 {
            let values = r * 240..(r + 1) * 240;
            values.map(|i| f64::from(weight.data[i] - restored.data[i]).powi(2)).sum()
        };
        [0, 1, 2, 3, 4, 5].map(channel)
    };
    let (max, percentile, mse, entropy) =
        (of(Calibrator::Max), of(Calibrator::Percentile(95.0)), of(Calibrator::Mse), of(Calibrator::Entropy));
    for r in 0..6 {
        assert!(percentile[r] < max[r] && mse[r] < max[r] && entropy[r] <= max[r], "channel {r}");
    }
    assert!(mse != percentile && mse != entropy && percentile != entropy);
    let (by_max, by_mse) = (error(Calibrator::Max), error(Calibrator::Mse));
    assert!((0..6).all(|r| by_mse[r] < by_max[r]), "{by_max:?} {by_mse:?}");
}

#[test]
fn weights_that_cannot_be_quantized_are_refused() {
    let max = spec(8, Granularity::Channel, Calibrator::Max);
    let refused = quantize_weight(&HostTensor::new([2, 2], vec![0.0, 1.0, f32::NAN, 1.0]), &max);
    assert!(matches!(refused, Err(CalibError::Weight { channel: 1, .. })));
    let sparse = HostTensor::new([1, 100], [vec![0.0; 99], vec![1.0]].concat());
    let refused = quantize_weight(&sparse, &spec(8, Granularity::Channel, Calibrator::Percentile(90.0)));
    assert!(refused.unwrap_err().to_string().contains("use `max`"));
    let none = quantize_weight(&HostTensor::new([0, 4], vec![]), &max).unwrap();
    assert!(none.codes.is_empty() && none.scales.is_empty());
}
