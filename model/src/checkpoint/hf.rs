//! Directories of Hugging Face transformers: `config.json`, and `preprocessor_config.json` or
//! `processor_config.json`.

use std::path::Path;

use swinq_numerics::Size;

use super::dialect::Dialect;
use super::json::Json;
use super::{Description, Labels, processor};
use crate::arch::{Input, PositionSizes, Problem, StageOutput, SwinConfig, SwinVersion, Task};
use crate::batch::{Filter, Resize, Transform, common_statistics};
use crate::config::without_zeros;
use crate::error::ModelError;
use crate::pixels::{ChannelOrder, Orientation};

/// The file that states the preprocessing.
pub(super) const PREPROCESSOR: &str = "preprocessor_config.json";
/// The file that states it in the field `image_processor`, beside other processors.
const PROCESSOR: &str = "processor_config.json";

/// The Swin in a model of transformers that may be a backbone.
pub(super) struct Backbone {
    /// Its part of `config.json`.
    pub config: Json,
    /// Whether the whole model is no classifier, so that it can only be read as a backbone.
    pub alone: bool,
}

/// The Swin in the model that `json` describes: the model itself, or the backbone or the encoder of a larger
/// one.
///
/// # Errors
/// [`ModelError::File`] naming a field of another type.
pub(super) fn backbone(json: &Json) -> Result<Option<Backbone>, ModelError> {
    let is_swin =
        |json: &Json| {
            let kind = json.text("model_type")?;
            Ok::<bool, ModelError>(kind.is_some_and(|kind| {
                ["swin", "swinv2", "maskformer-swin", "donut-swin"].contains(&kind.as_str())
            }))
        };
    if is_swin(json)? {
        let classifier = matches!(json.text("model_type")?.as_deref(), Some("swin" | "swinv2"));
        let classes = json.texts("architectures")?.unwrap_or_default();
        let named = classes.iter().any(|class| class.ends_with("Backbone"));
        return Ok(Some(Backbone { config: json.clone(), alone: named || !classifier }));
    }
    if json.get("model_type").is_none() {
        return Ok(None);
    }
    for field in ["backbone_config", "encoder"] {
        if let Some(config) = json.object(field)?
            && is_swin(&config)?
        {
            return Ok(Some(Backbone { config, alone: true }));
        }
    }
    Ok(None)
}

/// Refuses a folder whose weights a quantization method of transformers wrote.
///
/// # Errors
/// [`ModelError::File`] naming the method, and for swinq's own the file to open instead.
pub(super) fn refuse_quantized(json: &Json) -> Result<(), ModelError> {
    let field = "quantization_config";
    let Some(config) = json.object(field)? else { return Ok(()) };
    let problem = match config.text("quant_method")?.as_deref() {
        Some("swinq") => {
            "the folder holds INT8 Swins of swinq.transformers, which `from_pretrained` opens after `import swinq.transformers`; \
             for a file of one of them call `save` of its SwinModule's `model`"
                .to_owned()
        }
        Some(method) => format!("the weights are quantized by `{method}`; give the float model"),
        None => "the weights are quantized; give the float model".to_owned(),
    };
    Err(json.error(field, problem))
}

/// The backbone that `json`, its part of `config.json`, describes. `processor` reads the files that state the
/// preprocessing. Mean, deviation, filter and divisor of sizes are taken from it, the size is not. With
/// `any_transform`, the caller replaces the transform.
pub(super) fn describe_backbone(
    folder: &Path,
    json: &Json,
    processor: &dyn Fn(&str) -> Result<Option<Json>, ModelError>,
    any_transform: bool,
) -> Result<Description, ModelError> {
    let config = SwinConfig {
        task: Task::Features,
        num_classes: 0,
        problem: Problem::default(),
        ..config(folder, json)?
    };
    let nested = processor(PROCESSOR)?.map_or(Ok(None), |json| json.object("image_processor"))?;
    let preprocessor = match nested {
        Some(nested) => Some(nested),
        None => processor(PREPROCESSOR)?,
    };
    let default = default_transform(&config);
    let transform = match preprocessor {
        Some(preprocessor) if !any_transform => {
            let (mean, std) = processor::statistics(&preprocessor, config.in_chans)?;
            let (filter, size_divisor) =
                (processor::filter(&preprocessor)?, processor::size_divisor(&preprocessor)?);
            Transform { filter, mean, std, size_divisor, ..default }
        }
        _ => default,
    };
    let stages = stages(json)?;
    Ok(Description { stages, ..Description::new(config, transform) })
}

/// The stages in `out_features`, else in `out_indices`, from 0.
///
/// # Errors
/// [`ModelError::File`] naming a stage that the network does not have.
pub(super) fn stages(json: &Json) -> Result<Option<Vec<usize>>, ModelError> {
    let depths = json.sizes("depths")?.unwrap_or(SwinConfig::default().depths).len();
    let no_stage = |field: &str, found: &str| {
        json.error(field, format!("`{found}` is none of the stages stage1 to stage{depths}"))
    };
    let known = |stage: &usize| *stage < depths;
    if let Some(names) = json.texts("out_features")? {
        let stage = |name: &String| {
            StageOutput::stage_of(name).filter(known).ok_or_else(|| no_stage("out_features", name))
        };
        let stages = names.iter().map(stage);
        return stages.collect::<Result<_, _>>().map(Some);
    }
    let Some(numbers) = json.sizes("out_indices")? else { return Ok(None) };
    // Counted from the stem, which is no stage.
    let stage = |number: &usize| {
        let stage = number.checked_sub(1).filter(known);
        stage.ok_or_else(|| no_stage("out_indices", &number.to_string()))
    };
    numbers.iter().map(stage).collect::<Result<_, _>>().map(Some)
}

/// The model that the folder's files describe. Absent fields have the defaults of transformers' `SwinConfig`
/// and `Swinv2Config`, which are equal. With `any_transform`, the caller replaces the transform, so that the
/// `preprocessor` that states it is not read and may be absent.
pub(super) fn describe(
    folder: &Path,
    json: &Json,
    preprocessor: Option<&Json>,
    any_transform: bool,
) -> Result<Description, ModelError> {
    let config = config(folder, json)?;
    let transform = match preprocessor {
        _ if any_transform => default_transform(&config),
        Some(preprocessor) => processor::transform(preprocessor, &config)?,
        None => return Err(missing_preprocessor(folder)),
    };
    let remark = preprocessor.filter(|_| !any_transform).map_or(Ok(None), processor::remark)?;
    let labels = labels(json)?;
    Ok(Description { labels, remark, ..Description::new(config, transform) })
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
        input: Input::Images,
        name: json.text("_name_or_path")?.filter(|name| !name.is_empty()).unwrap_or(stem),
        image_size: json.size("image_size")?.unwrap_or(default.image_size),
        in_chans: json.side("num_channels")?.unwrap_or(default.in_chans),
        patch_size: json.side("patch_size")?.unwrap_or(default.patch_size),
        task: Task::Classification,
        outputs: Vec::new(),
        num_classes: classes(json)?,
        problem: problem(json)?,
        embed_dim: json.side("embed_dim")?.unwrap_or(default.embed_dim),
        depths: json.sizes("depths")?.unwrap_or(default.depths),
        num_heads: json.sizes("num_heads")?.unwrap_or(default.num_heads),
        window_size: json.side("window_size")?.map_or(default.window_size, |side| Size::square(side).into()),
        mlp_ratio: json.float("mlp_ratio")?.unwrap_or(default.mlp_ratio),
        qkv_bias: json.bool("qkv_bias")?.unwrap_or(true),
        qk_scale: None,
        ape: json.bool("use_absolute_embeddings")?.unwrap_or(false),
        ape_sizes: PositionSizes::Own,
        patch_norm: true,
        version,
        norm_eps: default.norm_eps,
        window_policy: Dialect::HuggingFace.window_policy(version),
        mask: Dialect::HuggingFace.mask(version),
        pretrained_window_sizes: without_zeros(pretrained.unwrap_or_default()),
    })
}

fn refuse_unsupported(json: &Json) -> Result<(), ModelError> {
    if json.get("num_kv_heads").is_some() {
        let problem = "is a setting of Surya's encoder, whose heads share keys and values; swinq runs Swins";
        return Err(json.error("num_kv_heads", problem));
    }
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

/// The meaning of the logits, from `problem_type`, which timm's folders may have, too.
pub(super) fn problem(json: &Json) -> Result<Problem, ModelError> {
    match json.text("problem_type")?.as_deref() {
        None | Some("single_label_classification") => Ok(Problem::SingleLabel),
        Some("multi_label_classification") => Ok(Problem::MultiLabel),
        Some("regression") => Ok(Problem::Regression),
        Some(other) => Err(json.error(
            "problem_type",
            format!(
                "`{other}` is none of single_label_classification, multi_label_classification and regression"
            ),
        )),
    }
}

/// Class names by index from `id2label`; `None` if they are absent or transformers' placeholders `LABEL_0`,
/// ….
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

/// The transform of the Swins that are published in transformers.
fn default_transform(config: &SwinConfig) -> Transform {
    let (mean, std) = common_statistics(config.in_chans);
    Transform {
        family: "hf".to_owned(),
        size: config.image_size,
        resize: Resize::Direct,
        filter: Filter::Bicubic,
        mean,
        std,
        size_divisor: None,
        orientation: Orientation::Exif,
        channel_order: ChannelOrder::Rgb,
    }
}

fn missing_preprocessor(folder: &Path) -> ModelError {
    let problem = "is missing, so the preprocessing is unknown; add it, or pass --transform hf for that of the published \
                   Swins (bicubic, mean and deviation of ImageNet), or --cfg NAME or --cfg FILE.yaml";
    ModelError::file(folder.join(PREPROCESSOR), problem)
}
