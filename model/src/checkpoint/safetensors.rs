//! Reading safetensors files.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

use super::raw::{DType, RawDict, RawTensor};
use crate::error::damaged;
use crate::json_keys;

/// Largest header that the format allows, in bytes.
pub(crate) const MAX_HEADER: u64 = 100_000_000;

/// Whether the bytes start like a safetensors file: the header's length, then JSON.
pub(super) fn is_safetensors(bytes: &[u8]) -> bool {
    bytes.first_chunk().is_some_and(|length| u64::from_le_bytes(*length) <= MAX_HEADER)
        && bytes.get(8) == Some(&b'{')
}

/// Checks what the reader of the crate `safetensors` does not: that no name is stated twice, that there are
/// not so many names that they would fill the memory, and that only spaces follow the header's JSON.
///
/// # Errors
/// The problem.
pub(crate) fn check_header(bytes: &[u8]) -> Result<(), String> {
    let length = bytes.first_chunk().map(|length| u64::from_le_bytes(*length));
    let header =
        length.filter(|length| *length <= MAX_HEADER).and_then(|length| bytes[8..].get(..length as usize));
    let header = header.ok_or("the header is longer than the file or than 100 MB")?;
    let padding = header.iter().rev().take_while(|byte| byte.is_ascii_whitespace());
    if padding.into_iter().any(|byte| *byte != b' ') {
        return Err("bytes other than spaces follow the header".to_owned());
    }
    json_keys::check(header, json_keys::MAX_KEYS).map_err(|problem| format!("header: {problem}"))
}

/// Every tensor of the file.
///
/// # Errors
/// The header is damaged or contradicts the file.
pub(super) fn read(bytes: &[u8]) -> Result<RawDict<'_>, String> {
    let damaged = |e: String| damaged("safetensors file", e);
    check_header(bytes).map_err(damaged)?;
    let file = SafeTensors::deserialize(bytes).map_err(|e| damaged(e.to_string()))?;
    let mut tensors = RawDict::new();
    for (name, view) in file.iter() {
        let dtype = match view.dtype() {
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::Bf16,
            Dtype::F32 => DType::F32,
            Dtype::F64 => DType::F64,
            _ => {
                tensors.insert(name.to_owned(), RawTensor::unreadable());
                continue;
            }
        };
        let tensor = RawTensor::contiguous(dtype, view.shape().to_vec(), view.data());
        tensors.insert(name.to_owned(), tensor.map_err(|problem| format!("`{name}`: {problem}"))?);
    }
    Ok(tensors)
}

/// Whether the file at `path` is a quantized checkpoint: a safetensors file whose `__metadata__` has the key
/// `swinq`. Only the header is read. A file that is unreadable or of another kind is not a quantized
/// checkpoint.
pub fn is_quantized_file(path: impl AsRef<Path>) -> bool {
    read_header(path.as_ref()).is_ok_and(|header| header.metadata.is_some_and(|m| m.swinq.is_some()))
}

/// The document of the quantized checkpoint at `path`, as its header states it; nothing is checked.
pub(super) fn stated_document(path: &Path) -> Option<serde_json::Value> {
    serde_json::from_str(&read_header(path).ok()?.metadata?.swinq?).ok()
}

/// The part of a header that identifies a quantized checkpoint. Other keys are skipped and take no memory.
#[derive(Default, Deserialize)]
struct Header {
    #[serde(rename = "__metadata__")]
    metadata: Option<Metadata>,
}

#[derive(Deserialize)]
struct Metadata {
    swinq: Option<String>,
}

fn read_header(path: &Path) -> std::io::Result<Header> {
    // A pipe would wait for its writer when it is opened.
    if !path.metadata()?.is_file() {
        return Ok(Header::default());
    }
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER.min(size.saturating_sub(8)) {
        return Ok(Header::default());
    }
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header)?;
    Ok(serde_json::from_slice(&header)?)
}
