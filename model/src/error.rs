//! The error type of this crate.

use std::path::{Path, PathBuf};

use swinq_numerics::Size;

use crate::printable::{printable, printable_name};

/// The problem of a `file` that is not whole or not as its format has it, for [`ModelError::file`].
pub(crate) fn damaged(file: &str, cause: impl std::fmt::Display) -> String {
    format!("is a truncated or damaged {file} ({cause}); copy or download it again")
}

/// An error in a model, its configuration, its recipe or its file. Every message names the file, key, tensor
/// or site at fault, and the next step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A field of the architecture holds an impossible value.
    #[error("configuration field {field}: {problem}")]
    Config {
        /// The field, in Microsoft's naming where it has one.
        field: String,
        /// The problem.
        problem: String,
    },
    /// The network cannot process images of a size.
    #[error("images of {size}: {problem}")]
    Image {
        /// Height and width in pixels.
        size: Size,
        /// The reason, and the remedy.
        problem: String,
    },
    /// A recipe is malformed, or one of its rules matches no site.
    #[error("recipe {recipe}: {problem}")]
    Recipe {
        /// The recipe's name or file.
        recipe: String,
        /// The problem.
        problem: String,
    },
    /// A file could not be opened, read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A file is damaged or of another format.
    #[error("{}: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The problem, and the next step.
        problem: String,
    },
    /// A tensor is missing, unexpected, of the wrong shape or type, or holds an impossible value.
    #[error("tensor `{tensor}`: {problem}")]
    Tensor {
        /// The tensor's name.
        tensor: String,
        /// The problem, and the next step.
        problem: String,
    },
    /// A checkpoint has other parameters than its configuration.
    #[error("{problem}; the first tensor that does not fit is {first}")]
    Mismatch {
        /// The difference, and the next step.
        problem: String,
        /// The first tensor that is missing or unexpected, as a message names it.
        first: String,
    },
    /// A site has no usable state.
    #[error("site {site}: {problem}")]
    Site {
        /// The site's name.
        site: String,
        /// The problem, and the next step.
        problem: String,
    },
}

impl ModelError {
    /// A [`ModelError::Config`].
    pub fn config(field: impl Into<String>, problem: impl Into<String>) -> ModelError {
        ModelError::Config { field: field.into(), problem: problem.into() }
    }

    /// A [`ModelError::Recipe`].
    pub fn recipe(recipe: impl Into<String>, problem: impl Into<String>) -> ModelError {
        ModelError::Recipe { recipe: recipe.into(), problem: problem.into() }
    }

    /// A [`ModelError::Io`].
    pub fn io(path: impl AsRef<Path>, source: std::io::Error) -> ModelError {
        ModelError::Io { path: path.as_ref().to_owned(), source }
    }

    /// A [`ModelError::File`].
    pub fn file(path: impl AsRef<Path>, problem: impl Into<String>) -> ModelError {
        let problem = printable(&problem.into()).into_owned();
        ModelError::File { path: path.as_ref().to_owned(), problem }
    }

    /// A [`ModelError::Tensor`].
    pub fn tensor(tensor: impl Into<String>, problem: impl Into<String>) -> ModelError {
        let tensor = printable_name(&tensor.into()).into_owned();
        ModelError::Tensor { tensor, problem: printable(&problem.into()).into_owned() }
    }

    /// A [`ModelError::Mismatch`] whose first tensor is `tensor`.
    pub(crate) fn mismatch(tensor: &str, problem: impl Into<String>) -> ModelError {
        let first = format!("`{}`", printable_name(tensor));
        ModelError::Mismatch { problem: printable(&problem.into()).into_owned(), first }
    }

    /// A [`ModelError::Site`].
    pub fn site(site: impl std::fmt::Display, problem: impl Into<String>) -> ModelError {
        ModelError::Site { site: site.to_string(), problem: problem.into() }
    }
}
