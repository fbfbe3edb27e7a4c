//! Calibrators against numpy and against their definitions in plain loops.

use crate::common::{self, histogram};
use swinq_calib::{CalibError, Histogram, amax, amax_for_codes};
use swinq_model::Calibrator;

/// The bins without exact zeros, computed by a plain f64 loop.
fn bins(values: &[f32], width: f64) -> Vec<f64> {
    let mut bins = Vec::new();
    for v in values.iter().filter(|v| **v != 0.0) {
        let i = (f64::from(v.abs()) / width).floor() as usize;
        bins.resize(bins.len().max(i + 1), 0.0);
        bins[i] += 1.0;
    }
    bins
}

#[test]
fn percentiles_agree_with_numpy_within_a_bin() {
    for sample in common::samples() {
        let histogram = histogram(&sample.values);
        let width = histogram.width();
        assert!(width <= f64::from(histogram.max()) / 2048.0, "{}", sample.name);
        for [p, higher, linear] in sample.percentiles {
            let chosen = f64::from(amax(&histogram, Calibrator::Percentile(p)).unwrap());
            let above = chosen - higher;
            // The range is the upper edge of the bin that holds numpy's result, so it exceeds that by at most
            // a bin.
            assert!(above >= 0.0 && above <= width, "{} {p}: {chosen} {higher} {width}", sample.name);
            // numpy's interpolated percentile is at most `higher`, less by at most one gap between values.
            assert!(chosen >= linear, "{} {p}: {chosen} {linear}", sample.name);
            if p <= 99.0 {
                assert!(
                    chosen - linear <= 3.0 * width + 0.01 * linear,
                    "{} {p}: {chosen} {linear}",
                    sample.name
                );
            }
        }
        assert_eq!(amax(&histogram, Calibrator::Percentile(100.0)).unwrap(), histogram.max());
    }
}

/// Squared error of quantizing the bin centers, by its definition.
fn mse_cost(bins: &[f64], width: f64, amax: f64, largest_code: f64) -> f64 {
    let scale = amax / largest_code;
    let mut sum = 0.0;
    for (i, n) in bins.iter().enumerate() {
        let x = (i as f64 + 0.5) * width;
        let code = (x / scale).round_ties_even().clamp(-largest_code, largest_code);
        sum += n * (x - code * scale).powi(2);
    }
    sum
}

/// The candidates of the mse calibrator, enumerated as `mantissa * 2^exponent`.
fn mse_candidates(used: usize, width: f64, max: f64) -> Vec<f64> {
    let mut edges: Vec<usize> =
        (0..12).flat_map(|e| (1..256usize).map(move |m| m << e)).filter(|edge| *edge < used).collect();
    edges.sort_unstable();
    edges.dedup();
    edges.into_iter().map(|edge| edge as f64 * width).chain([max]).collect()
}

#[test]
fn mse_is_the_brute_force_minimum() {
    for sample in common::samples() {
        let histogram = histogram(&sample.values);
        let (width, max) = (histogram.width(), f64::from(histogram.max()));
        let bins = bins(&sample.values, width);
        for largest_code in [127u8, 63, 7] {
            let q = f64::from(largest_code);
            let least = mse_candidates(bins.len(), width, max)
                .into_iter()
                .map(|amax| mse_cost(&bins, width, amax, q))
                .fold(f64::INFINITY, f64::min);
            let chosen = amax_for_codes(&histogram, Calibrator::Mse, largest_code).unwrap();
            let cost = mse_cost(&bins, width, f64::from(chosen), q);
            assert!((cost - least).abs() <= 1e-9 * least, "{} {largest_code}: {cost} {least}", sample.name);
            // The chosen range is better than the largest magnitude, unless it is that magnitude.
            assert!(f64::from(chosen) == max || cost < mse_cost(&bins, width, max, q), "{}", sample.name);
        }
    }
}

#[test]
fn mse_over_bins_is_close_to_the_minimum_over_the_values() {
    for sample in common::samples().iter().filter(|s| s.name != "half_constant") {
        let histogram = histogram(&sample.values);
        let error = |amax: f64| -> f64 {
            let scale = amax / 127.0;
            let one = |v: &f32| {
                let x = f64::from(v.abs());
                (x - (x / scale).round_ties_even().min(127.0) * scale).powi(2)
            };
            sample.values.iter().map(one).sum()
        };
        let max = f64::from(histogram.max());
        let least = (200..=2000).map(|i| error(max * f64::from(i) / 2000.0)).fold(f64::INFINITY, f64::min);
        let chosen = error(f64::from(amax(&histogram, Calibrator::Mse).unwrap()));
        assert!(chosen <= 1.1 * least, "{}: {chosen} {least}", sample.name);
    }
}

/// `KL(P || R)` of the candidate that keeps `kept` bins, with both distributions computed by their
/// definitions.
fn divergence(bins: &[f64], kept: usize, groups: usize) -> f64 {
    let mut p = bins[..kept].to_vec();
    p[kept - 1] += bins[kept..].iter().sum::<f64>();
    let mut r = vec![0.0; kept];
    for group in 0..groups {
        let members: Vec<usize> =
            (0..kept).filter(|j| j * groups / kept == group && bins[*j] > 0.0).collect();
        let mass: f64 = members.iter().map(|&j| bins[j]).sum();
        members.iter().for_each(|&j| r[j] = mass / members.len() as f64);
    }
    let (total_p, total_r) = (p.iter().sum::<f64>(), r.iter().sum::<f64>());
    let term = |(p, r): (&f64, &f64)| match (*p, *r) {
        (0.0, _) => 0.0,
        (_, 0.0) => f64::INFINITY,
        (p, r) => p / total_p * ((p / total_p) / (r / total_r)).ln(),
    };
    p.iter().zip(&r).map(term).sum()
}

#[test]
fn entropy_is_the_brute_force_minimum() {
    for (sample, groups) in common::samples().iter().zip([128, 128, 128, 128, 128, 8]) {
        let histogram = histogram(&sample.values);
        let (width, max) = (histogram.width(), f64::from(histogram.max()));
        let mut bins = bins(&sample.values, width);
        bins[0] = bins[1];
        let largest_code = (groups - 1) as u8;
        let chosen = f64::from(amax_for_codes(&histogram, Calibrator::Entropy, largest_code).unwrap());
        let kept = if chosen == max { bins.len() } else { (chosen / width).round() as usize };
        let got = divergence(&bins, kept, groups);
        // The definition is slow, so every candidate is checked for one sample only, and every seventh for
        // the others.
        let step = if sample.name == "gaussian" { 1 } else { 7 };
        let least = (groups..=bins.len())
            .step_by(step)
            .map(|kept| divergence(&bins, kept, groups))
            .fold(f64::INFINITY, f64::min);
        assert!(got.is_finite() && got <= least * (1.0 + 1e-9) + 1e-12, "{}: {got} {least}", sample.name);
    }
}

/// `count` values `shape(x)` of a Gaussian variable `x`.
fn generated(count: usize, shape: impl Fn(f64) -> f64) -> Vec<f32> {
    let mut rng = swinq_testing::Rng(1);
    let mut gaussian = || (-2.0 * rng.unit().ln()).sqrt() * (std::f64::consts::TAU * rng.unit()).cos();
    (0..count).map(|_| shape(gaussian()) as f32).collect()
}

#[test]
fn four_calibrators_give_four_ranges() {
    type Shape = fn(f64) -> f64;
    let distributions: [(&str, Shape); 4] = [
        ("gaussian", |x| x),
        ("heavy tailed", |x| x * x * x),
        ("tiny", |x| 1e-20 * x * x.abs()),
        ("like GELU's", |x| (3.0 * x - 2.0) / (1.0 + (3.4 - 5.1 * x).exp())),
    ];
    for (name, shape) in distributions {
        let histogram = histogram(&generated(400_000, shape));
        let calibrators =
            [Calibrator::Max, Calibrator::Percentile(99.99), Calibrator::Mse, Calibrator::Entropy];
        let ranges = calibrators.map(|c| amax(&histogram, c).unwrap());
        assert!(ranges.iter().all(|a| *a > 0.0 && *a <= histogram.max()), "{name}: {ranges:?}");
        for i in 0..4 {
            for j in 0..i {
                assert_ne!(ranges[i], ranges[j], "{name}: {:?} {:?}", calibrators[i], calibrators[j]);
            }
        }
    }
}

#[test]
fn one_repeated_value_is_its_own_range() {
    for value in [1.0f32, -3.25, 1e-20, 7e20] {
        let histogram = histogram(&[value; 1000]);
        for calibrator in [Calibrator::Max, Calibrator::Percentile(99.99), Calibrator::Entropy] {
            assert_eq!(amax(&histogram, calibrator).unwrap(), value.abs(), "{calibrator}");
        }
        // mse sees the bin's center instead of the value, so it restores the value within a bin's width.
        let chosen = f64::from(amax(&histogram, Calibrator::Mse).unwrap());
        let x = f64::from(value.abs());
        let scale = chosen / 127.0;
        let restored = (x / scale).round_ties_even().min(127.0) * scale;
        assert!((restored - x).abs() <= histogram.width(), "{value}: {chosen}");
    }
}

#[test]
fn zeros_are_handled_and_empty_histograms_refused() {
    let mut values = vec![0.0f32; 9999];
    values.push(2.0);
    let mostly_zero = histogram(&values);
    assert_eq!(amax(&mostly_zero, Calibrator::Max).unwrap(), 2.0);
    assert_eq!(amax(&mostly_zero, Calibrator::Percentile(99.9)).unwrap(), 0.0);
    assert_eq!(amax(&mostly_zero, Calibrator::Entropy).unwrap(), 2.0);
    for calibrator in [Calibrator::Max, Calibrator::Percentile(99.99), Calibrator::Mse, Calibrator::Entropy] {
        assert_eq!(amax(&histogram(&[0.0; 10]), calibrator).unwrap(), 0.0);
        assert!(matches!(amax(&Histogram::new(), calibrator), Err(CalibError::Empty)));
    }
}
