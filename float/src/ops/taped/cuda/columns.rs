//! Operations on the values of a layer's columns on CUDA, and the conversion to the type of products.

use candle_core::{Result, Tensor};
use swinq_cuda::training::{Columns, FakeColumns};

use super::super::channels::FakeChannels;
use super::super::fake_quant::LearnedScale;
use super::super::hidden::FakeHidden;
use super::{LockedTensor, device_kernels, failed, tensor, with_element};
use crate::ops::{ComputeType, Ops};
use crate::tape::Gradients;

const PLAIN: Columns<'static> = Columns { gelu: None, fake: FakeColumns::Off };

/// `x` in the compute type.
pub(in super::super) fn converted(x: &Tensor, compute_type: ComputeType) -> Result<Tensor> {
    if compute_type.half().is_none_or(|half| half == x.dtype()) {
        return x.contiguous();
    }
    forward(x, PLAIN, compute_type)
}

/// `grad` `[rows, columns]` in the compute type, and the sums of its columns.
pub(in super::super) fn converted_with_sums(
    grad: &Tensor,
    compute_type: ComputeType,
) -> Result<(Tensor, Tensor)> {
    let (_, width) = grad.dims2()?;
    let (device, training) = device_kernels(grad)?;
    let held = LockedTensor::new(grad)?;
    with_element!(compute_type, T => {
        let found = training.columns_gradient::<T>(None, width, PLAIN, &held.view()?, None).map_err(failed)?;
        Ok((tensor(found.x, &device, grad.shape()), tensor(found.sums, &device, width)))
    })
}

fn forward(x: &Tensor, of: Columns<'_>, compute_type: ComputeType) -> Result<Tensor> {
    let x = x.contiguous()?;
    let (_, width) = x.dims2()?;
    let (device, training) = device_kernels(&x)?;
    let held = LockedTensor::new(&x)?;
    with_element!(compute_type, T => {
        let out = training.columns::<T>(&held.view()?, width, of).map_err(failed)?;
        Ok(tensor(out, &device, x.shape()))
    })
}

/// Fake quantization of `x` `[rows, columns]`, in the compute type.
pub(in super::super) fn channels(
    x: &Tensor,
    fake: &FakeChannels,
    compute_type: ComputeType,
) -> Result<Tensor> {
    let table = LockedTensor::new(fake.resident()?)?;
    let table = table.view()?;
    forward(x, Columns { gelu: None, fake: FakeColumns::Columns(&table, fake.quantizer) }, compute_type)
}

/// Adds the gradients of [`channels`].
pub(in super::super) fn channels_gradient(
    x: &Tensor,
    fake: &FakeChannels,
    grad: &Tensor,
    sink: &mut Gradients,
) -> Result<()> {
    let table = LockedTensor::new(fake.resident()?)?;
    let table = table.view()?;
    let of = Columns { gelu: None, fake: FakeColumns::Columns(&table, fake.quantizer) };
    let (dx, _) = gradient(x, of, grad, fake.learned.as_ref(), ComputeType::F32, sink)?;
    sink.add(x, dx)
}

/// The gradient of the values in the compute type, and the sums of its columns. Adds the gradient of a
/// learned scale.
fn gradient(
    x: &Tensor,
    of: Columns<'_>,
    grad: &Tensor,
    learned: Option<&LearnedScale>,
    compute_type: ComputeType,
    sink: &mut Gradients,
) -> Result<(Tensor, Tensor)> {
    let (_, width) = x.dims2()?;
    let grad = grad.reshape(x.shape())?.contiguous()?;
    let (device, training) = device_kernels(x)?;
    let (values, gradient) = (LockedTensor::new(x)?, LockedTensor::new(&grad)?);
    let factor = learned.map(|learned| learned.base[0] * learned.gradient_scale);
    with_element!(compute_type, T => {
        let found = training.columns_gradient::<T>(Some(&values.view()?), width, of, &gradient.view()?, factor);
        let found = found.map_err(failed)?;
        if let (Some(learned), Some(step)) = (learned, found.step) {
            sink.add(&learned.ratio, tensor(step, &device, learned.ratio.shape()))?;
        }
        Ok((tensor(found.x, &device, x.shape()), tensor(found.sums, &device, width)))
    })
}

/// GELU of `product` `[rows, columns]` plus `bias`, fake-quantized, in the compute type; recorded.
pub(in super::super) fn hidden(
    ops: &Ops,
    product: &Tensor,
    bias: &Tensor,
    fake: &FakeHidden,
) -> Result<Tensor> {
    let compute_type = ops.compute_type;
    let product = product.contiguous()?;
    let out = with_columns(bias, fake, |of| forward(&product, of, compute_type))?;
    let inputs: Vec<Tensor> = [Some(&product), Some(bias), fake.learned().map(|learned| &learned.ratio)]
        .into_iter()
        .flatten()
        .cloned()
        .collect();
    let (bias, fake) = (bias.clone(), fake.clone());
    ops.record(&inputs.iter().collect::<Vec<_>>(), &out, move |grad, sink| {
        let (dx, sums) = with_columns(&bias, &fake, |of| {
            gradient(&product, of, grad.tensor(), fake.learned(), compute_type, sink)
        })?;
        sink.add(&bias, sums)?;
        sink.add(&product, dx)
    });
    Ok(out)
}

/// Calls `run` with the operation that `bias` and `fake` describe.
fn with_columns<R>(
    bias: &Tensor,
    fake: &FakeHidden,
    run: impl FnOnce(Columns<'_>) -> Result<R>,
) -> Result<R> {
    let bias = LockedTensor::new(bias)?;
    let bias = bias.view()?;
    let channels = match fake {
        FakeHidden::Channels(fake) => Some((LockedTensor::new(fake.resident()?)?, fake.quantizer)),
        _ => None,
    };
    let channels = channels
        .as_ref()
        .map(|(held, step)| Ok::<_, candle_core::Error>((held.view()?, *step)))
        .transpose()?;
    let fake = match (fake, &channels) {
        (_, Some((table, step))) => FakeColumns::Columns(table, *step),
        (FakeHidden::Tensor(fake), None) => FakeColumns::Tensor(fake.quantizer),
        _ => FakeColumns::Off,
    };
    run(Columns { gelu: Some(&bias), fake })
}
