//! The operations of the forward pass other than linear layers, in three families:
//!
//! - `fused`: single passes over contiguous f32 in host memory, vectorised and on every core, without
//!   gradients.
//! - `composed`: candle's operations, on any device, differentiable by candle. The tests compare the others
//!   with it.
//! - `taped`: hand-written forward and backward passes, for training.
//!
//! [`Ops`] selects the family. Attention has one implementation for each purpose, because each purpose needs
//! different intermediate results:
//!
//! | implementation | used by | what differs |
//! | --- | --- | --- |
//! | `PackedAttention` | inference and calibration on the host | the engine's kernel, where no site lies inside |
//! | `fused` | inference and calibration on the host | scores, logits and softmax are separate passes, for the sites between them; the same bits |
//! | `composed` | inference and calibration on a GPU, candle's gradients | the same, in candle's operations |
//! | `fake_quant::host` | simulation on the host | the number contract's own function, on whole windows |
//! | `fake_quant::composed` | simulation on other devices | exact integer sums over codes |
//! | `taped::attention` | training | straight-through gradients; a host, a composed and a CUDA implementation |

pub(crate) mod composed;
mod exponential;
mod fused;
mod product;
pub mod taped;

use std::sync::{Arc, OnceLock};

use candle_core::{Device, Result, Tensor, bail};

use super::tape::Tape;

pub(super) use fused::with_values;
pub use fused::{fake_quantize, fake_quantize_columns};

/// The family of operations that a forward pass uses.
#[derive(Clone, Debug)]
pub enum Ops {
    /// Single-pass kernels: host memory only, no gradients.
    Fused,
    /// candle's operations: any device, differentiable.
    Composed,
    /// Operations with hand-written backward passes, recorded on this tape. Attention is one operation, so
    /// its parts are not available.
    Taped(Tape),
}

/// A LayerNorm over the last dimension.
#[derive(Clone, Debug)]
pub struct Norm {
    /// `[c]`.
    pub weight: Tensor,
    /// `[c]`.
    pub bias: Tensor,
    /// Added to the variance.
    pub eps: f64,
}

/// A gather of rows, equal for every image: output row `i` of an image concatenates `parts` source rows of
/// that image. [`Gather::ABSENT`] stands for a row of zeros.
#[derive(Clone, Debug)]
pub struct Gather {
    /// Rows of an image before the gather.
    pub source_rows: usize,
    /// Source rows per output row.
    pub parts: usize,
    /// Source rows, `[rows * parts]`.
    pub index: Arc<[u32]>,
    /// The inverse gather, computed at its first use.
    back: Arc<OnceLock<Gather>>,
    /// The index in the memory of the first device that used it.
    #[cfg(feature = "cuda")]
    resident: Arc<OnceLock<taped::cuda::Resident>>,
}

impl Gather {
    /// A source row of zeros.
    pub const ABSENT: u32 = u32::MAX;

    /// A gather by an index map such as [`Grid::partition`](swinq_model::Grid::partition).
    pub fn new(source_rows: usize, parts: usize, index: impl IntoIterator<Item = Option<usize>>) -> Gather {
        let index = index.into_iter().map(|row| row.map_or(Gather::ABSENT, |row| row as u32)).collect();
        Gather {
            source_rows,
            parts,
            index,
            back: Arc::default(),
            #[cfg(feature = "cuda")]
            resident: Arc::default(),
        }
    }

    /// The gather that moves every row back to its source. It needs `parts` of 1 and a gather that uses every
    /// source row.
    pub fn inverse(&self) -> Gather {
        let invert = || {
            let mut back = vec![None; self.source_rows];
            for (row, &source) in self.index.iter().enumerate().filter(|(_, s)| **s != Gather::ABSENT) {
                back[source as usize] = Some(row);
            }
            Gather::new(self.index.len(), 1, back)
        };
        self.back.get_or_init(invert).clone()
    }

    /// Rows of an image after the gather.
    pub fn rows(&self) -> usize {
        self.index.len() / self.parts
    }
}

impl Ops {
    /// The fastest family for inference on `device`.
    pub fn for_inference(device: &Device) -> Ops {
        if device.is_cpu() { Ops::Fused } else { Ops::Composed }
    }

    /// LayerNorm of the rows of `x` `[rows, c]`.
    pub(crate) fn norm(&self, x: &Tensor, norm: &Norm) -> Result<Tensor> {
        match self {
            Ops::Fused => fused::norm(x, norm),
            Ops::Composed => composed::norm(x, norm),
            Ops::Taped(tape) => taped::norm(tape, x, norm),
        }
    }

    /// LayerNorm, then the gather: `[images * source_rows, c]` to `[images * rows, c]`. Absent rows are zeros
    /// after the norm; `gather.parts` must be 1.
    pub(crate) fn norm_then_gather(&self, x: &Tensor, norm: &Norm, gather: &Gather) -> Result<Tensor> {
        match self {
            Ops::Fused => fused::norm_then_gather(x, norm, gather),
            Ops::Composed => composed::gather(&composed::norm(x, norm)?, gather),
            Ops::Taped(tape) => taped::norm_then_gather(tape, x, norm, gather),
        }
    }

    /// The gather, then LayerNorm: `[images * source_rows, c]` to `[images * rows, parts * c]`. Absent parts
    /// are zeros before the norm.
    pub(crate) fn gather_then_norm(&self, x: &Tensor, gather: &Gather, norm: &Norm) -> Result<Tensor> {
        match self {
            Ops::Fused => fused::norm(&fused::gather(x, gather)?, norm),
            Ops::Composed => composed::norm(&composed::gather(x, gather)?, norm),
            Ops::Taped(tape) => taped::norm(tape, &taped::gather(tape, x, gather)?, norm),
        }
    }

    /// The gather: `[images * source_rows, c]` to `[images * rows, parts * c]`.
    pub(crate) fn gather(&self, x: &Tensor, gather: &Gather) -> Result<Tensor> {
        match self {
            Ops::Fused => fused::gather(x, gather),
            Ops::Composed => composed::gather(x, gather),
            Ops::Taped(tape) => taped::gather(tape, x, gather),
        }
    }

    /// The mean of the rows of each of `images` images: `[images * rows, c]` to `[images, c]`.
    pub(crate) fn mean_rows(&self, x: &Tensor, images: usize) -> Result<Tensor> {
        match self {
            Ops::Fused => fused::mean_rows(x, images),
            Ops::Composed => x.reshape((images, (), x.dim(1)?))?.mean(1),
            Ops::Taped(tape) => taped::mean_rows(tape, x, images),
        }
    }

    /// `x` `[rows, c]` plus the bias `[c]`.
    pub(crate) fn add_bias(&self, x: &Tensor, bias: &Tensor) -> Result<Tensor> {
        match self {
            Ops::Fused => fused::add_bias(x, bias),
            Ops::Composed => x.broadcast_add(bias),
            Ops::Taped(tape) => taped::add_rows(tape, x, bias),
        }
    }

    /// GELU, defined by the error function, of `x` `[rows, c]`.
    pub(crate) fn gelu(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Ops::Fused => fused::gelu(x),
            Ops::Composed => x.gelu_erf(),
            Ops::Taped(tape) => taped::gelu(tape, x),
        }
    }

    /// The sum of two tensors of one shape.
    pub(crate) fn add(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        match self {
            Ops::Fused => fused::add(a, b),
            Ops::Composed => a + b,
            Ops::Taped(tape) => taped::add(tape, a, b),
        }
    }

    /// Splits `[windows * n, 3 * heads * d]` into queries, keys and values: `[3, windows, heads, n, d]`.
    pub(crate) fn split_heads(&self, qkv: &Tensor, heads: usize, n: usize) -> Result<Tensor> {
        match self {
            Ops::Fused => fused::split_heads(qkv, heads, n),
            Ops::Composed => composed::split_heads(qkv, heads, n),
            Ops::Taped(_) => bail!("attention on a tape is one operation; its parts are not available"),
        }
    }

    /// Merges the heads: `[windows, heads, n, d]` to `[windows * n, heads * d]`.
    pub(crate) fn merge_heads(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Ops::Fused => fused::merge_heads(x),
            Ops::Composed => composed::merge_heads(x),
            Ops::Taped(_) => bail!("attention on a tape is one operation; its parts are not available"),
        }
    }

    /// `q k^T`: twice `[windows, heads, n, d]` to `[windows, heads, n, n]`.
    pub(crate) fn scores(&self, q: &Tensor, k: &Tensor) -> Result<Tensor> {
        match self {
            Ops::Fused => fused::scores(q, k),
            Ops::Composed => composed::scores(q, k),
            Ops::Taped(_) => bail!("attention on a tape is one operation; its parts are not available"),
        }
    }

    /// Normalises the vectors of the last dimension to length 1, as [`swinq_numerics::reference::normalize`] does.
    pub(crate) fn normalize(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Ops::Fused => fused::normalize(x),
            Ops::Composed => composed::normalize(x),
            Ops::Taped(_) => bail!("attention on a tape is one operation; its parts are not available"),
        }
    }

    /// `scores * scale + (bias + mask)`: scores `[images * windows, heads, n, n]`, one scale or one for each head, bias
    /// `[heads, n, n]`, mask `[windows, n, n]`.
    pub(crate) fn logits(
        &self,
        scores: &Tensor,
        scales: &[f32],
        bias: &Tensor,
        mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        match self {
            Ops::Fused => fused::logits(scores, scales, bias, mask),
            Ops::Composed => composed::logits(scores, scales, bias, mask),
            Ops::Taped(_) => bail!("attention on a tape is one operation; its parts are not available"),
        }
    }
}

/// The sum of two tensors of one shape, without gradients.
pub(super) fn sum(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if a.device().is_cpu() && a.dims().len() == 2 { fused::add(a, b) } else { a + b }
}

/// Softmax of `logits` `[windows, heads, n, n]` over the last dimension, times `v` `[windows, heads, n, d]`.
/// Differentiable by candle if an argument is a variable.
///
/// # Errors
/// Shapes that do not fit.
pub fn attend(logits: &Tensor, v: &Tensor) -> Result<Tensor> {
    if logits.device().is_cpu() && !logits.track_op() && !v.track_op() {
        fused::attend(logits, v)
    } else {
        composed::attend(logits, v)
    }
}

/// Softmax over the last dimension. Differentiable by candle if `x` is a variable.
///
/// # Errors
/// `x` is a scalar.
pub fn softmax(x: &Tensor) -> Result<Tensor> {
    if x.device().is_cpu() && !x.track_op() { fused::softmax(x) } else { composed::softmax(x) }
}

/// `probs` `[windows, heads, n, n]` times `v` `[windows, heads, n, d]`. Differentiable by candle if an
/// argument is a variable.
///
/// # Errors
/// Shapes that do not fit.
pub fn probs_times_values(probs: &Tensor, v: &Tensor) -> Result<Tensor> {
    if probs.device().is_cpu() && !probs.track_op() && !v.track_op() {
        fused::probs_times_values(probs, v)
    } else {
        composed::probs_times_values(probs, v)
    }
}

#[cfg(test)]
mod tests;
