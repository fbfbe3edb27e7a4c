//! The sections of a job: their keys, ranges and defaults.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::course::Course;
use super::values::{ScheduleKind, Split, open_path};

/// `data`: the images to train on and to validate on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DataKeys {
    /// The training images: an ImageFolder root, a Swin zip layout or a list file. Required.
    #[serde(deserialize_with = "open_path")]
    pub path: PathBuf,
    /// Which list of it: `train` or `val`. Default `train`.
    pub split: Split,
    /// The validation images. Default: `path`.
    pub val_path: Option<PathBuf>,
    /// Which list of them. Default `val`.
    pub val_split: Split,
    /// Train on this many images, a seeded sample; at least 1. Default: all.
    pub limit: Option<usize>,
    /// Have this many validation images, a seeded sample; at least 1. Default: all.
    pub val_limit: Option<usize>,
    /// Images that may be unreadable before the run fails. Default 0.
    pub skip_corrupt: usize,
    /// Memory for decoded images, in MiB; 0 decodes each image whenever it is used. Default 1024.
    pub cache_mb: usize,
}

impl Default for DataKeys {
    fn default() -> DataKeys {
        DataKeys {
            path: PathBuf::new(),
            split: Split::Train,
            val_path: None,
            val_split: Split::Val,
            limit: None,
            val_limit: None,
            skip_corrupt: 0,
            cache_mb: 1024,
        }
    }
}

impl DataKeys {
    /// Where the validation images are.
    pub fn validation_path(&self) -> &Path {
        self.val_path.as_deref().unwrap_or(&self.path)
    }
}

/// `optimizer`: AdamW with decoupled decay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerKeys {
    /// The highest learning rate of weights, biases, norms and tables, 0 to 1: the absolute one, never multiplied by
    /// batch sizes or device counts. Default 5e-5.
    pub lr: f64,
    /// The highest learning rate of learned scales, 0 to 1, absolute. A scale is trained as a multiple of what it was at
    /// first, so this is the part of it that a step may change. Default 1e-3.
    pub lr_scales: f64,
    /// Decay of weights, 0 to 1; norms, biases, tables and scales have none. Default 0.01.
    pub weight_decay: f64,
    /// Decays of the two moments, each from 0 to below 1. Default 0.9 and 0.999.
    pub betas: [f64; 2],
    /// Added to the root of the second moment; above 0, at most 1. Default 1e-8.
    pub eps: f64,
    /// Longest gradient over all parameters, at least 0; longer ones are shortened to it. 0 never does. Default 1.
    pub clip_norm: f64,
    /// Decay of the moving average of the parameters that is validated and written, from 0 (no average) to below 1.
    /// Default 0.
    pub ema: f64,
}

impl Default for OptimizerKeys {
    fn default() -> OptimizerKeys {
        OptimizerKeys {
            lr: 5e-5,
            lr_scales: 1e-3,
            weight_decay: 0.01,
            betas: [0.9, 0.999],
            eps: 1e-8,
            clip_norm: 1.0,
            ema: 0.0,
        }
    }
}

/// `schedule`: the course of the learning rates; [`Schedule`](crate::schedule::Schedule) has the formula.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleKeys {
    /// Steps from `warmup_lr` to the highest rate, fewer than the run has. Default 0: none.
    pub warmup_steps: u64,
    /// Rate of the weights at the first step of a warmup, 0 to `optimizer.lr`. Default 0.
    pub warmup_lr: f64,
    /// Rate of the weights that the cosine goes down to, 0 to `optimizer.lr`. Default 0.
    pub min_lr: f64,
    /// `cosine` or `constant` after the warmup. Default `cosine`.
    pub kind: ScheduleKind,
}

/// `loss`: a sum of up to three parts, each with its weight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LossKeys {
    /// Weight of the cross-entropy with the labels, at least 0. Default 1.
    pub labels: f64,
    /// Part of each label spread evenly over all classes, from 0 to below 1. Default 0.
    pub smoothing: f64,
    /// Weight of the divergence from the teacher's distribution, at least 0. Default 1.
    pub kl: f64,
    /// Divides both logits before that divergence, which is then multiplied by its square; above 0, at most 100.
    /// Default 2.
    pub temperature: f64,
    /// Weight of the mean squared difference from the teacher's block outputs, at least 0. Default 0.
    pub features: f64,
}

impl Default for LossKeys {
    fn default() -> LossKeys {
        LossKeys { labels: 1.0, smoothing: 0.0, kl: 1.0, temperature: 2.0, features: 0.0 }
    }
}

impl LossKeys {
    /// Whether a part of the loss compares with a teacher.
    pub fn needs_teacher(&self) -> bool {
        self.kl > 0.0 || self.features > 0.0
    }
}

/// `validate`: when and on what the run is validated, on the INT8 engine where it quantizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ValidateKeys {
    /// Steps between validations; 0 is at the end of each epoch. The end of the run is always validated. Default 0.
    pub every: u64,
    /// Validate on the first so many of the validation images until the end of the run, which uses all; at least 1.
    /// Default: all.
    pub limit: Option<usize>,
    /// Images at a time, 1 to 65536. Default 64.
    pub batch_size: usize,
}

impl Default for ValidateKeys {
    fn default() -> ValidateKeys {
        ValidateKeys { every: 0, limit: None, batch_size: 64 }
    }
}

impl ValidateKeys {
    /// Whether a validation is due once `done` steps are done.
    pub fn due(&self, done: u64, course: &Course) -> bool {
        let regular = if self.every == 0 { course.ends_epoch(done) } else { done.is_multiple_of(self.every) };
        done > 0 && (regular || done == course.steps())
    }
}

/// `checkpoint`: from which a killed run goes on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointKeys {
    /// Steps between checkpoints; 0 writes one at the end and on an interrupt only. Default 200.
    pub every: u64,
    /// How many of the latest are kept, at least 1; with 2 a damaged one costs no run. Default 2.
    pub keep: usize,
}

impl Default for CheckpointKeys {
    fn default() -> CheckpointKeys {
        CheckpointKeys { every: 200, keep: 2 }
    }
}

/// `log`: what is recorded on the way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogKeys {
    /// Steps between records, at least 1. Default 10.
    pub every: u64,
    /// Whether to write TensorBoard events too. Default true.
    pub tensorboard: bool,
}

impl Default for LogKeys {
    fn default() -> LogKeys {
        LogKeys { every: 10, tensorboard: true }
    }
}
