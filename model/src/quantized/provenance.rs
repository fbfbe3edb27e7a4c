//! The provenance of a model: its float checkpoint, its calibration and the program that wrote it.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::ResidualRange;

/// The origin of a float checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// The file's path, as the user gave it.
    pub file: String,
    /// SHA-256 of its bytes, hexadecimal.
    pub sha256: String,
    /// Naming convention of its tensors: `microsoft`, `timm`, `hf`, `torchvision`, `ft`, `swinq`, or
    /// `random`.
    pub dialect: String,
}

/// The images of a calibration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalibrationRecord {
    /// Names of the images, in the order of use.
    pub images: Vec<String>,
    /// SHA-256 over the images' decoded and preprocessed pixels in that order, hexadecimal.
    pub sha256: String,
    /// Seed of the random sample of images.
    pub seed: u64,
    /// Images per batch; 1 for a backbone, unless the images of a batch are padded to a common size.
    pub batch_size: usize,
    /// How the images of a backbone were resized, `keep`, `800x1344` or `short:800,long:1333`, and after that
    /// how they were padded, if they were: `keep, padded to multiples of 32`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sizing: Option<String>,
    /// The magnitude of the residual stream in float; absent if no image was read, and in older files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub residual: Option<ResidualRange>,
}

/// A file by its name and content.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRecord {
    /// The file's path, as the user gave it.
    pub file: String,
    /// SHA-256 of its bytes, hexadecimal.
    pub sha256: String,
}

/// The training that a model went through after its calibration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainingRecord {
    /// Name of the job.
    pub job: String,
    /// SHA-256 of everything in the job that has an effect on the trained model, hexadecimal.
    pub job_sha256: String,
    /// Whether the model was quantized during the training.
    pub quantized: bool,
    /// The calibrated checkpoint that the training started from; absent for a training in float.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<FileRecord>,
    /// Iterations done.
    pub iterations: u64,
    /// The weights of the parts of the loss that have one: `labels`, `kl`, `outputs`, `features`.
    pub loss: BTreeMap<String, f64>,
    /// Moving average of the loss at the end; absent before the first iteration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub final_loss: Option<f64>,
    /// The teacher, if the loss needed one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub teacher: Option<FileRecord>,
    /// The training images: their path; the SHA-256 is that of the list of their names and labels.
    pub data: FileRecord,
    /// Number of training images.
    pub images: u64,
    /// Seed of the training.
    pub seed: u64,
    /// Set for a model that is not the last of its training: the validation that chose it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen_by: Option<Chosen>,
}

impl fmt::Display for FileRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (SHA-256 {})", self.file, self.sha256)
    }
}

/// In words, on one line.
impl fmt::Display for TrainingRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TrainingRecord { job, iterations, images, data, seed, .. } = self;
        write!(f, "job {job}, {iterations} iterations on {images} images of {data}, seed {seed}")?;
        let parts: Vec<String> = self.loss.iter().map(|(part, weight)| format!("{weight} {part}")).collect();
        write!(f, ", loss {}", parts.join(" + "))?;
        if let Some(loss) = self.final_loss {
            write!(f, " ({loss:.4} at the end)")?;
        }
        if let Some(teacher) = &self.teacher {
            write!(f, ", teacher {teacher}")?;
        }
        if let Some(start) = &self.start {
            write!(f, ", from {start}")?;
        }
        match &self.chosen_by {
            Some(chosen) => write!(f, "; {chosen}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Chosen { data, images, score } = self;
        write!(f, "the best validated: {images} images of {data} chose it, {score}")
    }
}

/// The validation that chose a model among others. Its score on these images is therefore too high an
/// estimate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chosen {
    /// Path of the validation images.
    pub data: String,
    /// Number of images.
    pub images: u64,
    /// The score of the model on them.
    #[serde(flatten)]
    pub score: Score,
}

/// The score by which a validation compares the models of a training; more is better. In a document it is the
/// key `top1` or `sqnr_db`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Score {
    /// Of a classifier: the fraction of the images that are classified correctly, 0 to 1.
    #[serde(rename = "top1")]
    Top1(f64),
    /// Of a backbone: the mean of its outputs' signal-to-quantization-noise ratios in dB.
    #[serde(rename = "sqnr_db")]
    Sqnr(f64),
}

impl Score {
    /// The number.
    pub fn value(self) -> f64 {
        match self {
            Score::Top1(value) | Score::Sqnr(value) => value,
        }
    }
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Score::Top1(top1) => write!(f, "top-1 {:.2} %", 100.0 * top1),
            Score::Sqnr(db) => write!(f, "SQNR {db:.2} dB"),
        }
    }
}

/// The origin of a quantized model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// Version of swinq that wrote the file.
    pub tool_version: String,
    /// The float checkpoint.
    pub source: Source,
    /// The calibration; absent if none ran, because ranges were imported or given, or the model is in float.
    /// Its list of images is empty if no image was needed, because the recipe fixes every range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<CalibrationRecord>,
    /// The file of ranges that were imported; absent if they were calibrated or fixed by the recipe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported_ranges: Option<FileRecord>,
    /// The training after the calibration, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training: Option<TrainingRecord>,
    /// Where the class names come from, in words; absent if there are none or the float checkpoint holds
    /// them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels_from: Option<String>,
}

impl Provenance {
    /// How the model was quantized: `QAT` if it was quantized while it was trained, else `PTQ`.
    pub fn method(&self) -> &'static str {
        match &self.training {
            Some(training) if training.quantized => "QAT",
            _ => "PTQ",
        }
    }
}
