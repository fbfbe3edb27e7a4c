//! The evaluation transforms of the model families.

use swinq_data::presets;
use swinq_model::{SwinConfig, Transform};

use crate::Error;

/// The family whose evaluation preprocessing is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Microsoft: shorter side to `int(256 / 224 * size)`, center crop (direct with `TEST.CROP: False`).
    Microsoft,
    /// timm: shorter side to `floor(size / crop_pct)`, center crop.
    Timm,
    /// torchvision: the weights' own resize, center crop.
    Torchvision,
    /// The Swins that Hugging Face publishes: direct bicubic resize, mean and deviation of ImageNet. A file without these
    /// fields has other values, those of `ViTImageProcessor`.
    HuggingFace,
}

impl Family {
    /// The name of the family as the program's option `--transform` takes it.
    pub(crate) fn option(self) -> &'static str {
        match self {
            Family::Microsoft => "ms",
            Family::Timm => "timm",
            Family::Torchvision => "torchvision",
            Family::HuggingFace => "hf",
        }
    }

    /// The transform of this family for a model with the architecture `config`; `own` is the transform in the
    /// configuration.
    ///
    /// # Errors
    /// [`Error::Argument`] for torchvision, if it has no model of this shape.
    pub(crate) fn transform(self, config: &SwinConfig, own: &Transform) -> Result<Transform, Error> {
        let (size, channels) = (config.image_size, config.in_chans);
        if channels != 3 && !(self == Family::Microsoft && own.family == "ms") {
            let problem = format!("it is for RGB images, and {} takes {channels} channels", config.name);
            return Err(Error::argument("--transform", problem));
        }
        Ok(match self {
            // A configuration in Microsoft's keys states whether there is a crop.
            Family::Microsoft if own.family == "ms" => own.clone(),
            Family::Microsoft => Transform::microsoft(size, channels, true),
            Family::Timm => {
                presets::timm(size, if size.height >= 384 { 1.0 } else { presets::TIMM_CROP_PCT })
            }
            Family::HuggingFace => presets::hugging_face(size),
            Family::Torchvision => torchvision(config)?,
        })
    }
}

fn torchvision(config: &SwinConfig) -> Result<Transform, Error> {
    let name = match (config.embed_dim, config.depths.as_slice(), config.image_size.side().unwrap_or(0)) {
        (96, [2, 2, 6, 2], 224) => "swin_t",
        (96, [2, 2, 18, 2], 224) => "swin_s",
        (128, [2, 2, 18, 2], 224) => "swin_b",
        _ => "",
    };
    presets::torchvision(name).ok_or_else(|| {
        let problem =
            format!("torchvision has transforms for Swin-T, S and B at 224 only, not for {}", config.name);
        Error::argument("--transform torchvision", problem)
    })
}
