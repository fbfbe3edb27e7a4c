//! The error type of this crate.

use swinq_cuda::CudaError;
use swinq_eval::EvalError;
use swinq_kernels::CpuError;
use swinq_model::ModelError;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LadderError {
    /// The arguments ask for more than the kernels or the memory have room for.
    #[error("{0}")]
    Size(String),
    /// `--backend cuda` was given, and the GPU cannot be used.
    #[error("--backend cuda: {0}")]
    NoGpu(#[source] CudaError),
    /// The GPU failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// `SWINQ_ISA` names an instruction set that cannot be used.
    #[error(transparent)]
    Cpu(#[from] CpuError),
    /// The measured times of a rung are invalid.
    #[error(transparent)]
    Times(#[from] EvalError),
    /// An output could not be written.
    #[error(transparent)]
    Output(#[from] ModelError),
    /// The user asked to stop.
    #[error("interrupted; nothing was written")]
    Interrupted,
    /// Rungs computed wrong results or could not run. The outputs are written.
    #[error("{failed} of {rungs} rungs FAILED: {labels}")]
    Failed {
        /// Rungs that failed.
        failed: usize,
        /// Rungs in total.
        rungs: usize,
        /// Names and sizes of the rungs that failed.
        labels: String,
    },
}
