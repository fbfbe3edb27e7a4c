//! Window attention in training: one taped operation between the qkv layer and the projection.
//!
//! | implementation | where | how |
//! | --- | --- | --- |
//! | `host`, with `head` and `head_gradient` | host memory | one pass per head of a window, in scratch memory that fits the caches |
//! | `candle` | any device | candle's operations on whole `[windows, heads, n, n]` tensors |
//! | `super::cuda::attention` | CUDA | kernels for supported sizes |
//!
//! The backward pass computes tensors of size `[n, n]` again, so that no such tensor is kept, as
//! FlashAttention does (Dao et al., "FlashAttention", NeurIPS 2022).

mod candle;
mod head;
mod head_gradient;
mod host;

use candle_core::{Result, Tensor, bail};

#[cfg(feature = "cuda")]
use super::cuda;
use super::fake_quant::{FakeActivation, FakeProbs};
use crate::ops::{Compute, Ops};
use crate::tape::Gradients;
pub(super) use head::Shape;

/// The fake quantization at the sites of attention; `None` is a site that is off.
#[derive(Clone, Debug)]
pub struct AttentionSites {
    /// Queries.
    pub q: Option<FakeActivation>,
    /// Keys.
    pub k: Option<FakeActivation>,
    /// Values.
    pub v: Option<FakeActivation>,
    /// `q k^T` before scale, bias and mask.
    pub scores: Option<FakeActivation>,
    /// Probabilities.
    pub probs: FakeProbs,
}

impl AttentionSites {
    /// Nothing is quantized.
    pub const FLOAT: AttentionSites =
        AttentionSites { q: None, k: None, v: None, scores: None, probs: FakeProbs::Float };

    /// The fake quantizations with a scale, in the order of [`AttentionGradients::scales`].
    pub(super) fn fakes(&self) -> [Option<&FakeActivation>; 5] {
        let probs = match &self.probs {
            FakeProbs::S8(fake) => Some(fake),
            _ => None,
        };
        [self.q.as_ref(), self.k.as_ref(), self.v.as_ref(), self.scores.as_ref(), probs]
    }
}

/// The inputs of one attention, which its backward pass uses again. The tensors are contiguous.
struct Inputs {
    shape: Shape,
    /// `[windows * n, 3 * c]`.
    qkv: Tensor,
    /// `[heads, n, n]`.
    bias: Tensor,
    /// `[windows of an image, n, n]`.
    mask: Option<Tensor>,
    sites: AttentionSites,
}

/// The gradients of one attention.
struct AttentionGradients {
    qkv: Tensor,
    bias: Tensor,
    /// The gradients of the scales of queries, keys, values, scores and probabilities, `[1]` each.
    scales: [Option<Tensor>; 5],
}

impl AttentionGradients {
    /// Adds the gradients to the gradients of the inputs and of the learned scales.
    fn add(self, inputs: &Inputs, sink: &mut Gradients) -> Result<()> {
        for (fake, scale) in inputs.sites.fakes().into_iter().zip(self.scales) {
            if let (Some(learned), Some(scale)) = (fake.and_then(|fake| fake.learned.as_ref()), &scale) {
                learned.add(sink, scale)?;
            }
        }
        sink.add(&inputs.bias, self.bias)?;
        sink.add(&inputs.qkv, self.qkv)
    }
}

impl Inputs {
    /// The implementation for these inputs: the CUDA kernels support some sizes only.
    fn compute(&self, ops: &Ops) -> Result<Compute> {
        match ops.compute {
            #[cfg(feature = "cuda")]
            Compute::Cuda if !cuda::takes_attention(self.shape, &self.qkv, &self.sites)? => {
                Ok(Compute::Candle)
            }
            compute => Ok(compute),
        }
    }

    fn forward(&self, compute: Compute) -> Result<Tensor> {
        match compute {
            Compute::Host(_) => host::forward(self),
            #[cfg(feature = "cuda")]
            Compute::Cuda => {
                cuda::attention(self.shape, &self.qkv, &self.bias, self.mask.as_ref(), &self.sites)
            }
            Compute::Candle => candle::Forward::new(self)?.output(),
        }
    }

    /// Computes the gradients from the gradient `grad` of the output, and adds them to `sink`.
    fn backward(&self, compute: Compute, grad: &Tensor, sink: &mut Gradients) -> Result<()> {
        match compute {
            Compute::Host(_) => host::backward(self, grad)?.add(self, sink),
            #[cfg(feature = "cuda")]
            Compute::Cuda => {
                let Inputs { shape, qkv, bias, mask, sites } = self;
                let [dqkv, dbias] =
                    cuda::attention_gradient(*shape, qkv, bias, mask.as_ref(), sites, grad, sink)?;
                sink.add(bias, dbias)?;
                sink.add(qkv, dqkv)
            }
            Compute::Candle => candle::Forward::new(self)?.backward(self, grad)?.add(self, sink),
        }
    }
}

/// Attention inside every window, as [`swinq_numerics::reference::attention_window`] defines it: `qkv`
/// `[windows * n, 3 * c]`, `bias` `[heads, n, n]` and `mask` `[windows of an image, n, n]` to
/// `[windows * n, c]`.
///
/// # Errors
/// Shapes that do not fit.
pub fn attention(
    ops: &Ops,
    qkv: &Tensor,
    scale: f32,
    bias: &Tensor,
    mask: Option<&Tensor>,
    sites: &AttentionSites,
) -> Result<Tensor> {
    let (rows, width) = qkv.dims2()?;
    let (heads, n, _) = bias.dims3()?;
    let shape = Shape { n, heads, d: width / 3 / heads, scale };
    if rows % n != 0 || width != shape.width() {
        bail!("attention: {:?} with {heads} heads of {n} tokens", qkv.shape())
    }
    let (qkv, bias) = (qkv.contiguous()?, bias.contiguous()?);
    let inputs = Inputs { shape, qkv, bias, mask: mask.cloned(), sites: sites.clone() };
    let compute = inputs.compute(ops)?;
    let out = inputs.forward(compute)?;
    let learned = sites.fakes().into_iter().flatten().filter_map(|fake| fake.learned.as_ref());
    let tracked = [&inputs.qkv, &inputs.bias].into_iter().chain(learned.map(|learned| &learned.ratio));
    let tracked: Vec<Tensor> = tracked.cloned().collect();
    ops.record(&tracked.iter().collect::<Vec<_>>(), &out, move |grad, sink| {
        inputs.backward(compute, &grad.tensor().contiguous()?, sink)
    });
    Ok(out)
}
