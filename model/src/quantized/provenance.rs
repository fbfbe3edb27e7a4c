//! The provenance of a model: its float checkpoint, its calibration and the program that wrote it.

use serde::{Deserialize, Serialize};

/// The origin of a float checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Source {
    /// The file's path, as the user gave it.
    pub file: String,
    /// SHA-256 of its bytes, hexadecimal.
    pub sha256: String,
    /// Naming convention of its tensors: `microsoft`, `timm`, `hf`, `torchvision`, `ft`, `swinq`, or `random`.
    pub dialect: String,
}

/// The images of a calibration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CalibrationRecord {
    /// Names of the images, in the order of use.
    pub images: Vec<String>,
    /// SHA-256 over the images' decoded and preprocessed pixels in that order, hexadecimal.
    pub sha256: String,
    /// Seed of the random sample of images.
    pub seed: u64,
    /// Images per batch.
    pub batch_size: usize,
}

/// The origin of a quantized model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// Version of swinq that wrote the file.
    pub tool_version: String,
    /// The float checkpoint.
    pub source: Source,
    /// The calibration; absent if every range was imported or fixed by the recipe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<CalibrationRecord>,
}
