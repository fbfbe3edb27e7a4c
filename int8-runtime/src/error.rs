//! What can go wrong between a model and its logits.

use swinq_kernels::CpuError;
use swinq_kernels::cuda::CudaError;
use swinq_model::ModelError;

/// An error of the engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// The model cannot be run as it is.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The instruction set asked for cannot be had.
    #[error(transparent)]
    Isa(#[from] CpuError),
    /// A batch of the wrong image size.
    #[error("images of {got} x {got} pixels given to a model for {expected} x {expected}")]
    ImageSize {
        /// Side of the images given.
        got: usize,
        /// Side of the model's input.
        expected: usize,
    },
    /// A batch whose bytes are not its images.
    #[error("{bytes} bytes of pixels for {images} images of {size} x {size} x 3")]
    PixelCount {
        /// Bytes given.
        bytes: usize,
        /// Images claimed.
        images: usize,
        /// Side of the model's input.
        size: usize,
    },
    /// A score that is no number.
    #[error(
        "image {image} of the batch: the score of class {class} is {value}; a weight or a scale of this model is \
         damaged (`swinq inspect` lists the scales)"
    )]
    NotFinite {
        /// Position in the batch.
        image: usize,
        /// Class index.
        class: usize,
        /// The value met.
        value: f32,
    },
    /// A GPU or its driver failed, or there is none.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// Something of the model that the GPU cannot run, or fails at.
    #[error("{launch}: {source}")]
    OnDevice {
        /// Module path of the launch.
        launch: String,
        /// What is wrong.
        source: CudaError,
    },
}

impl RuntimeError {
    pub(crate) fn on_device(launch: &str, source: CudaError) -> RuntimeError {
        RuntimeError::OnDevice { launch: launch.to_owned(), source }
    }
}
