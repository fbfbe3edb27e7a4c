//! The sections of a job: their keys, ranges and defaults.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use swinq_model::SwinConfig;

use super::schedule_length::ScheduleLength;
use super::values::{ScheduleKind, Split, optional_path};

/// `data`: the images to train on and to validate on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DataKeys {
    /// The training images: an ImageFolder root, a Swin zip layout or a list file. Required.
    #[serde(deserialize_with = "optional_path")]
    pub path: PathBuf,
    /// The split to train on: `train` or `val`. Default `train`.
    pub split: Split,
    /// The validation images. Default: `path`.
    pub val_path: Option<PathBuf>,
    /// The split to validate on. Default `val`.
    pub val_split: Split,
    /// Number of training images, drawn at random with the seed; at least 1. Default: all.
    pub limit: Option<usize>,
    /// Number of validation images, drawn at random with the seed; at least 1. Default: all.
    pub val_limit: Option<usize>,
    /// Number of unreadable images that are skipped before the run fails. Default 0.
    pub skip_corrupt: usize,
    /// Memory for decoded images, in MiB; 0 decodes an image at each use. Default 1024.
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
    /// The path of the validation images.
    pub fn validation_path(&self) -> &Path {
        self.val_path.as_deref().unwrap_or(&self.path)
    }
}

/// `optimizer`: AdamW with decoupled decay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerKeys {
    /// The highest learning rate of weights, biases, norms and tables, 0 to 1. It is absolute: never
    /// multiplied by the batch size or the number of devices. Default 5e-5.
    pub lr: f64,
    /// The highest learning rate of learned scales, 0 to 1, absolute. A scale is trained as a ratio to its
    /// initial value, so this is about the fraction by which an iteration may change it. Default 1e-3.
    pub lr_scales: f64,
    /// Weight decay, 0 to 1; it does not apply to norms, biases, tables and scales. Default 0.01.
    pub weight_decay: f64,
    /// Decays of the two moments, each from 0 to below 1. Default 0.9 and 0.999.
    pub betas: [f64; 2],
    /// Added to the square root of the second moment; above 0, at most 1. Default 1e-8.
    pub eps: f64,
    /// Largest norm of the gradient over all parameters, at least 0; larger gradients are scaled down to it.
    /// 0 disables clipping. Default 1.
    pub clip_norm: f64,
    /// Decay of the parameters' moving average, which is then validated and exported instead of the
    /// parameters; from 0 (no average) to below 1. Default 0.
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

/// `schedule`: the learning rates over the run; [`Schedule`](crate::schedule::Schedule) has the formula.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleKeys {
    /// Iterations of the warmup from `warmup_lr` to the highest rate; fewer than the iterations of the run.
    /// Default 0: no warmup.
    pub warmup_steps: u64,
    /// Learning rate of the weights at the first iteration of the warmup, 0 to `optimizer.lr`. Default 0.
    pub warmup_lr: f64,
    /// Learning rate of the weights at the end of the cosine, 0 to `optimizer.lr`. Default 0.
    pub min_lr: f64,
    /// The learning rate after the warmup: `cosine` or `constant`. Default `cosine`.
    pub kind: ScheduleKind,
}

/// Whether a key is off. Keys that are younger than the first trainings are left out of what is written where
/// they are off, so that older trainings can be resumed.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(x: &f64) -> bool {
    *x == 0.0
}

/// `loss`: a sum of parts, each with its weight. Labels and divergence are for classifiers, outputs for
/// backbones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LossKeys {
    /// Weight of the cross-entropy with the labels, at least 0. Default 1.
    pub labels: f64,
    /// Label smoothing: the fraction of each label that is spread evenly over all classes, from 0 to below 1.
    /// Default 0.
    pub smoothing: f64,
    /// Weight of the divergence from the teacher's distribution, at least 0. Default 1.
    pub kl: f64,
    /// Temperature of the divergence: it divides the logits of both networks, and its square multiplies the
    /// divergence. Above 0, at most 100. Default 2.
    pub temperature: f64,
    /// Weight of the relative error of a backbone's outputs against the teacher's, at least 0. Default 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub outputs: f64,
    /// Weights of single outputs among them, by name (`stage1`), at least 0; the others have 1. Default:
    /// none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub output_weights: BTreeMap<String, f64>,
    /// Weight of the mean squared difference to the teacher's block outputs, at least 0. Default 0.
    pub features: f64,
}

impl Default for LossKeys {
    fn default() -> LossKeys {
        LossKeys {
            labels: 1.0,
            smoothing: 0.0,
            kl: 1.0,
            temperature: 2.0,
            outputs: 0.0,
            output_weights: BTreeMap::new(),
            features: 0.0,
        }
    }
}

impl LossKeys {
    /// Whether the loss needs a teacher.
    pub fn needs_teacher(&self) -> bool {
        self.kl > 0.0 || self.outputs > 0.0 || self.features > 0.0
    }

    /// The share of each output of the backbone `config` in the loss of the outputs; their sum is 1, unless
    /// all weights are 0.
    pub fn weights_of(&self, config: &SwinConfig) -> Vec<f64> {
        let weight = |name: &String| self.output_weights.get(name).copied().unwrap_or(1.0);
        let weights: Vec<f64> = config.outputs.iter().map(|output| weight(&output.name)).collect();
        let sum: f64 = weights.iter().sum();
        weights.into_iter().map(|weight| if sum > 0.0 { weight / sum } else { 0.0 }).collect()
    }
}

/// `mixing`: how pairs of images of a batch are mixed. Off by default; then it is left out of what is
/// written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MixingKeys {
    /// Mixup: both parameters of the Beta distribution of an image's share, 0 (off) to 2. Default 0.
    pub mixup: f64,
    /// CutMix: the same for the share of the image's area. Default 0.
    pub cutmix: f64,
    /// Fraction of the batches that are mixed, 0 to 1. Default 1.
    pub probability: f64,
    /// If both are on, the fraction of the mixed batches that CutMix mixes, 0 to 1. Default 0.5.
    pub switch: f64,
}

impl Default for MixingKeys {
    fn default() -> MixingKeys {
        MixingKeys { mixup: 0.0, cutmix: 0.0, probability: 1.0, switch: 0.5 }
    }
}

impl MixingKeys {
    /// Whether no batch is mixed.
    pub fn is_off(&self) -> bool {
        self.mixup == 0.0 && self.cutmix == 0.0
    }
}

/// `validate`: how often and on which images the model is validated. A quantized training validates on the
/// INT8 engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ValidateKeys {
    /// Iterations between validations; 0 validates at the end of each epoch. The end of the run is always
    /// validated. Default 0.
    pub every: u64,
    /// Number of validation images to use before the end of the run; the last validation uses all. At least
    /// 1. Default: all.
    pub limit: Option<usize>,
    /// Images per batch, 1 to 65536. Default 64.
    pub batch_size: usize,
    /// The size of a backbone's validation images: a text that swinq's option `--size` takes. Default `keep`,
    /// the images' own.
    #[serde(skip_serializing_if = "is_keep")]
    pub size: String,
}

/// The default of [`ValidateKeys::size`].
pub(super) const KEEP: &str = "keep";

fn is_keep(size: &str) -> bool {
    size == KEEP
}

impl Default for ValidateKeys {
    fn default() -> ValidateKeys {
        ValidateKeys { every: 0, limit: None, batch_size: 64, size: KEEP.to_owned() }
    }
}

impl ValidateKeys {
    /// Whether a validation is due after `done` iterations.
    pub fn due(&self, done: u64, length: &ScheduleLength) -> bool {
        let regular = if self.every == 0 { length.ends_epoch(done) } else { done.is_multiple_of(self.every) };
        done > 0 && (regular || done == length.iterations())
    }
}

/// `checkpoint`: the checkpoints from which a run can be resumed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointKeys {
    /// Iterations between checkpoints; 0 writes one only at the end and on an interrupt. Default 200.
    pub every: u64,
    /// Number of latest checkpoints to keep, at least 1. With 2, a run survives a damaged checkpoint. Default
    /// 2.
    pub keep: usize,
}

impl Default for CheckpointKeys {
    fn default() -> CheckpointKeys {
        CheckpointKeys { every: 200, keep: 2 }
    }
}

/// `log`: the records of the training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogKeys {
    /// Iterations between records, at least 1. Default 10.
    pub every: u64,
    /// Whether to also write TensorBoard events. Default true.
    pub tensorboard: bool,
}

impl Default for LogKeys {
    fn default() -> LogKeys {
        LogKeys { every: 10, tensorboard: true }
    }
}
