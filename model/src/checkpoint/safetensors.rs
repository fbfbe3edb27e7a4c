//! Reading safetensors files.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use safetensors::{Dtype, SafeTensors};

use super::raw::{DType, RawDict, RawTensor};

/// Largest header that the format allows, in bytes.
const MAX_HEADER: u64 = 100_000_000;

/// Whether the bytes start like a safetensors file: the header's length, then JSON.
pub(super) fn is_safetensors(bytes: &[u8]) -> bool {
    bytes.first_chunk().is_some_and(|length| u64::from_le_bytes(*length) <= MAX_HEADER)
        && bytes.get(8) == Some(&b'{')
}

/// Every tensor of the file.
///
/// # Errors
/// The header is damaged or contradicts the file.
pub(super) fn read(bytes: &[u8]) -> Result<RawDict<'_>, String> {
    let damaged = |e| format!("is a truncated or damaged safetensors file ({e}); download it again");
    let file = SafeTensors::deserialize(bytes).map_err(damaged)?;
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

/// Whether the file at `path` is a quantized checkpoint: a safetensors file whose `__metadata__` has the key `swinq`.
/// Only the header is read. A file that is unreadable or of another kind is not a quantized checkpoint.
pub fn is_quantized_file(path: impl AsRef<Path>) -> bool {
    has_metadata_key(path.as_ref(), "swinq").unwrap_or(false)
}

fn has_metadata_key(path: &Path, key: &str) -> std::io::Result<bool> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER.min(size.saturating_sub(8)) {
        return Ok(false);
    }
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header)?;
    let header: serde_json::Value = serde_json::from_slice(&header)?;
    Ok(header.get("__metadata__").and_then(|metadata| metadata.get(key)).is_some())
}
