//! Checkpoints of a training. A training that is resumed from a checkpoint gives the same bits as a training
//! that never stopped.
//!
//! A checkpoint is a safetensors file with f32 tensors: `parameter/NAME`, `first/NAME` and `second/NAME`
//! (AdamW's moments), and `average/NAME` (the moving average, if there is one). The metadata key
//! `swinq_training` holds JSON: the job, the [`Progress`], and the SHA-256 of the whole content. The position
//! among the images and every random draw follow from the number of iterations.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use swinq_model::atomic::write_atomic;

use crate::adamw::{AdamW, Moments, set};
use crate::error::QatError;
use crate::flat::host_values;
use crate::job::Identity;
pub use crate::progress::{Best, Progress};

/// Metadata key of the JSON document.
const METADATA_KEY: &str = "swinq_training";
/// Version of the format.
const VERSION: u64 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u64,
    job: Identity,
    progress: Progress,
    sha256: String,
}

/// The tensors of a run, which a checkpoint holds.
pub struct State<'a> {
    /// Parameters by name.
    pub parameters: &'a BTreeMap<String, Tensor>,
    /// The optimizer, with its moments.
    pub optimizer: &'a mut AdamW,
    /// The moving average of the parameters.
    pub average: Option<&'a BTreeMap<String, Tensor>>,
}

impl State<'_> {
    fn tensors(&self) -> BTreeMap<String, &Tensor> {
        let mut tensors = BTreeMap::new();
        tensors.extend(self.parameters.iter().map(|(name, t)| (format!("parameter/{name}"), t)));
        for (name, Moments { first, second }) in &self.optimizer.moments {
            tensors.insert(format!("first/{name}"), first);
            tensors.insert(format!("second/{name}"), second);
        }
        tensors.extend(self.average.into_iter().flatten().map(|(name, t)| (format!("average/{name}"), t)));
        tensors
    }
}

/// Writes a checkpoint into `folder` atomically, and removes all but the latest `keep`.
///
/// # Errors
/// [`QatError::File`] naming the file that cannot be written.
pub fn save(
    folder: &Path,
    job: &Identity,
    progress: &Progress,
    state: &State<'_>,
    keep: usize,
) -> Result<PathBuf, QatError> {
    let path = folder.join(format!("step-{:09}.safetensors", progress.iteration));
    let bytes = encode(job, progress, state)?;
    write_atomic(&path, |out| out.write_all(&bytes))?;
    rotate(folder, &path, keep)?;
    Ok(path)
}

/// The content of a checkpoint.
///
/// # Errors
/// Errors of candle.
pub fn encode(job: &Identity, progress: &Progress, state: &State<'_>) -> Result<Vec<u8>, QatError> {
    let tensors = state.tensors();
    let mut stored = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        stored.push((name, tensor.dims().to_vec(), host_values(tensor)?));
    }
    let mut document =
        Document { version: VERSION, job: job.clone(), progress: progress.clone(), sha256: String::new() };
    document.sha256 = digest(&document, &stored);
    let json = serde_json::to_string(&document).expect("a document is plain data");
    let mut views = Vec::with_capacity(stored.len());
    for (name, shape, values) in &stored {
        let view = TensorView::new(Dtype::F32, shape.clone(), bytemuck::cast_slice(values));
        views.push((name.as_str(), view.expect("the values have the shape")));
    }
    let metadata = std::collections::HashMap::from([(METADATA_KEY.to_owned(), json)]);
    Ok(safetensors::serialize(views, Some(metadata)).expect("views of whole tensors can be stored"))
}

/// Removes all but the latest `keep` checkpoints up to `newest`, and the temporary files of killed processes.
/// Checkpoints after `newest` do not count: they were skipped as damaged on resume and must not displace
/// intact ones.
fn rotate(folder: &Path, newest: &Path, keep: usize) -> Result<(), QatError> {
    let older = files(folder)?.into_iter().rev().filter(|file| file.as_path() <= newest).skip(keep);
    let parts = entries(folder)?.into_iter().filter(|file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(".swinq-") && name.ends_with(".part")
    });
    for file in older.chain(parts) {
        std::fs::remove_file(&file).map_err(|e| QatError::file(&file, e.to_string()))?;
    }
    Ok(())
}

/// SHA-256 of a checkpoint's content, without the field `sha256` itself.
fn digest(document: &Document, tensors: &[(String, Vec<usize>, Vec<f32>)]) -> String {
    let Document { version, job, progress, sha256: _ } = document;
    let mut sha = Sha256::new();
    sha.update(serde_json::to_vec(&(version, job, progress)).expect("a document is plain data"));
    for (name, shape, values) in tensors {
        sha.update(format!("{name}{shape:?}"));
        sha.update(bytemuck::cast_slice::<f32, u8>(values));
    }
    sha.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The paths in `folder`, sorted by name; empty if the folder does not exist.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, QatError> {
    let entries = match std::fs::read_dir(folder) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|e| QatError::file(folder, e.to_string()))?,
    };
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<PathBuf>>>();
    let mut paths = paths.map_err(|e| QatError::file(folder, e.to_string()))?;
    paths.sort();
    Ok(paths)
}

/// The checkpoints in `folder`, oldest first.
fn files(folder: &Path) -> Result<Vec<PathBuf>, QatError> {
    let mut files = entries(folder)?;
    files.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("step-") && name.ends_with(".safetensors")
    });
    Ok(files)
}

/// Whether `folder` has a checkpoint, intact or damaged.
///
/// # Errors
/// The folder cannot be read.
pub fn exists(folder: &Path) -> Result<bool, QatError> {
    Ok(!files(folder)?.is_empty())
}

/// Removes every checkpoint in `folder`, intact or damaged.
///
/// # Errors
/// [`QatError::File`] naming the file or folder.
pub fn remove(folder: &Path) -> Result<(), QatError> {
    for file in files(folder)? {
        std::fs::remove_file(&file).map_err(|e| QatError::file(&file, e.to_string()))?;
    }
    Ok(())
}

/// Restores the latest intact checkpoint in `folder` into `state`; `None` if there is none. `warn` is called
/// for each damaged checkpoint.
///
/// # Errors
/// The checkpoint belongs to another job or network (the error names the difference), or a device fails.
pub fn resume(
    folder: &Path,
    job: &Identity,
    state: &mut State<'_>,
    warn: &mut dyn FnMut(&str),
) -> Result<Option<Progress>, QatError> {
    for path in files(folder)?.into_iter().rev() {
        let bytes = std::fs::read(&path).map_err(|e| QatError::file(&path, e.to_string()))?;
        match read(&bytes) {
            Ok((document, tensors)) => {
                job.check_resumes(&document.job)?;
                return restore(&path, state, document, tensors).map(Some);
            }
            Err(problem) => {
                warn(&format!("{}: {problem}; trying an earlier checkpoint", path.display()));
            }
        }
    }
    Ok(None)
}

/// Restores the checkpoint that [`encode`] made on another process into `state`, and returns its progress.
///
/// # Errors
/// The checkpoint is damaged or belongs to another network, or a device fails.
pub fn decode(bytes: &[u8], state: &mut State<'_>) -> Result<Progress, QatError> {
    let origin = Path::new("the state of rank 0");
    let (document, tensors) = read(bytes).map_err(|problem| QatError::file(origin, problem))?;
    restore(origin, state, document, tensors)
}

type Stored = Vec<(String, Vec<usize>, Vec<f32>)>;

fn read(bytes: &[u8]) -> Result<(Document, Stored), String> {
    let damaged = |e: &dyn std::fmt::Display| format!("is damaged ({e})");
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(|e| damaged(&e))?;
    let json = metadata.metadata().as_ref().and_then(|m| m.get(METADATA_KEY));
    let json = json.ok_or_else(|| "is not a checkpoint of a training".to_owned())?;
    let document: Document = serde_json::from_str(json).map_err(|e| damaged(&e))?;
    if document.version != VERSION {
        return Err(format!(
            "has format version {}, but this program reads version {VERSION}",
            document.version
        ));
    }
    let file = SafeTensors::deserialize(bytes).map_err(|e| damaged(&e))?;
    let mut tensors = Vec::new();
    for (name, view) in file.iter() {
        if view.dtype() != Dtype::F32 {
            return Err(format!("is damaged ({name} is not f32)"));
        }
        tensors.push((name.to_owned(), view.shape().to_vec(), floats(view.data())));
    }
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    if digest(&document, &tensors) != document.sha256 {
        return Err("is damaged (its content does not match its checksum)".to_owned());
    }
    Ok((document, tensors))
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let (words, _) = bytes.as_chunks();
    words.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

/// Copies the tensors of a checkpoint into `state`, and returns its progress.
fn restore(
    path: &Path,
    state: &mut State<'_>,
    document: Document,
    stored: Stored,
) -> Result<Progress, QatError> {
    let targets = state.tensors();
    let names: Vec<&String> = stored.iter().map(|(name, ..)| name).collect();
    if !targets.keys().eq(names.iter().copied()) {
        return Err(QatError::file(path, "does not hold the tensors that this job trains"));
    }
    for ((name, shape, values), target) in stored.iter().zip(targets.values()) {
        if shape != target.dims() {
            return Err(QatError::file(
                path,
                format!("{name} has shape {shape:?}, but this job needs {:?}", target.dims()),
            ));
        }
        set(
            target,
            &Tensor::from_slice(values, shape.as_slice(), &Device::Cpu)?.to_device(target.device())?,
        )?;
    }
    state.optimizer.updates = document.progress.updates;
    Ok(document.progress)
}
