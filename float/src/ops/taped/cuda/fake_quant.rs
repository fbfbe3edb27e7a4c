//! Fake quantization on CUDA. The gradients of scales stay on the device.

use candle_core::cuda_backend::cudarc::driver::CudaView;
use candle_core::{Result, Tensor};
use swinq_cuda::training::{FakeSteps, RowScales};

use super::super::fake_quant::{FakeActivation, FakeWeight, RANGE};
use super::{LockedTensor, device_kernels, failed, tensor, unary, with_element};
use crate::ops::{ComputeType, Ops};
use crate::tape::Gradients;

/// The scale of an activation, and the factor of its gradient.
fn step(fake: &FakeActivation) -> FakeSteps<'static> {
    let factor = fake.learned.as_ref().map_or(1.0, |learned| learned.base[0] * learned.gradient_scale);
    FakeSteps::One(fake.quantizer, factor)
}

pub(in super::super) fn fake_quantize(
    x: &Tensor,
    fake: &FakeActivation,
    compute_type: ComputeType,
) -> Result<Tensor> {
    with_element!(compute_type, T => {
        unary(x, x.shape(), |training, x| training.fake_quantize::<T>(x, step(fake), None, RANGE))
    })
}

/// Adds the gradients of `x` and of a learned scale.
pub(in super::super) fn fake_quantize_gradient(
    x: &Tensor,
    fake: &FakeActivation,
    grad: &Tensor,
    sink: &mut Gradients,
) -> Result<()> {
    let steps = step(fake);
    let ratio = fake.learned.as_ref().map(|learned| &learned.ratio);
    let dx = gradient(x, grad, (steps, None), RANGE, ratio, sink)?;
    sink.add(x, dx)
}

/// The gradient of `x`. Adds the gradient of the scales to the gradient of `ratio`.
fn gradient(
    x: &Tensor,
    grad: &Tensor,
    (steps, factors): (FakeSteps<'_>, Option<&CudaView<'_, f32>>),
    range: (f32, f32),
    ratio: Option<&Tensor>,
    sink: &mut Gradients,
) -> Result<Tensor> {
    let (x, grad) = (x.contiguous()?, grad.contiguous()?);
    let (device, training) = device_kernels(&x)?;
    let (values, gradient) = (LockedTensor::new(&x)?, LockedTensor::new(&grad)?);
    let learned = ratio.is_some();
    let passed =
        training.fake_quantize_gradient(&values.view()?, &gradient.view()?, steps, factors, range, learned);
    let (dx, dsteps) = passed.map_err(failed)?;
    if let (Some(ratio), Some(dsteps)) = (ratio, dsteps) {
        sink.add(ratio, tensor(dsteps, &device, ratio.shape()))?;
    }
    Ok(tensor(dx, &device, x.shape()))
}

/// Fake quantization of a weight, in the compute type, recorded. `table` `[3, rows]` has the scales, their
/// reciprocals and the factors of their gradients, `factors` `[2, columns]` the factors of the columns and
/// their reciprocals.
pub(in super::super) fn fake_quantize_weight(
    ops: &Ops,
    w: &Tensor,
    fake: &FakeWeight,
    table: &Tensor,
    factors: Option<&Tensor>,
) -> Result<Tensor> {
    let (compute_type, range) = (ops.compute_type, (-fake.largest, fake.largest));
    let out = with_table(table, factors, |steps, factors| {
        with_element!(compute_type, T => {
            unary(w, w.shape(), |training, w| training.fake_quantize::<T>(w, steps, factors, range))
        })
    })?;
    let ratio = fake.learned.as_ref().map(|learned| learned.ratio.clone());
    let inputs: Vec<Tensor> = [Some(w), ratio.as_ref()].into_iter().flatten().cloned().collect();
    let (w, table, factors) = (w.clone(), table.clone(), factors.cloned());
    ops.record(&inputs.iter().collect::<Vec<_>>(), &out, move |grad, sink| {
        let dw = with_table(&table, factors.as_ref(), |steps, factors| {
            gradient(&w, grad.tensor(), (steps, factors), range, ratio.as_ref(), sink)
        })?;
        sink.add(&w, dw)
    });
    Ok(out)
}

/// Calls `run` with the scales of a weight's rows and the factors of its columns.
fn with_table<R>(
    table: &Tensor,
    factors: Option<&Tensor>,
    run: impl FnOnce(FakeSteps<'_>, Option<&CudaView<'_, f32>>) -> Result<R>,
) -> Result<R> {
    let (table, factors) = (LockedTensor::new(table)?, factors.map(LockedTensor::new).transpose()?);
    let table = table.view()?;
    let factors = factors.as_ref().map(LockedTensor::view).transpose()?;
    run(FakeSteps::Rows(&table), factors.as_ref())
}

/// The scales of a weight's `rows`, of which the largest magnitude becomes the code `largest`, with their
/// reciprocals and the factor 1, `[3 * rows]`. `factors` `[2, columns]` are factors of the columns.
///
/// # Errors
/// The kernel does not compile, or the driver fails.
pub fn scales_of_weight(
    weight: &Tensor,
    rows: usize,
    factors: Option<&Tensor>,
    largest: f32,
) -> Result<Tensor> {
    let (device, training) = device_kernels(weight)?;
    let (held, factors) = (LockedTensor::new(weight)?, factors.map(LockedTensor::new).transpose()?);
    let factors = factors.as_ref().map(LockedTensor::view).transpose()?;
    let of = RowScales::Maxima { weight: &held.view()?, factors: factors.as_ref(), rows };
    Ok(tensor(training.row_scales(of, largest).map_err(failed)?, &device, 3 * rows))
}

/// The scales of a weight's rows that are learned as `ratios` to the initial scales `base`, `[rows]` each,
/// with their reciprocals and the factors of their gradients, `[3 * rows]`.
///
/// # Errors
/// The kernel does not compile, or the driver fails.
pub fn learned_scales(ratios: &Tensor, base: &Tensor, gradient_scale: f32) -> Result<Tensor> {
    let (device, training) = device_kernels(ratios)?;
    let (ratio, initial) = (LockedTensor::new(ratios)?, LockedTensor::new(base)?);
    let of = RowScales::Learned { ratios: &ratio.view()?, base: &initial.view()?, gradient_scale };
    Ok(tensor(training.row_scales(of, 1.0).map_err(failed)?, &device, 3 * ratios.elem_count()))
}
