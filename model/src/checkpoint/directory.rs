//! Descriptions of model directories: `config.json`.

use std::path::Path;

use super::json::Json;
use super::{Description, LoadOptions, hf, timm};
use crate::arch::{SwinConfig, Task};
use crate::config::override_config;
use crate::error::ModelError;

/// The library that wrote a `config.json`.
enum Library {
    Transformers,
    Timm,
}

/// Architecture, transform and labels. The `cfg` of `options`, if given, replaces the architecture and the
/// transform that `config.json` of transformers or timm describes.
///
/// # Errors
/// [`ModelError::File`] naming the file and the field that is missing or not supported.
pub(super) fn describe(folder: &Path, options: &LoadOptions) -> Result<Description, ModelError> {
    let path = folder.join("config.json");
    if !path.is_file() {
        let Some(cfg) = &options.cfg else {
            return Err(ModelError::file(folder, "has no config.json; pass --cfg NAME or --cfg FILE.yaml"));
        };
        return Ok(super::describe::described(cfg));
    }
    let json = Json::read(&path)?;
    let processor = |name: &str| {
        let path = folder.join(name);
        path.is_file().then(|| Json::read(&path)).transpose()
    };
    read(folder, &json, processor, options)
}

/// The description in `json`, a `config.json`. `processor` reads the file of transformers with this name that
/// states the preprocessing, if there is one. `folder` names both in messages.
///
/// # Errors
/// [`ModelError::File`] naming the field that is missing or not supported.
pub(super) fn read(
    folder: &Path,
    json: &Json,
    processor: impl Fn(&str) -> Result<Option<Json>, ModelError>,
    options: &LoadOptions,
) -> Result<Description, ModelError> {
    hf::refuse_quantized(json)?;
    let backbone = hf::backbone(json)?;
    let is_backbone = backbone.as_ref().is_some_and(|backbone| backbone.alone);
    let mut stated = if is_backbone { Task::Features } else { Task::Classification };
    if options.cfg.as_ref().is_some_and(|cfg| cfg.task() == Task::Features) {
        stated = Task::Features;
    }
    let task = options.task.unwrap_or(stated);
    if let Some(cfg) = &options.cfg {
        return with_cfg(json, cfg, task, backbone);
    }
    let described = match (task, library(json, task, backbone.is_some())?) {
        (Task::Classification, Library::Transformers) => {
            let preprocessor = processor(hf::PREPROCESSOR)?;
            hf::describe(folder, json, preprocessor.as_ref(), options.any_transform)
        }
        (Task::Features, Library::Transformers) => {
            let backbone = backbone.expect("the library was found by it");
            hf::describe_backbone(folder, &backbone.config, &processor, options.any_transform)
        }
        (Task::Classification, Library::Timm) => timm::describe(json),
        (Task::Features, Library::Timm) => timm::describe_backbone(json),
    };
    with_overrides(described?, &options.opts)
}

/// `described` with the overrides `opts`. Labels of another number of classes are left out.
fn with_overrides(described: Description, opts: &[(String, String)]) -> Result<Description, ModelError> {
    if opts.is_empty() {
        return Ok(described);
    }
    let (config, transform) = override_config(&described.config, &described.transform, opts)?;
    let labels = described.labels.filter(|labels| labels.names.len() == config.num_classes);
    Ok(Description { config, transform, labels, ..described })
}

/// The library of `json`, which has what `task` needs. `has_backbone` says that transformers finds a Swin for
/// a backbone in it.
fn library(json: &Json, task: Task, has_backbone: bool) -> Result<Library, ModelError> {
    match (json.text("model_type")?.as_deref(), json.get("architecture"), task) {
        (Some("swin" | "swinv2"), ..) => Ok(Library::Transformers),
        (Some(_), _, Task::Features) if has_backbone => Ok(Library::Transformers),
        (None, Some(_), _) => Ok(Library::Timm),
        (Some(other), _, Task::Features) => {
            let problem = format!(
                "a `{other}` is not known to contain a Swin; if it does, pass --cfg NAME or --cfg FILE.yaml"
            );
            Err(json.error("model_type", problem))
        }
        (Some(other), ..) => {
            let problem = match has_backbone {
                true => "is no classifier, but has a backbone; use it with --task features",
                false => "is neither `swin` nor `swinv2`",
            };
            Err(json.error("model_type", format!("`{other}` {problem}")))
        }
        (None, None, _) => {
            let problem = "is missing, and so is timm's `architecture`; pass --cfg NAME or --cfg FILE.yaml";
            Err(json.error("model_type", problem))
        }
    }
}

/// The description `cfg`, with what it does not say: the labels of a classifier, the outputs of a backbone.
fn with_cfg(
    json: &Json,
    cfg: &crate::config::LoadedConfig,
    task: Task,
    backbone: Option<hf::Backbone>,
) -> Result<Description, ModelError> {
    let described = super::describe::described(cfg);
    if task == Task::Features {
        if described.stages.is_some() {
            return Ok(described);
        }
        let stages = backbone.map_or(Ok(None), |backbone| hf::stages(&backbone.config))?;
        return Ok(Description { stages, ..described });
    }
    let classes = cfg.config.num_classes;
    let is_known = ["model_type", "architecture"].iter().any(|field| json.get(field).is_some());
    let library = is_known.then(|| library(json, task, backbone.is_some())).transpose()?;
    let (labels, problem) = match library {
        Some(Library::Transformers) => (hf::labels(json)?, hf::problem(json)?),
        Some(Library::Timm) => (timm::labels(json, classes)?, timm::problem(json)?),
        None => (None, cfg.config.problem),
    };
    let config = SwinConfig { problem, ..described.config };
    let labels = labels.filter(|labels| labels.names.len() == classes);
    Ok(Description { config, labels, ..described })
}
