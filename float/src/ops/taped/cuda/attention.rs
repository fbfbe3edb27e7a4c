//! Window attention on CUDA.

use candle_core::cuda_backend::cudarc::driver::CudaView;
use candle_core::{Result, Tensor};
use swinq_cuda::training::{AttentionInputs, TrainProbs, WindowAttention};

use super::super::attention::{AttentionSites, Shape};
use super::super::fake_quant::{FakeActivation, FakeProbs};
use super::{LockedTensor, device_kernels, failed, tensor};
use crate::tape::Gradients;

fn described(shape: Shape, qkv: &Tensor, sites: &AttentionSites) -> Result<WindowAttention> {
    let Shape { n, heads, scale, .. } = shape;
    let step = |site: &Option<FakeActivation>| site.as_ref().map(|fake| fake.quantizer);
    Ok(WindowAttention {
        windows: qkv.dim(0)? / n,
        tokens: n,
        heads,
        scale,
        sites: [step(&sites.q), step(&sites.k), step(&sites.v), step(&sites.scores)],
        probs: match &sites.probs {
            FakeProbs::Float => TrainProbs::Float,
            FakeProbs::U8 => TrainProbs::U8,
            FakeProbs::S8(fake) => TrainProbs::S8(fake.quantizer),
        },
    })
}

/// Whether the kernels support attention of this shape on the GPU of `qkv`.
pub(in super::super) fn takes_attention(shape: Shape, qkv: &Tensor, sites: &AttentionSites) -> Result<bool> {
    let (_, training) = device_kernels(qkv)?;
    Ok(training.takes(&described(shape, qkv, sites)?, shape.d))
}

/// Views of attention's operands.
struct Inputs<'a> {
    qkv: CudaView<'a, f32>,
    bias: CudaView<'a, f32>,
    mask: Option<CudaView<'a, f32>>,
}

impl Inputs<'_> {
    fn all(&self) -> AttentionInputs<'_> {
        AttentionInputs { qkv: &self.qkv, bias: &self.bias, mask: self.mask.as_ref() }
    }
}

/// Calls `run` with attention's operands.
fn with_inputs<R>(
    qkv: &Tensor,
    bias: &Tensor,
    mask: Option<&Tensor>,
    run: impl FnOnce(AttentionInputs<'_>) -> Result<R>,
) -> Result<R> {
    let (qkv, bias, mask) =
        (LockedTensor::new(qkv)?, LockedTensor::new(bias)?, mask.map(LockedTensor::new).transpose()?);
    let mask = mask.as_ref().map(LockedTensor::view).transpose()?;
    run(Inputs { qkv: qkv.view()?, bias: bias.view()?, mask }.all())
}

/// The forward pass; all tensors must be contiguous.
pub(in super::super) fn attention(
    shape: Shape,
    qkv: &Tensor,
    bias: &Tensor,
    mask: Option<&Tensor>,
    sites: &AttentionSites,
) -> Result<Tensor> {
    let (device, training) = device_kernels(qkv)?;
    let attention = described(shape, qkv, sites)?;
    let run = |inputs: AttentionInputs<'_>| training.attention(&attention, inputs).map_err(failed);
    let out = with_inputs(qkv, bias, mask, run)?;
    Ok(tensor(out, &device, (qkv.dim(0)?, shape.c())))
}

/// The gradients of `qkv` and of the bias. Adds the gradients of learned scales to `sink`.
pub(in super::super) fn attention_gradient(
    shape: Shape,
    qkv: &Tensor,
    bias: &Tensor,
    mask: Option<&Tensor>,
    sites: &AttentionSites,
    grad: &Tensor,
    sink: &mut Gradients,
) -> Result<[Tensor; 2]> {
    let (device, training) = device_kernels(qkv)?;
    let attention = described(shape, qkv, sites)?;
    let fakes = sites.fakes();
    let learned = fakes.iter().flatten().any(|fake| fake.learned.is_some());
    let grad = LockedTensor::new(grad)?;
    let grad = grad.view()?;
    let gradients = with_inputs(qkv, bias, mask, |inputs| {
        training.attention_gradient(&attention, inputs, &grad, learned).map_err(failed)
    })?;
    if let Some(steps) = gradients.steps {
        let steps = tensor(steps, &device, 5);
        for (i, fake) in fakes.into_iter().enumerate() {
            let Some(learned) = fake.and_then(|fake| fake.learned.as_ref()) else { continue };
            let factor = f64::from(learned.base[0] * learned.gradient_scale);
            sink.add(&learned.ratio, (steps.narrow(0, i, 1)? * factor)?.reshape(learned.ratio.shape())?)?;
        }
    }
    Ok([tensor(gradients.qkv, &device, qkv.shape()), tensor(gradients.bias, &device, bias.shape())])
}
