//! What can go wrong in a training.

use std::path::PathBuf;

use swinq_calib::CalibError;
use swinq_float::FloatError;
use swinq_model::batch::BoxError;
use swinq_model::{ModelError, Site};

use crate::job::JobError;

/// A training that cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum QatError {
    /// The job.
    #[error(transparent)]
    Job(#[from] JobError),
    /// The records.
    #[error(transparent)]
    Log(#[from] crate::log::LogError),
    /// A model or checkpoint.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The float forward failed.
    #[error(transparent)]
    Float(#[from] FloatError),
    /// The quantization of the result.
    #[error(transparent)]
    Calib(#[from] CalibError),
    /// Tensor arithmetic: memory, or a device.
    #[error("tensor arithmetic failed: {0}")]
    Tensor(#[from] candle_core::Error),
    /// Images.
    #[error("{0}")]
    Data(BoxError),
    /// Validation.
    #[error("validation: {0}")]
    Validation(BoxError),
    /// The teacher does not fit the model.
    #[error("the teacher {teacher} cannot teach this model: {problem}")]
    Teacher {
        /// Its checkpoint.
        teacher: String,
        /// What differs.
        problem: String,
    },
    /// The calibrated checkpoint and the float one are of different networks.
    #[error("{file}: {problem}")]
    Mismatch {
        /// The file at fault.
        file: String,
        /// What differs, and the remedy.
        problem: String,
    },
    /// A quantized weight or activation that cannot be trained as the job says.
    #[error("{site}: {problem}")]
    Site {
        /// The site.
        site: Site,
        /// What is wrong.
        problem: String,
    },
    /// The loss or a gradient is not finite, or the loss exploded.
    #[error("step {step}: {problem}; {remedy}")]
    Diverged {
        /// The step, counted from 1.
        step: u64,
        /// What was seen first, and where.
        problem: String,
        /// What to do.
        remedy: String,
    },
    /// A file of the training cannot be read or written.
    #[error("{path}: {problem}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and the remedy.
        problem: String,
    },
}

impl QatError {
    pub(crate) fn file(path: impl Into<PathBuf>, problem: impl Into<String>) -> QatError {
        QatError::File { path: path.into(), problem: problem.into() }
    }
}
