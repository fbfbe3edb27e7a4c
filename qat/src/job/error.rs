//! What can be wrong with a job.

use std::path::PathBuf;

/// An error of a job file, of an override, or of a resume with another job.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// The file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The text is no YAML mapping.
    #[error("job {job}: {problem}")]
    Yaml {
        /// The file or shipped name.
        job: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A key that no job has.
    #[error("job {job}: `{key}` is no key of a job; did you mean `{nearest}`?")]
    UnknownKey {
        /// The file or shipped name.
        job: String,
        /// The key, dotted.
        key: String,
        /// The known key most like it.
        nearest: String,
    },
    /// A key holds a value that cannot be.
    #[error("job {job}: {key}: {problem}")]
    Key {
        /// The file or shipped name.
        job: String,
        /// The key, dotted.
        key: String,
        /// The value, what is wrong with it and what to do.
        problem: String,
    },
    /// A run is resumed with a job that would have given another result.
    #[error(
        "the job is not the one this run was started with: {differences}. Take those values back, or start anew in \
         another `output` folder"
    )]
    OtherJob {
        /// Each key that differs, with both values.
        differences: String,
    },
}

impl JobError {
    /// A [`JobError::Key`].
    pub fn key(job: &str, key: impl Into<String>, problem: impl Into<String>) -> JobError {
        JobError::Key { job: job.to_owned(), key: key.into(), problem: problem.into() }
    }
}
