//! Fake quantization with straight-through gradients.
//!
//! The forward pass follows the number contract: `code * s` with
//! `code = round_ties_even(clamp(x r, -Q - 1, Q))` and `r = 1 / s` in f32; weights clamp at `-Q`. In the
//! backward pass rounding passes gradients through (Bengio et al., 2013) and clipping stops them: the
//! gradient is that of `clamp`. A learned scale has LSQ's gradient (Esser et al., "Learned Step Size
//! Quantization", ICLR 2020): `code - x r` inside the range, the code at the nearer end outside.

use candle_core::{DType, Result, Tensor, bail};
use swinq_numerics::Quantizer;

use super::channels::scale_columns;
#[cfg(feature = "cuda")]
use super::cuda;
use super::host::{GRAIN, slices};
use crate::ops::candle::round_ties_even;
use crate::ops::host::vectorised;
use crate::ops::{Compute, ComputeType, Ops};
use crate::tape::{Gradient, Gradients};
use crate::threads::map_each;

/// Learned scales. They are trained as ratios to their initial values, so that updates are relative.
#[derive(Clone, Debug)]
pub struct LearnedScale {
    /// The ratios, `[1]` or one per output channel; a leaf of the tape.
    pub ratio: Tensor,
    /// The initial scales, one per value of `ratio`.
    pub base: Vec<f32>,
    /// Factor of the gradient: LSQ's `1 / sqrt(values * Q)`.
    pub gradient_scale: f32,
}

impl LearnedScale {
    /// Adds the gradient of the ratios, computed from the gradients `dscales` of the scales, `[scales]`.
    pub(super) fn add(&self, sink: &mut Gradients, dscales: &Tensor) -> Result<()> {
        let factors: Vec<f32> = self.base.iter().map(|base| base * self.gradient_scale).collect();
        let gradient = match factors.as_slice() {
            [factor] => (dscales * f64::from(*factor))?,
            factors => (dscales * Tensor::new(factors, dscales.device())?)?,
        };
        sink.add(&self.ratio, gradient.reshape(self.ratio.shape())?)
    }
}

/// The fake quantization of an activation.
#[derive(Clone, Debug)]
pub struct FakeActivation {
    /// The quantizer of the current scale.
    pub quantizer: Quantizer,
    /// The trained parameter behind the scale, if it is learned.
    pub learned: Option<LearnedScale>,
}

/// How attention probabilities are fake-quantized; see [`swinq_numerics::Probs`].
#[derive(Clone, Debug)]
pub enum FakeProbs {
    /// They are not quantized.
    Float,
    /// Unsigned codes of the exponentials, divided by their own sum.
    U8,
    /// Signed codes of the softmax.
    S8(FakeActivation),
}

/// The current scales of a weight: one, or one per output channel.
#[derive(Clone, Debug)]
pub enum WeightScales {
    /// In host memory.
    Host(Vec<f32>),
    /// On the device, with their reciprocals and the factors of their gradients, `[3 * scales]`; for CUDA.
    Device(Tensor),
}

/// The fake quantization of a weight.
#[derive(Clone, Debug)]
pub struct FakeWeight {
    /// The current scales.
    pub scales: WeightScales,
    /// Largest code: 127, or 7.
    pub largest: f32,
    /// The trained parameters behind the scales, if they are learned; otherwise the scales are constants.
    pub learned: Option<LearnedScale>,
}

/// Range of the signed codes of an activation.
pub(super) const RANGE: (f32, f32) = (-128.0, 127.0);

/// Tolerance at the ends of the range, as a factor. The value `amax` defines the range. Times the reciprocal
/// of `amax / Q` it is `Q` up to three roundings, which must not decide whether `amax` gets a gradient.
pub const EDGE: f32 = 1.0 + 1.0 / (1 << 20) as f32;

/// Fake quantization of an activation of any shape.
///
/// # Errors
/// Errors of candle.
pub fn fake_quantize(ops: &Ops, x: &Tensor, fake: &FakeActivation) -> Result<Tensor> {
    fake_quantize_as(ops, x, fake, ComputeType::F32)
}

/// [`fake_quantize`], for the input of a linear layer: on CUDA the result has the compute type.
///
/// # Errors
/// Errors of candle.
pub fn fake_quantize_operand(ops: &Ops, x: &Tensor, fake: &FakeActivation) -> Result<Tensor> {
    fake_quantize_as(ops, x, fake, ops.compute_type)
}

#[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "only CUDA computes in other types"))]
fn fake_quantize_as(
    ops: &Ops,
    x: &Tensor,
    fake: &FakeActivation,
    compute_type: ComputeType,
) -> Result<Tensor> {
    let x = x.contiguous()?;
    let quantizer = fake.quantizer;
    let compute = ops.compute;
    let out = match compute {
        Compute::Host(_) => crate::ops::fake_quantize(&x, quantizer)?,
        #[cfg(feature = "cuda")]
        Compute::Cuda => cuda::fake_quantize(&x, fake, compute_type)?,
        Compute::Candle => candle_forward(&x, quantizer)?,
    };
    let inputs = [Some(&x), fake.learned.as_ref().map(|l| &l.ratio)];
    let inputs: Vec<Tensor> = inputs.into_iter().flatten().cloned().collect();
    let fake = fake.clone();
    ops.record(&inputs.iter().collect::<Vec<_>>(), &out, move |grad, sink| {
        let (learned, recip) = (fake.learned.as_ref(), quantizer.recip());
        let (dx, dscale) = match compute {
            Compute::Host(_) => on_host(&x, grad, &[recip], RANGE, learned.is_some())?,
            #[cfg(feature = "cuda")]
            Compute::Cuda => return cuda::fake_quantize_gradient(&x, &fake, grad.tensor(), sink),
            Compute::Candle => {
                let x = x.flatten_all()?.unsqueeze(0)?;
                in_candle(&x, grad.tensor(), &[recip], RANGE, learned.is_some())?
            }
        };
        if let (Some(learned), Some(dscale)) = (learned, &dscale) {
            learned.add(sink, dscale)?;
        }
        sink.add(&x, dx)
    });
    Ok(out)
}

/// Fake quantization of a weight, whose first dimension is the output channels. `factors` `[2, columns]` are
/// factors of the columns, which are multiplied before and divided out behind it, and their reciprocals. On
/// CUDA the result has the compute type.
///
/// # Errors
/// Errors of candle.
pub fn fake_quantize_weight(
    ops: &Ops,
    w: &Tensor,
    fake: &FakeWeight,
    factors: Option<&Tensor>,
) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if ops.compute.is_cuda() {
        let table = fake.device_table(w.device())?;
        return cuda::fake_quantize_weight(ops, w, fake, &table, factors);
    }
    let Some(factors) = factors else { return fake_quantize_matrix(ops, w, fake) };
    let folded = scale_columns(ops, w, &factors.get(0)?)?;
    scale_columns(ops, &fake_quantize_matrix(ops, &folded, fake)?, &factors.get(1)?)
}

impl FakeWeight {
    /// The scales with their reciprocals and the factors of their gradients, on `device`.
    #[cfg(feature = "cuda")]
    fn device_table(&self, device: &candle_core::Device) -> Result<Tensor> {
        let scales = match &self.scales {
            WeightScales::Device(table) => return Ok(table.clone()),
            WeightScales::Host(scales) => scales,
        };
        let factor = |i: usize| self.learned.as_ref().map_or(1.0, |l| l.base[i] * l.gradient_scale);
        let recips = scales.iter().map(|scale| scale.recip());
        let table: Vec<f32> =
            scales.iter().copied().chain(recips).chain((0..scales.len()).map(factor)).collect();
        Tensor::from_vec(table, 3 * scales.len(), device)
    }
}

/// [`fake_quantize_weight`] in host memory or in candle's operations, without factors.
fn fake_quantize_matrix(ops: &Ops, w: &Tensor, fake: &FakeWeight) -> Result<Tensor> {
    let WeightScales::Host(scales) = &fake.scales else { bail!("the scales must be in host memory") };
    let range = (-fake.largest, fake.largest);
    let recips: Vec<f32> = scales.iter().map(|s| s.recip()).collect();
    let matrix = w.reshape((scales.len(), ()))?;
    let host = ops.compute.is_host();
    let out = if host {
        weight_on_host(&matrix, scales, &recips, range)?
    } else {
        let column = |values: &[f32]| Tensor::new(values, w.device())?.unsqueeze(1);
        codes(&matrix.broadcast_mul(&column(&recips)?)?, range)?.broadcast_mul(&column(scales)?)?
    };
    let out = out.reshape(w.shape())?;
    let inputs = [Some(w), fake.learned.as_ref().map(|l| &l.ratio)];
    let inputs: Vec<Tensor> = inputs.into_iter().flatten().cloned().collect();
    let (w, learned) = (w.clone(), fake.learned.clone());
    ops.record(&inputs.iter().collect::<Vec<_>>(), &out, move |grad, sink| {
        let (dw, dscales) = if host {
            on_host(&matrix, grad, &recips, range, learned.is_some())?
        } else {
            in_candle(&matrix, &grad.tensor().contiguous()?, &recips, range, learned.is_some())?
        };
        if let (Some(learned), Some(dscales)) = (&learned, &dscales) {
            learned.add(sink, dscales)?;
        }
        sink.add(&w, dw.reshape(w.shape())?)
    });
    Ok(out)
}

/// Fake quantization of `x` in candle's operations.
pub(super) fn candle_forward(x: &Tensor, quantizer: Quantizer) -> Result<Tensor> {
    codes(&(x * f64::from(quantizer.recip()))?, RANGE)? * f64::from(quantizer.scale())
}

/// `round_ties_even(clamp(scaled))`, in candle's operations.
pub(super) fn codes(scaled: &Tensor, (low, high): (f32, f32)) -> Result<Tensor> {
    round_ties_even(&scaled.clamp(low, high)?)
}

fn weight_on_host(w: &Tensor, scales: &[f32], recips: &[f32], (low, high): (f32, f32)) -> Result<Tensor> {
    let (_, columns) = w.dims2()?;
    let mut out = vec![0.0; w.elem_count()];
    slices(&[w], |values| {
        let rows = out.chunks_mut(columns).zip(values[0].chunks(columns)).zip(scales).zip(recips);
        map_each(rows, |(((out, w), &scale), &recip)| {
            vectorised(
                #[inline(always)]
                || {
                    let (scale, recip, low, high) = (scale, recip, low, high);
                    for (out, &w) in out.iter_mut().zip(w) {
                        *out = (w * recip).clamp(low, high).round_ties_even() * scale;
                    }
                },
            );
        });
    })?;
    Tensor::from_vec(out, w.shape(), w.device())
}

/// The gradient of `x` and, if `learned`, the gradients of the scales. `x` has `recips.len()` equal parts,
/// each with its own scale.
fn on_host(
    x: &Tensor,
    grad: Gradient,
    recips: &[f32],
    range: (f32, f32),
    learned: bool,
) -> Result<(Tensor, Option<Tensor>)> {
    let mut dx = grad.into_values()?;
    let len = dx.len() / recips.len();
    let gradients: Vec<f32> = slices(&[x], |values| {
        let rows = dx.chunks_mut(len).zip(values[0].chunks(len)).zip(recips);
        let parts = rows.flat_map(|((dx, x), &recip)| {
            dx.chunks_mut(GRAIN).zip(x.chunks(GRAIN)).map(move |(dx, x)| (dx, x, recip))
        });
        let sums = map_each(parts, |(dx, x, recip)| f64::from(clip(x, recip, range, learned, dx)));
        sums.chunks(len.div_ceil(GRAIN)).map(|sums| sums.iter().sum::<f64>() as f32).collect()
    })?;
    let dscales = learned.then(|| Tensor::from_vec(gradients, recips.len(), x.device())).transpose()?;
    Ok((Tensor::from_vec(dx, x.shape(), x.device())?, dscales))
}

/// Converts gradients after a site to gradients before the site, in place. Returns the gradient of the scale
/// if `learned`, else 0.
pub(super) fn clip(x: &[f32], recip: f32, (low, high): (f32, f32), learned: bool, grad: &mut [f32]) -> f32 {
    let mut sums = [0.0; 16];
    vectorised(
        #[inline(always)]
        || {
            let (recip, low, high) = (recip, low, high);
            if learned {
                sums = scale_gradient(x, grad, recip, low, high);
            }
            for (grad, &x) in grad.iter_mut().zip(x) {
                // A factor instead of a branch, so that no load depends on the comparison.
                let scaled = x * recip;
                *grad *= if is_inside(scaled, low, high) { 1.0 } else { 0.0 };
            }
        },
    );
    sums.iter().sum()
}

/// Whether a gradient passes: whether the value is within the range, including its ends ([`EDGE`]).
#[inline(always)]
pub(super) fn is_inside(scaled: f32, low: f32, high: f32) -> bool {
    scaled.clamp(low * EDGE, high * EDGE) == scaled
}

/// The gradient of a scale, in sixteen partial sums.
#[inline(always)]
fn scale_gradient(x: &[f32], grad: &[f32], recip: f32, low: f32, high: f32) -> [f32; 16] {
    let mut sums = [0.0; 16];
    let term = |x: f32, grad: f32| {
        let scaled = x * recip;
        let inside = if is_inside(scaled, low, high) { scaled } else { 0.0 };
        grad * (scaled.clamp(low, high).round_ties_even() - inside)
    };
    let (x16, grad16) = (x.as_chunks::<16>(), grad.as_chunks::<16>());
    for (x, grad) in x16.0.iter().zip(grad16.0) {
        for i in 0..16 {
            sums[i] += term(x[i], grad[i]);
        }
    }
    for ((sum, &x), &grad) in sums.iter_mut().zip(x16.1).zip(grad16.1) {
        *sum += term(x, grad);
    }
    sums
}

/// [`on_host`] in candle's operations; `x` is `[parts, values]`.
pub(super) fn in_candle(
    x: &Tensor,
    grad: &Tensor,
    recips: &[f32],
    (low, high): (f32, f32),
    learned: bool,
) -> Result<(Tensor, Option<Tensor>)> {
    let shape = grad.shape().clone();
    let grad = grad.reshape(x.shape())?;
    let scaled = x.broadcast_mul(&Tensor::new(recips, x.device())?.unsqueeze(1)?)?;
    let above = scaled.ge(low * EDGE)?.to_dtype(DType::F32)?;
    let inside = (above * scaled.le(high * EDGE)?.to_dtype(DType::F32)?)?;
    let dscales = if learned {
        let slope = (codes(&scaled, (low, high))? - (&scaled * &inside)?)?;
        Some((&grad * slope)?.sum(1)?)
    } else {
        None
    };
    Ok(((grad * inside)?.reshape(shape)?, dscales))
}
