//! What can be wrong with a model, its configuration, its recipe or its file.

use std::path::{Path, PathBuf};

/// An error of this crate. Every message names the file, key, tensor or site at fault and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A field of the architecture holds a value that cannot be.
    #[error("configuration field {field}: {problem}")]
    Config {
        /// The field, in Microsoft's naming where it has one.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A recipe is malformed, or a rule in it matches nothing.
    #[error("recipe {recipe}: {problem}")]
    Recipe {
        /// The recipe's name or file.
        recipe: String,
        /// What is wrong with it.
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
    /// A file's content is damaged or of another kind.
    #[error("{}: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it and what to do.
        problem: String,
    },
    /// A tensor is absent, unexpected, of the wrong shape or type, or holds a value that cannot be.
    #[error("tensor `{tensor}`: {problem}")]
    Tensor {
        /// The tensor's name.
        tensor: String,
        /// What is wrong with it and what to do.
        problem: String,
    },
    /// A site's state cannot be used.
    #[error("site {site}: {problem}")]
    Site {
        /// The site's name.
        site: String,
        /// What is wrong with it and what to do.
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
        ModelError::File { path: path.as_ref().to_owned(), problem: problem.into() }
    }

    /// A [`ModelError::Tensor`].
    pub fn tensor(tensor: impl Into<String>, problem: impl Into<String>) -> ModelError {
        ModelError::Tensor { tensor: tensor.into(), problem: problem.into() }
    }

    /// A [`ModelError::Site`].
    pub fn site(site: impl std::fmt::Display, problem: impl Into<String>) -> ModelError {
        ModelError::Site { site: site.to_string(), problem: problem.into() }
    }
}
