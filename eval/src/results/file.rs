//! Writing of JSON files, and reading of those with a version.

use std::io::{ErrorKind, Write};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use swinq_model::atomic::write_atomic;
use swinq_model::text_file::{self, MAX_RESULTS};

use crate::error::EvalError;

/// Reads the JSON file at `path`, which `command` writes with the schema version `schema`.
pub(super) fn read<T: DeserializeOwned>(path: &Path, command: &str, schema: u32) -> Result<T, EvalError> {
    read_versioned(path, command, ("schema", schema))
}

/// Reads the JSON file at `path`, which `command` writes with the version `known` under `key`.
pub(super) fn read_versioned<T: DeserializeOwned>(
    path: &Path,
    command: &str,
    (key, known): (&str, u32),
) -> Result<T, EvalError> {
    let refuse = |problem: String| EvalError::File { path: path.to_owned(), problem };
    let text = text_file::read(path, MAX_RESULTS).map_err(|source| match source.kind() {
        ErrorKind::InvalidData => refuse(format!("{source}; give a file that `{command}` wrote")),
        _ => EvalError::Io { path: path.to_owned(), source },
    })?;
    let malformed = |error: serde_json::Error| refuse(format!("{error}; give a file that `{command}` wrote"));
    let value: serde_json::Value = serde_json::from_str(&text).map_err(malformed)?;
    let version = value.get(key).and_then(serde_json::Value::as_u64);
    if version != Some(u64::from(known)) {
        let found = version.map_or(format!("no {key} version"), |version| format!("{key} {version}"));
        return Err(refuse(format!("has {found}, but this program reads {key} {known} of `{command}`")));
    }
    // Not from the value, whose keys are sorted.
    serde_json::from_str(&text).map_err(malformed)
}

/// `value` as indented JSON that ends with a newline.
pub(super) fn text(value: &impl Serialize) -> Result<String, EvalError> {
    let text =
        serde_json::to_string_pretty(value).map_err(|error| EvalError::results("", error.to_string()))?;
    Ok(text + "\n")
}

/// Writes `value` as indented JSON. The file is replaced atomically.
pub(super) fn write(path: &Path, value: &impl Serialize) -> Result<(), EvalError> {
    write_atomic(path, |out: &mut dyn Write| {
        serde_json::to_writer_pretty(&mut *out, value)?;
        writeln!(out)
    })?;
    Ok(())
}
