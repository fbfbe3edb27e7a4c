//! Fake quantization on CUDA. The gradients of scales stay on the device.

use candle_core::{Result, Tensor};
use swinq_kernels::cuda::training::FakeSteps;

use super::super::fake_quant::{FakeActivation, FakeWeight, RANGE};
use super::{Held, device_kernels, failed, tensor, unary};
use crate::tape::{Gradients, Tape};

/// The scale of an activation, and the factor of its gradient.
fn step(fake: &FakeActivation) -> FakeSteps<'static> {
    let factor = fake.learned.as_ref().map_or(1.0, |learned| learned.base[0] * learned.gradient_scale);
    FakeSteps::One(fake.quantizer, factor)
}

pub(in super::super) fn fake_quantize(x: &Tensor, fake: &FakeActivation) -> Result<Tensor> {
    unary(x, x.shape(), |training, x| training.fake_quantize(x, step(fake), RANGE))
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
    let dx = gradient(x, grad, steps, RANGE, ratio, sink)?;
    sink.add(x, dx)
}

/// The gradient of `x`. Adds the gradient of the scales to the gradient of `ratio`.
fn gradient(
    x: &Tensor,
    grad: &Tensor,
    steps: FakeSteps<'_>,
    range: (f32, f32),
    ratio: Option<&Tensor>,
    sink: &mut Gradients,
) -> Result<Tensor> {
    let (x, grad) = (x.contiguous()?, grad.contiguous()?);
    let (device, training) = device_kernels(&x)?;
    let (values, gradient) = (Held::new(&x)?, Held::new(&grad)?);
    let learned = ratio.is_some();
    let passed = training.fake_quantize_gradient(&values.view()?, &gradient.view()?, steps, range, learned);
    let (dx, dsteps) = passed.map_err(failed)?;
    if let (Some(ratio), Some(dsteps)) = (ratio, dsteps) {
        sink.add(ratio, tensor(dsteps, &device, ratio.shape()))?;
    }
    Ok(tensor(dx, &device, x.shape()))
}

/// Fake quantization of a weight, recorded on the tape.
pub(in super::super) fn fake_quantize_weight(
    tape: &Tape,
    w: &Tensor,
    fake: &FakeWeight,
    recips: &[f32],
) -> Result<Tensor> {
    let factors = fake.scales.iter().enumerate().map(|(i, _)| match &fake.learned {
        Some(learned) => learned.base[i] * learned.gradient_scale,
        None => 1.0,
    });
    let table: Vec<f32> = fake.scales.iter().chain(recips).copied().chain(factors).collect();
    let table = Tensor::from_vec(table, 3 * recips.len(), w.device())?;
    let range = (-fake.largest, fake.largest);
    let out = {
        let held = Held::new(&table)?;
        let steps = held.view()?;
        unary(w, w.shape(), |training, w| training.fake_quantize(w, FakeSteps::Rows(&steps), range))?
    };
    let ratio = fake.learned.as_ref().map(|learned| learned.ratio.clone());
    let inputs: Vec<Tensor> = [Some(w), ratio.as_ref()].into_iter().flatten().cloned().collect();
    let w = w.clone();
    tape.record(&inputs.iter().collect::<Vec<_>>(), &out, move |grad, sink| {
        let held = Held::new(&table)?;
        let steps = held.view()?;
        let dw = gradient(&w, grad.tensor(), FakeSteps::Rows(&steps), range, ratio.as_ref(), sink)?;
        sink.add(&w, dw)
    });
    Ok(out)
}
