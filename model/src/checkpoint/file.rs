//! A checkpoint file in memory.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::raw::RawDict;
use super::{safetensors, torch};
use crate::error::ModelError;
use crate::params::name_list;

/// Largest checkpoint file accepted, in bytes; ample for Swin-L with its optimizer's state.
pub(super) const MAX_FILE: u64 = 16 << 30;

/// Longest tensor name accepted, in bytes.
const MAX_NAME: usize = 1024;

/// A checkpoint file in memory.
#[derive(Debug)]
pub(super) struct CheckpointFile {
    pub(super) path: PathBuf,
    bytes: Vec<u8>,
}

impl CheckpointFile {
    /// Reads the file.
    ///
    /// # Errors
    /// The operating system's error, or a file that is too large.
    pub(super) fn open(path: &Path) -> Result<CheckpointFile, ModelError> {
        let metadata = std::fs::metadata(path).map_err(|e| ModelError::io(path, e))?;
        if !metadata.is_file() {
            return Err(ModelError::file(path, "is not a regular file"));
        }
        if metadata.len() > MAX_FILE {
            return Err(ModelError::file(path, format!("has {} bytes, too many for a Swin", metadata.len())));
        }
        let bytes = std::fs::read(path).map_err(|e| ModelError::io(path, e))?;
        Ok(CheckpointFile { path: path.to_owned(), bytes })
    }

    /// The file's bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// SHA-256 of the bytes, hexadecimal.
    pub(super) fn sha256(&self) -> String {
        sha256([self.bytes()])
    }

    /// The file's tensors, and a remark if it has several state dictionaries; the key `weights` chooses one
    /// of a file of `torch.save`. The format is detected from the content, not from the file's name.
    ///
    /// # Errors
    /// [`ModelError::File`] with the reason.
    pub(super) fn tensors(&self, weights: Option<&str>) -> Result<(RawDict<'_>, Option<String>), ModelError> {
        let result = match weights {
            _ if torch::is_torch(&self.bytes) => torch::read(&self.bytes, weights),
            _ if !safetensors::is_safetensors(&self.bytes) => Err(self.unknown_format()),
            Some(_) => Err(
                "is a safetensors file, which has no keys above its tensors; leave --weights out, or name \
                            the beginning of their names with --prefix"
                    .to_owned(),
            ),
            None => safetensors::read(&self.bytes).map(|tensors| (tensors, None)),
        };
        let (tensors, remark) = result.map_err(|problem| ModelError::file(&self.path, problem))?;
        let names = tensors.keys().try_for_each(|name| check_name(name));
        names.map_err(|problem| ModelError::file(&self.path, problem))?;
        Ok((tensors, remark))
    }

    fn unknown_format(&self) -> String {
        let formats = "is neither a safetensors file nor one of torch.save or Python's pickle";
        if self.bytes.starts_with(b"version https://git-lfs") {
            return format!("{formats}, but a Git LFS pointer; fetch the file itself with `git lfs pull`");
        }
        if self.bytes.is_empty() {
            return "is empty; copy or download it again".to_owned();
        }
        if self.bytes.trim_ascii_start().starts_with(b"{") {
            return format!("{formats}, but a text; pass the weights beside it, or the folder of both");
        }
        format!("{formats}; it is damaged or of another format")
    }
}

/// SHA-256 of `parts` one after the other, hexadecimal.
pub(super) fn sha256(parts: impl IntoIterator<Item = impl AsRef<[u8]>>) -> String {
    let mut hash = Sha256::new();
    parts.into_iter().for_each(|part| hash.update(part));
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Refuses a name of a tensor that is too long.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    match name.len() {
        0..=MAX_NAME => Ok(()),
        length => Err(format!("has a tensor name of {length} bytes, which no Swin has")),
    }
}

/// Lists the tensor names, for messages.
pub(super) fn names_of(raw: &RawDict<'_>) -> String {
    name_list(&raw.keys().map(String::as_str).collect::<Vec<_>>())
}
