//! Errors of evaluation, measurement and reports.

use std::path::{Path, PathBuf};

use swinq_model::{BoxError, ModelError};

/// An error of this crate. The message names the image, step, field or file at fault, and the next step where
/// there is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvalError {
    /// The data set could not deliver a batch.
    #[error("batch {batch} of the data set: {source}")]
    Data {
        /// Index of the batch.
        batch: usize,
        /// The data set's error.
        source: BoxError,
    },
    /// The classifier failed on a batch.
    #[error("inference of batch {batch}: {source}")]
    Infer {
        /// Index of the batch.
        batch: usize,
        /// The classifier's error.
        source: BoxError,
    },
    /// A batch or its logits contradict the declarations of the data set or of the classifier.
    #[error("batch {batch}: {problem}")]
    Batch {
        /// Index of the batch.
        batch: usize,
        /// The contradiction, and the next step.
        problem: String,
    },
    /// The progress callback stopped the evaluation.
    #[error("interrupted after {done} of {total} images; nothing was evaluated")]
    Interrupted {
        /// Number of images done.
        done: usize,
        /// Number of images in the epoch.
        total: usize,
    },
    /// The data set delivered no image.
    #[error("no images were evaluated; check the data path and the split")]
    NoImages,
    /// Accuracy needs labels, but the data set has none.
    #[error("the data set has no labels; use a folder per class, a zip layout or a list with classes")]
    NoLabels,
    /// A label is not a class of the model.
    #[error(
        "image {image} has label {label}, but the model has {classes} classes; use data of the model's classes"
    )]
    Label {
        /// Position of the image in the data set's list.
        image: usize,
        /// Its label.
        label: u32,
        /// Number of classes of the model.
        classes: usize,
    },
    /// A logit is NaN or infinite.
    #[error(
        "image {image}: the logit of class {class} is {value}; a scale or a weight of the model is damaged \
         (`swinq inspect` prints the scales)"
    )]
    NonFiniteLogit {
        /// Position of the image in the data set's list.
        image: usize,
        /// Class index.
        class: usize,
        /// The value.
        value: f32,
    },
    /// A value of a feature map is NaN or infinite.
    #[error(
        "image {image}: {output} has a value that is not finite; a scale or a weight of the model is damaged \
         (`swinq inspect` prints the scales)"
    )]
    NonFiniteMap {
        /// Position of the image in the data set's list.
        image: usize,
        /// Name of the output.
        output: String,
    },
    /// Two sets of logits belong to different images, labels or classes.
    #[error("the two models cannot be compared: {problem}")]
    Mismatch {
        /// The difference, and the next step.
        problem: String,
    },
    /// Two runs, or a figure of theirs, cannot be compared.
    #[error("the two runs cannot be compared: {problem}")]
    Incomparable {
        /// The difference, and the next step.
        problem: String,
    },
    /// The lengths of two tensors or of two parts of a [`Collected`](crate::Collected) differ.
    #[error("{what}: {left} values against {right}")]
    Length {
        /// The two parts that must have equal lengths.
        what: &'static str,
        /// Length of the first.
        left: usize,
        /// Length of the second.
        right: usize,
    },
    /// A tensor passed to [`Distortion`](crate::Distortion) holds NaN or infinity.
    #[error(
        "element {index}: {reference} against {other}; both must be finite, so check the op that wrote the tensor"
    )]
    NonFinite {
        /// Index of the element in the slice.
        index: usize,
        /// Its value in the reference.
        reference: f32,
        /// Its value in the other tensor.
        other: f32,
    },
    /// A measured step failed.
    #[error("measuring, step {step}: {source}")]
    Step {
        /// Index of the step among those measured.
        step: usize,
        /// Its error.
        source: BoxError,
    },
    /// Latency samples or the options to measure them are invalid.
    #[error("latency samples: {problem}")]
    Samples {
        /// The problem.
        problem: String,
    },
    /// A result is impossible, such as a count above its total or a NaN.
    #[error("results, {field}: {problem}")]
    Results {
        /// The field, as a JSON path.
        field: String,
        /// The problem.
        problem: String,
    },
    /// A results file cannot be read.
    #[error("{}: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The problem, and the next step.
        problem: String,
    },
    /// A file could not be opened, read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file could not be written.
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl EvalError {
    pub(crate) fn file(path: &Path, problem: impl ToString) -> EvalError {
        EvalError::File { path: path.to_owned(), problem: problem.to_string() }
    }

    pub(crate) fn batch(batch: usize, problem: impl Into<String>) -> EvalError {
        EvalError::Batch { batch, problem: problem.into() }
    }

    pub(crate) fn mismatch(problem: impl Into<String>) -> EvalError {
        EvalError::Mismatch { problem: problem.into() }
    }

    /// A figure with a limit cannot be compared.
    pub(crate) fn limit(problem: String) -> EvalError {
        EvalError::Incomparable { problem }
    }

    /// Two runs without a common figure.
    /// `named_alike` says that the runs have a model of the same name.
    pub(crate) fn nothing_in_common(first: &str, second: &str, named_alike: bool) -> EvalError {
        let advice = if named_alike {
            "run both with the same models, --backend and measurements"
        } else {
            "models are known by their paths unless `swinq eval` names them: run both with the same --name A=NAME"
        };
        let problem = format!(
            "no model has a figure in both; models are matched by name, precision and backend (first: {first}; second: \
             {second}); {advice}"
        );
        EvalError::Incomparable { problem }
    }

    pub(crate) fn results(field: impl Into<String>, problem: impl Into<String>) -> EvalError {
        EvalError::Results { field: field.into(), problem: problem.into() }
    }
}
