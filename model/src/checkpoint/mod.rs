//! Reading float checkpoints: files and directories in every dialect in which trained Swins are published.
//!
//! Pickles are read as plain data; nothing in a checkpoint is executed.

mod backbone;
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
mod timm;
mod torch;
mod weights;

use std::path::{Path, PathBuf};

use swinq_numerics::Size;

pub use dialect::{Dialect, Values};
pub use ft::{ft_key, ft_site, import_ft_amax};
pub use memory::{Documents, ElementType, InMemory, TensorView, load_float_from_memory};
pub use parameters::StoredParameter;
pub use random::random_model;
pub use safetensors::is_quantized_file;
pub(crate) use safetensors::{MAX_HEADER, check_header};
pub(crate) use torch::is_torch;

use crate::arch::{PositionSizes, SwinConfig, SwinVersion, Task, WindowPolicy, Windows};
use crate::batch::Transform;
use crate::config::{LoadedConfig, check_sizes};
use crate::error::ModelError;
use crate::params::{self, check_parameters};
use crate::part::is_part_file;
use crate::quantized::{FloatModel, QuantizedModel, Source};
use crate::tensor::StateDict;
use describe::{Bare, Bytes};
use dialect::Naming;
use file::CheckpointFile;
use network::Network;
use raw::RawDict;
use weights::Weights;

/// [`Source::dialect`] of float checkpoints that this program wrote.
const OWN: &str = "swinq";

/// How to read a checkpoint.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Architecture and transform. They replace a directory's own description. Without them, a bare file is described by
    /// the quantized checkpoints that were made from it (in `described_by`, else in the same folder), or by the only shipped
    /// configuration whose parameters have the same shapes.
    pub cfg: Option<LoadedConfig>,
    /// Overrides of the configuration that is found if `cfg` is `None`: that of a directory, or that of a bare file.
    pub opts: Vec<(String, String)>,
    /// What the network is read as; if `None`, what its description says, else a classifier. The checkpoint of a classifier
    /// may be read as a backbone: its final norm and its head are left out.
    pub task: Option<Task>,
    /// For a backbone, the stages whose outputs it has, from 0. If `None`, those that its description names, else those for
    /// which the file has norms, else all.
    pub outputs: Option<Vec<usize>>,
    /// Naming convention; detected from the tensor names if `None`.
    pub dialect: Option<Dialect>,
    /// The key of the state dictionary in a file of `torch.save`. If `None`, it is searched as [`load_float`] says.
    pub weights: Option<String>,
    /// What the names of the network's tensors begin with, if the file has other tensors too. If `None`, a beginning that all
    /// names have is left out, and a backbone is found among other tensors.
    pub prefix: Option<String>,
    /// The rule for windows of the code that runs the network, if it is known; `None` takes that of the library that reads such
    /// names.
    pub window_policy: Option<WindowPolicy>,
    /// Quantized checkpoints that may have been made from the file. One that was describes it if `cfg` is `None`.
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
    /// Whether the transform states the orientation of images; otherwise the library that reads such names decides.
    orientation_stated: bool,
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
    /// Whether the file does not describe the model and no configuration was given, so that another file or the shapes did.
    pub description_found: bool,
    /// Remarks for the user, one sentence each.
    pub remarks: Vec<String>,
    /// The stored tensors that are parameters, in the order of their names; empty for a file in this program's own format.
    pub stored: Vec<StoredParameter>,
}

/// Loads a float Swin.
///
/// `path` is one of:
/// - a file of `torch.save`, in either format. The state dictionary is searched under `state_dict_ema` and `model_ema`,
///   averages of the weights, then under `model`, `state_dict` and `model_state_dict`, in this order, then at the top level.
/// - a pickle whose state dictionary, searched in the same way, has numpy arrays, such as detectron2's `.pkl`.
/// - a safetensors file.
/// - an index of shards in either format, `model.safetensors.index.json` or `pytorch_model.bin.index.json`.
/// - a directory of Hugging Face transformers or timm: `config.json`, then `model.safetensors` or
///   `pytorch_model.bin`, whole or in shards; transformers also needs `preprocessor_config.json`.
/// - a float model that this program wrote, such as a training's `float.safetensors`. It needs no `options`.
///
/// Parameters may be f32, f16, bf16 or f64; f64 is rounded. The result has f32 tensors under the
/// names of [`parameters`](crate::params::parameters). The version of Swin is detected from the tensor names. What all names
/// begin with, such as `module.`, is left out.
///
/// The dialect decides the window policy and the mask, even if `options.cfg` gives the architecture. The transform comes from
/// `options.cfg` if given, else from the directory. Unless the directory gives it, the dialect decides whether images are turned
/// ([`Dialect::orientation`]).
///
/// A backbone ([`Task::Features`]) is found in the file of a larger model. It has the norms of outputs that the file has, and
/// the window policy of the library that reads such files as backbones. If nothing describes a Swin V1, the shapes do, with
/// ImageNet's mean and deviation.
///
/// # Errors
/// A file that is damaged, of another kind, or tries to execute code; a bare file without `options.cfg`; tensors that
/// are missing, unexpected, of another shape, or not finite; another version of Swin than the configuration's; an
/// impossible architecture.
pub fn load_float(path: &Path, options: &LoadOptions) -> Result<FloatModel, ModelError> {
    Ok(load_float_with_remarks(path, options)?.model)
}

/// [`load_float`], with remarks: where the description of a bare file was found if it was not given, what was left out of
/// names and tensors, that the file has no hash.
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
    let stored = Stored { path: &path, tensors, sha256, folder: path.parent() };
    let mut loaded = stored.model(described, options).map_err(|error| weights::of_shard(&path, error))?;
    loaded.remarks.extend(remarks);
    Ok(loaded)
}

/// The tensors of a checkpoint, and where they come from.
struct Stored<'a> {
    /// The file, or the name of a model in memory.
    path: &'a Path,
    tensors: RawDict<'a>,
    /// SHA-256 of the file, hexadecimal.
    sha256: String,
    /// The folder whose quantized checkpoints may describe the tensors; `None` for a model in memory.
    folder: Option<&'a Path>,
}

impl Stored<'_> {
    /// The model with these tensors.
    fn model(self, described: Option<Description>, options: &LoadOptions) -> Result<Loaded, ModelError> {
        let Stored { path, tensors, sha256, folder } = self;
        let made = Bytes { path, folder, sha256: &sha256 };
        let (described, note) = match (described, &options.cfg) {
            (Some(known), _) => (Some(known), None),
            (None, Some(cfg)) => (Some(describe::described(cfg)), None),
            // Most backbones are described by their shapes.
            (None, None) if options.task == Some(Task::Features) => (None, None),
            (None, None) => {
                made.describe(options)?.map_or((None, None), |(made, note)| (Some(made), Some(note)))
            }
        };
        let stated = described.as_ref().map(|description| match description.stages {
            Some(_) => Task::Features,
            None => description.config.task,
        });
        let task = options.task.or(stated).unwrap_or_default();
        options.check_outputs(task)?;
        let network = Network::find(path, tensors, task, options.dialect, options.prefix.as_deref())?;
        let naming = &network.naming;
        let mut tensors = parameters::read(&network)?;
        let mut stored = parameters::stored(&network);
        let (coordinates, places) = (coordinates::read(&network)?, parameters::stored_places(&network));
        let bare = Bare { path, folder, naming, tensors: &tensors, coordinates: &coordinates, places };
        let (description, note) = match described {
            Some(known) => (known, note),
            None => match (bare.describe(task, &options.opts), task) {
                (Ok((found, note)), _) => (found, Some(note)),
                (Err(error), Task::Classification) => return Err(error),
                (Err(error), Task::Features) => {
                    let (made, note) = made.describe(options)?.ok_or(error)?;
                    (made, Some(note))
                }
            },
        };
        let Description { config, mut transform, labels, stages, remark, orientation_stated } = description;
        if !orientation_stated && !config.takes_tokens() {
            transform.orientation = naming.dialect.orientation(task);
        }
        check_version(&config, naming.version)?;
        let (config, left_out) = match task {
            Task::Classification => (config, Vec::new()),
            Task::Features => {
                backbone::of(config, options.outputs.as_deref(), stages.as_deref(), &mut tensors)?
            }
        };
        let config = apply_dialect(config, naming, options.window_policy)?;
        let (silent, config) = (config.clone(), coordinates::decided(config, &coordinates));
        let config = SwinConfig { ape_sizes: position_sizes(&config, naming, places), ..config };
        let divided = coordinates::remark(&silent, &config);
        let masked = masks::remark(&network, &config).filter(|_| task == Task::Classification);
        let check = check_tables(&config, &tensors)
            .and_then(|()| coordinates::check(&config, &coordinates))
            .and_then(|()| check_places(&config, places))
            .and_then(|()| check_parameters(&config, &tensors));
        check.map_err(|error| network.with_stored_name(error))?;
        let source = Source { file: shown(path), sha256, dialect: naming.dialect.to_string() };
        let labels = labels.filter(|_| task == Task::Classification);
        let (labels, labels_from) = labels.map_or((None, None), |labels| (Some(labels.names), labels.from));
        stored.retain(|stored| tensors.contains_key(&stored.parameter));
        let model = FloatModel { config, transform, labels, labels_from, tensors, source };
        let description_found = note.is_some();
        let found = left_out
            .into_iter()
            .chain(remark)
            .chain(divided)
            .chain(masked)
            .map(|remark| format!("{}: {remark}", path.display()));
        let remarks = note.into_iter().chain(network.remarks).chain(found).collect();
        Ok(Loaded { model, description_found, remarks, stored })
    }
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
    // A model derived from this file names this file as its source, not the checkpoint its training started from.
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

/// Sets the window policy, `known` or the dialect's, and the dialect's mask, and checks the configuration.
fn apply_dialect(
    mut config: SwinConfig,
    naming: &Naming,
    known: Option<WindowPolicy>,
) -> Result<SwinConfig, ModelError> {
    let dialect = naming.dialect;
    config.window_policy = known.unwrap_or_else(|| naming.window_policy(config.window_policy));
    config.mask = dialect.mask(config.version);
    check_sizes(&config)?;
    config.validate()?;
    if config.qk_scale.is_some()
        && !matches!(config.window_policy, WindowPolicy::Microsoft | WindowPolicy::Restoration)
    {
        let problem = format!("models in {dialect} naming have no such setting; remove it");
        return Err(ModelError::config("MODEL.SWIN.QK_SCALE", problem));
    }
    Ok(config)
}

/// Refuses a checkpoint of another version of Swin than the configuration's.
fn check_version(config: &SwinConfig, found: SwinVersion) -> Result<(), ModelError> {
    if config.version == found {
        return Ok(());
    }
    let [found, wanted] = [found, config.version].map(|version| match version {
        SwinVersion::V1 => ("Swin V1", "swin"),
        SwinVersion::V2 => ("Swin V2", "swinv2"),
    });
    let problem = format!(
        "the checkpoint is a {}, but the configuration {} is of a {} ({}); use a configuration of type `{}`",
        found.0, config.name, wanted.0, wanted.1, found.1
    );
    Err(ModelError::config("MODEL.TYPE", problem))
}

/// The image sizes that the absolute position embedding of `config` fits. Detectors store the `places` as a map, and resize it;
/// transformers resizes that of its first version, if its places are a square.
fn position_sizes(config: &SwinConfig, naming: &Naming, places: Option<Size>) -> PositionSizes {
    let of_transformers = naming.dialect == Dialect::HuggingFace && config.version == SwinVersion::V1;
    match (config.ape, places) {
        (true, Some(_)) => PositionSizes::Bicubic,
        (true, None) if of_transformers && config.own_patches().side().is_some() => {
            PositionSizes::BicubicWholePatches
        }
        _ => PositionSizes::Own,
    }
}

/// Refuses an absolute position embedding of other places than those of the tokens.
fn check_places(config: &SwinConfig, places: Option<Size>) -> Result<(), ModelError> {
    let grid = config.own_grids()[0].size;
    let Some(places) = places.filter(|&places| config.ape && places != grid) else { return Ok(()) };
    let problem = format!(
        "has {places} places, but {} at input size {} has {grid} tokens; use the IMG_SIZE that the checkpoint was trained \
         with",
        config.name,
        config.image_size.short()
    );
    Err(ModelError::tensor("absolute_pos_embed", problem))
}

/// Refuses bias tables of another window size than the configuration's, because tables are not resized.
fn check_tables(config: &SwinConfig, tensors: &StateDict) -> Result<(), ModelError> {
    for (name, shape) in params::parameters(config) {
        if !name.ends_with(".relative_position_bias_table") {
            continue;
        }
        let Some(rows) = tensors.get(&name).and_then(|table| table.shape.first().copied()) else { continue };
        if rows == shape[0] {
            continue;
        }
        if let Some(problem) = several_windows(tensors) {
            return Err(ModelError::tensor(name, problem));
        }
        let problem = format!(
            "has {rows} rows (window {}), but {} at input size {} uses window {} there ({} rows); a bias table is not \
             resized: use the WINDOW_SIZE and IMG_SIZE that the checkpoint was trained with",
            window(rows),
            config.name,
            config.image_size.short(),
            window(shape[0]),
            shape[0]
        );
        return Err(ModelError::tensor(name, problem));
    }
    Ok(())
}

/// The problem of a checkpoint whose stages have windows of their own, which its description does not state.
fn several_windows(tensors: &StateDict) -> Option<String> {
    let windows = windows(tensors);
    // Late stages may have smaller windows than the first, because their grids are small.
    windows.windows(2).any(|pair| pair[0] < pair[1]).then(|| {
        let sizes = windows.iter().copied().map(Size::square).collect();
        let stated = Windows::of_stages(sizes).expect("there are two windows");
        format!(
            "the windows of the stages are {windows:?}: each has its own, as in a Swin-S3 (swin_s3); give timm's folder with its \
             config.json, or --cfg with MODEL.SWIN.WINDOW_SIZE \"{stated}\""
        )
    })
}

/// The window of a bias table with so many rows.
fn window(rows: usize) -> usize {
    rows.isqrt().div_ceil(2)
}

/// The window of each stage, from the bias table of its first block.
fn windows(tensors: &StateDict) -> Vec<usize> {
    let table = |stage| tensors.get(&format!("layers.{stage}.blocks.0.attn.relative_position_bias_table"));
    (0..).map_while(table).filter_map(|table| table.shape.first().map(|&rows| window(rows))).collect()
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests;
