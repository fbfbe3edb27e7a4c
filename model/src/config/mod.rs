//! Configurations in Microsoft's YAML keys: files with `BASE` includes, overrides, and the shipped
//! configurations.

mod keys;
mod presets;
mod source;
mod value;

use std::collections::BTreeSet;
use std::path::Path;

use swinq_numerics::Size;

use crate::arch::{Input, PositionSizes, StageOutput, SwinConfig, SwinVersion, Task, WindowPolicy};
use crate::batch::{Filter, Resize, Transform};
use crate::error::ModelError;
use crate::params::parameters;
use keys::KeyMeaning;
use source::Settings;
use value::Value;

/// The largest number of parameters that a configuration may have; ten times the number of Swin-L.
const MAX_PARAMETERS: u128 = 1 << 31;

/// A configuration with every field resolved, and its origin.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedConfig {
    /// Architecture. Its sizes are checked. Whether the windows divide every grid is checked when the
    /// checkpoint's dialect is known ([`crate::load_float`]), or by [`SwinConfig::validate`].
    pub config: SwinConfig,
    /// Evaluation transform: `DATA.IMG_SIZE`, `TEST.CROP`, `DATA.INTERPOLATION`, ImageNet's mean and
    /// deviation.
    pub transform: Transform,
    /// Whether the user's file or overrides set `TEST.CROP`; a shipped configuration that sets it does not
    /// count.
    pub states_crop: bool,
    /// The stages whose outputs a backbone has, from 0 and in ascending order: `MODEL.SWIN.OUT_FEATURES`. A
    /// configuration that states them is that of a backbone.
    pub stages: Option<Vec<usize>>,
    /// Highest rate of DropPath in training: `MODEL.DROP_PATH_RATE`.
    pub drop_path: f64,
    /// The file or the shipped name, for messages and reports.
    pub origin: String,
}

/// Overrides of configuration keys, in order.
///
/// ```
/// let words = ["MODEL.NUM_CLASSES", "10", "TEST.CROP", "False"].map(str::to_owned);
/// let overrides = swinq_model::ConfigOverrides::from_words(&words).unwrap();
/// assert_eq!(overrides.pairs().len(), 2);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigOverrides(Vec<(String, String)>);

impl ConfigOverrides {
    /// Parses the words after `--opts`: `KEY VALUE KEY VALUE …`.
    ///
    /// # Errors
    /// [`ModelError::Config`] naming a key without a value.
    pub fn from_words(words: &[String]) -> Result<ConfigOverrides, ModelError> {
        let (pairs, rest) = words.as_chunks::<2>();
        if let [key] = rest {
            return Err(ModelError::config(key, "has no value; overrides are KEY VALUE pairs"));
        }
        Ok(ConfigOverrides(pairs.iter().map(|[key, value]| (key.clone(), value.clone())).collect()))
    }

    /// The pairs of key and value, for [`load_config`].
    pub fn pairs(&self) -> &[(String, String)] {
        &self.0
    }
}

/// Microsoft's default of `MODEL.DROP_PATH_RATE`.
const DROP_PATH: f64 = 0.1;

/// Names of the shipped configurations of classifiers.
pub fn shipped_configs() -> impl Iterator<Item = &'static str> {
    presets::classifiers().map(|(name, _)| *name)
}

/// Names of the shipped configurations of backbones.
pub fn shipped_backbones() -> impl Iterator<Item = &'static str> {
    swinq_configs::BACKBONES.iter().map(|(name, _)| *name)
}

/// Loads a configuration written in Microsoft's keys. Later sources override earlier ones: the `BASE` files
/// (relative to the file), the file, `opts`. Keys that are not set have the defaults of Microsoft's
/// `config.py`. As in Microsoft's code, `DATA.DATASET: imagenet22K` means 21841 classes unless
/// `MODEL.NUM_CLASSES` is set.
///
/// `name_or_path` is an existing file, a path that ends in `.yaml` or `.yml`, or a shipped name
/// (`configs/swin`, `configs/swinv2`, `configs/backbones`). A shipped name may have the suffix of Microsoft's
/// checkpoint: `_22k`, `_22kto1k` or `_22kto1k_finetune`; that of a backbone may go on as in its repository
/// (`mask-rcnn_swin-t-p4-w7_fpn_1x_coco`), and `-` and `_` mean the same in it. The window policy is
/// Microsoft's; [`crate::load_float`] replaces it with the policy of the checkpoint's dialect.
///
/// # Errors
/// An unreadable file; an unknown key, with the nearest known one; a value of the wrong type; `MODEL.TYPE`
/// other than `swin` and `swinv2`; impossible sizes.
pub fn load_config(name_or_path: &str, opts: &[(String, String)]) -> Result<LoadedConfig, ModelError> {
    let path = Path::new(name_or_path);
    let is_yaml = path.extension().is_some_and(|e| e == "yaml" || e == "yml");
    let mut settings = Settings::default();
    let is_file = is_yaml || path.is_file();
    let name = if is_file {
        settings.read_file(path)?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        settings.get("MODEL.NAME").and_then(|(name, _)| name.as_text().map(str::to_owned)).unwrap_or(stem)
    } else if let Some(yaml) = presets::find(name_or_path) {
        settings.read_text(path, yaml)?;
        name_or_path.to_owned()
    } else {
        let problem = format!(
            "is neither a file nor a shipped name; the nearest shipped name is {}",
            presets::nearest(name_or_path)
        );
        return Err(ModelError::file(path, problem));
    };
    settings.apply(opts)?;
    let config = resolve(name, &settings)?;
    check_sections(config.version, opts)?;
    let transform = transform(&config, &settings)?;
    let stages = stages(&config, &settings)?;
    let key = "MODEL.DROP_PATH_RATE";
    let drop_path = field(&settings, key, "a number", DROP_PATH, Value::as_float)?;
    if !(0.0..1.0).contains(&drop_path) {
        return Err(ModelError::config(key, format!("{drop_path} is outside [0, 1)")));
    }
    let crop = "TEST.CROP";
    let states_crop = opts.iter().any(|(key, _)| key == crop) || is_file && settings.get(crop).is_some();
    Ok(LoadedConfig { config, transform, states_crop, stages, drop_path, origin: name_or_path.to_owned() })
}

impl LoadedConfig {
    /// The task that the configuration states.
    pub fn task(&self) -> Task {
        if self.stages.is_some() { Task::Features } else { Task::Classification }
    }
}

/// The stages in `OUT_FEATURES`, from 0 and in ascending order; `None` if it is not set.
fn stages(config: &SwinConfig, settings: &Settings) -> Result<Option<Vec<usize>>, ModelError> {
    let key = leaf(config.version, "OUT_FEATURES");
    let names = field(settings, key, "a list of names such as [stage1]", None, |value| {
        if value.is_none() { Some(None) } else { value.as_texts().map(Some) }
    })?;
    let Some(names) = names else {
        return Ok(config.takes_tokens().then(|| config.outputs.iter().map(|output| output.stage).collect()));
    };
    let stage = |name: &String| {
        StageOutput::stage_of(name).filter(|&stage| stage < config.depths.len()).ok_or_else(|| {
            let last = config.depths.len();
            let name: String = name.chars().take(60).collect();
            ModelError::config(key, format!("`{name}` is none of the stages stage1 to stage{last}"))
        })
    };
    let stages = names.iter().map(stage).collect::<Result<BTreeSet<_>, _>>()?;
    if stages.is_empty() {
        return Err(ModelError::config(key, "names no stage; leave the key out, or name at least one"));
    }
    Ok(Some(stages.into_iter().collect()))
}

/// The key `name` in the section of `version`, which knows it.
fn leaf(version: SwinVersion, name: &str) -> &'static str {
    match keys::look_up(&format!("{}.{name}", version.section())) {
        KeyMeaning::Leaf(key) => key,
        _ => unreachable!("{name} is a key of every version"),
    }
}

/// Refuses overrides in the section of another version, which have no effect.
fn check_sections(version: SwinVersion, opts: &[(String, String)]) -> Result<(), ModelError> {
    let own = format!("{}.", version.section());
    let foreign = |key: &&String| key.starts_with("MODEL.SWIN") && !key.starts_with(&own);
    let Some(key) = opts.iter().map(|(key, _)| key).find(foreign) else { return Ok(()) };
    let last = key.rsplit('.').next().unwrap_or_default();
    let here = format!("{own}{last}");
    let remedy = match keys::look_up(&here) {
        KeyMeaning::Leaf(key) => format!("override {key}"),
        _ => "leave it out".to_owned(),
    };
    let problem =
        format!("has no effect, because the keys of this model are those of {}; {remedy}", version.section());
    Err(ModelError::config(key, problem))
}

/// The keys that decide the evaluation transform.
const TRANSFORM_KEYS: [&str; 3] = ["DATA.IMG_SIZE", "TEST.CROP", "DATA.INTERPOLATION"];

/// `config` and `transform` with the overrides `opts`.
///
/// # Errors
/// As [`load_config`]; an override of the transform, unless `transform` is Microsoft's.
pub(crate) fn override_config(
    config: &SwinConfig,
    transform: &Transform,
    opts: &[(String, String)],
) -> Result<(SwinConfig, Transform), ModelError> {
    let key = leaf(config.version, "OUT_FEATURES");
    if opts.iter().any(|(given, _)| given == key) {
        return Err(ModelError::config(
            key,
            "belongs to a configuration in --cfg; without one, pass --outputs",
        ));
    }
    let mut settings = Settings::default();
    settings.apply(&stated(config, transform))?;
    settings.apply(opts)?;
    let mut changed = resolve(config.name.clone(), &settings)?;
    check_sections(changed.version, opts)?;
    (changed.window_policy, changed.problem) = (config.window_policy, config.problem);
    if config.is_backbone() {
        let outputs = config.outputs.clone();
        changed = SwinConfig { task: Task::Features, outputs, num_classes: 0, ..changed };
    }
    match opts.iter().find(|(key, _)| TRANSFORM_KEYS.contains(&key.as_str())) {
        None => Ok((changed, transform.clone())),
        Some(_) if transform.family == "ms" => {
            let Transform { orientation, channel_order, .. } = *transform;
            let changed_transform = self::transform(&changed, &settings)?;
            Ok((changed, Transform { orientation, channel_order, ..changed_transform }))
        }
        Some((key, _)) => {
            let problem = format!(
                "overrides Microsoft's preprocessing, but that of {} is used; pass --cfg NAME or --cfg FILE.yaml",
                transform.family
            );
            Err(ModelError::config(key, problem))
        }
    }
}

/// The keys and values that state `config` and `transform`, if that is Microsoft's.
fn stated(config: &SwinConfig, transform: &Transform) -> Vec<(String, String)> {
    let crop = if transform.resize == Resize::Direct { "False" } else { "True" };
    let filter = if transform.filter == Filter::Bilinear { "bilinear" } else { "bicubic" };
    let flag = |value: bool| if value { "True" } else { "False" }.to_owned();
    let key = |key: &str| config.key(key);
    let pairs = [
        ("DATA.IMG_SIZE".to_owned(), stated_size(config.image_size)),
        ("DATA.INTERPOLATION".to_owned(), filter.to_owned()),
        ("TEST.CROP".to_owned(), crop.to_owned()),
        // A backbone has none, but every setting states at least one.
        ("MODEL.NUM_CLASSES".to_owned(), config.num_classes.max(1).to_string()),
        (key("TAKES_TOKENS"), flag(config.takes_tokens())),
        (key("PATCH_SIZE"), config.patch_size.to_string()),
        (key("EMBED_DIM"), config.embed_dim.to_string()),
        (key("DEPTHS"), format!("{:?}", config.depths)),
        (key("NUM_HEADS"), format!("{:?}", config.num_heads)),
        (key("IN_CHANS"), config.in_chans.to_string()),
        (key("WINDOW_SIZE"), config.window_size.to_string()),
        (key("MLP_RATIO"), format!("{:?}", config.mlp_ratio)),
        (key("QKV_BIAS"), flag(config.qkv_bias)),
        (key("APE"), flag(config.ape)),
        (key("PATCH_NORM"), flag(config.patch_norm)),
    ];
    let own = match config.version {
        SwinVersion::V1 => {
            let scale = config.qk_scale.map_or("None".to_owned(), |scale| format!("{scale:?}"));
            vec![(key("QK_SCALE"), scale)]
        }
        SwinVersion::V2 => vec![
            ("MODEL.TYPE".to_owned(), "swinv2".to_owned()),
            (key("PRETRAINED_WINDOW_SIZES"), format!("{:?}", config.pretrained_window_sizes)),
        ],
    };
    pairs.into_iter().chain(own).collect()
}

/// A size as a value of a setting.
fn stated_size(size: Size) -> String {
    size.side().map_or_else(|| format!("[{}, {}]", size.height, size.width), |side| side.to_string())
}

/// The values of `WINDOW_SIZE`.
const WINDOW_SIZES: &str = "a whole number, a height and a width, or a window for each stage";

fn resolve(name: String, settings: &Settings) -> Result<SwinConfig, ModelError> {
    let version = version(settings)?;
    // Each version has its own section; keys of the other one in a file have no effect, as in Microsoft's
    // code.
    let key = |name: &str| leaf(version, name);
    let size = |key, default| field(settings, key, "a whole number", default, Value::as_size);
    let extent = |key, default| field(settings, key, "a whole number or two", default, Value::as_extent);
    let flag = |key, default| field(settings, key, "True or False", default, Value::as_bool);
    let sizes = |key, default| field(settings, key, "a list of whole numbers", default, Value::as_sizes);
    let default = SwinConfig::default();
    let classes = if is_imagenet_22k(settings) { 21841 } else { 1000 };
    let name = match settings.get("MODEL.NAME") {
        Some((Value::Text(text), "the override")) => text.clone(),
        _ => name,
    };
    let (mut qk_scale, mut pretrained) = (None, Vec::new());
    if version == SwinVersion::V1 {
        qk_scale = field(settings, "MODEL.SWIN.QK_SCALE", "None or a number", None, |value| {
            if value.is_none() { Some(None) } else { value.as_float().map(Some) }
        })?;
    } else {
        pretrained = sizes("MODEL.SWINV2.PRETRAINED_WINDOW_SIZES", Vec::new())?;
    }
    let config = SwinConfig {
        name,
        version,
        input: if flag(key("TAKES_TOKENS"), false)? { Input::Tokens } else { Input::Images },
        image_size: extent("DATA.IMG_SIZE", default.image_size)?,
        in_chans: size(key("IN_CHANS"), default.in_chans)?,
        patch_size: size(key("PATCH_SIZE"), default.patch_size)?,
        task: Task::Classification,
        outputs: Vec::new(),
        num_classes: size("MODEL.NUM_CLASSES", classes)?,
        problem: default.problem,
        embed_dim: size(key("EMBED_DIM"), default.embed_dim)?,
        depths: sizes(key("DEPTHS"), default.depths)?,
        num_heads: sizes(key("NUM_HEADS"), default.num_heads)?,
        window_size: field(
            settings,
            key("WINDOW_SIZE"),
            WINDOW_SIZES,
            default.window_size,
            Value::as_windows,
        )?,
        mlp_ratio: field(settings, key("MLP_RATIO"), "a number", default.mlp_ratio, Value::as_float)?,
        qkv_bias: flag(key("QKV_BIAS"), true)?,
        qk_scale,
        ape: flag(key("APE"), false)?,
        ape_sizes: PositionSizes::Own,
        patch_norm: flag(key("PATCH_NORM"), true)?,
        norm_eps: default.norm_eps,
        window_policy: WindowPolicy::Microsoft,
        mask: default.mask,
        pretrained_window_sizes: without_zeros(pretrained),
    };
    let last = StageOutput::of_stage(config.depths.len().saturating_sub(1), false);
    let config = if config.takes_tokens() { config.into_backbone(vec![last]) } else { config };
    check_sizes(&config)?;
    Ok(config)
}

/// Checks everything except the windows, whose rule depends on the checkpoint's dialect.
pub(crate) fn check_sizes(config: &SwinConfig) -> Result<(), ModelError> {
    SwinConfig { window_policy: WindowPolicy::Detection, ..config.clone() }.validate()?;
    let count = |(_, shape): &(String, Vec<usize>)| shape.iter().map(|&d| d as u128).product::<u128>();
    let total: u128 = parameters(config).iter().map(count).sum();
    if total > MAX_PARAMETERS {
        let problem =
            format!("{total} parameters in total are more than this program accepts ({MAX_PARAMETERS})");
        return Err(ModelError::config(config.key("DEPTHS"), problem));
    }
    Ok(())
}

/// [`SwinConfig::pretrained_window_sizes`] of a list: empty if all are 0.
pub(crate) fn without_zeros(windows: Vec<usize>) -> Vec<usize> {
    if windows.iter().all(|&window| window == 0) { Vec::new() } else { windows }
}

fn version(settings: &Settings) -> Result<SwinVersion, ModelError> {
    match settings.get("MODEL.TYPE") {
        None => Ok(SwinVersion::V1),
        Some((Value::Text(kind), _)) if kind == "swin" => Ok(SwinVersion::V1),
        Some((Value::Text(kind), _)) if kind == "swinv2" => Ok(SwinVersion::V2),
        Some((value, origin)) => {
            let problem = format!("{value} (set by {origin}): only `swin` and `swinv2` are supported");
            Err(ModelError::config("MODEL.TYPE", problem))
        }
    }
}

fn is_imagenet_22k(settings: &Settings) -> bool {
    matches!(settings.get("DATA.DATASET"), Some((Value::Text(name), _)) if name == "imagenet22K")
}

/// The value of `key`, converted by `read`; `default` if the key is not set.
fn field<T>(
    settings: &Settings,
    key: &'static str,
    wanted: &str,
    default: T,
    read: impl Fn(&Value) -> Option<T>,
) -> Result<T, ModelError> {
    let Some((value, origin)) = settings.get(key) else { return Ok(default) };
    read(value).ok_or_else(|| ModelError::config(key, format!("{value} (set by {origin}) is not {wanted}")))
}

fn transform(config: &SwinConfig, settings: &Settings) -> Result<Transform, ModelError> {
    let crop = field(settings, "TEST.CROP", "True or False", true, Value::as_bool)?;
    let filter = match settings.get("DATA.INTERPOLATION") {
        None => Filter::Bicubic,
        Some((Value::Text(name), _)) if name == "bicubic" => Filter::Bicubic,
        Some((Value::Text(name), _)) if name == "bilinear" => Filter::Bilinear,
        Some((value, origin)) => {
            let problem = format!("{value} (set by {origin}) is not supported; use bicubic or bilinear");
            return Err(ModelError::config("DATA.INTERPOLATION", problem));
        }
    };
    Ok(Transform { filter, ..Transform::microsoft(config.image_size, config.in_chans, crop) })
}

#[cfg(test)]
mod tests;
