//! Model directories of timm: `config.json` with `architecture`, `pretrained_cfg` and `model_args`.

use swinq_configs::IMAGENET_1K;
use swinq_numerics::Size;

use super::json::Json;
use super::{Description, Labels, hf};
use crate::arch::{Problem, SwinConfig, SwinVersion, Task, WindowPolicy};
use crate::batch::{Filter, Resize, Transform, common_statistics};
use crate::config::without_zeros;
use crate::error::ModelError;
use crate::pixels::{ChannelOrder, Orientation};

/// Arguments of timm's `SwinTransformer` and `SwinTransformerV2` that have no effect on inference.
const TRAINING_ONLY: [&str; 5] =
    ["drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate", "weight_init"];
/// [`Transform::family`] of timm's transforms.
const FAMILY: &str = "timm";
/// Number of classes of ImageNet-1k.
const IMAGENET_CLASSES: usize = 1000;
/// Arguments that [`config`] reads.
const READ: [&str; 15] = [
    "img_size",
    "patch_size",
    "in_chans",
    "num_classes",
    "global_pool",
    "embed_dim",
    "depths",
    "num_heads",
    "window_size",
    "mlp_ratio",
    "qkv_bias",
    "always_partition",
    "pretrained_window_sizes",
    "strict_img_size",
    "dynamic_img_size",
];

/// The model that the file describes: the named architecture with the changes of `model_args`, and the
/// transform of `pretrained_cfg`.
pub(super) fn describe(json: &Json) -> Result<Description, ModelError> {
    let cfg = json.object("pretrained_cfg")?.unwrap_or_else(|| json.clone());
    let config = config(json, &cfg)?;
    let transform = transform(&cfg, &config)?;
    let labels = labels(json, config.num_classes)?;
    if let Some(labels) = labels.as_ref().filter(|labels| labels.names.len() != config.num_classes) {
        let problem = format!(
            "{} names for {} classes; correct the file, or pass --cfg NAME or --cfg FILE.yaml",
            labels.names.len(),
            config.num_classes
        );
        return Err(json.error("label_names", problem));
    }
    Ok(Description { labels, ..Description::new(config, transform) })
}

/// The backbone of that model, with the mean and the deviation of `pretrained_cfg`.
pub(super) fn describe_backbone(json: &Json) -> Result<Description, ModelError> {
    let cfg = json.object("pretrained_cfg")?.unwrap_or_else(|| json.clone());
    let config = SwinConfig {
        task: Task::Features,
        num_classes: 0,
        problem: Problem::default(),
        ..config(json, &cfg)?
    };
    let (mean, std) = statistics(&cfg, config.in_chans)?;
    let transform = Transform {
        family: FAMILY.to_owned(),
        filter: cfg.filter("interpolation")?.unwrap_or(Filter::Bicubic),
        mean,
        std,
        ..Transform::microsoft(config.image_size, config.in_chans, false)
    };
    Ok(Description::new(config, transform))
}

/// The meaning of the logits, from `problem_type` of the file, else of its `pretrained_cfg`.
pub(super) fn problem(json: &Json) -> Result<Problem, ModelError> {
    match json.object("pretrained_cfg")? {
        Some(cfg) if json.get("problem_type").is_none() => hf::problem(&cfg),
        _ => hf::problem(json),
    }
}

fn config(json: &Json, cfg: &Json) -> Result<SwinConfig, ModelError> {
    let name = json.text("architecture")?.unwrap_or_default();
    let base = name.split('.').next().unwrap_or_default();
    let Some(official) = SwinConfig::official(base) else {
        let problem = format!(
            "`{name}` is not supported; use swin_{{tiny,small,base,large}}_patch4_window{{7_224,12_384}} or \
             swin_s3_{{tiny,small,base}}_224 (Swin V1), or \
             swinv2_{{tiny,small,base,large}}_window{{8_256,16_256,12_192,12to16_192to256,12to24_192to384}} (Swin V2)"
        );
        return Err(json.error("architecture", problem));
    };
    let args = json.object("model_args")?;
    let args = args.as_ref();
    if let Some(args) = args {
        refuse_unsupported(args)?;
        if official.version == SwinVersion::V1 && args.get("pretrained_window_sizes").is_some() {
            return Err(args.error("model_args.pretrained_window_sizes", "is an argument of Swin V2 only"));
        }
    }
    let side = |field| args.map_or(Ok(None), |args| args.side(field));
    let size = |field| args.map_or(Ok(None), |args| args.size(field));
    let sizes = |field| args.map_or(Ok(None), |args| args.sizes(field));
    let windows = args.map_or(Ok(None), |args| args.windows("window_size"))?;
    let input = input(cfg)?;
    // timm's precedence: an argument, then the file's own count, then the pretrained configuration.
    let classes = match (side("num_classes")?, json.side("num_classes")?) {
        (Some(classes), _) | (None, Some(classes)) => classes,
        (None, None) => cfg.side("num_classes")?.unwrap_or(official.num_classes),
    };
    Ok(SwinConfig {
        image_size: size("img_size")?.or(input.map(|(_, size)| size)).unwrap_or(official.image_size),
        in_chans: side("in_chans")?.or(input.map(|(channels, _)| channels)).unwrap_or(official.in_chans),
        patch_size: side("patch_size")?.unwrap_or(official.patch_size),
        num_classes: classes,
        embed_dim: side("embed_dim")?.unwrap_or(official.embed_dim),
        depths: sizes("depths")?.unwrap_or(official.depths),
        num_heads: sizes("num_heads")?.unwrap_or(official.num_heads),
        window_size: windows.unwrap_or(official.window_size),
        mlp_ratio: args.map_or(Ok(None), |args| args.float("mlp_ratio"))?.unwrap_or(official.mlp_ratio),
        qkv_bias: args.map_or(Ok(None), |args| args.bool("qkv_bias"))?.unwrap_or(official.qkv_bias),
        window_policy: window_policy(args)?,
        version: official.version,
        problem: problem(json)?,
        pretrained_window_sizes: without_zeros(
            sizes("pretrained_window_sizes")?.unwrap_or(official.pretrained_window_sizes),
        ),
        name,
        ..SwinConfig::default()
    })
}

fn refuse_unsupported(args: &Json) -> Result<(), ModelError> {
    for name in args.names() {
        if args.get(name).is_some() && !READ.contains(&name) && !TRAINING_ONLY.contains(&name) {
            return Err(args.error(&format!("model_args.{name}"), "is not supported by this program"));
        }
    }
    if let Some(pool) = args.text("global_pool")?.filter(|pool| pool != "avg") {
        return Err(args.error("model_args.global_pool", format!("`{pool}`: only avg is supported")));
    }
    Ok(())
}

/// The rule for windows of a network with the arguments `args`.
fn window_policy(args: Option<&Json>) -> Result<WindowPolicy, ModelError> {
    let flag = |name| args.map_or(Ok(None), |args| args.bool(name));
    // timm has two names of one argument.
    let takes_any = flag("strict_img_size")? == Some(false) || flag("dynamic_img_size")? == Some(true);
    Ok(match (flag("always_partition")?, takes_any) {
        (Some(true), _) => WindowPolicy::TimmAlwaysPartition,
        (_, true) => WindowPolicy::TimmAnySize,
        (_, false) => WindowPolicy::Timm,
    })
}

/// The channels and the size in `input_size`, which must be `[channels, height, width]`.
fn input(cfg: &Json) -> Result<Option<(usize, Size)>, ModelError> {
    match cfg.sizes("input_size")?.as_deref() {
        None => Ok(None),
        Some(&[channels, height, width]) => Ok(Some((channels, Size::new(height, width)))),
        Some(other) => Err(cfg.error("input_size", format!("{other:?} is not [channels, height, width]"))),
    }
}

/// Class names by index: `label_names`, or else those of ImageNet-1k for a model of `classes` classes that
/// was trained on it last. The files that timm publishes for ImageNet have no `label_names`.
pub(super) fn labels(json: &Json, classes: usize) -> Result<Option<Labels>, ModelError> {
    let cfg = json.object("pretrained_cfg")?;
    let names = match json.texts("label_names")? {
        None => cfg.as_ref().map_or(Ok(None), |cfg| cfg.texts("label_names"))?,
        names => names,
    };
    if let Some(names) = names {
        return Ok(Some(Labels::own(names)));
    }
    let tag = cfg.map_or(Ok(None), |cfg| cfg.text("tag"))?;
    let architecture = json.text("architecture")?.unwrap_or_default();
    let tag = tag.as_deref().or(architecture.split_once('.').map(|(_, tag)| tag)).unwrap_or_default();
    // A tag names data sets in the order of training, such as `ms_in22k_ft_in1k`.
    let imagenet = classes == IMAGENET_CLASSES && tag.rsplit('_').next() == Some("in1k");
    Ok(imagenet.then(|| Labels {
        names: IMAGENET_1K.lines().map(str::to_owned).collect(),
        from: Some(format!("ImageNet-1k, by timm's tag {tag}")),
    }))
}

/// timm's evaluation transform: the shorter side is resized to `floor(size / crop_pct)` and the center is
/// cropped. With `crop_mode: squash` both sides are resized. Absent fields have timm's defaults for Swin.
fn transform(cfg: &Json, config: &SwinConfig) -> Result<Transform, ModelError> {
    let (size, channels) = (config.image_size, config.in_chans);
    if let Some((_, input)) = input(cfg)?.filter(|&(_, input)| input != size) {
        return Err(cfg.error("input_size", format!("{input} contradicts model_args.img_size {size}")));
    }
    let crop = cfg.float("crop_pct")?.unwrap_or(0.9);
    if !(0.1..=1.0).contains(&crop) {
        return Err(cfg.error("crop_pct", format!("{crop} is outside [0.1, 1]")));
    }
    let resize = match cfg.text("crop_mode")?.as_deref() {
        None | Some("center") => Resize::timm(size, crop),
        Some("squash") if Resize::timm(size, crop) == Resize::timm(size, 1.0) => Resize::Direct,
        Some(other) => return Err(cfg.error("crop_mode", format!("`{other}` is not supported; use center"))),
    };
    let (mean, std) = statistics(cfg, channels)?;
    Ok(Transform {
        family: FAMILY.to_owned(),
        size,
        resize,
        filter: cfg.filter("interpolation")?.unwrap_or(Filter::Bicubic),
        mean,
        std,
        size_divisor: None,
        orientation: Orientation::Stored,
        channel_order: ChannelOrder::Rgb,
    })
}

/// Mean and deviation of each of `channels` channels, of pixels in 0..1.
fn statistics(cfg: &Json, channels: usize) -> Result<(Vec<f32>, Vec<f32>), ModelError> {
    let (mean, std) = common_statistics(channels);
    let mean = cfg.means("mean", channels)?.unwrap_or(mean);
    Ok((mean, cfg.deviations("std", channels)?.unwrap_or(std)))
}
