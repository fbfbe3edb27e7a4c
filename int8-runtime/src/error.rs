//! What can go wrong between a model and its logits.

use swinq_kernels::IsaError;
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
    Isa(#[from] IsaError),
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
}
