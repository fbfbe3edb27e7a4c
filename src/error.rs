//! The errors of the library.

use std::path::{Path, PathBuf};

use swinq_data::DataError;
use swinq_eval::EvalError;
use swinq_int8_runtime::RuntimeError;
use swinq_model::{BoxError, ModelError, SwinConfig};

/// An error of this crate. Every message names the file, model, site or argument at fault, and the next step.
/// [`std::error::Error::source`] gives the cause, if there is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing exists at the path of a model or a recipe.
    #[error("{}: no such file or folder", path.display())]
    NotFound {
        /// The path given.
        path: PathBuf,
    },
    /// A model cannot be read.
    #[error("{}", named(path, source))]
    Open {
        /// The file or folder.
        path: PathBuf,
        /// The reason.
        source: ModelError,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The reason of the operating system.
        source: std::io::Error,
    },
    /// An argument of a call has a value that the call cannot work with.
    #[error("{argument}: {problem}")]
    Argument {
        /// Name of the argument or field.
        argument: &'static str,
        /// The value, and the allowed values.
        problem: String,
    },
    /// Overrides of a configuration were given without the configuration.
    #[error("configuration overrides (`opts`) change the configuration that `cfg` names; give `cfg` too")]
    OverridesWithoutConfig,
    /// The model, its configuration or its recipe cannot be used.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The images cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The labels of the images are not the classes of the model.
    #[error("{problem}")]
    Labels {
        /// The problem, and the next step.
        problem: String,
    },
    /// A batch of images cannot be made.
    #[error(transparent)]
    Batch(BoxError),
    /// The engine cannot be made, or failed.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// The evaluation of one model failed.
    #[error("evaluating {model}: {source}")]
    Evaluating {
        /// Name of the model.
        model: String,
        /// The reason.
        source: EvalError,
    },
    /// Results cannot be computed, compared, read or written.
    #[error(transparent)]
    Eval(#[from] EvalError),
    /// A backbone, for work on the scores of classes.
    #[error(
        "{name} is a backbone: it has feature maps, which `swinq features` writes, and no classes, which this needs"
    )]
    Backbone {
        /// Name of the model's configuration.
        name: String,
    },
    /// Models cannot be compared.
    #[error("{problem}")]
    Comparison {
        /// The difference, and the next step.
        problem: String,
    },
    /// The model cannot be exported.
    #[cfg(feature = "onnx")]
    #[error(transparent)]
    Onnx(#[from] swinq_onnx::OnnxError),
    /// The caller asked to stop.
    #[error("interrupted; nothing was written")]
    Interrupted,
    /// A recipe that leaves every site of a model in float.
    #[error(
        "recipe {recipe}, with the rules added to it, quantizes no site of {model}; enable at least one site with a rule"
    )]
    NothingQuantized {
        /// Name of the recipe.
        recipe: String,
        /// Name of the model's configuration.
        model: String,
    },
    /// A calibration failed.
    #[cfg(feature = "float")]
    #[error(transparent)]
    Calib(#[from] swinq_calib::CalibError),
    /// The float forward failed.
    #[cfg(feature = "float")]
    #[error(transparent)]
    Float(#[from] swinq_float::FloatError),
    /// The device for the float forward cannot be used.
    #[cfg(feature = "float")]
    #[error("{device}: {source}")]
    Device {
        /// The device: `cpu` or `cuda:N`.
        device: crate::FloatDevice,
        /// The reason.
        source: BoxError,
    },
    /// A training job cannot be used.
    #[cfg(feature = "float")]
    #[error(transparent)]
    Job(#[from] swinq_qat::job::JobError),
    /// A training job names a model, a configuration or images that cannot be used under the job's key `key`.
    #[cfg(feature = "float")]
    #[error("{key}: {source}")]
    JobInput {
        /// The key of the job.
        key: &'static str,
        /// The reason.
        source: Box<Error>,
    },
    /// Another process trains in the same folder.
    #[cfg(feature = "float")]
    #[error(
        "{}: another training runs in this folder ({holder}); wait until it ends, or choose another output folder",
        folder.display()
    )]
    Busy {
        /// The output folder.
        folder: PathBuf,
        /// The process that holds the folder's lock, its host, and the time since when.
        holder: String,
    },
    /// A training run failed.
    #[cfg(feature = "float")]
    #[error(transparent)]
    Qat(#[from] swinq_qat::QatError),
}

impl Error {
    pub(crate) fn argument(argument: &'static str, problem: impl Into<String>) -> Error {
        Error::Argument { argument, problem: problem.into() }
    }

    /// Refuses a backbone, for work on the scores of classes.
    pub(crate) fn check_classifier(config: &SwinConfig) -> Result<(), Error> {
        if config.is_backbone() {
            return Err(Error::Backbone { name: config.name.clone() });
        }
        Ok(())
    }

    pub(crate) fn open(path: &Path) -> impl FnOnce(ModelError) -> Error {
        let path = path.to_owned();
        |source| Error::Open { path, source }
    }

    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.to_owned();
        |source| Error::Io { path, source }
    }

    /// The error of a source of batches. Data sets give a [`DataError`].
    pub(crate) fn batch(error: BoxError) -> Error {
        match error.downcast::<DataError>() {
            Ok(error) => Error::Data(*error),
            Err(error) => Error::Batch(error),
        }
    }
}

/// Whether `error`, or a cause of it, is that of images that a call may leave out
/// ([`ReadOptions::skip_corrupt`](crate::ReadOptions::skip_corrupt)).
pub fn is_of_corrupt_images(error: &(dyn std::error::Error + 'static)) -> bool {
    std::iter::successors(Some(error), |cause| cause.source()).any(|cause| {
        let data = match cause.downcast_ref() {
            Some(Error::Data(error)) => Some(error),
            _ => cause.downcast_ref(),
        };
        data.is_some_and(|e: &DataError| {
            e.is_corrupt_image() || matches!(e, DataError::TooManyCorrupt { .. })
        })
    })
}

/// `path: source`, or only `source` if its text already begins with the path.
fn named(path: &Path, source: &ModelError) -> String {
    let (path, source) = (path.display().to_string(), source.to_string());
    if source.starts_with(&path) { source } else { format!("{path}: {source}") }
}
