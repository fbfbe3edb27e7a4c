//! `--json FILE`, where `-` is standard output.

use std::path::{Path, PathBuf};

use crate::out;

/// The place for the JSON of a command.
pub enum JsonArg {
    /// No JSON is wanted.
    None,
    /// A file.
    File(PathBuf),
    /// Standard output. Other text goes to standard error.
    Stdout,
}

impl JsonArg {
    /// The place that the value of `--json` names. For `-`, standard output is reserved from now on.
    pub fn new(value: Option<&Path>) -> JsonArg {
        match value {
            None => JsonArg::None,
            Some(path) if path == Path::new("-") => {
                out::reserve_stdout();
                JsonArg::Stdout
            }
            Some(path) => JsonArg::File(path.to_owned()),
        }
    }

    /// The file, if it is one.
    pub fn file(&self) -> Option<&PathBuf> {
        match self {
            JsonArg::File(path) => Some(path),
            JsonArg::None | JsonArg::Stdout => None,
        }
    }

    /// Prints the text that `json` makes, if standard output is the place.
    pub fn print<E>(&self, json: impl FnOnce() -> Result<String, E>) -> Result<(), E> {
        if let JsonArg::Stdout = self {
            out::raw(json()?.as_bytes());
        }
        Ok(())
    }
}
