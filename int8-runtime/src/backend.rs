//! The backends that run a model.

use swinq_cuda::{CudaError, Device, Library, library};
use swinq_model::SwinConfig;
use swinq_model::quantized::F16Residual;

use crate::cpu::CpuOptions;
use crate::cuda::{CudaOptions, Gemm, ResidualType, residual_type};
use crate::error::RuntimeError;

/// The most threads that an engine may have.
pub const MAX_THREADS: usize = 1024;

/// The most images that an engine may run at a time.
pub const MAX_BATCH: usize = 1 << 16;

/// The backend that runs a model, with its options.
#[derive(Clone, Copy, Debug)]
pub enum Backend {
    /// The CPU.
    Cpu(CpuOptions),
    /// An NVIDIA GPU.
    Cuda(CudaOptions),
}

impl Backend {
    /// The name of the backend in results: `cpu`, or `cuda` with the options that are not the defaults.
    pub fn name(&self) -> String {
        match self {
            Backend::Cpu(_) => "cpu".to_owned(),
            Backend::Cuda(options) => match (options.gemm, options.residual()) {
                (Gemm::Auto, ResidualType::F16) => "cuda".to_owned(),
                (gemm, ResidualType::F16) => format!("cuda {gemm}"),
                (gemm, ResidualType::F32) => format!("cuda {gemm}, f32 residual"),
            },
        }
    }

    /// The most images that run at a time.
    pub fn max_batch(&self) -> usize {
        match self {
            Backend::Cpu(options) => options.max_batch,
            Backend::Cuda(options) => options.max_batch,
        }
    }

    /// The most pixels of an image; 0 stands for as many as half of the free memory holds.
    pub(crate) fn max_pixels(&self) -> usize {
        match self {
            Backend::Cpu(options) => options.max_pixels,
            Backend::Cuda(options) => options.max_pixels,
        }
    }

    /// The backend with the type of the residual stream that it has for a model of this architecture; `fit`
    /// says whether f16 holds the model's stream.
    ///
    /// # Errors
    /// Those of [`residual_type`].
    pub(crate) fn resolved(self, fit: F16Residual, config: &SwinConfig) -> Result<Backend, RuntimeError> {
        Ok(match self {
            Backend::Cpu(_) => self,
            Backend::Cuda(options) => {
                let residual = Some(residual_type(options.residual, fit, config)?);
                Backend::Cuda(CudaOptions { residual, ..options })
            }
        })
    }

    /// Checks that the options are within their bounds.
    ///
    /// # Errors
    /// [`RuntimeError::Threads`] or [`RuntimeError::MaxBatch`].
    pub fn check(&self) -> Result<(), RuntimeError> {
        if let Backend::Cpu(CpuOptions { threads, .. }) = *self
            && threads > MAX_THREADS
        {
            return Err(RuntimeError::Threads { threads });
        }
        let max_batch = self.max_batch();
        if !(1..=MAX_BATCH).contains(&max_batch) {
            return Err(RuntimeError::MaxBatch { max_batch });
        }
        Ok(())
    }

    /// Whether weights packed for `self` also suit `other`: both have the same CPU kernels, or the same GPU
    /// with the same type of the residual stream.
    pub(crate) fn packs_like(&self, other: &Backend) -> bool {
        match (self, other) {
            (Backend::Cpu(a), Backend::Cpu(b)) => a.cpu.name() == b.cpu.name(),
            (Backend::Cuda(a), Backend::Cuda(b)) => a.device == b.device && a.residual() == b.residual(),
            _ => false,
        }
    }

    /// The target of packed weights, for messages.
    pub(crate) fn packing(&self) -> String {
        match self {
            Backend::Cpu(options) => format!("the CPU kernels {}", options.cpu),
            Backend::Cuda(options) => {
                format!("GPU {} with an {:?} residual", options.device, options.residual())
            }
        }
    }
}

/// GPU `ordinal`, if an engine can run on it: the driver lists it, and NVRTC is available to compile kernels.
/// (cuBLASLt may be missing; the engine then uses its own kernels.)
///
/// # Errors
/// The missing library, or the reason why the GPU cannot be opened.
pub fn usable_gpu(ordinal: usize) -> Result<Device, CudaError> {
    let device = Device::open(ordinal)?;
    library::require(Library::Nvrtc)?;
    Ok(device)
}
