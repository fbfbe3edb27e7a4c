//! From the MODEL argument to a model.

use std::path::Path;

use anyhow::{Context, bail};
use swinq_data::presets;
use swinq_model::checkpoint::{LoadOptions, is_quantized_file, load_float};
use swinq_model::config::{LoadedConfig, load_config};
use swinq_model::quantized::FloatModel;
use swinq_model::{QuantizedModel, Transform};

use crate::args::{Family, FloatArgs, Usage};

/// A model as the user named it.
pub enum Model {
    /// From a float checkpoint, a directory, or random.
    Float(Box<FloatModel>),
    /// From a quantized checkpoint.
    Quantized(Box<QuantizedModel>),
}

impl Model {
    /// Whether it is a float model.
    pub fn is_float(&self) -> bool {
        matches!(self, Model::Float(_))
    }

    /// Loads `path`, whatever kind of model it is.
    pub fn load(path: &Path, args: &FloatArgs) -> anyhow::Result<Model> {
        if !path.exists() {
            bail!("{}: no such file or folder", path.display());
        }
        if is_quantized_file(path) {
            let model = QuantizedModel::load(path).with_context(|| path.display().to_string())?;
            return Ok(Model::Quantized(Box::new(model)));
        }
        Ok(Model::Float(Box::new(load_float_model(path, args)?)))
    }

    /// The model as the engine takes it.
    pub fn into_quantized(self) -> anyhow::Result<QuantizedModel> {
        Ok(match self {
            Model::Float(model) => QuantizedModel::from_float(&model)?,
            Model::Quantized(model) => *model,
        })
    }
}

/// Loads a float checkpoint or directory.
pub fn load_float_model(path: &Path, args: &FloatArgs) -> anyhow::Result<FloatModel> {
    let options = LoadOptions { cfg: configuration(args)?, dialect: args.dialect };
    let mut model = load_float(path, &options).with_context(|| path.display().to_string())?;
    if let Some(family) = args.transform {
        model.transform = transform_of(family, &model)?;
    }
    Ok(model)
}

/// Random weights of the shape `--cfg` gives.
pub fn random_model(seed: u64, args: &FloatArgs) -> anyhow::Result<FloatModel> {
    let config = configuration(args)?.context("--random-weights needs --cfg")?;
    Ok(swinq_model::checkpoint::random_model(&config, seed))
}

/// What `--cfg` and `--opts` say, where given.
fn configuration(args: &FloatArgs) -> anyhow::Result<Option<LoadedConfig>> {
    let opts: Vec<(String, String)> = args.opts.chunks(2).map(|p| (p[0].clone(), p[1].clone())).collect();
    match &args.cfg {
        Some(name) => Ok(Some(load_config(name, &opts)?)),
        None if opts.is_empty() => Ok(None),
        None => Err(Usage("--opts changes what --cfg names; give --cfg too".to_owned()).into()),
    }
}

fn transform_of(family: Family, model: &FloatModel) -> anyhow::Result<Transform> {
    let (config, size) = (&model.config, model.config.image_size);
    Ok(match family {
        // A configuration in Microsoft's keys has said whether there is a crop.
        Family::Ms if model.transform.family == "ms" => model.transform.clone(),
        Family::Ms => Transform::microsoft(size, true),
        Family::Timm => presets::timm(size, if size >= 384 { 1.0 } else { presets::TIMM_CROP_PCT }),
        Family::Hf => presets::hugging_face(size),
        Family::Torchvision => {
            let name = match (config.embed_dim, config.depths.as_slice(), size) {
                (96, [2, 2, 6, 2], 224) => "swin_t",
                (96, [2, 2, 18, 2], 224) => "swin_s",
                (128, [2, 2, 18, 2], 224) => "swin_b",
                _ => bail!(
                    "--transform torchvision: torchvision has Swin-T, S and B at 224, and {} is none of them",
                    config.name
                ),
            };
            presets::torchvision(name).context("torchvision has a transform for this model")?
        }
    })
}
