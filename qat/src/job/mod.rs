//! The job file of a training. Every key has a type, a range and a default; unknown keys are refused.
//!
//! ```
//! use swinq_qat::job::Job;
//!
//! let text = "model: q.safetensors\nfloat: f.safetensors\ndata: {path: images}\noutput: out\n";
//! let overrides = [("optimizer.lr".to_owned(), "1e-4".to_owned())];
//! let job = Job::from_yaml("mine.yaml", text, &overrides).unwrap();
//! assert_eq!(job.optimizer.lr, 1e-4);
//! print!("{job}"); // every key with its effective value, as a job file
//! ```
//!
//! `configs/qat` has annotated jobs; [`Job::shipped`] finds them by name.

mod check;
mod error;
mod identity;
mod quantization;
mod schedule_length;
mod sections;
mod task;
#[cfg(test)]
mod tests;
mod tree;
mod values;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use swinq_model::text_file::{self, MAX_WRITTEN};

pub use error::JobError;
pub use identity::Identity;
pub use quantization::{QuantizationKeys, ScaleRule};
pub use schedule_length::{Length, ScheduleLength};
pub use sections::{
    CheckpointKeys, DataKeys, LogKeys, LossKeys, MixingKeys, OptimizerKeys, ScheduleKeys, ValidateKeys,
};
pub use values::{ActivationScales, Device, Precision, Scales, ScheduleKind, Split, WeightScales};

use tree::Tree;
use values::{on_off, optional_path};

/// Epochs of a job that gives no length.
const DEFAULT_EPOCHS: f64 = 3.0;

/// A training job. Every value is effective and checked; paths are relative to the current folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Job {
    /// Name, for messages and reports. Default `qat`.
    pub name: String,
    /// Whether the model is quantized during training: `on`, or `off` for a training in float. Default `on`.
    #[serde(with = "on_off")]
    pub quant: bool,
    /// The calibrated checkpoint, which decides the quantized sites and their scales. Required if `quant` is
    /// on; not allowed if it is off.
    pub model: Option<PathBuf>,
    /// The float checkpoint to start from; it is also the teacher unless `teacher` names another. Required if
    /// `quant` is on. Without it, a float training starts from random weights of `cfg`.
    pub float: Option<PathBuf>,
    /// Configuration of a bare float checkpoint: a shipped name, or a YAML file in Microsoft's keys. Default:
    /// the checkpoint's own description.
    pub cfg: Option<String>,
    /// Overrides of keys of that configuration or, without `cfg`, of the checkpoint's own description, such
    /// as `{MODEL.NUM_CLASSES: 10}`. Default: none.
    pub opts: BTreeMap<String, Value>,
    /// The beginning of the names of the network's tensors, if the float checkpoints have other tensors too.
    /// Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// The key of the state dictionary, if the float checkpoints have several. Default: as for
    /// `swinq calibrate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
    /// The family whose preprocessing the float checkpoints get: `ms`, `timm`, `torchvision` or `hf`.
    /// Default: that of the configuration or of the folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transform: Option<String>,
    /// Whether images are turned as their files state: `exif` or `stored`. Default: the rule of `model`, else
    /// that of the library that reads such checkpoints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub orientation: Option<String>,
    /// The order of the channels before the network: `rgb` or `bgr`. Default: that of `model`, else `rgb`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channels: Option<String>,
    /// Whether a float training replaces the head of `float` with an untrained one for the classes of the
    /// images. Default false.
    pub new_head: bool,
    /// The float checkpoint that the student imitates. Default: `float`.
    pub teacher: Option<PathBuf>,
    /// The images.
    pub data: DataKeys,
    /// Length of the run in passes over the training images: above 0, at most 100000, may be fractional.
    /// Default 3, unless `steps` is set.
    pub epochs: Option<f64>,
    /// Length of the run in iterations, instead of `epochs`: 1 to 1000000000.
    pub steps: Option<u64>,
    /// Images of one forward and backward pass, on each process; 1 to 65536. Default 64.
    pub batch_size: usize,
    /// Batches per iteration on each process; the gradients of all are averaged. 1 to 65536. Default 1.
    pub accumulate: usize,
    /// Whether the backward pass recomputes activations instead of keeping them: less memory, more time, the
    /// same model. Default false.
    pub recompute: bool,
    /// Seed of the images' order, augmentation, DropPath and random weights. Default 0.
    pub seed: u64,
    /// Number of threads, at most 1024; 0 means one per core. Default 0.
    pub threads: usize,
    /// `cpu`, `cuda` or `cuda:N`. Default `cpu`.
    pub device: Device,
    /// `f32`, or on a GPU `tf32`, `bf16` or `f16`. Default `f32`.
    pub precision: Precision,
    /// The optimizer, AdamW.
    pub optimizer: OptimizerKeys,
    /// The learning rates over the run.
    pub schedule: ScheduleKeys,
    /// The loss to minimise.
    pub loss: LossKeys,
    /// Which scales are trained.
    pub quantization: QuantizationKeys,
    /// Augmentation of the training images; the type passed to [`Job::augmentation`] defines its keys.
    pub augment: Value,
    /// Mixup and CutMix.
    #[serde(skip_serializing_if = "MixingKeys::is_off")]
    pub mixing: MixingKeys,
    /// Highest rate of DropPath, from 0 to below 1. `None` means `MODEL.DROP_PATH_RATE` of `cfg`, or 0
    /// without a `cfg`. Default: 0.
    pub drop_path: Option<f64>,
    /// Validation during the training.
    pub validate: ValidateKeys,
    /// Checkpoints of the training.
    pub checkpoint: CheckpointKeys,
    /// The log of the training.
    pub log: LogKeys,
    /// The folder for checkpoints, the log and the trained model. Required.
    #[serde(deserialize_with = "optional_path")]
    pub output: PathBuf,
}

impl Default for Job {
    /// The defaults of all keys. Required keys are empty, so the result is not a valid job.
    fn default() -> Job {
        Job {
            name: "qat".to_owned(),
            quant: true,
            model: None,
            float: None,
            cfg: None,
            opts: BTreeMap::new(),
            prefix: None,
            weights: None,
            transform: None,
            orientation: None,
            channels: None,
            new_head: false,
            teacher: None,
            data: DataKeys::default(),
            epochs: None,
            steps: None,
            batch_size: 64,
            accumulate: 1,
            recompute: false,
            seed: 0,
            threads: 0,
            device: Device::default(),
            precision: Precision::default(),
            optimizer: OptimizerKeys::default(),
            schedule: ScheduleKeys::default(),
            loss: LossKeys::default(),
            quantization: QuantizationKeys::default(),
            augment: Value::Object(serde_json::Map::new()),
            mixing: MixingKeys::default(),
            drop_path: Some(0.0),
            validate: ValidateKeys::default(),
            checkpoint: CheckpointKeys::default(),
            log: LogKeys::default(),
            output: PathBuf::new(),
        }
    }
}

impl Job {
    /// Loads a job by its shipped name ([`Job::shipped_names`]) or from a file. `overrides` are dotted keys
    /// and the texts of their values, applied in order.
    ///
    /// # Errors
    /// An unreadable file, an unknown key (with the nearest known one), or a value that its key does not
    /// accept.
    pub fn load(name_or_path: &str, overrides: &[(String, String)]) -> Result<Job, JobError> {
        match Job::shipped(name_or_path) {
            Some(text) => Job::from_yaml(name_or_path, text, overrides),
            None => {
                let path = Path::new(name_or_path);
                let io = |source: std::io::Error| match source.kind() {
                    std::io::ErrorKind::NotFound if !name_or_path.contains(['/', '.']) => {
                        JobError::not_found(name_or_path)
                    }
                    std::io::ErrorKind::InvalidData => JobError::Yaml {
                        job: name_or_path.to_owned(),
                        problem: format!(
                            "{source}; a job is YAML. To train a checkpoint: qat default --opts model {name_or_path} ..."
                        ),
                    },
                    std::io::ErrorKind::InvalidInput if path.is_dir() => JobError::Yaml {
                        job: name_or_path.to_owned(),
                        problem: format!(
                            "is a folder; a job is a YAML file. To train the model in it: qat default --opts float \
                             {name_or_path} ..."
                        ),
                    },
                    _ => JobError::Io { path: path.to_owned(), source },
                };
                Job::from_yaml(name_or_path, &text_file::read(path, MAX_WRITTEN).map_err(io)?, overrides)
            }
        }
    }

    /// Parses a job from its text; errors name `origin`, the file or name.
    ///
    /// # Errors
    /// The errors of [`Job::load`].
    pub fn from_yaml(origin: &str, text: &str, overrides: &[(String, String)]) -> Result<Job, JobError> {
        let schema = schema();
        let mut tree = Tree::parse(origin, &schema, text)?;
        for (key, value) in overrides {
            tree.set(key, value)?;
        }
        let mut job: Job = tree.into_job()?;
        if job.epochs.is_none() && job.steps.is_none() {
            job.epochs = Some(DEFAULT_EPOCHS);
        }
        job.check(origin)?;
        Ok(job)
    }

    /// The text of a shipped job with its comments; `None` for other names.
    pub fn shipped(name: &str) -> Option<&'static str> {
        swinq_configs::find(swinq_configs::QAT, name)
    }

    /// Names of the shipped jobs.
    pub fn shipped_names() -> impl Iterator<Item = &'static str> {
        swinq_configs::QAT.iter().map(|(name, _)| *name)
    }

    /// The length of the run.
    pub fn length(&self) -> Length {
        match self.steps {
            Some(iterations) => Length::Iterations(iterations),
            None => Length::Epochs(self.epochs.unwrap_or(DEFAULT_EPOCHS)),
        }
    }

    /// The length of the run over `images` training images, on one process.
    pub fn schedule_length(&self, images: usize) -> ScheduleLength {
        self.schedule_length_on(1, images)
    }

    /// The length of the run over `images` training images on several processes, each of which computes
    /// `accumulate` batches of an iteration.
    pub fn schedule_length_on(&self, processes: usize, images: usize) -> ScheduleLength {
        ScheduleLength::new(self.length(), images, self.batch_size * self.accumulate * processes)
    }

    /// The teacher's checkpoint, if the loss needs a teacher.
    pub fn teacher_path(&self) -> Option<&Path> {
        let path = self.teacher.as_deref().or(self.float.as_deref());
        path.filter(|_| self.loss.needs_teacher())
    }

    /// `opts` in the form that [`swinq_model::load_config`] takes.
    pub fn config_overrides(&self) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        self.opts.iter().map(|(key, value)| (key.clone(), text(value))).collect()
    }

    /// Converts `augment` to an `A`, and writes all its effective values back into the job.
    ///
    /// # Errors
    /// [`JobError::Key`] for a key or value that `A` does not accept.
    pub fn augmentation<A: DeserializeOwned + Serialize>(&mut self) -> Result<A, JobError> {
        let augment: A = tree::from_value(&self.name, "augment.", self.augment.clone())?;
        let effective = serde_json::to_value(&augment);
        self.augment = effective.map_err(|e| JobError::key(&self.name, "augment", e.to_string()))?;
        Ok(augment)
    }
}

/// Prints every key with its effective value, in the file's order; the output is a job file.
impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = serde_saphyr::ser_options! { yaml_12: true, no_lang_directive: true };
        let text = serde_saphyr::to_string_with_options(self, options).map_err(|_| fmt::Error)?;
        f.write_str(&text)
    }
}

/// A job with every key set, as JSON. It defines the known keys and the type of each.
fn schema() -> Value {
    let text = || "text".to_owned();
    let job = Job {
        model: Some(PathBuf::from(text())),
        float: Some(PathBuf::from(text())),
        cfg: Some(text()),
        prefix: Some(text()),
        weights: Some(text()),
        transform: Some(text()),
        orientation: Some(text()),
        channels: Some(text()),
        teacher: Some(PathBuf::from(text())),
        data: DataKeys {
            val_path: Some(PathBuf::from(text())),
            limit: Some(1),
            val_limit: Some(1),
            ..DataKeys::default()
        },
        epochs: Some(1.0),
        steps: Some(1),
        loss: LossKeys {
            outputs: 1.0,
            output_weights: BTreeMap::from([(text(), 1.0)]),
            ..LossKeys::default()
        },
        mixing: MixingKeys { mixup: 1.0, ..MixingKeys::default() },
        drop_path: Some(0.0),
        validate: ValidateKeys { limit: Some(1), size: text(), ..ValidateKeys::default() },
        ..Job::default()
    };
    serde_json::to_value(job).expect("a job is plain data")
}
