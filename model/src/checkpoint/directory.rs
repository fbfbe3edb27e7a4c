//! Descriptions of model directories: `config.json`.

use std::path::Path;

use super::json::Json;
use super::{Description, LoadOptions, hf, timm};
use crate::error::ModelError;

/// Architecture, transform and labels. The `cfg` of `options`, if given, replaces the architecture and the transform that `config.json`
/// of transformers or timm describes.
///
/// # Errors
/// [`ModelError::File`] naming the file and the field that is missing or not supported.
pub(super) fn describe(folder: &Path, options: &LoadOptions) -> Result<Description, ModelError> {
    let cfg = options.cfg.as_ref();
    let path = folder.join("config.json");
    if !path.is_file() {
        let Some(cfg) = cfg else {
            return Err(ModelError::file(folder, "has no config.json; pass --cfg NAME or --cfg FILE.yaml"));
        };
        return Ok(Description {
            config: cfg.config.clone(),
            transform: cfg.transform.clone(),
            labels: None,
        });
    }
    let json = Json::read(&path)?;
    let preprocessor = || {
        let path = folder.join(hf::PREPROCESSOR);
        path.is_file().then(|| Json::read(&path)).transpose()
    };
    read(folder, &json, preprocessor, options)
}

/// The description in `json`, a `config.json`. `preprocessor` reads the `preprocessor_config.json` of transformers, if
/// there is one. `folder` names both in messages.
///
/// # Errors
/// [`ModelError::File`] naming the field that is missing or not supported.
pub(super) fn read(
    folder: &Path,
    json: &Json,
    preprocessor: impl FnOnce() -> Result<Option<Json>, ModelError>,
    options: &LoadOptions,
) -> Result<Description, ModelError> {
    let is_hf = match (json.text("model_type")?.as_deref(), json.get("architecture")) {
        (Some("swin" | "swinv2"), _) => true,
        (None, Some(_)) => false,
        (Some(other), _) => {
            return Err(json.error("model_type", format!("`{other}` is neither `swin` nor `swinv2`")));
        }
        (None, None) => {
            let problem = "is missing, and so is timm's `architecture`; pass --cfg NAME or --cfg FILE.yaml";
            return Err(json.error("model_type", problem));
        }
    };
    if let Some(cfg) = &options.cfg {
        let classes = cfg.config.num_classes;
        let labels = if is_hf { hf::labels(json)? } else { timm::labels(json, classes)? };
        let labels = labels.filter(|labels| labels.names.len() == classes);
        return Ok(Description { config: cfg.config.clone(), transform: cfg.transform.clone(), labels });
    }
    match is_hf {
        true => hf::describe(folder, json, preprocessor()?.as_ref(), options.any_transform),
        false => timm::describe(json),
    }
}
