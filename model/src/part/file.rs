//! Reading the file of a part.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;

use super::{METADATA_KEY, PART_VERSION, PartDocument, StoredTensors};
use crate::checkpoint::{MAX_HEADER, check_header, is_quantized_file};
use crate::error::ModelError;
use crate::json_keys;
use crate::quantized::hash;

/// The remedy for a part that cannot be read.
const AGAIN: &str = "run this shard again";

/// A part in memory, whose hash was verified.
pub struct PartFile {
    path: PathBuf,
    bytes: Vec<u8>,
    document: PartDocument,
}

impl PartFile {
    /// Reads the part at `path`. It takes as much memory as the file has bytes.
    ///
    /// # Errors
    /// [`ModelError::Io`]; [`ModelError::File`] for a file that is no part, is damaged, or has another
    /// version.
    pub fn read(path: &Path) -> Result<PartFile, ModelError> {
        // The kind of the file is checked before all of it is read.
        let stated = stated_document(path)?;
        let bytes = std::fs::read(path).map_err(|e| ModelError::io(path, e))?;
        let refuse = |problem: String| {
            let problem = format!("is a truncated or damaged part ({problem}); copy it again, or {AGAIN}");
            ModelError::file(path, problem)
        };
        check_header(&bytes).map_err(refuse)?;
        let file = SafeTensors::deserialize(&bytes).map_err(|e| refuse(e.to_string()))?;
        let (_, metadata) = SafeTensors::read_metadata(&bytes).map_err(|e| refuse(e.to_string()))?;
        let text = metadata.metadata().as_ref().and_then(|map| map.get(METADATA_KEY));
        let text = text.ok_or_else(|| refuse("it was replaced while it was read".to_owned()))?;
        json_keys::check(text.as_bytes(), json_keys::MAX_KEYS).map_err(refuse)?;
        let document = parse(path, text)?;
        hash::verify(&document.hash, text, &file, &format!("copy it again, or {AGAIN}"))
            .map_err(|problem| ModelError::file(path, problem))?;
        if document != stated {
            return Err(refuse("it was replaced while it was read".to_owned()));
        }
        Ok(PartFile { path: path.to_owned(), bytes, document })
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The document.
    pub fn document(&self) -> &PartDocument {
        &self.document
    }

    /// The tensors.
    pub fn tensors(&self) -> StoredTensors<'_> {
        let file = SafeTensors::deserialize(&self.bytes).expect("it was read before");
        StoredTensors { path: &self.path, file }
    }

    /// The part `own` of the document as `T`.
    ///
    /// # Errors
    /// [`ModelError::File`] if it is something else.
    pub fn own<T: serde::de::DeserializeOwned>(&self) -> Result<T, ModelError> {
        self.typed("own", &self.document.own)
    }

    /// The part `run` of the document as `T`.
    ///
    /// # Errors
    /// [`ModelError::File`] if it is something else.
    pub fn run<T: serde::de::DeserializeOwned>(&self) -> Result<T, ModelError> {
        self.typed("run", &self.document.run)
    }

    fn typed<T: serde::de::DeserializeOwned>(
        &self,
        key: &str,
        value: &serde_json::Value,
    ) -> Result<T, ModelError> {
        T::deserialize(value)
            .map_err(|e| ModelError::file(&self.path, format!("its `{key}` is damaged: {e}; {AGAIN}")))
    }
}

/// Whether the file at `path` is a part. Only its header is read.
pub fn is_part_file(path: &Path) -> bool {
    matches!(header(path), Ok(Some(_)))
}

/// The document of the part at `path`, as its header states it; the hash is not verified.
pub(super) fn stated_document(path: &Path) -> Result<PartDocument, ModelError> {
    let text = header(path).map_err(|e| ModelError::io(path, e))?;
    let Some(text) = text else {
        let found = match is_quantized_file(path) {
            true => "is a checkpoint that swinq wrote, not a part",
            false => "is not a part, or is cut off near its start",
        };
        let problem =
            format!("{found}; give the files that `swinq calibrate --shard` or `swinq eval --shard` wrote");
        return Err(ModelError::file(path, problem));
    };
    parse(path, &text)
}

fn parse(path: &Path, text: &str) -> Result<PartDocument, ModelError> {
    let damaged = |e: serde_json::Error| {
        ModelError::file(path, format!("its `{METADATA_KEY}` metadata is damaged: {e}; {AGAIN}"))
    };
    let value: serde_json::Value = serde_json::from_str(text).map_err(damaged)?;
    let version = value.get("part_version").and_then(serde_json::Value::as_u64);
    if version != Some(PART_VERSION) {
        let version = version.map_or("no version".to_owned(), |version| format!("version {version}"));
        let problem = format!(
            "is a part of {version}, but this swinq reads version {PART_VERSION}; merge with the swinq that wrote it, or \
             {AGAIN}"
        );
        return Err(ModelError::file(path, problem));
    }
    let document: PartDocument = serde_json::from_value(value).map_err(damaged)?;
    if !document.shard.is_valid() {
        let problem = format!("states the shard {}, which is impossible; {AGAIN}", document.shard);
        return Err(ModelError::file(path, problem));
    }
    Ok(document)
}

/// The text of the document in the header of `path`; `None` for a file of another kind.
fn header(path: &Path) -> std::io::Result<Option<String>> {
    // A pipe would wait for its writer when it is opened.
    if !path.metadata()?.is_file() {
        return Ok(None);
    }
    let mut file = File::open(path)?;
    let (size, mut length) = (file.metadata()?.len(), [0; 8]);
    if size < 8 {
        return Ok(None);
    }
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER {
        return Ok(None);
    }
    // A file that ends within its header is read as far as it goes, and is then no part.
    let mut bytes = Vec::new();
    file.take(length).read_to_end(&mut bytes)?;
    let parsed: Result<Header, _> = serde_json::from_slice(&bytes);
    Ok(parsed.ok().and_then(|header| header.metadata?.swinq_part))
}

/// The part of a header that identifies a part. Other keys are skipped and take no memory.
#[derive(serde::Deserialize)]
struct Header {
    #[serde(rename = "__metadata__")]
    metadata: Option<Metadata>,
}

#[derive(serde::Deserialize)]
struct Metadata {
    swinq_part: Option<String>,
}
