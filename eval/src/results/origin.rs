//! Where a model and its ranges come from.

use serde::{Deserialize, Serialize};
use swinq_model::quantized::{FileRecord, TrainingRecord};
use swinq_model::{QuantizedModel, Rule};

/// The origin of a quantized model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Origin {
    /// Version of swinq that wrote the file.
    pub tool_version: String,
    /// Path of the float checkpoint, as it was given.
    pub source: String,
    /// SHA-256 of the float checkpoint, hexadecimal.
    pub source_sha256: String,
    /// The calibration; absent if every range was imported or fixed by the recipe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<CalibrationSet>,
    /// The file of ranges that were imported, if they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported_ranges: Option<FileRecord>,
    /// The training after the calibration, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training: Option<TrainingRecord>,
    /// The rules of the recipe, in order; the last rule that matches a site and states a key decides it.
    pub rules: Vec<Rule>,
    /// The command that made the model, if the file of its histograms records it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

/// The images of a calibration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CalibrationSet {
    /// Number of images.
    pub images: usize,
    /// Seed of the sample.
    pub seed: u64,
    /// Images per batch.
    pub batch_size: usize,
    /// How the images of a backbone were resized and padded, as its file records it:
    /// `keep, padded to multiples of 32`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sizing: Option<String>,
    /// SHA-256 of the preprocessed pixels, hexadecimal.
    pub sha256: String,
}

impl Origin {
    /// The origin that `model` records.
    pub fn of(model: &QuantizedModel) -> Origin {
        let provenance = &model.provenance;
        let calibration = provenance.calibration.as_ref().map(|record| CalibrationSet {
            images: record.images.len(),
            seed: record.seed,
            batch_size: record.batch_size,
            sizing: record.sizing.clone(),
            sha256: record.sha256.clone(),
        });
        Origin {
            tool_version: provenance.tool_version.clone(),
            source: provenance.source.file.clone(),
            source_sha256: provenance.source.sha256.clone(),
            calibration,
            imported_ranges: provenance.imported_ranges.clone(),
            training: provenance.training.clone(),
            rules: model.recipe.rules.clone(),
            command: None,
        }
    }
}
