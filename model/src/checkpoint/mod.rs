//! Reading float checkpoints: files and directories in every dialect in which trained Swins are published.
//!
//! Pickles are read as plain data; nothing in a checkpoint is executed.

mod dialect;
mod directory;
mod file;
mod ft;
mod hf;
mod json;
mod names;
mod pickle;
mod random;
mod raw;
mod safetensors;
mod timm;
mod torch;

use std::path::Path;

pub use dialect::Dialect;
pub use ft::{ft_key, ft_site, import_ft_amax};
pub use random::random_model;
pub(crate) use safetensors::check_header;
pub use safetensors::is_quantized_file;

use crate::arch::{SwinConfig, WindowPolicy};
use crate::batch::Transform;
use crate::config::{LoadedConfig, check_sizes};
use crate::error::ModelError;
use crate::params::{check_parameters, parameters};
use crate::quantized::{FloatModel, QuantizedModel, Source};
use crate::tensor::StateDict;
use file::CheckpointFile;

/// [`Source::dialect`] of float checkpoints that this program wrote.
const OWN: &str = "swinq";

/// How to read a checkpoint.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Architecture and transform. Required for a bare file; replaces a directory's own description.
    pub cfg: Option<LoadedConfig>,
    /// Naming convention; detected from the tensor names if `None`.
    pub dialect: Option<Dialect>,
}

/// The description of a model in the files of its directory.
#[derive(Clone, Debug, PartialEq)]
struct Description {
    config: SwinConfig,
    transform: Transform,
    labels: Option<Vec<String>>,
}

/// Loads a float Swin V1.
///
/// `path` is one of:
/// - a file of `torch.save`, in either format. The state dictionary is searched under `model`, `state_dict` and
///   `model_state_dict`, in this order, then at the top level. A prefix `module.` of every name is removed.
/// - a safetensors file.
/// - a directory of Hugging Face transformers or timm: `config.json`, then `model.safetensors` or
///   `pytorch_model.bin`; transformers also needs `preprocessor_config.json`.
/// - a float model that this program wrote, such as a training's `float.safetensors`. It needs no `options`.
///
/// Parameters may be f32, f16, bf16 or f64; f64 is rounded. The result has f32 tensors under Microsoft's names.
///
/// The dialect decides the window policy, even if `options.cfg` gives the architecture. The transform comes from
/// `options.cfg` if given, else from the directory.
///
/// # Errors
/// A file that is damaged, of another kind, or tries to execute code; a bare file without `options.cfg`; tensors that
/// are missing, unexpected, of another shape, or not finite; a Swin V2; an impossible architecture.
pub fn load_float(path: &Path, options: &LoadOptions) -> Result<FloatModel, ModelError> {
    let (weights, described) = if path.is_dir() {
        (directory::weights(path)?, Some(directory::describe(path, options.cfg.as_ref())?))
    } else {
        (path.to_owned(), None)
    };
    if is_quantized_file(&weights) {
        return load_own(&weights);
    }
    let file = CheckpointFile::open(&weights)?;
    let raw = file.tensors()?;
    let keys = || raw.keys().map(String::as_str);
    dialect::refuse_v2(keys())?;
    let dialect = options
        .dialect
        .or_else(|| Dialect::detect(keys()))
        .ok_or_else(|| dialect::unknown_dialect(&weights, &keys().collect::<Vec<_>>()))?;
    let description = described.map_or_else(|| describe_bare_file(&weights, options, dialect), Ok)?;
    let config = apply_dialect(description.config, dialect)?;
    let tensors = names::to_microsoft(dialect, &raw)?;
    check_tables(&config, &tensors)?;
    check_parameters(&config, &tensors)?;
    let source = Source { file: shown(&weights), sha256: file.sha256(), dialect: dialect.to_string() };
    Ok(FloatModel { config, transform: description.transform, labels: description.labels, tensors, source })
}

/// Loads a float model in this program's own format, which holds its own description.
fn load_own(path: &Path) -> Result<FloatModel, ModelError> {
    let file = CheckpointFile::open(path)?;
    let model = QuantizedModel::from_bytes(path, file.bytes())?.0.into_float().ok_or_else(|| {
        let problem = "is a quantized checkpoint, but a float one is needed; use the float checkpoint it was made from \
                       (`swinq inspect` names it)";
        ModelError::file(path, problem)
    })?;
    // A model derived from this file names this file as its source, not the checkpoint its training started from.
    let source = Source { file: shown(path), sha256: file.sha256(), dialect: OWN.to_owned() };
    Ok(FloatModel { source, ..model })
}

/// The description of a file that does not contain one: `options.cfg`.
fn describe_bare_file(
    path: &Path,
    options: &LoadOptions,
    dialect: Dialect,
) -> Result<Description, ModelError> {
    let Some(cfg) = &options.cfg else {
        let mut problem = format!(
            "holds weights in {dialect} names, but no architecture: pass --cfg NAME or --cfg FILE.yaml (names: {}, …)",
            crate::config::shipped_configs().next().unwrap_or_default()
        );
        if path.parent().is_some_and(|folder| folder.join("config.json").is_file()) {
            problem += "; or pass its folder, which has a config.json, instead of the file";
        }
        return Err(ModelError::file(path, problem));
    };
    Ok(Description { config: cfg.config.clone(), transform: cfg.transform.clone(), labels: None })
}

/// Sets the dialect's window policy and checks the configuration.
fn apply_dialect(mut config: SwinConfig, dialect: Dialect) -> Result<SwinConfig, ModelError> {
    config.window_policy = dialect.window_policy();
    check_sizes(&config)?;
    config.validate()?;
    // `Stage::partition` and transformers pad the grid before the cyclic shift. timm shifts before it pads, so its
    // shifted windows hold other tokens.
    let shifted_padding = |s: &crate::arch::Stage| s.shift > 0 && s.depth > 1 && s.padded != s.grid;
    if let Some(stage) = config.stages().iter().find(|s| dialect == Dialect::Timm && shifted_padding(s)) {
        let problem = format!(
            "window {} does not divide the {}x{} tokens of stage {}; timm shifts before it pads, which is not \
             supported; use an input size whose token grids are multiples of the window",
            stage.window, stage.grid, stage.grid, stage.index
        );
        return Err(ModelError::config("MODEL.SWIN.WINDOW_SIZE", problem));
    }
    if config.qk_scale.is_some() && config.window_policy != WindowPolicy::Microsoft {
        let problem = format!("models in {dialect} naming have no such setting; remove it");
        return Err(ModelError::config("MODEL.SWIN.QK_SCALE", problem));
    }
    Ok(config)
}

/// Refuses bias tables of another window size than the configuration's, because tables are not resized.
fn check_tables(config: &SwinConfig, tensors: &StateDict) -> Result<(), ModelError> {
    for (name, shape) in parameters(config) {
        if !name.ends_with(".relative_position_bias_table") {
            continue;
        }
        let Some(rows) = tensors.get(&name).and_then(|table| table.shape.first().copied()) else { continue };
        if rows == shape[0] {
            continue;
        }
        let window = |rows: usize| rows.isqrt().div_ceil(2);
        let problem = format!(
            "has {rows} rows (window {}), but {} at input size {} uses window {} there ({} rows); a bias table is not \
             resized: use the WINDOW_SIZE and IMG_SIZE that the checkpoint was trained with",
            window(rows),
            config.name,
            config.image_size,
            window(shape[0]),
            shape[0]
        );
        return Err(ModelError::tensor(name, problem));
    }
    Ok(())
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests;
