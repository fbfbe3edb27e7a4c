//! The files that hold a model's tensors: one file, or shards that an index lists.
//!
//! The index is Hugging Face's `model.safetensors.index.json` or `pytorch_model.bin.index.json`: `weight_map`
//! names for each tensor the file of the index's folder that holds it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use super::file::{CheckpointFile, MAX_FILE, sha256};
use super::json::Json;
use super::raw::RawDict;
use crate::error::ModelError;
use crate::params::name_list;

/// The end of an index's name.
const INDEX: &str = ".index.json";
/// The most shards of a model.
const MAX_SHARDS: usize = 1024;

/// Whether the file at `path` is an index of shards, by its name.
pub(super) fn is_index(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(INDEX))
}

/// `error` of a model that was read from the file at `path` alone; if the file is a shard, that is its cause.
pub(super) fn of_shard(path: &Path, error: ModelError) -> ModelError {
    let Some(index) = index_of_shard(path) else { return error };
    let problem = format!("is one of the shards of a model; pass {} or its folder", index.display());
    ModelError::file(path, problem)
}

/// The index beside the file at `path`, if the file is one of several shards of it by its name
/// (`model-00001-of-00002.safetensors`).
fn index_of_shard(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let (numbered, ending) = name.rsplit_once('.')?;
    let (first, count) = numbered.rsplit_once("-of-")?;
    let (stem, number) = first.rsplit_once('-')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let index = path.with_file_name(format!("{stem}.{ending}{INDEX}"));
    (digits(number) && digits(count) && index.is_file()).then_some(index)
}

/// The file of a model directory that holds its weights, or the index of its shards.
///
/// # Errors
/// [`ModelError::File`] if there is no such file.
pub(super) fn in_directory(folder: &Path) -> Result<PathBuf, ModelError> {
    let names = ["model.safetensors", "pytorch_model.bin"];
    let paths = names.iter().flat_map(|name| [folder.join(name), folder.join(format!("{name}{INDEX}"))]);
    paths.into_iter().find(|path| path.is_file()).ok_or_else(|| {
        let problem = "has neither model.safetensors nor pytorch_model.bin, whole or in shards with an index; pass a \
                       checkpoint file";
        ModelError::file(folder, problem)
    })
}

/// The files of a model's tensors, in memory, in the order of their names.
pub(super) struct Weights(Vec<Shard>);

/// A file of a model's tensors.
struct Shard {
    file: CheckpointFile,
    /// The tensors that the index places in it; `None` for a file without an index.
    listed: Option<BTreeSet<String>>,
}

impl Weights {
    /// Reads the file at `path`, or the shards of the index at `path`.
    ///
    /// # Errors
    /// A file that cannot be read or is too large; an index that is no index, or names a file outside of its
    /// folder.
    pub(super) fn open(path: &Path) -> Result<Weights, ModelError> {
        if !is_index(path) {
            return Ok(Weights(vec![Shard { file: CheckpointFile::open(path)?, listed: None }]));
        }
        let files = shards(path)?;
        let sizes = files.keys().map(|file| file.metadata().map_or(0, |metadata| metadata.len()));
        let bytes = sizes.fold(0u64, u64::saturating_add);
        if bytes > MAX_FILE {
            return Err(ModelError::file(path, format!("lists files of {bytes} bytes, too many for a Swin")));
        }
        let open = |(path, listed): (PathBuf, BTreeSet<String>)| {
            Ok(Shard { file: CheckpointFile::open(&path)?, listed: Some(listed) })
        };
        Ok(Weights(files.into_iter().map(open).collect::<Result<_, ModelError>>()?))
    }

    /// SHA-256 of the bytes of all files, one after the other, hexadecimal.
    pub(super) fn sha256(&self) -> String {
        sha256(self.0.iter().map(|shard| shard.file.bytes()))
    }

    /// The tensors of all files, under the key `weights` if it is given, and remarks on other keys.
    ///
    /// # Errors
    /// [`ModelError::File`] with the fault of a file; a shard that lacks a tensor of the index, or has one
    /// that the index does not place in it.
    pub(super) fn tensors(&self, weights: Option<&str>) -> Result<(RawDict<'_>, Vec<String>), ModelError> {
        let (mut all, mut remarks) = (RawDict::new(), Vec::new());
        for shard in &self.0 {
            let (tensors, remark) = shard.tensors(weights)?;
            all.extend(tensors);
            remarks.extend(remark.map(|remark| format!("{}: {remark}", shard.file.path.display())));
        }
        Ok((all, remarks))
    }
}

impl Shard {
    fn tensors(&self, weights: Option<&str>) -> Result<(RawDict<'_>, Option<String>), ModelError> {
        let (tensors, remark) = self.file.tensors(weights)?;
        let Some(listed) = &self.listed else { return Ok((tensors, remark)) };
        let missing: Vec<&str> =
            listed.iter().filter(|name| !tensors.contains_key(*name)).map(String::as_str).collect();
        let unlisted: Vec<&str> =
            tensors.keys().filter(|name| !listed.contains(*name)).map(String::as_str).collect();
        let problem = match (missing.as_slice(), unlisted.as_slice()) {
            ([], []) => return Ok((tensors, remark)),
            ([], unlisted) => {
                format!("has tensors that the index does not place in it: {}", name_list(unlisted))
            }
            (missing, _) => format!("lacks tensors that the index places in it: {}", name_list(missing)),
        };
        let problem =
            format!("{problem}; the index and its shards are not of one model: download all of them again");
        Err(ModelError::file(&self.file.path, problem))
    }
}

/// The files that the index at `path` lists, each with its tensors. A tensor that is listed twice is an error
/// of its JSON.
fn shards(path: &Path) -> Result<BTreeMap<PathBuf, BTreeSet<String>>, ModelError> {
    let index = Json::read(path)?;
    let missing = || index.error("weight_map", "is missing: the file is no index of shards");
    let map = index.object("weight_map")?.ok_or_else(missing)?;
    let mut files: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for tensor in map.names() {
        let file = map.text(tensor)?.ok_or_else(|| map.error(tensor, "names no file"))?;
        files.entry(file).or_default().insert(tensor.to_owned());
    }
    if files.is_empty() || files.len() > MAX_SHARDS {
        let problem = format!("lists {} files; a model has 1 to {MAX_SHARDS} shards", files.len());
        return Err(ModelError::file(path, problem));
    }
    files.into_iter().map(|(file, tensors)| Ok((shard_path(path, &file)?, tensors))).collect()
}

/// The path of the shard `name` of the index at `index`.
///
/// # Errors
/// `name` is no plain file name, or a link that leads out of the folder in which the index, or the file that
/// a link of its name leads to, lies. (In the cache of Hugging Face's hub all files of a model are links into
/// one folder.)
fn shard_path(index: &Path, name: &str) -> Result<PathBuf, ModelError> {
    let folder = index.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut components = Path::new(name).components();
    let plain = matches!((components.next(), components.next()), (Some(Component::Normal(_)), None));
    if !plain || name.contains(['/', '\\', '\0']) {
        let problem = format!(
            "names the shard `{name}`, which is no plain file name; shards lie in the index's folder"
        );
        return Err(ModelError::file(index, problem));
    }
    let path = folder.join(name);
    if !path.exists() {
        let problem = format!("names the shard `{name}`, which is not there; copy or download it too");
        return Err(ModelError::file(index, problem));
    }
    let real = |path: &Path| path.canonicalize().map_err(|error| ModelError::io(path, error));
    let (shard, own) = (real(&path)?, real(index)?);
    if shard.parent() != own.parent() && shard.parent() != Some(&real(folder)?) {
        let problem = format!(
            "names the shard `{name}`, a link that leads out of the index's folder; copy the file there"
        );
        return Err(ModelError::file(index, problem));
    }
    Ok(path)
}
