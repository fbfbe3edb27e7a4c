//! The implementations of operations.

use candle_core::{DType, Device, Result, Tensor};
use swinq_kernels::Cpu;
use swinq_model::ModelError;

#[cfg(feature = "cuda")]
use super::taped::cuda;
use super::{Gather, Norm, candle, host};
use crate::error::FloatError;

/// The implementation of operations.
#[derive(Clone, Copy, Debug)]
pub enum Compute {
    /// Single passes over f32 in host memory, on every core; the instruction set is that of linear layers.
    Host(Cpu),
    /// This program's CUDA kernels.
    #[cfg(feature = "cuda")]
    Cuda,
    /// candle's operations, on any device. Without a tape they are differentiable by candle.
    Candle,
}

/// The type in which linear layers compute their products. Types other than `F32` are for GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ComputeType {
    /// f32.
    #[default]
    F32,
    /// f32, which the tensor cores round to 10 bits of mantissa.
    Tf32,
    /// bf16.
    Bf16,
    /// f16.
    F16,
}

impl ComputeType {
    /// Their type, if it is not f32.
    pub fn half(self) -> Option<DType> {
        match self {
            ComputeType::F32 | ComputeType::Tf32 => None,
            ComputeType::Bf16 => Some(DType::BF16),
            ComputeType::F16 => Some(DType::F16),
        }
    }
}

impl Compute {
    /// Host memory, with the fastest instruction set or the one in `SWINQ_ISA`.
    ///
    /// # Errors
    /// [`ModelError::Config`] if `SWINQ_ISA` names none that can be used here.
    pub fn host() -> std::result::Result<Compute, FloatError> {
        let cpu = Cpu::detect().map_err(|e| ModelError::config("SWINQ_ISA", e.to_string()))?;
        Ok(Compute::Host(cpu))
    }

    /// The implementation for inference, calibration and simulation on `device`.
    ///
    /// # Errors
    /// The errors of [`Compute::host`].
    pub fn for_inference(device: &Device) -> std::result::Result<Compute, FloatError> {
        if device.is_cpu() { Compute::host() } else { Ok(Compute::Candle) }
    }

    /// The implementation for training on `device`.
    ///
    /// # Errors
    /// The errors of [`Compute::host`].
    pub fn for_training(device: &Device) -> std::result::Result<Compute, FloatError> {
        match device {
            #[cfg(feature = "cuda")]
            Device::Cuda(_) => Ok(Compute::Cuda),
            device => Compute::for_inference(device),
        }
    }

    /// Whether this is [`Compute::Host`].
    pub fn is_host(self) -> bool {
        matches!(self, Compute::Host(_))
    }

    /// Whether this is `Compute::Cuda`, which exists with the feature `cuda` only.
    pub fn is_cuda(self) -> bool {
        !matches!(self, Compute::Host(_) | Compute::Candle)
    }

    /// LayerNorm of the rows of `x` `[rows, c]`.
    pub(super) fn norm(self, x: &Tensor, norm: &Norm) -> Result<Tensor> {
        match self {
            Compute::Host(_) => host::norm(x, norm),
            #[cfg(feature = "cuda")]
            Compute::Cuda => cuda::norm(x, norm),
            Compute::Candle => candle::norm(x, norm),
        }
    }

    /// The gather: `[images * source_rows, c]` to `[images * rows, parts * c]`.
    pub(super) fn gather(self, x: &Tensor, gather: &Gather) -> Result<Tensor> {
        match self {
            Compute::Host(_) => host::gather(x, gather),
            #[cfg(feature = "cuda")]
            Compute::Cuda => cuda::gather(x, gather),
            Compute::Candle => candle::gather(x, gather),
        }
    }

    /// `x` `[rows, c]` plus the bias `[c]`.
    pub(super) fn add_bias(self, x: &Tensor, bias: &Tensor) -> Result<Tensor> {
        match self {
            Compute::Host(_) => host::add_bias(x, bias),
            #[cfg(feature = "cuda")]
            Compute::Cuda => cuda::add_bias(x, bias),
            Compute::Candle => x.broadcast_add(bias),
        }
    }

    /// GELU, defined by the error function, of `x` `[rows, c]`.
    pub(super) fn gelu(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Compute::Host(_) => host::gelu(x),
            #[cfg(feature = "cuda")]
            Compute::Cuda => cuda::gelu(x),
            Compute::Candle => x.gelu_erf(),
        }
    }

    /// The mean of the rows of each of `images` images: `[images * rows, c]` to `[images, c]`.
    pub(super) fn mean_rows(self, x: &Tensor, images: usize) -> Result<Tensor> {
        match self {
            Compute::Host(_) => host::mean_rows(x, images),
            _ => x.reshape((images, (), x.dim(1)?))?.mean(1),
        }
    }

    /// The sum of two tensors `[rows, c]`.
    pub(super) fn add(self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        if self.is_host() { host::add(a, b) } else { a + b }
    }
}

/// The parts of attention. On CUDA they are candle's operations.
impl Compute {
    /// Splits `[windows * n, 3 * heads * d]` into queries, keys and values: `[3, windows, heads, n, d]`.
    pub(crate) fn split_heads(self, qkv: &Tensor, heads: usize, n: usize) -> Result<Tensor> {
        if self.is_host() { host::split_heads(qkv, heads, n) } else { candle::split_heads(qkv, heads, n) }
    }

    /// Merges the heads: `[windows, heads, n, d]` to `[windows * n, heads * d]`.
    pub(crate) fn merge_heads(self, x: &Tensor) -> Result<Tensor> {
        if self.is_host() { host::merge_heads(x) } else { candle::merge_heads(x) }
    }

    /// `q k^T`: twice `[windows, heads, n, d]` to `[windows, heads, n, n]`.
    pub(crate) fn scores(self, q: &Tensor, k: &Tensor) -> Result<Tensor> {
        if self.is_host() { host::scores(q, k) } else { candle::scores(q, k) }
    }

    /// Normalises the vectors of the last dimension to length 1, as [`swinq_numerics::reference::normalize`]
    /// does.
    pub(crate) fn normalize(self, x: &Tensor) -> Result<Tensor> {
        if self.is_host() { host::normalize(x) } else { candle::normalize(x) }
    }

    /// `scores * scale + (bias + mask)`: scores `[images * windows, heads, n, n]`, one scale or one for each
    /// head, bias `[heads, n, n]`, mask `[windows, n, n]`.
    pub(crate) fn logits(
        self,
        scores: &Tensor,
        scales: &[f32],
        bias: &Tensor,
        mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        match self {
            Compute::Host(_) => host::logits(scores, scales, bias, mask),
            _ => candle::logits(scores, scales, bias, mask),
        }
    }

    /// Softmax over the last dimension.
    pub(crate) fn softmax(self, x: &Tensor) -> Result<Tensor> {
        if self.is_host() { host::softmax(x) } else { candle::softmax(x) }
    }

    /// Softmax of `logits` `[windows, heads, n, n]` over the last dimension, times `v`
    /// `[windows, heads, n, d]`.
    pub(crate) fn attend(self, logits: &Tensor, v: &Tensor) -> Result<Tensor> {
        if self.is_host() { host::attend(logits, v) } else { candle::attend(logits, v) }
    }
}
