//! The error of one linear layer's output, and the choice of its ranges and scales by it.

use std::borrow::Cow;

use candle_core::{Device, Tensor};
use rayon::prelude::*;
use swinq_model::quantized::scale_of;
use swinq_model::{HostTensor, Int8, SiteSpec};

use crate::channels::fold_factors;
use crate::error::CalibError;
use crate::weight::round;

/// How a layer's input is rounded.
#[derive(Clone, Debug, PartialEq)]
pub enum Codes {
    /// One scale, `amax / 127`.
    Tensor(f32),
    /// A scale `amax / 127 * factor` and a zero point for each channel. The weight includes the factors.
    Channels {
        /// 127 times the common scale.
        amax: f32,
        /// Factor of each channel.
        factors: Vec<f32>,
        /// The least value of each channel, at most 0.
        low: Vec<f32>,
    },
}

impl Codes {
    /// The values that the codes of `x` `[rows, width]` represent, divided by the channel's factor.
    pub fn round(&self, x: &[f32], width: usize) -> Vec<f32> {
        let mut rounded = x.to_vec();
        let scales = ChannelScales::new(self, width);
        rounded.par_chunks_mut(width).for_each(|row| {
            let each = row.iter_mut().zip(&scales.recips).zip(&scales.zero_points);
            each.for_each(|((x, recip), zero)| *x = scales.units(*x, *recip, *zero) * scales.scale);
        });
        rounded
    }

    /// The code of the value 0 in each channel, with which the least value has a code close to -128; empty
    /// without [`Codes::Channels`].
    pub fn zero_points(&self) -> Vec<i8> {
        let Codes::Channels { amax, factors, low } = self else { return Vec::new() };
        let scale = scale_of(*amax);
        let zero = |(low, factor): (&f32, &f32)| {
            Int8::clamp((Int8::MIN - low * (scale * factor).recip()).round_ties_even()) as i8
        };
        low.iter().zip(factors).map(zero).collect()
    }

    /// `x` `[rows, width]` divided by the channel's factor.
    pub fn divided<'x>(&self, x: &'x [f32], width: usize) -> Cow<'x, [f32]> {
        match self {
            Codes::Channels { factors, .. } => {
                let mut divided = x.to_vec();
                let divide = |row: &mut [f32]| row.iter_mut().zip(factors).for_each(|(x, f)| *x /= f);
                divided.par_chunks_mut(width).for_each(divide);
                Cow::Owned(divided)
            }
            Codes::Tensor(_) => Cow::Borrowed(x),
        }
    }

    /// The weight `[n, width]` whose codes multiply these codes: with the channel's factor in each column.
    pub fn stored<'w>(&self, weight: &'w HostTensor) -> Cow<'w, HostTensor> {
        match self {
            Codes::Channels { factors, .. } => fold_factors(weight, factors),
            Codes::Tensor(_) => Cow::Borrowed(weight),
        }
    }

    /// The same codes with another range.
    pub fn with_amax(&self, amax: f32) -> Codes {
        match self {
            Codes::Tensor(_) => Codes::Tensor(amax),
            Codes::Channels { factors, low, .. } => {
                Codes::Channels { amax, factors: factors.clone(), low: low.clone() }
            }
        }
    }

    /// The range: 127 times the scale, or the common scale.
    pub fn amax(&self) -> f32 {
        match self {
            Codes::Tensor(amax) | Codes::Channels { amax, .. } => *amax,
        }
    }
}

/// The scale of each channel.
struct ChannelScales {
    /// The common scale.
    scale: f32,
    recips: Vec<f32>,
    zero_points: Vec<f32>,
}

impl ChannelScales {
    fn new(codes: &Codes, width: usize) -> ChannelScales {
        let scale = scale_of(codes.amax());
        let (recips, zero_points) = match codes {
            Codes::Tensor(_) => (vec![scale.recip(); width], vec![0.0; width]),
            Codes::Channels { factors, .. } => (
                factors.iter().map(|factor| (scale * factor).recip()).collect(),
                codes.zero_points().into_iter().map(f32::from).collect(),
            ),
        };
        ChannelScales { scale, recips, zero_points }
    }

    /// The code of `x` minus the zero point. The addition of the zero point is rounded, unlike the engine's,
    /// which matters for ties only.
    #[inline(always)]
    fn units(&self, x: f32, recip: f32, zero: f32) -> f32 {
        round(Int8::clamp(x * recip + zero)) - zero
    }
}

/// `x` `[rows, k]` times the transpose of `w` `[n, k]`: `[rows, n]`.
pub fn product(x: Vec<f32>, w: &[f32], k: usize) -> Result<Vec<f32>, CalibError> {
    let (rows, n) = (x.len() / k, w.len() / k);
    let multiply = || {
        let (x, w) =
            (Tensor::from_vec(x, (rows, k), &Device::Cpu)?, Tensor::from_slice(w, (n, k), &Device::Cpu)?);
        x.matmul(&w.t()?)?.flatten_all()?.to_vec1::<f32>()
    };
    multiply().map_err(|e| CalibError::Float(e.into()))
}

/// The mean of the squared differences.
pub fn mean_square(a: &[f32], b: &[f32]) -> f64 {
    let sums = a.par_chunks(1 << 14).zip(b.par_chunks(1 << 14)).map(|(a, b)| {
        let square = |(a, b): (&f32, &f32)| f64::from(a - b).powi(2);
        a.iter().zip(b).map(square).sum::<f64>()
    });
    // The parts are added in order, so that the sum does not depend on the number of threads.
    sums.collect::<Vec<f64>>().into_iter().sum::<f64>() / a.len().max(1) as f64
}

/// The mean of the squares of each channel of `x` `[rows, width]`.
pub fn channel_squares(x: &[f32], width: usize) -> Vec<f64> {
    const TOGETHER: usize = 64;
    let rows = (x.len() / width).max(1) as f64;
    let mut sums = vec![0.0; width];
    // Each sum is in the order of the rows, whatever the number of threads.
    sums.par_chunks_mut(TOGETHER).enumerate().for_each(|(part, sums)| {
        for row in x.chunks_exact(width) {
            let row = &row[part * TOGETHER..][..sums.len()];
            sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x).powi(2));
        }
        sums.iter_mut().for_each(|sum| *sum /= rows);
    });
    sums
}

/// The sum of the squares of each column of `w` `[n, width]`.
pub fn column_squares(w: &[f32], width: usize) -> Vec<f64> {
    let n = (w.len() / width) as f64;
    channel_squares(w, width).into_iter().map(|mean| mean * n).collect()
}

/// The largest magnitude of each column of `w` `[n, width]`.
pub fn column_magnitudes(w: &[f32], width: usize) -> Vec<f32> {
    let mut found = vec![0.0f32; width];
    for row in w.chunks_exact(width) {
        found.iter_mut().zip(row).for_each(|(found, w)| *found = found.max(w.abs()));
    }
    found
}

/// The ranges that are tried: the largest magnitude times `2^(-i / 8)`, for `i` in `0..24`.
fn candidates(max: f32) -> impl Iterator<Item = f32> {
    (0..24).map(move |i| (f64::from(max) * libm::exp2(-f64::from(i) / 8.0)) as f32)
}

/// The range whose rounding of `x` `[rows, width]` has the least error, where the error of channel `j` counts
/// `weight[j]` times; and that error, for one row. Errors of channels are taken as independent.
pub fn diagonal_range(codes: &Codes, max: f32, x: &[f32], weight: &[f64]) -> (f32, f64) {
    let width = weight.len();
    let exact = codes.divided(x, width);
    let weight: Vec<f32> = weight.iter().map(|weight| *weight as f32).collect();
    let error = |amax: f32| {
        let scales = ChannelScales::new(&codes.with_amax(amax), width);
        let row = |(x, exact): (&[f32], &[f32])| {
            let error = |[x, exact, weight, recip, zero]: [f32; 5]| {
                let error = scales.units(x, recip, zero) * scales.scale - exact;
                error * error * weight
            };
            f64::from(sum([x, exact, &weight, &scales.recips, &scales.zero_points], error))
        };
        let errors = x.par_chunks(width).zip(exact.par_chunks(width)).map(row);
        errors.collect::<Vec<f64>>().into_iter().sum::<f64>() / (x.len() / width).max(1) as f64
    };
    let candidates: Vec<f32> = candidates(max).collect();
    least(candidates.into_iter().map(|amax| (amax, error(amax))))
}

/// The sum of `value` over the elements of slices of equal length, in 16 parts that become vectors.
#[inline(always)]
fn sum<const N: usize>(slices: [&[f32]; N], value: impl Fn([f32; N]) -> f32) -> f32 {
    let mut parts = [0.0f32; 16];
    let chunks = slices.map(|slice| slice.as_chunks::<16>());
    for chunk in 0..chunks[0].0.len() {
        let chunk = chunks.map(|(chunks, _)| &chunks[chunk]);
        for (lane, part) in parts.iter_mut().enumerate() {
            *part += value(chunk.map(|values| values[lane]));
        }
    }
    let rest = (0..chunks[0].1.len()).map(|at| value(chunks.map(|(_, rest)| rest[at])));
    rest.sum::<f32>() + parts.into_iter().sum::<f32>()
}

/// The first of the candidates with the least error, and this error.
///
/// # Panics
/// If there is no candidate.
pub fn least(candidates: impl IntoIterator<Item = (f32, f64)>) -> (f32, f64) {
    candidates
        .into_iter()
        .reduce(|best, next| if next.1 < best.1 { next } else { best })
        .expect("a candidate")
}

/// The error that rounding `weight` by `scales` causes at the layer's output for one row, where column `j`
/// has inputs of mean square `square[j]`. Errors of columns are taken as independent.
pub fn weight_error(weight: &HostTensor, scales: &[f32], spec: &SiteSpec, square: &[f64]) -> f64 {
    let (_, width) = weight.matrix();
    let limit = f32::from(spec.largest_code());
    let square: Vec<f32> = square.iter().map(|square| *square as f32).collect();
    let row = |(index, row): (usize, &[f32])| {
        let scale = if scales.len() == 1 { scales[0] } else { scales[index] };
        let recip = scale.recip();
        let error = |[w, square]: [f32; 2]| {
            let error = round((w * recip).clamp(-limit, limit)) * scale - w;
            error * error * square
        };
        f64::from(sum([row, &square], error))
    };
    weight.data.par_chunks(width).enumerate().map(row).collect::<Vec<f64>>().into_iter().sum()
}

/// The rows of a layer's input, and the output that its float weight gives for them.
pub struct Target<'a> {
    x: &'a [f32],
    width: usize,
    /// `[rows, n]`.
    y: Vec<f32>,
    n: usize,
}

impl<'a> Target<'a> {
    /// The target of the rows `x` `[rows, width]`; `weight` is the float weight, without factors of channels.
    pub fn new(x: &'a [f32], weight: &HostTensor) -> Result<Target<'a>, CalibError> {
        let (n, width) = weight.matrix();
        Ok(Target { x, width, y: product(x.to_vec(), &weight.data, width)?, n })
    }

    /// The mean squared error of the output when the input is rounded by `codes` and the weight is `rounded`
    /// `[n, width]`, and `bias` `[n]` is added.
    pub fn error(&self, codes: &Codes, rounded: &[f32], bias: Option<&[f32]>) -> Result<f64, CalibError> {
        let mut output = product(codes.round(self.x, self.width), rounded, self.width)?;
        if let Some(bias) = bias {
            let add = |row: &mut [f32]| row.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
            output.par_chunks_mut(self.n).for_each(add);
        }
        Ok(mean_square(&output, &self.y))
    }

    /// The mean over the rows of the output's error, `[n]`.
    pub fn mean_error(&self, codes: &Codes, rounded: &[f32]) -> Result<Vec<f32>, CalibError> {
        let output = product(codes.round(self.x, self.width), rounded, self.width)?;
        let mut sums = vec![0.0f64; self.n];
        for (output, y) in output.chunks_exact(self.n).zip(self.y.chunks_exact(self.n)) {
            let each = sums.iter_mut().zip(output.iter().zip(y));
            each.for_each(|(sum, (a, b))| *sum += f64::from(a - b));
        }
        let rows = (self.y.len() / self.n).max(1) as f64;
        Ok(sums.into_iter().map(|sum| (sum / rows) as f32).collect())
    }
}

/// Every `step`-th row of `x` `[rows, width]`.
pub fn every(step: usize, x: &[f32], width: usize) -> Vec<f32> {
    x.chunks_exact(width).step_by(step).flatten().copied().collect()
}
