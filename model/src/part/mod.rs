//! Parts: the contributions of several processes to a calibration or an evaluation, to be merged later.
//!
//! A part is one safetensors file. The JSON under its metadata key `swinq_part` states the version of the
//! format, a hash (XXH3-128) of tensors and JSON, the kind of the part, its shard, `run`, which is equal in
//! all parts of a run, and `own`, which is not. `docs/scale.md` describes the files. This module knows
//! neither calibration nor evaluation.

mod difference;
mod file;
mod set;
mod shard;
mod tensor;

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use file::{PartFile, is_part_file};
pub use set::PartSet;
pub use shard::{MAX_SHARDS, Shard};
pub use tensor::{PartTensor, PartTensors, StoredTensors};

use crate::atomic::write_atomic;
use crate::error::ModelError;
use crate::quantized::hash;

/// Version of the format.
pub const PART_VERSION: u64 = 1;
/// Metadata key of the JSON document.
const METADATA_KEY: &str = "swinq_part";

/// The kind of run that a part belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartKind {
    /// A calibration.
    Calibration,
    /// An evaluation.
    Evaluation,
}

impl PartKind {
    /// The command that writes such parts.
    pub fn command(self) -> &'static str {
        match self {
            PartKind::Calibration => "swinq calibrate",
            PartKind::Evaluation => "swinq eval",
        }
    }
}

impl fmt::Display for PartKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PartKind::Calibration => "a calibration",
            PartKind::Evaluation => "an evaluation",
        })
    }
}

/// The JSON document of a part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartDocument {
    part_version: u64,
    hash: String,
    /// The kind of run that the part belongs to.
    pub kind: PartKind,
    /// Which part of the run it is.
    pub shard: Shard,
    /// The facts that all parts of a run share: model, settings and images.
    pub run: Value,
    /// The facts of this part alone.
    pub own: Value,
}

impl PartDocument {
    /// The document of a part.
    pub fn new(kind: PartKind, shard: Shard, run: Value, own: Value) -> PartDocument {
        PartDocument { part_version: PART_VERSION, hash: hash::placeholder(), kind, shard, run, own }
    }

    /// Writes the part with these tensors to `path`, atomically.
    ///
    /// # Errors
    /// [`ModelError::Io`].
    pub fn write(&self, path: &Path, tensors: &PartTensors) -> Result<(), ModelError> {
        let unwritable = |problem: String| ModelError::file(path, format!("cannot be made: {problem}"));
        let document = serde_json::to_string(self).map_err(|e| unwritable(e.to_string()))?;
        let stored = tensors.iter().map(|(name, t)| (name.as_str(), t.dtype, &*t.shape, &*t.bytes));
        let document = document.replacen(&self.hash, &hash::of(&document, stored), 1);
        let metadata = [(METADATA_KEY.to_owned(), document)].into();
        let bytes = safetensors::serialize(tensors, Some(metadata)).map_err(|e| unwritable(e.to_string()))?;
        write_atomic(path, |out| out.write_all(&bytes))
    }
}
