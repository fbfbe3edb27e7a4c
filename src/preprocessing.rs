//! The evaluation transforms of the model families.

use swinq_data::presets;
use swinq_model::{Family, Orientation, SwinConfig, SwinVersion, Transform};

use crate::Error;

/// The transform of `family` for a model with the architecture `config`; `own` is the transform in the
/// configuration.
///
/// # Errors
/// [`Error::Argument`] for torchvision, if it has no model of this shape.
pub(crate) fn transform(family: Family, config: &SwinConfig, own: &Transform) -> Result<Transform, Error> {
    let (size, channels) = (config.image_size, config.in_chans);
    if channels != 3 && !(family == Family::Microsoft && own.family == "ms") {
        let problem = format!("it is for RGB images, and {} takes {channels} channels", config.name);
        return Err(Error::argument("--transform", problem));
    }
    Ok(match family {
        // A configuration in Microsoft's keys states whether there is a crop.
        Family::Microsoft if own.family == "ms" => {
            Transform { orientation: Orientation::Stored, ..own.clone() }
        }
        Family::Microsoft => Transform::microsoft(size, channels, true),
        Family::Timm => presets::timm(size, if size.height >= 384 { 1.0 } else { presets::TIMM_CROP_PCT }),
        Family::HuggingFace => presets::hugging_face(size),
        Family::Torchvision => torchvision(config)?,
    })
}

fn torchvision(config: &SwinConfig) -> Result<Transform, Error> {
    let version = match config.version {
        SwinVersion::V1 => "swin",
        SwinVersion::V2 => "swin_v2",
    };
    let letter = match (config.embed_dim, config.depths.as_slice()) {
        (96, [2, 2, 6, 2]) => "t",
        (96, [2, 2, 18, 2]) => "s",
        (128, [2, 2, 18, 2]) => "b",
        _ => "",
    };
    let preset = presets::torchvision(&format!("{version}_{letter}"));
    preset.filter(|preset| preset.size == config.image_size).ok_or_else(|| {
        let problem = format!(
            "torchvision has transforms for Swin-T, S and B at 224 and for Swin V2-T, S and B at 256 only, not for {}",
            config.name
        );
        Error::argument("--transform torchvision", problem)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use swinq_model::Resize;

    #[test]
    fn torchvision_has_a_transform_for_each_of_its_models() {
        // `Swin_*_Weights.DEFAULT.transforms()` of torchvision 0.29.
        let models = [
            ("swin_tiny_patch4_window7_224", 232),
            ("swin_small_patch4_window7_224", 246),
            ("swin_base_patch4_window7_224", 238),
            ("swinv2_tiny_window8_256", 260),
            ("swinv2_small_window8_256", 260),
            ("swinv2_base_window8_256", 272),
        ];
        for (name, resized) in models {
            let config = SwinConfig::official(name).unwrap();
            let own = Transform::microsoft(config.image_size, 3, true);
            let found = transform(Family::Torchvision, &config, &own).unwrap();
            assert_eq!((found.resize, found.size), (Resize::ShorterSide(resized), config.image_size));
        }
        for name in ["swin_base_patch4_window12_384", "swin_large_patch4_window7_224"] {
            let config = SwinConfig::official(name).unwrap();
            let own = Transform::microsoft(config.image_size, 3, true);
            let message = transform(Family::Torchvision, &config, &own).unwrap_err().to_string();
            assert!(message.contains("V2-T, S and B at 256 only"), "{message}");
        }
    }
}
