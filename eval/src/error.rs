//! What can go wrong while evaluating, measuring or reporting.

use std::path::PathBuf;

use swinq_model::{BoxError, ModelError};

/// An error of this crate. Every message names the image, step, field or file at fault and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvalError {
    /// The data set could not deliver a batch.
    #[error("batch {batch} of the data set: {source}")]
    Data {
        /// Index of the batch.
        batch: usize,
        /// The data set's reason.
        source: BoxError,
    },
    /// The classifier failed on a batch.
    #[error("inference of batch {batch}: {source}")]
    Infer {
        /// Index of the batch.
        batch: usize,
        /// The classifier's reason.
        source: BoxError,
    },
    /// A batch or the logits made of it contradict what the data set or the classifier declares.
    #[error("batch {batch}: {problem}")]
    Batch {
        /// Index of the batch.
        batch: usize,
        /// The contradiction and what to do about it.
        problem: String,
    },
    /// The caller asked to stop.
    #[error("interrupted after {done} of {total} images; nothing was evaluated")]
    Interrupted {
        /// Images done.
        done: usize,
        /// Images in the epoch.
        total: usize,
    },
    /// There is nothing to evaluate.
    #[error("no images were evaluated; check the data path and the split")]
    NoImages,
    /// Accuracy needs labels and the data set has none.
    #[error(
        "the data set has no labels; use an ImageFolder, a zip layout or a list with classes, or ask for agreement"
    )]
    NoLabels,
    /// A label that is no class of the model.
    #[error(
        "image {image} has label {label}, but the model has {classes} classes; the data set or the model is another one"
    )]
    Label {
        /// Position of the image in the data set's list.
        image: usize,
        /// Its label.
        label: u32,
        /// Classes of the model.
        classes: usize,
    },
    /// A logit that is NaN or infinite.
    #[error(
        "image {image}: logit of class {class} is {value}; a scale or a weight of the model is broken \
         (`swinq inspect` prints them)"
    )]
    NonFiniteLogit {
        /// Position of the image in the data set's list.
        image: usize,
        /// Class index.
        class: usize,
        /// The value.
        value: f32,
    },
    /// Two sets of logits are not of the same images, labels or classes.
    #[error("the two models cannot be compared: {problem}")]
    Mismatch {
        /// What differs and what to do.
        problem: String,
    },
    /// The lengths of the parts of a [`Collected`](crate::Collected), or of two tensors, contradict each other.
    #[error("{what}: {left} values against {right}")]
    Length {
        /// What was paired.
        what: &'static str,
        /// Length of the first.
        left: usize,
        /// Length of the second.
        right: usize,
    },
    /// A tensor handed to [`Distortion`](crate::Distortion) holds NaN or infinity.
    #[error(
        "element {index}: {reference} against {other}; both must be finite, look at the op that wrote the tensor"
    )]
    NonFinite {
        /// Index of the element in the slice.
        index: usize,
        /// Value of the reference.
        reference: f32,
        /// Value of the other.
        other: f32,
    },
    /// A measured step failed.
    #[error("measured step {step}: {source}")]
    Step {
        /// Index of the step among those measured.
        step: usize,
        /// Its reason.
        source: BoxError,
    },
    /// Latency samples that cannot be.
    #[error("latency samples: {problem}")]
    Samples {
        /// What is wrong with them.
        problem: String,
    },
    /// A result that cannot be: a count above its total, a NaN.
    #[error("results, {field}: {problem}")]
    Results {
        /// The field, as a JSON path.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A results file cannot be read.
    #[error("{}: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it and what to do.
        problem: String,
    },
    /// A file could not be opened, read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file could not be written.
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl EvalError {
    pub(crate) fn batch(batch: usize, problem: impl Into<String>) -> EvalError {
        EvalError::Batch { batch, problem: problem.into() }
    }

    pub(crate) fn mismatch(problem: impl Into<String>) -> EvalError {
        EvalError::Mismatch { problem: problem.into() }
    }

    pub(crate) fn results(field: impl Into<String>, problem: impl Into<String>) -> EvalError {
        EvalError::Results { field: field.into(), problem: problem.into() }
    }
}
