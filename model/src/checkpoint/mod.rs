//! Reading float checkpoints: files and directories in every dialect in which trained Swins are published.
//!
//! Pickles are read as plain data; nothing in a checkpoint is executed.

mod backbone;
mod checks;
mod coordinates;
mod describe;
mod dialect;
mod directory;
mod file;
mod foreign;
mod ft;
mod hf;
mod json;
mod masks;
mod memory;
mod network;
mod parameters;
mod pickle;
mod processor;
mod random;
mod raw;
mod safetensors;
mod shapes;
mod stored;
mod timm;
mod torch;
mod weights;

use std::path::{Path, PathBuf};

pub use dialect::{ClassOrder, Dialect, Values};
pub use ft::{ft_key, ft_site, import_ft_amax};
pub use memory::{Documents, ElementType, InMemory, TensorView, load_float_from_memory};
pub use parameters::StoredParameter;
pub use random::random_model;
pub use safetensors::is_quantized_file;
pub(crate) use safetensors::{MAX_HEADER, check_header};
pub(crate) use torch::is_torch;

use crate::arch::{SwinConfig, Task, WindowPolicy};
use crate::batch::Transform;
use crate::config::LoadedConfig;
use crate::error::ModelError;
use crate::part::is_part_file;
use crate::quantized::{FloatModel, QuantizedModel, Source};
use describe::Bytes;
use file::CheckpointFile;
use stored::Stored;
use weights::Weights;

/// [`Source::dialect`] of float checkpoints that this program wrote.
const OWN: &str = "swinq";

/// How to read a checkpoint.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Architecture and transform. They replace a directory's own description. Without them, a bare file is
    /// described by the quantized checkpoints that were made from it (in `described_by`, else in the same
    /// folder), or by the only shipped configuration whose parameters have the same shapes.
    pub cfg: Option<LoadedConfig>,
    /// Overrides of the configuration that is found if `cfg` is `None`: that of a directory, or that of a
    /// bare file.
    pub opts: Vec<(String, String)>,
    /// What the network is read as; if `None`, what its description says, else a classifier. The checkpoint
    /// of a classifier may be read as a backbone: its final norm and its head are left out.
    pub task: Option<Task>,
    /// For a backbone, the stages whose outputs it has, from 0. If `None`, those that its description names,
    /// else those for which the file has norms, else all.
    pub outputs: Option<Vec<usize>>,
    /// Naming convention; detected from the tensor names if `None`.
    pub dialect: Option<Dialect>,
    /// The key of the state dictionary in a file of `torch.save`. If `None`, it is searched as [`load_float`]
    /// says.
    pub weights: Option<String>,
    /// What the names of the network's tensors begin with, if the file has other tensors too. If `None`, a
    /// beginning that all names have is left out, and a backbone is found among other tensors.
    pub prefix: Option<String>,
    /// The rule for windows of the code that runs the network, if it is known; `None` takes that of the
    /// library that reads such names.
    pub window_policy: Option<WindowPolicy>,
    /// Quantized checkpoints that may have been made from the file. One that was describes it if `cfg` is
    /// `None`.
    pub described_by: Vec<PathBuf>,
    /// Whether the caller replaces the transform, so that quantized checkpoints may disagree about it.
    pub any_transform: bool,
}

impl LoadOptions {
    /// Refuses outputs of a network that is read as a classifier.
    fn check_outputs(&self, task: Task) -> Result<(), ModelError> {
        if self.outputs.is_none() || task == Task::Features {
            return Ok(());
        }
        let problem = "a classifier has one output, its logits; for feature maps of stages, \
                       `swinq features`, or add --task features";
        Err(ModelError::config("--outputs", problem))
    }
}

/// The description of a model in the files of its directory.
#[derive(Clone, Debug, PartialEq)]
struct Description {
    config: SwinConfig,
    transform: Transform,
    labels: Option<Labels>,
    /// The stages whose outputs a backbone has, from 0, if it is said.
    stages: Option<Vec<usize>>,
    /// A sentence on fields that swinq may read in another way than their library.
    remark: Option<String>,
    /// A sentence on where the description was found, if neither the files of the model nor the caller give
    /// it.
    note: Option<String>,
    /// Whether the transform states the orientation of images; otherwise the library that reads such names
    /// decides.
    orientation_stated: bool,
}

impl Description {
    /// A description that says nothing else, and whose transform states the orientation of images.
    fn new(config: SwinConfig, transform: Transform) -> Description {
        Description {
            config,
            transform,
            labels: None,
            stages: None,
            remark: None,
            note: None,
            orientation_stated: true,
        }
    }

    /// The task of the network.
    fn task(&self) -> Task {
        if self.stages.is_some() { Task::Features } else { self.config.task }
    }
}

/// The class names of a model.
#[derive(Clone, Debug, PartialEq)]
struct Labels {
    /// By class index.
    names: Vec<String>,
    /// Where they come from, in words, if the files of the model do not hold them.
    from: Option<String>,
}

impl Labels {
    /// Names that the files of the model hold.
    fn own(names: Vec<String>) -> Labels {
        Labels { names, from: None }
    }
}

/// A float model, and what its reader found.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The model.
    pub model: FloatModel,
    /// Whether the file does not describe the model and no configuration was given, so that another file or
    /// the shapes did.
    pub description_found: bool,
    /// Remarks for the user, one sentence each.
    pub remarks: Vec<String>,
    /// The stored tensors that are parameters, in the order of their names; empty for a file in this
    /// program's own format.
    pub stored: Vec<StoredParameter>,
}

/// Loads a float Swin.
///
/// `path` is one of:
/// - a file of `torch.save`, in either format. The state dictionary is searched under `state_dict_ema` and
///   `model_ema`, averages of the weights, then under `model`, `state_dict` and `model_state_dict`, in this
///   order, then at the top level.
/// - a pickle whose state dictionary, searched in the same way, has numpy arrays, such as detectron2's
///   `.pkl`.
/// - a safetensors file.
/// - an index of shards in either format, `model.safetensors.index.json` or `pytorch_model.bin.index.json`.
/// - a directory of Hugging Face transformers or timm: `config.json`, then `model.safetensors` or
///   `pytorch_model.bin`, whole or in shards; transformers also needs `preprocessor_config.json`.
/// - a float model that this program wrote, such as a training's `float.safetensors`. It needs no `options`.
///
/// Parameters may be f32, f16, bf16 or f64; f64 is rounded. The result has f32 tensors under the names of
/// [`parameters`](crate::params::parameters). The version of Swin is detected from the tensor names. What all
/// names begin with, such as `module.`, is left out.
///
/// The dialect decides the window policy and the mask, even if `options.cfg` gives the architecture. The
/// transform comes from `options.cfg` if given, else from the directory. Unless the directory gives it, the
/// dialect decides whether images are turned ([`Dialect::orientation`]).
///
/// A backbone ([`Task::Features`]) is found in the file of a larger model. It has the norms of outputs that
/// the file has, and the window policy of the library that reads such files as backbones. If nothing
/// describes a Swin V1, the shapes do, with ImageNet's mean and deviation.
///
/// # Errors
/// A file that is damaged, of another kind, or tries to execute code; a bare file without `options.cfg`;
/// tensors that are missing, unexpected, of another shape, or not finite; another version of Swin than the
/// configuration's; an impossible architecture.
pub fn load_float(path: &Path, options: &LoadOptions) -> Result<FloatModel, ModelError> {
    Ok(load_float_with_remarks(path, options)?.model)
}

/// [`load_float`], with remarks: where the description of a bare file was found if it was not given, what was
/// left out of names and tensors, that the file has no hash.
///
/// # Errors
/// Those of [`load_float`].
pub fn load_float_with_remarks(path: &Path, options: &LoadOptions) -> Result<Loaded, ModelError> {
    let (path, described) = if path.is_dir() {
        (weights::in_directory(path)?, Some(directory::describe(path, options)?))
    } else {
        (path.to_owned(), None)
    };
    if is_quantized_file(&path) {
        if options.weights.is_some() {
            let problem = "contains one network, without keys above its tensors; leave --weights out";
            return Err(ModelError::file(&path, problem));
        }
        if options.cfg.is_none() && !options.opts.is_empty() {
            let problem = "contains its configuration, which overrides do not change; leave --opts out";
            return Err(ModelError::file(&path, problem));
        }
        return load_own(&path, options);
    }
    if is_part_file(&path) {
        let problem = "is a part of a calibration or an evaluation, not a model; `swinq merge` makes a model of the \
                       parts of a calibration";
        return Err(ModelError::file(&path, problem));
    }
    let weights = Weights::open(&path)?;
    let ((tensors, remarks), sha256) = (weights.tensors(options.weights.as_deref())?, weights.sha256());
    let stored = Stored { file: Bytes { path: &path, folder: path.parent(), sha256 }, tensors };
    let mut loaded = stored.model(described, options).map_err(|error| weights::of_shard(&path, error))?;
    loaded.remarks.extend(remarks);
    Ok(loaded)
}

/// Loads a float model in this program's own format, which holds its own description.
fn load_own(path: &Path, options: &LoadOptions) -> Result<Loaded, ModelError> {
    let file = CheckpointFile::open(path)?;
    let (model, info) = QuantizedModel::from_bytes(path, file.bytes())?;
    let model = model.into_float().ok_or_else(|| {
        let problem = "is a quantized checkpoint, but a float one is needed; use the float checkpoint it was made from \
                       (`swinq inspect` names it)";
        ModelError::file(path, problem)
    })?;
    // A model derived from this file names this file as its source, not the checkpoint its training started
    // from.
    let source = Source { file: shown(path), sha256: file.sha256(), dialect: OWN.to_owned() };
    let (model, left_out) = own_for_task(path, FloatModel { source, ..model }, options)?;
    let remarks = info.warning(path).into_iter().chain(left_out).collect();
    Ok(Loaded { model, description_found: false, remarks, stored: Vec::new() })
}

/// The float model of this program's own file at `path` as `options` ask for it, and remarks.
fn own_for_task(
    path: &Path,
    mut model: FloatModel,
    options: &LoadOptions,
) -> Result<(FloatModel, Vec<String>), ModelError> {
    let (stated, outputs) = (model.config.task, options.outputs.as_deref());
    options.check_outputs(options.task.unwrap_or(stated))?;
    match options.task.unwrap_or(stated) {
        Task::Classification if stated == Task::Features => {
            let problem = "is a backbone, not a classifier; use it as one (--task features)";
            return Err(ModelError::file(path, problem));
        }
        Task::Classification => return Ok((model, Vec::new())),
        Task::Features => {}
    }
    if stated == Task::Classification {
        let policy = model.config.window_policy;
        model.config.window_policy = policy.of_backbone(model.config.version).ok_or_else(|| {
            let problem =
                "does not say which library's rule for windows it follows; use the library's checkpoint";
            ModelError::file(path, problem)
        })?;
    }
    let stages: Vec<usize> = model.config.outputs.iter().map(|output| output.stage).collect();
    model.tensors.retain(|name, _| !["norm.", "head."].iter().any(|module| name.starts_with(module)));
    let stages = model.config.is_backbone().then_some(&stages[..]);
    let (config, left_out) = backbone::of(model.config, outputs, stages, &mut model.tensors)?;
    let left_out = left_out.into_iter().map(|remark| format!("{}: {remark}", path.display())).collect();
    Ok((FloatModel { config, labels: None, labels_from: None, ..model }, left_out))
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests;
