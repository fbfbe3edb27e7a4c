//! The choice of codes on synthetic layers, against exhaustive searches and independent sums.

use swinq_calib::rounding::{Moments, Rounded, RoundingOptions, Statistics, round};
use swinq_calib::{CalibError, quantize_weight};
use swinq_model::{Calibrator, Granularity, HostTensor, Kind, Ptq, SiteSpec};
use swinq_testing::Rng;

fn spec(bits: u8, granularity: Granularity) -> SiteSpec {
    SiteSpec {
        enabled: true,
        bits,
        granularity,
        calibrator: Calibrator::Max,
        amax: None,
        kind: Kind::S8,
        ptq: Ptq::Basic,
    }
}

const CHANNEL: Granularity = Granularity::Channel;

/// A layer, rows of its input as a quantized network might produce them, and the targets of its product.
struct Layer {
    weight: HostTensor,
    bias: Vec<f32>,
    rows: usize,
    x: Vec<f32>,
    t: Vec<f32>,
}

impl Layer {
    /// The inputs are mixtures of a few factors, so they correlate strongly, and their means are not zero.
    /// Layers of one seed have the same weights and mixture; `draw` chooses the rows.
    fn random(seed: u64, draw: u64, rows: usize, outputs: usize, inputs: usize) -> Layer {
        let mut rng = Rng(seed);
        let factors = (inputs / 2).max(1);
        let (mixing, means) = (rng.floats(factors * inputs, 1.0), rng.floats(inputs, 2.0));
        let (weight, bias) = (rng.floats(outputs * inputs, 1.0), rng.floats(outputs, 1.0));
        let mut rng = Rng(seed ^ draw << 32);
        let mut float = Vec::new();
        for _ in 0..rows {
            let hidden = rng.floats(factors, 1.0);
            for i in 0..inputs {
                let mixed: f32 = (0..factors).map(|f| hidden[f] * mixing[f * inputs + i]).sum();
                float.push(means[i] + mixed + 0.2 * rng.float());
            }
        }
        let x = float.iter().map(|x| (x * 8.0).round_ties_even() / 8.0).collect();
        let t = product(&float, &weight, inputs);
        Layer { weight: HostTensor::new(vec![outputs, inputs], weight), bias, rows, x, t }
    }

    /// Number of inputs and of outputs.
    fn sizes(&self) -> (usize, usize) {
        (self.weight.shape[1], self.weight.shape[0])
    }

    fn statistics(&self) -> Statistics {
        let mut moments = Moments::new(self.sizes().0, self.sizes().1);
        moments.add(&self.x, &self.t).unwrap();
        moments.finish().unwrap()
    }

    fn round(&self, spec: &SiteSpec, bias: bool) -> Rounded {
        let bias = bias.then_some(self.bias.as_slice());
        round(&self.weight, bias, spec, &self.statistics(), RoundingOptions::default()).unwrap()
    }

    /// The weight of the nearest codes.
    fn nearest(&self, spec: &SiteSpec) -> Vec<f32> {
        quantize_weight(&self.weight, spec).unwrap().dequantize().data
    }

    /// The errors of the outputs with `weight` and `bias`, `[rows, outputs]`, in f64.
    fn errors(&self, weight: &[f32], bias: &[f32]) -> Vec<f64> {
        let outputs = self.sizes().1;
        let y = product(&self.x, weight, self.sizes().0);
        let error = |(i, y): (usize, &f32)| {
            f64::from(*y) + f64::from(bias[i % outputs])
                - f64::from(self.t[i])
                - f64::from(self.bias[i % outputs])
        };
        y.iter().enumerate().map(error).collect()
    }
}

/// `x` `[rows, k]` times `weight` `[outputs, k]` transposed.
fn product(x: &[f32], weight: &[f32], k: usize) -> Vec<f32> {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    x.chunks(k).flat_map(|row| weight.chunks(k).map(move |w| dot(row, w) as f32)).collect()
}

/// The quantity that [`round`] minimises, by its definition: the mean squared error over the rows with the
/// best bias (with none, if the layer has none), plus the damping. It is quadratic in the weights.
struct Loss {
    k: usize,
    h: Vec<f64>,
    c: Vec<f64>,
    t: Vec<f64>,
    weight: Vec<f32>,
    lambda: f64,
}

impl Loss {
    fn new(layer: &Layer, bias: bool) -> Loss {
        let ((k, outputs), n) = (layer.sizes(), layer.rows as f64);
        let column = |values: &[f32], columns: usize, i: usize| {
            let mut column: Vec<f64> =
                values.iter().skip(i).step_by(columns).map(|&v| f64::from(v)).collect();
            let mean = if bias { column.iter().sum::<f64>() / n } else { 0.0 };
            column.iter_mut().for_each(|v| *v -= mean);
            column
        };
        let x: Vec<Vec<f64>> = (0..k).map(|i| column(&layer.x, k, i)).collect();
        let t: Vec<Vec<f64>> = (0..outputs).map(|i| column(&layer.t, outputs, i)).collect();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>() / n;
        let h: Vec<f64> = x.iter().flat_map(|a| x.iter().map(move |b| dot(a, b))).collect();
        let lambda =
            RoundingOptions::default().damping * (0..k).map(|i| h[i * k + i]).sum::<f64>() / k as f64;
        Loss {
            k,
            c: t.iter().flat_map(|t| x.iter().map(move |x| dot(t, x))).collect(),
            t: t.iter().map(|t| dot(t, t)).collect(),
            h,
            weight: layer.weight.data.clone(),
            lambda,
        }
    }

    /// The loss of one channel with the weight `v`.
    fn of(&self, channel: usize, v: &[f32]) -> f64 {
        let (k, v) = (self.k, v.iter().map(|&v| f64::from(v)).collect::<Vec<f64>>());
        let mut loss = self.t[channel];
        for i in 0..k {
            let row: f64 = (0..k).map(|j| self.h[i * k + j] * v[j]).sum();
            let kept = v[i] - f64::from(self.weight[channel * k + i]);
            loss += v[i] * (row - 2.0 * self.c[channel * k + i]) + self.lambda * kept * kept;
        }
        loss
    }

    fn all(&self, v: &[f32]) -> Vec<f64> {
        v.chunks(self.k).enumerate().map(|(channel, v)| self.of(channel, v)).collect()
    }
}

fn close(a: &[f64], b: &[f64], tolerance: f64) {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).for_each(|(a, b)| assert!((a - b).abs() <= tolerance, "{a} and {b}"));
}

#[test]
fn moments_are_the_means_and_covariances_of_the_rows() {
    let layer = Layer::random(1, 0, 2500, 5, 100);
    let (found, wanted) = (layer.statistics(), Loss::new(&layer, true));
    let mean = |values: &[f32], columns: usize| -> Vec<f64> {
        let sum = |i| values.iter().skip(i).step_by(columns).map(|&v| f64::from(v)).sum::<f64>();
        (0..columns).map(|i| sum(i) / layer.rows as f64).collect()
    };
    close(&found.x_mean, &mean(&layer.x, 100), 1e-5);
    close(&found.t_mean, &mean(&layer.t, 5), 1e-5);
    close(&found.tx, &wanted.c, 1e-3);
    for i in 0..100 {
        close(&found.xx[i * 100..][..=i], &wanted.h[i * 100..][..=i], 1e-4);
    }
}

#[test]
fn moments_do_not_depend_on_the_division_of_the_rows() {
    let layer = Layer::random(2, 0, 2100, 3, 10);
    let mut moments = Moments::new(10, 3);
    let mut at = 0;
    for rows in [1, 0, 1022, 1, 7, 1069] {
        moments.add(&layer.x[at * 10..][..rows * 10], &layer.t[at * 3..][..rows * 3]).unwrap();
        at += rows;
    }
    assert_eq!(at, layer.rows);
    assert_eq!(moments.finish().unwrap(), layer.statistics());
}

#[test]
fn statistics_of_two_parts_merge_into_those_of_all_rows() {
    let layer = Layer::random(4, 0, 900, 3, 10);
    let part = |rows: std::ops::Range<usize>| {
        let mut moments = Moments::new(10, 3);
        // The parts have different means.
        let x: Vec<f32> =
            layer.x[rows.start * 10..rows.end * 10].iter().map(|x| x + rows.start as f32 / 100.0).collect();
        moments.add(&x, &layer.t[rows.start * 3..rows.end * 3]).unwrap();
        (x, moments.finish().unwrap())
    };
    let ((mut x, first), (more, second)) = (part(0..300), part(300..900));
    x.extend(more);
    let mut all = Moments::new(10, 3);
    all.add(&x, &layer.t).unwrap();
    let (all, merged) = (all.finish().unwrap(), first.merged(&second));
    assert_eq!(merged.rows, 900);
    close(&merged.x_mean, &all.x_mean, 1e-5);
    close(&merged.t_mean, &all.t_mean, 1e-5);
    close(&merged.tx, &all.tx, 1e-3);
    close(&merged.tt, &all.tt, 1e-3);
    for i in 0..10 {
        close(&merged.xx[i * 10..][..=i], &all.xx[i * 10..][..=i], 1e-3);
    }
}

#[test]
fn the_error_of_statistics_is_that_of_the_rows() {
    let layer = Layer::random(5, 0, 1500, 6, 20);
    let statistics = layer.statistics();
    for (rounded, bias) in [
        (quantize_weight(&layer.weight, &spec(4, CHANNEL)).unwrap(), layer.bias.clone()),
        (layer.round(&spec(4, CHANNEL), true).weight, layer.round(&spec(4, CHANNEL), true).bias.unwrap()),
    ] {
        let errors = layer.errors(&rounded.dequantize().data, &bias);
        let expected = errors.iter().map(|e| e * e).sum::<f64>() / errors.len() as f64;
        let added: Vec<f32> = bias.iter().zip(&layer.bias).map(|(b, float)| b - float).collect();
        let found = statistics.error(&rounded, &added).unwrap();
        assert!((found - expected).abs() < 1e-3 * expected, "{found} and {expected}");
    }
}

#[test]
fn a_large_mean_does_not_hide_the_variance() {
    let mut rng = Rng(3);
    let x: Vec<f32> = (0..3000).map(|_| 10_000.0 + rng.float()).collect();
    let mut moments = Moments::new(1, 1);
    moments.add(&x, &x).unwrap();
    let variance = moments.finish().unwrap().xx[0];
    assert!(
        (variance - 1.0 / 3.0).abs() < 0.02,
        "{variance}; the values are uniform over an interval of length 2"
    );
}

#[test]
fn codes_are_close_to_those_of_an_exhaustive_search() {
    let (mut best_found, mut channels) = (0, 0);
    for seed in 0..5 {
        for bias in [true, false] {
            let layer = Layer::random(10 + seed, 0, 200, 4, 4);
            let loss = Loss::new(&layer, bias);
            let rounded = layer.round(&spec(4, CHANNEL), bias).weight;
            let found = loss.all(&rounded.dequantize().data);
            for (channel, found) in found.into_iter().enumerate() {
                let best = exhaustive(&loss, channel, rounded.scale(channel));
                assert!(
                    found <= 1.5 * best,
                    "seed {seed}, channel {channel}: {found}, but {best} is possible"
                );
                best_found += usize::from(found <= best * (1.0 + 1e-4));
                channels += 1;
            }
        }
    }
    assert!(10 * best_found >= 8 * channels, "{best_found} of {channels} channels have the best codes");
}

/// The least loss of all codes with this scale.
fn exhaustive(loss: &Loss, channel: usize, scale: f32) -> f64 {
    let codes = |index: i32| (0..4).map(move |i| (index / 15i32.pow(i) % 15 - 7) as f32 * scale);
    let losses = (0..15i32.pow(4)).map(|index| loss.of(channel, &codes(index).collect::<Vec<f32>>()));
    losses.fold(f64::INFINITY, f64::min)
}

#[test]
fn no_channel_is_worse_than_with_the_nearest_codes() {
    for (bits, bias, inputs) in [(4, true, 70), (4, false, 70), (8, true, 130), (8, false, 3), (4, true, 1)] {
        let layer = Layer::random(20, 0, 500, 100, inputs);
        let (spec, loss) = (spec(bits, CHANNEL), Loss::new(&layer, bias));
        let found = loss.all(&layer.round(&spec, bias).weight.dequantize().data);
        let nearest = loss.all(&layer.nearest(&spec));
        let worse =
            found.iter().zip(&nearest).filter(|(found, nearest)| **found > **nearest * 1.0001).count();
        assert_eq!(worse, 0, "{bits} bits, bias {bias}, {inputs} inputs");
        let [found, nearest] = [found, nearest].map(|losses| losses.iter().sum::<f64>());
        assert!(found < nearest, "{bits} bits, bias {bias}, {inputs} inputs: {found} against {nearest}");
    }
}

#[test]
fn one_scale_for_the_tensor_is_searched_for_the_whole_layer() {
    let layer = Layer::random(30, 0, 500, 100, 40);
    let (spec, loss) = (spec(4, Granularity::Tensor), Loss::new(&layer, true));
    let rounded = layer.round(&spec, true).weight;
    assert_eq!(rounded.scales.len(), 1);
    let found: f64 = loss.all(&rounded.dequantize().data).iter().sum();
    let nearest: f64 = loss.all(&layer.nearest(&spec)).iter().sum();
    assert!(found < 0.5 * nearest, "{found} against {nearest}");
}

#[test]
fn errors_fall_on_rows_that_were_not_used() {
    let (used, held_out) = (Layer::random(40, 0, 2000, 64, 96), Layer::random(40, 1, 2000, 64, 96));
    assert_eq!(used.weight, held_out.weight);
    let spec = spec(4, CHANNEL);
    let rounded = used.round(&spec, true);
    let found = held_out.errors(&rounded.weight.dequantize().data, &rounded.bias.unwrap());
    let nearest = held_out.errors(&held_out.nearest(&spec), &held_out.bias);
    let mse = |errors: &[f64]| errors.iter().map(|e| e * e).sum::<f64>();
    assert!(mse(&found) < 0.3 * mse(&nearest), "{} against {}", mse(&found), mse(&nearest));
    // The sum over the channels of the squared mean errors.
    let means = |errors: &[f64]| {
        let mean = |c| errors.iter().skip(c).step_by(64).sum::<f64>() / 2000.0;
        (0..64).map(|c| mean(c) * mean(c)).sum::<f64>().sqrt()
    };
    assert!(means(&found) < 0.1 * means(&nearest), "{} against {}", means(&found), means(&nearest));
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let layer = Layer::random(50, 0, 1500, 200, 150);
            (layer.round(&spec(4, CHANNEL), true), layer.round(&spec(8, Granularity::Tensor), false))
        })
    };
    let one = run(1);
    assert_eq!(one, run(2));
    assert_eq!(one, run(5));
}

#[test]
fn columns_that_are_always_zero_keep_their_nearest_codes() {
    let mut layer = Layer::random(60, 0, 300, 6, 8);
    layer.x.iter_mut().skip(3).step_by(8).for_each(|x| *x = 0.0);
    let rounded = layer.round(&spec(8, CHANNEL), true).weight;
    for channel in 0..6 {
        let wanted = layer.weight.data[channel * 8 + 3] / rounded.scale(channel);
        let code = rounded.codes[channel * 8 + 3];
        assert_eq!(f32::from(code), wanted.round_ties_even().clamp(-127.0, 127.0), "channel {channel}");
    }
}

#[test]
fn inputs_that_are_all_zero_or_constant_leave_the_nearest_codes_possible() {
    for value in [0.0, 3.0] {
        let mut layer = Layer::random(61, 0, 50, 4, 8);
        layer.x.fill(value);
        layer.t = product(&layer.x, &layer.weight.data, 8);
        let (spec, loss) = (spec(4, CHANNEL), Loss::new(&layer, true));
        let rounded = layer.round(&spec, true);
        let errors = layer.errors(&rounded.weight.dequantize().data, &rounded.bias.unwrap());
        assert!(errors.iter().all(|e| e.abs() < 1e-4), "{value}: the bias makes up for every error");
        let distance = |v: &[f32]| v.iter().zip(&loss.weight).map(|(v, w)| (v - w).powi(2)).sum::<f32>();
        let (found, nearest) = (distance(&rounded.weight.dequantize().data), distance(&layer.nearest(&spec)));
        assert!(found <= nearest, "{value}: the damping prefers weights that are close: {found}, {nearest}");
    }
}

#[test]
fn dead_channels_have_codes_of_zero() {
    let mut layer = Layer::random(62, 0, 300, 3, 8);
    layer.weight.data[8..16].fill(0.0);
    layer.t.iter_mut().skip(1).step_by(3).for_each(|t| *t = 0.0);
    let rounded = layer.round(&spec(4, CHANNEL), true);
    assert_eq!(rounded.weight.codes[8..16], [0; 8]);
    assert_eq!(rounded.weight.scales[1], 1.0);
    assert_eq!(rounded.bias.unwrap()[1], layer.bias[1]);
}

#[test]
fn fewer_rows_than_columns_and_a_single_row_are_damped() {
    for rows in [1, 5] {
        let layer = Layer::random(63, 0, rows, 6, 40);
        let (spec, loss) = (spec(4, CHANNEL), Loss::new(&layer, false));
        let rounded = layer.round(&spec, false).weight;
        let (found, nearest) = (loss.all(&rounded.dequantize().data), loss.all(&layer.nearest(&spec)));
        assert!(found.iter().zip(&nearest).all(|(found, nearest)| found <= nearest), "{rows} rows");
        // Without any information the weights stay within a few steps of the float weights.
        let values = rounded.dequantize().data;
        let farthest = values.iter().zip(&layer.weight.data).map(|(v, w)| (v - w).abs()).fold(0.0, f32::max);
        let step = rounded.scales.iter().fold(0f32, |a, b| a.max(*b));
        assert!(farthest < 4.0 * step, "{rows} rows: {farthest}, step {step}");
    }
}

#[test]
fn what_is_not_finite_or_missing_is_refused() {
    let layer = Layer::random(64, 0, 4, 2, 3);
    for bad in [f32::NAN, f32::INFINITY] {
        let mut x = layer.x.clone();
        x[4] = bad;
        let error = Moments::new(3, 2).add(&x, &layer.t).unwrap_err();
        assert!(matches!(error, CalibError::NotFinite { index: 4, .. }), "{error}");
        let mut t = layer.t.clone();
        t[7] = bad;
        assert!(matches!(Moments::new(3, 2).add(&layer.x, &t), Err(CalibError::NotFinite { index: 7, .. })));
    }
    assert!(matches!(Moments::new(3, 2).finish(), Err(CalibError::Empty)));
    let mut weight = layer.weight.clone();
    weight.data[0] = f32::NAN;
    let rounded =
        round(&weight, None, &spec(4, CHANNEL), &layer.statistics(), RoundingOptions::default()).unwrap_err();
    assert!(rounded.to_string().contains("NaN"), "{rounded}");
}
