//! The operations of the forward pass. Each has up to three implementations, among which [`Compute`] selects:
//!
//! - `host`: single passes over contiguous f32 in host memory, vectorised and on every core.
//! - `taped::cuda`: this program's CUDA kernels, for training.
//! - `candle`: candle's operations, on any device, differentiable by candle. The tests compare the others
//!   with it.
//!
//! `taped` has the operations of a network ([`Ops`]): the forward pass of an implementation, and its
//! hand-written backward pass, which is recorded if there is a tape. Attention has one implementation for
//! each purpose, because each purpose needs different intermediate results:
//!
//! | implementation | used by | what differs |
//! | --- | --- | --- |
//! | `PackedAttention` | inference and calibration on the host | the engine's kernel, where no site lies inside |
//! | `host::attention` | inference and calibration on the host | scores, logits and softmax are separate passes, for the sites between them; the same bits |
//! | `candle` | inference and calibration on a GPU, candle's gradients | the same, in candle's operations |
//! | `fake_quant::host` | simulation on the host | the number contract's own function, on whole windows |
//! | `fake_quant::candle` | simulation on other devices | exact integer sums over codes |
//! | `taped::attention` | training | straight-through gradients; an implementation on the host, on CUDA and in candle's operations |

pub(crate) mod candle;
mod compute;
mod exponential;
mod host;
mod product;
pub mod taped;

use std::sync::{Arc, OnceLock};

use candle_core::{Result, Tensor};

use super::tape::Tape;

pub use compute::{Compute, ComputeType};
pub(super) use host::with_values;
pub use host::{fake_quantize, fake_quantize_columns, probs_times_values, softmax};

/// The operations of a network.
#[derive(Clone, Debug)]
pub struct Ops {
    /// Their implementation.
    pub compute: Compute,
    /// The type in which linear layers compute.
    pub compute_type: ComputeType,
    /// Records them for a backward pass, if there is one. Attention is one operation then, so its parts are
    /// not available.
    pub tape: Option<Tape>,
}

impl From<Compute> for Ops {
    /// The operations in f32, without a tape.
    fn from(compute: Compute) -> Ops {
        Ops { compute, compute_type: ComputeType::F32, tape: None }
    }
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

/// The sum of two tensors of one shape, without gradients.
pub(super) fn sum(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if a.device().is_cpu() && a.dims().len() == 2 { host::add(a, b) } else { a + b }
}

#[cfg(test)]
mod tests;
