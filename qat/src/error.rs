//! The error type of a training.

use std::path::PathBuf;

use swinq_calib::CalibError;
use swinq_float::FloatError;
use swinq_model::batch::BoxError;
use swinq_model::{ModelError, Site};

use crate::job::JobError;

/// An error that prevents a training from starting or continuing.
#[derive(Debug, thiserror::Error)]
pub enum QatError {
    /// An error of the job.
    #[error(transparent)]
    Job(#[from] JobError),
    /// The log could not be read or written.
    #[error(transparent)]
    Log(#[from] crate::log::LogError),
    /// An error of a model or checkpoint.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The float forward failed.
    #[error(transparent)]
    Float(#[from] FloatError),
    /// The result could not be quantized.
    #[error(transparent)]
    Calib(#[from] CalibError),
    /// A tensor operation failed: out of memory, or a device error.
    #[error("tensor operation failed: {0}")]
    Tensor(#[from] candle_core::Error),
    /// The images could not be read.
    #[error("{0}")]
    Data(BoxError),
    /// The validation failed.
    #[error("validation: {0}")]
    Validation(BoxError),
    /// The teacher does not fit the model.
    #[error("the teacher {teacher} cannot teach this model: {problem}")]
    Teacher {
        /// The teacher's checkpoint.
        teacher: String,
        /// The difference.
        problem: String,
    },
    /// The calibrated and the float checkpoint belong to different networks.
    #[error("{file}: {problem}")]
    Mismatch {
        /// The file at fault.
        file: String,
        /// The difference, and the remedy.
        problem: String,
    },
    /// A site cannot be trained as the job says.
    #[error("{site}: {problem}")]
    Site {
        /// The site.
        site: Site,
        /// The problem.
        problem: String,
    },
    /// The loss or a gradient is not finite, or the loss exploded.
    #[error("iteration {iteration}: {problem}; {remedy}")]
    Diverged {
        /// The iteration, counted from 1.
        iteration: u64,
        /// The first problem found, and its place.
        problem: String,
        /// The remedy.
        remedy: String,
    },
    /// Another process of the training failed, or cannot be reached.
    #[error(transparent)]
    Rank(#[from] crate::ranks::RankError),
    /// A file of the training cannot be read or written.
    #[error("{path}: {problem}")]
    File {
        /// The file.
        path: PathBuf,
        /// The problem, and the remedy.
        problem: String,
    },
}

impl QatError {
    pub(crate) fn file(path: impl Into<PathBuf>, problem: impl Into<String>) -> QatError {
        QatError::File { path: path.into(), problem: problem.into() }
    }
}
