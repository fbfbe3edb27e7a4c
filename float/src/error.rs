//! The error type of this crate.

use swinq_model::ModelError;

/// An error of the float forward.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FloatError {
    /// The model, the images and the sites do not fit each other.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A tensor operation failed: out of memory, a device error, or an invalid argument.
    #[error("float forward: {0}")]
    Candle(#[from] candle_core::Error),
}
