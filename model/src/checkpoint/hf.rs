//! Directories of Hugging Face transformers: `config.json` and `preprocessor_config.json`.

use std::path::Path;

use serde_json::Value;
use swinq_numerics::Size;

use super::dialect::Dialect;
use super::json::Json;
use super::{Description, Labels};
use crate::arch::{SwinConfig, SwinVersion};
use crate::batch::{Filter, Resize, Transform, common_statistics};
use crate::config::without_zeros;
use crate::error::ModelError;

/// The file that states the preprocessing.
pub(super) const PREPROCESSOR: &str = "preprocessor_config.json";

/// The model that the folder's files describe. Absent fields have the defaults of transformers' `SwinConfig`
/// and `Swinv2Config`, which are equal. With `any_transform`, the caller replaces the transform, so that the `preprocessor`
/// that states it may be absent.
pub(super) fn describe(
    folder: &Path,
    json: &Json,
    preprocessor: Option<&Json>,
    any_transform: bool,
) -> Result<Description, ModelError> {
    let config = config(folder, json)?;
    let transform = match preprocessor {
        Some(preprocessor) => transform(preprocessor, &config)?,
        None if any_transform => default_transform(&config),
        None => return Err(missing_preprocessor(folder)),
    };
    Ok(Description { config, transform, labels: labels(json)? })
}

fn config(folder: &Path, json: &Json) -> Result<SwinConfig, ModelError> {
    refuse_unsupported(json)?;
    let default = SwinConfig::default();
    let version = match json.text("model_type")?.as_deref() {
        Some("swinv2") => SwinVersion::V2,
        _ => SwinVersion::V1,
    };
    let pretrained = match version {
        SwinVersion::V1 => None,
        SwinVersion::V2 => json.sizes("pretrained_window_sizes")?,
    };
    let stem =
        folder.file_name().map_or_else(|| "swin".to_owned(), |name| name.to_string_lossy().into_owned());
    Ok(SwinConfig {
        name: json.text("_name_or_path")?.filter(|name| !name.is_empty()).unwrap_or(stem),
        image_size: json.size("image_size")?.unwrap_or(default.image_size),
        in_chans: json.side("num_channels")?.unwrap_or(default.in_chans),
        patch_size: json.side("patch_size")?.unwrap_or(default.patch_size),
        num_classes: classes(json)?,
        embed_dim: json.side("embed_dim")?.unwrap_or(default.embed_dim),
        depths: json.sizes("depths")?.unwrap_or(default.depths),
        num_heads: json.sizes("num_heads")?.unwrap_or(default.num_heads),
        window_size: json.side("window_size")?.map_or(default.window_size, Size::square),
        mlp_ratio: json.float("mlp_ratio")?.unwrap_or(default.mlp_ratio),
        qkv_bias: json.bool("qkv_bias")?.unwrap_or(true),
        qk_scale: None,
        ape: json.bool("use_absolute_embeddings")?.unwrap_or(false),
        patch_norm: true,
        version,
        norm_eps: default.norm_eps,
        window_policy: Dialect::HuggingFace.window_policy(version),
        mask: Dialect::HuggingFace.mask(version),
        pretrained_window_sizes: without_zeros(pretrained.unwrap_or_default()),
    })
}

fn refuse_unsupported(json: &Json) -> Result<(), ModelError> {
    if let Some(act) = json.text("hidden_act")?.filter(|act| act != "gelu") {
        return Err(json.error("hidden_act", format!("`{act}` is not supported; only gelu is")));
    }
    // transformers applies `layer_norm_eps` to the norms of blocks only; the other norms keep 1e-5.
    if let Some(eps) = json.float("layer_norm_eps")?.filter(|&eps| eps != 1e-5) {
        let problem = format!("{eps} is not supported; only 1e-5 is");
        return Err(json.error("layer_norm_eps", problem));
    }
    Ok(())
}

/// Number of classes: the size of `id2label`, else `num_labels`, else transformers' default of 2.
fn classes(json: &Json) -> Result<usize, ModelError> {
    match json.object("id2label")? {
        Some(labels) => Ok(labels.names().count()),
        None => Ok(json.side("num_labels")?.unwrap_or(2)),
    }
}

/// Class names by index from `id2label`; `None` if they are absent or transformers' placeholders `LABEL_0`, ….
pub(super) fn labels(json: &Json) -> Result<Option<Labels>, ModelError> {
    let Some(table) = json.object("id2label")? else { return Ok(None) };
    let mut labels = Vec::new();
    for index in 0..table.names().count() {
        let label = table.text(&index.to_string())?;
        labels.push(label.ok_or_else(|| json.error("id2label", format!("has no name for class {index}")))?);
    }
    let generic = labels.iter().enumerate().all(|(index, label)| *label == format!("LABEL_{index}"));
    Ok((!generic).then(|| Labels::own(labels)))
}

/// The transform of transformers' image processor for Swin if no field is set.
fn default_transform(config: &SwinConfig) -> Transform {
    let (mean, std) = common_statistics(config.in_chans);
    Transform {
        family: "hf".to_owned(),
        size: config.image_size,
        resize: Resize::Direct,
        filter: Filter::Bicubic,
        mean,
        std,
    }
}

fn missing_preprocessor(folder: &Path) -> ModelError {
    let problem = "is missing, so the preprocessing is unknown; add it, or pass --transform hf for transformers' \
                   default, or --cfg NAME or --cfg FILE.yaml";
    ModelError::file(folder.join(PREPROCESSOR), problem)
}

fn transform(json: &Json, config: &SwinConfig) -> Result<Transform, ModelError> {
    let (size, channels) = (config.image_size, config.in_chans);
    let crop = json.bool("do_center_crop")?.unwrap_or(false);
    if !json.bool("do_resize")?.unwrap_or(true) {
        return Err(
            json.error("do_resize", "false is not supported, because images would keep their own sizes")
        );
    }
    let rescaled = json.bool("do_rescale")?.unwrap_or(true);
    let factor = json.float("rescale_factor")?.unwrap_or(1.0 / 255.0);
    if !rescaled || (factor * 255.0 - 1.0).abs() > 1e-6 {
        return Err(json.error("rescale_factor", "only pixels rescaled by 1/255 are supported"));
    }
    let (mean, std) = if json.bool("do_normalize")?.unwrap_or(true) {
        let (mean, std) = common_statistics(channels);
        let mean = json.means("image_mean", channels)?.unwrap_or(mean);
        (mean, json.deviations("image_std", channels)?.unwrap_or(std))
    } else {
        (vec![0.0; channels], vec![1.0; channels])
    };
    Ok(Transform {
        family: "hf".to_owned(),
        size,
        resize: resize(json, size, crop)?,
        filter: json.filter("resample")?.unwrap_or(Filter::Bicubic),
        mean,
        std,
    })
}

/// The resize that `size` describes: a side or `{height, width}` resizes both sides; `{shortest_edge}` resizes in
/// proportion and needs a crop. Images must get the size `wanted`.
fn resize(json: &Json, wanted: Size, crop: bool) -> Result<Resize, ModelError> {
    let sides = |field: &str| match json.get(field) {
        Some(Value::Object(_)) => {
            let size = json.object(field)?.expect("the field holds an object");
            match (size.side("shortest_edge")?, size.side("height")?, size.side("width")?) {
                (Some(edge), None, None) => Ok((true, Size::square(edge))),
                (None, Some(height), Some(width)) => Ok((false, Size::new(height, width))),
                _ => Err(json.error(field, "is neither a shortest_edge nor a height and a width")),
            }
        }
        _ => json.size(field)?.map(|size| (false, size)).ok_or_else(|| json.error(field, "is missing")),
    };
    let (in_proportion, resized) = sides("size")?;
    let result = if crop { sides("crop_size")?.1 } else { resized };
    if result != wanted && (crop || !in_proportion) {
        let problem = format!("gives images of {result} pixels, but config.json has image_size {wanted}");
        return Err(json.error("size", problem));
    }
    match (in_proportion, crop) {
        (true, true) => Ok(Resize::ShorterSide(resized.height)),
        (true, false) => {
            Err(json.error("size", "a shortest_edge without do_center_crop gives images of different sizes"))
        }
        (false, _) if resized == wanted => Ok(Resize::Direct),
        (false, _) => Err(json.error("size", "a direct resize followed by a crop is not supported")),
    }
}
