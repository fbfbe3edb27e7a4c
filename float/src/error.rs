//! What can go wrong in a float forward.

use swinq_model::ModelError;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FloatError {
    /// The model, the images or a site do not fit together.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A tensor operation failed: memory, a device, or an argument that it refuses.
    #[error("float forward: {0}")]
    Candle(#[from] candle_core::Error),
}
