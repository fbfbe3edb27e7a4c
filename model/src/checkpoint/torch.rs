//! Reading files of `torch.save`: the zip format (PyTorch 1.6 and later) and the older format.

use std::collections::HashMap;
use std::io::Cursor;
use std::ops::Range;

use super::pickle::{self, Id, Object, Pickle, StorageRef};
use super::raw::{RawDict, RawTensor};
use crate::error::damaged;
use crate::params::name_list;

/// Largest pickle accepted, in bytes. The values of tensors are stored outside the pickle.
const MAX_PICKLE: usize = 64 << 20;
/// The magic number of the older format, little-endian.
const LEGACY_MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
/// Keys that may hold the state dictionary, in order of precedence; the top level comes last.
const WRAPPERS: [&str; 3] = ["model", "state_dict", "model_state_dict"];

/// Whether the bytes start like one of the two formats.
pub(super) fn is_torch(bytes: &[u8]) -> bool {
    is_zip(bytes) || (bytes.first() == Some(&0x80) && bytes.get(1).is_some_and(|v| (2..=5).contains(v)))
}

fn is_zip(bytes: &[u8]) -> bool {
    bytes.starts_with(b"PK\x03\x04")
}

/// The tensors of the file's state dictionary, which is searched under the keys of [`WRAPPERS`], then at the top level.
///
/// # Errors
/// The error is a text that describes the fault of the file.
pub(super) fn read(bytes: &[u8]) -> Result<RawDict<'_>, String> {
    let (pickle, storages) = if is_zip(bytes) { read_zip(bytes)? } else { read_legacy(bytes)? };
    let dict = state_dict(&pickle)?;
    let mut tensors = RawDict::new();
    let mut elements = 0usize;
    for (name, id) in dict {
        let tensor = tensor(&pickle, id, &storages).map_err(|problem| format!("`{name}`: {problem}"))?;
        elements = elements.saturating_add(tensor.elements());
        if elements > bytes.len() {
            return Err("its tensors together have more values than the file has bytes".to_owned());
        }
        tensors.insert(name.to_owned(), tensor);
    }
    Ok(tensors)
}

/// Bytes of each storage, by its name in the pickle.
type Storages<'a> = HashMap<String, &'a [u8]>;

fn tensor<'a>(pickle: &Pickle, id: Id, storages: &Storages<'a>) -> Result<RawTensor<'a>, String> {
    let Object::Tensor(tensor) = pickle.get(id) else {
        return Err(format!("is {}, not a tensor", pickle.kind(id)));
    };
    let Object::Storage(storage) = pickle.get(tensor.storage) else {
        return Err("has no storage".to_owned());
    };
    let bytes = *storages.get(&storage.key).ok_or_else(|| missing_storage(storage))?;
    let wanted =
        storage.elements.checked_mul(storage.dtype.size()).ok_or_else(|| missing_storage(storage))?;
    let bytes = bytes.get(..wanted).ok_or_else(|| missing_storage(storage))?;
    RawTensor::new(storage.dtype, tensor.shape.clone(), tensor.strides.clone(), tensor.offset, bytes)
}

fn missing_storage(storage: &StorageRef) -> String {
    let cause = format!("its storage {} of {} elements is not in it", storage.key, storage.elements);
    damaged("file of torch.save", cause)
}

fn state_dict(pickle: &Pickle) -> Result<Vec<(&str, Id)>, String> {
    let no_dict = |id| {
        format!(
            "holds {}, not a state dictionary; save one with torch.save({{'model': model.state_dict()}}, file)",
            pickle.kind(id)
        )
    };
    let top = pickle.entries(pickle.root).ok_or_else(|| no_dict(pickle.root))?;
    for wrapper in WRAPPERS {
        if let Some(&(_, id)) = top.iter().rev().find(|(name, _)| *name == wrapper) {
            let inner = pickle.entries(id).ok_or_else(|| format!("under `{wrapper}` {}", no_dict(id)))?;
            return Ok(inner);
        }
    }
    if top.iter().any(|&(_, id)| matches!(pickle.get(id), Object::Tensor(_))) {
        return Ok(top);
    }
    let names: Vec<&str> = top.iter().map(|(name, _)| *name).collect();
    Err(format!(
        "has no state dictionary under {} or at its top level, which holds: {}",
        WRAPPERS.join(", "),
        name_list(&names)
    ))
}

fn read_zip(bytes: &[u8]) -> Result<(Pickle, Storages<'_>), String> {
    let entries = zip_entries(bytes)?;
    let at = |path: &str| entries.get(path).map(|range| &bytes[range.clone()]);
    let mut roots =
        entries.keys().filter_map(|path| path.strip_suffix("/data.pkl")).filter(|r| !r.contains('/'));
    let root = match (roots.next(), roots.next()) {
        (Some(root), None) => root,
        _ => return Err("is a zip archive, but not one of torch.save: it has no data.pkl".to_owned()),
    };
    if entries.contains_key(&format!("{root}/constants.pkl")) {
        return Err(
            "is a TorchScript archive; save the model's state_dict() with torch.save instead".to_owned()
        );
    }
    if at(&format!("{root}/byteorder")).is_some_and(|order| order != b"little") {
        return Err("was written on a big-endian machine, which is not supported".to_owned());
    }
    let pickle = read_pickle(at(&format!("{root}/data.pkl")).unwrap_or_default())?;
    let prefix = format!("{root}/data/");
    let storage = |(path, range): (&String, &Range<usize>)| {
        path.strip_prefix(&prefix).map(|key| (key.to_owned(), &bytes[range.clone()]))
    };
    let storages = entries.iter().filter_map(storage).collect();
    Ok((pickle, storages))
}

/// Name and byte range of each entry; torch.save never compresses entries.
fn zip_entries(bytes: &[u8]) -> Result<HashMap<String, Range<usize>>, String> {
    let unreadable = |e: zip::result::ZipError| damaged("zip archive", e);
    let mut archive = zip::ZipArchive::new(Cursor::new(bytes)).map_err(unreadable)?;
    let mut entries = HashMap::with_capacity(archive.len());
    for index in 0..archive.len() {
        let entry = archive.by_index_raw(index).map_err(unreadable)?;
        let name = entry.name().map_err(unreadable)?.into_owned();
        if entry.compression() != zip::CompressionMethod::Stored || entry.encrypted() {
            return Err(format!("its entry {name} is compressed or encrypted, which torch.save never does"));
        }
        let range = entry.data_start().and_then(|start| {
            let start = usize::try_from(start).ok()?;
            let end = start.checked_add(usize::try_from(entry.size()).ok()?)?;
            (end <= bytes.len()).then_some(start..end)
        });
        let range = range
            .ok_or_else(|| damaged("zip archive", format!("its entry {name} reaches beyond its end")))?;
        if entries.insert(name.clone(), range).is_some() {
            return Err(format!("has two entries named {name}"));
        }
    }
    Ok(entries)
}

fn read_pickle(bytes: &[u8]) -> Result<Pickle, String> {
    pickle::read(&bytes[..bytes.len().min(MAX_PICKLE)])
}

/// Reads the older format. It starts with five pickles: magic number, protocol, system description, object, storage
/// names. Each storage follows with its number of elements (i64) and its values.
fn read_legacy(bytes: &[u8]) -> Result<(Pickle, Storages<'_>), String> {
    let mut rest = bytes;
    let mut next = || -> Result<Pickle, String> {
        let pickle = read_pickle(rest)?;
        rest = &rest[pickle.consumed..];
        Ok(pickle)
    };
    let magic = next()?;
    if *magic.get(magic.root) != Object::Long(LEGACY_MAGIC.to_vec()) {
        return Err("is a pickle, but not one of torch.save".to_owned());
    }
    let protocol = next()?;
    if *protocol.get(protocol.root) != Object::Int(1001) {
        return Err("has an unknown version of torch.save's older format; save it again with a newer torch"
            .to_owned());
    }
    let system = next()?;
    let entries = system.entries(system.root).unwrap_or_default();
    let little = |&(name, id): &(&str, Id)| name == "little_endian" && *system.get(id) == Object::Bool(true);
    if !entries.iter().any(little) {
        return Err("was not written on a little-endian machine, which is not supported".to_owned());
    }
    let object = next()?;
    let keys = next()?;
    let storages = legacy_storages(&object, &keys, rest)?;
    Ok((object, storages))
}

fn legacy_storages<'a>(object: &Pickle, keys: &Pickle, mut rest: &'a [u8]) -> Result<Storages<'a>, String> {
    let mut known: HashMap<&str, &StorageRef> = HashMap::new();
    for object in &object.objects {
        if let Object::Storage(storage) = object {
            known.insert(&storage.key, storage);
        }
    }
    let Object::List(names) = keys.get(keys.root) else {
        return Err("its list of storages is damaged".to_owned());
    };
    let mut storages = Storages::new();
    for &id in names {
        let Object::Text(key) = keys.get(id) else {
            return Err("its list of storages is damaged".to_owned());
        };
        let storage = *known.get(key.as_str()).ok_or("its list names a storage that no tensor has")?;
        let (count, values) = rest.split_first_chunk::<8>().ok_or_else(|| missing_storage(storage))?;
        if usize::try_from(i64::from_le_bytes(*count)) != Ok(storage.elements) {
            return Err(format!(
                "storage {key} does not have the size that its tensors state; the file is damaged"
            ));
        }
        let length = storage.elements.checked_mul(storage.dtype.size());
        let split = length.and_then(|length| values.split_at_checked(length));
        let (data, after) = split.ok_or_else(|| missing_storage(storage))?;
        storages.insert(key.clone(), data);
        rest = after;
    }
    Ok(storages)
}
