//! The error type of jobs.

use std::path::PathBuf;

use swinq_model::nearest_name;

/// An error in a job file or an override, or a resume with another job.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// The file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The name is neither a file nor a shipped job.
    #[error("{name}: no such file, and no shipped job; did you mean `{nearest}`? Shipped jobs are {shipped}")]
    NotFound {
        /// The name that was given.
        name: String,
        /// The most similar name of a shipped job.
        nearest: &'static str,
        /// The names of the shipped jobs.
        shipped: String,
    },
    /// The text is not a YAML mapping.
    #[error("job {job}: {problem}")]
    Yaml {
        /// The file or shipped name.
        job: String,
        /// The problem.
        problem: String,
    },
    /// An unknown key.
    #[error("job {job}: `{key}` is not a key of a job; did you mean `{nearest}`?")]
    UnknownKey {
        /// The file or shipped name.
        job: String,
        /// The key, as a dotted path.
        key: String,
        /// The most similar known key.
        nearest: String,
    },
    /// A key holds an impossible value.
    #[error("job {job}: {key}: {problem}")]
    Key {
        /// The file or shipped name.
        job: String,
        /// The key, as a dotted path.
        key: String,
        /// The value, its problem, and the remedy.
        problem: String,
    },
    /// A run is resumed with a job that gives another result.
    #[error(
        "this run was started with another job: {differences}. Restore those values, or start a new run in another \
         `output` folder"
    )]
    OtherJob {
        /// Each key that differs, with both values.
        differences: String,
    },
}

impl JobError {
    /// A [`JobError::NotFound`].
    pub(super) fn not_found(name: &str) -> JobError {
        let names = || swinq_configs::QAT.iter().map(|(known, _)| *known);
        let nearest = nearest_name(name, names()).unwrap_or_default();
        JobError::NotFound { name: name.to_owned(), nearest, shipped: names().collect::<Vec<_>>().join(", ") }
    }

    /// A [`JobError::Key`].
    pub fn key(job: &str, key: impl Into<String>, problem: impl Into<String>) -> JobError {
        JobError::Key { job: job.to_owned(), key: key.into(), problem: problem.into() }
    }
}
