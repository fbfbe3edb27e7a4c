//! Reading pickles: files of `torch.save`, in the zip format (PyTorch 1.6 and later) and the older format,
//! and those of Python's `pickle` alone, whose tensors are arrays of numpy (detectron2's `.pkl`) or tensors
//! of torch, each with a file of `torch.save` for its storage (the `.pkl` of Mask2Former's converter).

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::io::Cursor;
use std::ops::Range;

use super::file::check_name;
use super::pickle::{self, Id, Object, Pickle, StorageRef};
use super::raw::{RawDict, RawTensor};
use super::safetensors::is_safetensors;
use crate::error::damaged;
use crate::params::name_list;

/// The magic number of the older format, little-endian.
const LEGACY_MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
/// Keys of averaged weights (EMA) of a training, which timm's loader takes before the weights themselves.
/// [`OF_MMENGINE`] is none of them: there `state_dict` is the average.
const AVERAGES: [&str; 2] = ["state_dict_ema", "model_ema"];
/// The key of the weights themselves in mmengine's files with an average.
const OF_MMENGINE: &str = "ema_state_dict";
/// Levels of keys below the top level that are searched for dictionaries of tensors.
const MAX_NESTED: usize = 3;
/// Keys that may hold the state dictionary, in order of precedence; the top level comes last.
const WRAPPERS: [&str; 5] = [AVERAGES[0], AVERAGES[1], "model", "state_dict", "model_state_dict"];

/// Whether the bytes start like a file of one of the formats.
pub(crate) fn is_torch(bytes: &[u8]) -> bool {
    // The length of a safetensors header may have the first bytes of a pickle.
    is_zip(bytes) || (matches!(bytes, [0x80, 2..=5, ..]) && !is_safetensors(bytes))
}

fn is_zip(bytes: &[u8]) -> bool {
    bytes.starts_with(b"PK\x03\x04")
}

/// The tensors of the file's state dictionary, and a remark if it has several. The dictionary is that under
/// the key `weights`, else it is searched under the keys of [`WRAPPERS`], then at the top level. Each tensor
/// is one of torch or an array of numpy, whose values the result borrows.
///
/// # Errors
/// The error is a text that describes the fault of the file.
pub(super) fn read<'a>(
    bytes: &'a [u8],
    weights: Option<&str>,
) -> Result<(RawDict<'a>, Option<String>), String> {
    let (pickle, storages) = if is_zip(bytes) { read_zip(bytes)? } else { read_pickles(bytes)? };
    let (dict, remark) = state_dict(&pickle, weights)?;
    let mut tensors = RawDict::new();
    let (mut elements, mut saved) = (0usize, SavedStorages::new());
    for (name, id) in dict {
        let tensor =
            tensor(&pickle, id, &storages, &mut saved).map_err(|problem| format!("`{name}`: {problem}"))?;
        elements = elements.saturating_add(tensor.elements());
        if elements > bytes.len() {
            return Err("its tensors together have more values than the file has bytes".to_owned());
        }
        tensors.insert(name.to_owned(), tensor);
    }
    Ok((tensors, remark))
}

/// Bytes of each storage, by its name in the pickle.
type Storages<'a> = HashMap<String, &'a [u8]>;

/// The storages in files within a pickle, by the place of each file, so that one which many tensors have is
/// read once.
type SavedStorages<'a> = HashMap<*const u8, (StorageRef, &'a [u8])>;

fn tensor<'a>(
    pickle: &Pickle<'a>,
    id: Id,
    storages: &Storages<'a>,
    saved: &mut SavedStorages<'a>,
) -> Result<RawTensor<'a>, String> {
    let tensor = match pickle.get(id) {
        Object::Tensor(tensor) => tensor,
        Object::Array(array) => return pickle.array(array),
        _ => return Err(format!("is {}, not a tensor", pickle.kind(id))),
    };
    let (storage, bytes) = match pickle.get(tensor.storage) {
        Object::Storage(storage) => {
            (storage, *storages.get(&storage.key).ok_or_else(|| missing_storage(storage))?)
        }
        Object::Saved(file) => {
            let known = match saved.entry(file.as_ptr()) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(saved_storage(file)?),
            };
            (&known.0, known.1)
        }
        _ => return Err("has no storage".to_owned()),
    };
    let wanted =
        storage.elements.checked_mul(storage.dtype.size()).ok_or_else(|| missing_storage(storage))?;
    let bytes = bytes.get(..wanted).ok_or_else(|| missing_storage(storage))?;
    RawTensor::new(storage.dtype, tensor.shape.clone(), tensor.strides.clone(), tensor.offset, bytes)
}

/// The storage in a file of `torch.save` in the older format that holds nothing else, as Python's pickle has
/// it for a tensor.
fn saved_storage(file: &[u8]) -> Result<(StorageRef, &[u8]), String> {
    let other = || "its storage is no file of torch.save that holds a storage alone".to_owned();
    let magic = pickle::read(file)?;
    if !is_magic(&magic) {
        return Err(other());
    }
    let (object, storages) = read_legacy(&file[magic.consumed..])?;
    let Object::Storage(storage) = object.get(object.root) else { return Err(other()) };
    let bytes = *storages.get(&storage.key).ok_or_else(|| missing_storage(storage))?;
    Ok((storage.clone(), bytes))
}

fn missing_storage(storage: &StorageRef) -> String {
    let cause = format!("its storage {} of {} elements is not in it", storage.key, storage.elements);
    damaged("file of torch.save", cause)
}

/// The entries of the state dictionary ([`read`]), and a remark if there are others.
fn state_dict<'a>(
    pickle: &'a Pickle<'_>,
    weights: Option<&str>,
) -> Result<(Entries<'a>, Option<String>), String> {
    let top = entries(pickle, pickle.root)?;
    let mut found = Dictionaries { pickle, seen: HashSet::new(), all: Vec::new() };
    found.add(&top, "", MAX_NESTED);
    let nested = found.all;
    let dictionaries: Vec<&str> = nested.iter().map(|(name, _)| name.as_str()).collect();
    let below = |key: &str| nested.iter().find(|(name, _)| name == key).map(|&(_, id)| id);
    let value = |key: &str| top.iter().rev().find(|(name, _)| *name == key).map(|&(_, id)| id);
    let under = |key: &str, id: Id| {
        let entries = entries(pickle, id).map_err(|problem| format!("under `{key}` {problem}"))?;
        Ok((entries, remark(key, &dictionaries)))
    };
    if let Some(key) = weights {
        let id = value(key)
            .or_else(|| below(key))
            .ok_or_else(|| format!("has no `{key}`{}", to_choose(&dictionaries)))?;
        return Ok((under(key, id)?.0, None));
    }
    // A value that a training script does not compute is None or empty; an average may be no dictionary of
    // tensors, too.
    let given = |key: &str, id: Id| {
        let empty = *pickle.get(id) == Object::None || pickle.entries(id).is_some_and(|all| all.is_empty());
        !empty && (!AVERAGES.contains(&key) || holds_tensors(pickle, id))
    };
    let found = WRAPPERS.iter().find_map(|key| Some((*key, value(key).filter(|id| given(key, *id))?)));
    if let Some((key, id)) = found {
        return under(key, id);
    }
    if top.iter().any(|&(_, id)| is_tensor(pickle, id)) {
        return Ok((top, None));
    }
    let names: Vec<&str> = top.iter().map(|(name, _)| *name).collect();
    Err(format!(
        "has no state dictionary under {} or at its top level, which holds: {}{}",
        WRAPPERS.join(", "),
        name_list(&names),
        to_choose(&dictionaries)
    ))
}

/// The entries of a dictionary.
type Entries<'a> = Vec<(&'a str, Id)>;

fn entries<'a>(pickle: &'a Pickle<'_>, id: Id) -> Result<Entries<'a>, String> {
    let entries = pickle.entries(id).ok_or_else(|| {
        format!(
            "holds {}, not a state dictionary; save one with torch.save({{'model': model.state_dict()}}, file)",
            pickle.kind(id)
        )
    })?;
    entries.iter().try_for_each(|(name, _)| check_name(name)).map(|()| entries)
}

/// The dictionaries of tensors of a file, each with its path of keys, such as `ema.module`.
struct Dictionaries<'a, 'b> {
    pickle: &'a Pickle<'b>,
    seen: HashSet<Id>,
    all: Vec<(String, Id)>,
}

impl Dictionaries<'_, '_> {
    /// Adds those among `entries`, which lie at the path `above`, and up to `depth` levels below. Below the
    /// top level only those with weights count: trainings keep single tensors everywhere.
    fn add(&mut self, entries: &Entries<'_>, above: &str, depth: usize) {
        for &(name, id) in entries {
            let Some(inner) = self.pickle.entries(id) else { continue };
            let path = if above.is_empty() { name.to_owned() } else { format!("{above}.{name}") };
            let weights =
                || inner.iter().any(|(name, id)| name.ends_with(".weight") && is_tensor(self.pickle, *id));
            if holds_tensors(self.pickle, id) && (above.is_empty() || weights()) {
                self.all.push((path, id));
            } else if depth > 0 && self.seen.insert(id) {
                self.add(&inner, &path, depth - 1);
            }
        }
    }
}

fn is_tensor(pickle: &Pickle<'_>, id: Id) -> bool {
    matches!(pickle.get(id), Object::Tensor(_) | Object::Array(_))
}

/// Whether the object is a dictionary of tensors.
fn holds_tensors(pickle: &Pickle<'_>, id: Id) -> bool {
    pickle.entries(id).is_some_and(|entries| entries.iter().any(|&(_, id)| is_tensor(pickle, id)))
}

/// A sentence on the dictionary under `key`, if the file has other dictionaries of tensors.
fn remark(key: &str, dictionaries: &[&str]) -> Option<String> {
    let others: Vec<&str> = dictionaries.iter().copied().filter(|name| *name != key).collect();
    let first = others.first()?;
    let what = match key {
        _ if AVERAGES.contains(&key) => ", the average of the weights, as timm's loader does",
        "state_dict" if others.contains(&OF_MMENGINE) => ", in mmengine's files the average of the weights",
        _ => "",
    };
    Some(format!("reads `{key}`{what}; the file also has {} (--weights {first})", name_list(&others)))
}

/// The end of a message that asks for one of `dictionaries`.
fn to_choose(dictionaries: &[&str]) -> String {
    match dictionaries {
        [] => String::new(),
        [first, ..] => {
            format!(
                "; its dictionaries of tensors: {}; choose one as in --weights {first}",
                name_list(dictionaries)
            )
        }
    }
}

fn read_zip(bytes: &[u8]) -> Result<(Pickle<'_>, Storages<'_>), String> {
    let entries = zip_entries(bytes)?;
    let at = |path: &str| entries.get(path).map(|range| &bytes[range.clone()]);
    let mut roots =
        entries.keys().filter_map(|path| path.strip_suffix("/data.pkl")).filter(|r| !r.contains('/'));
    let root = match (roots.next(), roots.next()) {
        (Some(root), None) => root,
        _ => return Err("is a zip archive, but not one of torch.save: it has no data.pkl".to_owned()),
    };
    if at(&format!("{root}/byteorder")).is_some_and(|order| order != b"little") {
        return Err("was written on a big-endian machine, which is not supported".to_owned());
    }
    let pickle = pickle::read(at(&format!("{root}/data.pkl")).unwrap_or_default())?;
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
    // The archive begins with the file. The crate's search for the begin takes the second entry of the
    // directory for the first if that has 76 bytes (a name of 21 characters before `/data.pkl`), as many as
    // the records that torch.save writes behind it.
    let config = zip::read::Config { archive_offset: zip::read::ArchiveOffset::Known(0) };
    let mut archive = zip::ZipArchive::with_config(config, Cursor::new(bytes)).map_err(unreadable)?;
    // An archive of TorchScript has compressed entries.
    if archive.file_names().flatten().any(|name| name.ends_with("/constants.pkl")) {
        return Err(
            "is a TorchScript archive; save the model's state_dict() with torch.save instead".to_owned()
        );
    }
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

/// Reads a file that starts with a pickle: of the older format, whose first pickle is its magic number, or of
/// one pickle.
fn read_pickles(bytes: &[u8]) -> Result<(Pickle<'_>, Storages<'_>), String> {
    let first = pickle::read(bytes)?;
    let rest = &bytes[first.consumed..];
    if is_magic(&first) {
        return read_legacy(rest);
    }
    if !rest.is_empty() {
        return Err(format!("has {} bytes after its pickle; copy or download it again", rest.len()));
    }
    Ok((first, Storages::new()))
}

/// Whether a pickle is the magic number at the beginning of files of the older format.
fn is_magic(first: &Pickle<'_>) -> bool {
    *first.get(first.root) == Object::Long(&LEGACY_MAGIC)
}

/// Reads the older format after its magic number. Four pickles follow: protocol, system description, object,
/// storage names. Each storage follows with its number of elements (i64) and its values.
fn read_legacy(mut rest: &[u8]) -> Result<(Pickle<'_>, Storages<'_>), String> {
    let mut next = || -> Result<Pickle<'_>, String> {
        let pickle = pickle::read(rest)?;
        rest = &rest[pickle.consumed..];
        Ok(pickle)
    };
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

fn legacy_storages<'a>(
    object: &Pickle<'_>,
    keys: &Pickle<'_>,
    mut rest: &'a [u8],
) -> Result<Storages<'a>, String> {
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
        let Some(key) = keys.get(id).text() else {
            return Err("its list of storages is damaged".to_owned());
        };
        let storage = *known.get(key).ok_or("its list names a storage that no tensor has")?;
        let (count, values) = rest.split_first_chunk::<8>().ok_or_else(|| missing_storage(storage))?;
        if usize::try_from(i64::from_le_bytes(*count)) != Ok(storage.elements) {
            return Err(format!(
                "storage {key} does not have the size that its tensors state; the file is damaged"
            ));
        }
        let length = storage.elements.checked_mul(storage.dtype.size());
        let split = length.and_then(|length| values.split_at_checked(length));
        let (data, after) = split.ok_or_else(|| missing_storage(storage))?;
        storages.insert(key.to_owned(), data);
        rest = after;
    }
    Ok(storages)
}
