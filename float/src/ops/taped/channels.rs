//! Fake quantization of activations whose channels have their own scales and zero points, with
//! straight-through gradients, and the product of a weight's columns with constants.
//!
//! The forward pass follows the number contract: `(code - z) s_j` with
//! `code = round(clamp(fma(x, 1 / s_j, z)))` and `s_j = s f_j`. The factors `f_j` and the zero points are
//! constants. Gradients are those of [`fake_quantize`](super::fake_quantize): with `u = x / s_j + z`, the
//! gradient of a learned `s` is `f_j (code - u)` inside the range and `f_j (code - z)` outside.

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};
use swinq_numerics::{ColumnQuantizers, Quantizer};

use super::fake_quant::{EDGE, LearnedScale, RANGE, codes, is_inside};
use super::host::{GRAIN, slices};
use crate::ops::host::{fake_quantize_columns, vectorised};
use crate::ops::{Compute, Ops};
use crate::threads::{map_each, zeros};

/// The fake quantization of an activation whose channels have their own scales and zero points.
#[derive(Clone, Debug)]
pub struct FakeChannels {
    /// The current common scale.
    pub quantizer: Quantizer,
    /// The quantizer of each channel for this scale.
    pub columns: Arc<ColumnQuantizers>,
    /// The quantizers on the device, `[3 * channels]`: reciprocals of the scales, zero points, scales; for
    /// CUDA.
    pub resident: Option<Tensor>,
    /// The trained parameter behind the common scale, if it is learned.
    pub learned: Option<LearnedScale>,
}

impl FakeChannels {
    /// [`FakeChannels::resident`].
    #[cfg(feature = "cuda")]
    pub(super) fn resident(&self) -> Result<&Tensor> {
        self.resident
            .as_ref()
            .ok_or_else(|| candle_core::Error::Msg("the quantizers are not on the device".into()))
    }
}

/// The quantizers of `columns` on `device`: [`FakeChannels::resident`].
///
/// # Errors
/// Errors of candle.
pub fn resident_columns(columns: &ColumnQuantizers, device: &Device) -> Result<Tensor> {
    let table = [columns.recips(), columns.zero_points(), columns.scales()].concat();
    Tensor::from_vec(table, 3 * columns.len(), device)
}

/// Fake quantization of `x` `[rows, channels]`.
///
/// # Errors
/// Another number of channels, and errors of candle.
pub fn fake_quantize_channels(ops: &Ops, x: &Tensor, fake: &FakeChannels) -> Result<Tensor> {
    let x = x.contiguous()?;
    let compute = ops.compute;
    let out = match compute {
        Compute::Host(_) => fake_quantize_columns(&x, &fake.columns)?,
        #[cfg(feature = "cuda")]
        Compute::Cuda => super::cuda::channels(&x, fake, ops.compute_type)?,
        Compute::Candle => InCandle::new(&x, fake)?.value,
    };
    let inputs = [Some(&x), fake.learned.as_ref().map(|l| &l.ratio)];
    let inputs: Vec<Tensor> = inputs.into_iter().flatten().cloned().collect();
    let fake = fake.clone();
    ops.record(&inputs.iter().collect::<Vec<_>>(), &out, move |grad, sink| {
        let grad = grad.tensor().reshape(x.shape())?.contiguous()?;
        let (dx, dscale) = match compute {
            Compute::Host(_) => on_host(&x, &grad, &fake)?,
            #[cfg(feature = "cuda")]
            Compute::Cuda => return super::cuda::channels_gradient(&x, &fake, &grad, sink),
            Compute::Candle => {
                let InCandle { inside, slope, .. } = InCandle::new(&x, &fake)?;
                ((&grad * inside)?, (&grad * slope)?.sum_all()?.reshape(1)?)
            }
        };
        if let Some(learned) = &fake.learned {
            learned.add(sink, &dscale)?;
        }
        sink.add(&x, dx)
    });
    Ok(out)
}

/// The passes in candle's operations.
struct InCandle {
    value: Tensor,
    /// 1 where a gradient passes, else 0.
    inside: Tensor,
    /// The derivative of the value with respect to the common scale.
    slope: Tensor,
}

impl InCandle {
    fn new(x: &Tensor, fake: &FakeChannels) -> Result<InCandle> {
        let vector = |values: &[f32]| Tensor::new(values, x.device());
        let [recips, zero_points, scales] =
            [fake.columns.recips(), fake.columns.zero_points(), fake.columns.scales()].map(vector);
        let (zero_points, scales) = (zero_points?, scales?);
        let scaled = x.broadcast_mul(&recips?)?.broadcast_add(&zero_points)?;
        let steps = codes(&scaled, RANGE)?.broadcast_sub(&zero_points)?;
        let (low, high) = RANGE;
        let above = scaled.ge(low * EDGE)?.to_dtype(DType::F32)?;
        let inside = (above * scaled.le(high * EDGE)?.to_dtype(DType::F32)?)?;
        let unrounded = (scaled.broadcast_sub(&zero_points)? * &inside)?;
        let factors = (&scales / f64::from(fake.quantizer.scale()))?;
        let slope = (&steps - unrounded)?.broadcast_mul(&factors)?;
        Ok(InCandle { value: steps.broadcast_mul(&scales)?, inside, slope })
    }
}

/// The gradients of `x` and of the common scale, `[1]`.
fn on_host(x: &Tensor, grad: &Tensor, fake: &FakeChannels) -> Result<(Tensor, Tensor)> {
    let (columns, width) = (&*fake.columns, fake.columns.len());
    let (part, step) = (GRAIN.div_ceil(width) * width, fake.quantizer.scale());
    let mut dx = zeros(x.elem_count());
    let sums: Vec<f32> = slices(&[x, grad], |values| {
        let parts = dx.chunks_mut(part).zip(values[0].chunks(part)).zip(values[1].chunks(part));
        map_each(parts, |((dx, x), grad)| rows_gradient(x, grad, columns, step, dx))
    })?;
    let dscale = sums.iter().map(|&sum| f64::from(sum)).sum::<f64>() as f32;
    Ok((Tensor::from_vec(dx, x.shape(), x.device())?, Tensor::new(&[dscale], x.device())?))
}

/// Writes the gradient of whole rows; returns their part of the gradient of the common scale.
fn rows_gradient(x: &[f32], grad: &[f32], columns: &ColumnQuantizers, step: f32, dx: &mut [f32]) -> f32 {
    let (low, high) = RANGE;
    let mut sum = 0.0;
    vectorised(
        #[inline(always)]
        || {
            let width = columns.len();
            let rows = x.chunks_exact(width).zip(grad.chunks_exact(width)).zip(dx.chunks_exact_mut(width));
            for ((x, grad), dx) in rows {
                let quantizers = columns.recips().iter().zip(columns.zero_points()).zip(columns.scales());
                for (((&x, &grad), dx), ((&recip, &zero_point), &scale)) in
                    x.iter().zip(grad).zip(dx).zip(quantizers)
                {
                    let scaled = x.mul_add(recip, zero_point);
                    let inside = if is_inside(scaled, low, high) { 1.0 } else { 0.0 };
                    let code = scaled.clamp(low, high).round_ties_even();
                    *dx = grad * inside;
                    sum += grad * (scale / step) * (code - zero_point - inside * (scaled - zero_point));
                }
            }
        },
    );
    sum
}

/// Multiplies the columns of `x` `[rows, columns]` by constants, `[columns]`.
///
/// # Errors
/// Shapes that do not fit.
pub fn scale_columns(ops: &Ops, x: &Tensor, factors: &Tensor) -> Result<Tensor> {
    let out = x.broadcast_mul(factors)?;
    let (x, factors) = (x.clone(), factors.clone());
    ops.record(&[&x.clone()], &out, move |grad, sink| {
        sink.add(&x, grad.tensor().reshape(x.shape())?.broadcast_mul(&factors)?)
    });
    Ok(out)
}
