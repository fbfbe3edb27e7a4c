//! The JSON of `eval` and `bench`, schema version 1. What was not measured is absent, never zero.

mod check;
mod decibel;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};
use swinq_model::atomic::write_atomic;
use swinq_model::{Kind, Transform};

use crate::accuracy::{Accuracy, percent};
use crate::environment::Environment;
use crate::error::EvalError;
use crate::fidelity::Fidelity;
use crate::interval::Interval;

/// Version of the layout that this crate reads and writes.
pub const SCHEMA: u32 = 1;

/// Everything one run of `eval` or `bench` found. The first model is the baseline of the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// Layout version, [`SCHEMA`].
    pub schema: u32,
    /// Models in the order given.
    pub models: Vec<ModelResult>,
    /// Where it was measured.
    pub environment: Environment,
    /// What it was measured on; absent for random inputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<DataInfo>,
    /// Remarks for the reader, such as why a figure is missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// In what arithmetic a model ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Everything in 32-bit float.
    Fp32,
    /// Products in 16-bit float.
    Fp16,
    /// Products in INT8 where the recipe says so.
    Int8,
    /// Float arithmetic on quantized and dequantized tensors.
    Simulated,
}

impl std::fmt::Display for Precision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Precision::Fp32 => "fp32",
            Precision::Fp16 => "fp16",
            Precision::Int8 => "int8",
            Precision::Simulated => "simulated",
        })
    }
}

/// Latency of one batch size in milliseconds. Percentiles as [`Latency::percentile`](crate::Latency::percentile).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Median.
    pub median: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Shortest run.
    pub min: f64,
    /// Longest run.
    pub max: f64,
    /// Mean.
    pub mean: f64,
    /// Runs measured.
    pub runs: usize,
}

/// What one site of a quantized model is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SiteResult {
    /// Name of the site, such as `layers.0.blocks.0.mlp.fc1.input`.
    pub site: String,
    /// Whether it is quantized.
    pub enabled: bool,
    /// Its integer codes, if it is.
    pub kind: Kind,
    /// Its scale; absent where it has none or one per channel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<f32>,
    /// Signal to quantization noise at the site in dB.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "decibel")]
    pub sqnr_db: Option<f64>,
    /// Why it is not quantized, such as the rule that says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What was found of one model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelResult {
    /// Name shown to people, usually the file.
    pub name: String,
    /// Arithmetic.
    pub precision: Precision,
    /// What ran it: `cpu`, `cuda`, or another name.
    pub backend: String,
    /// Name of its recipe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipe: Option<String>,
    /// SHA-256 of its file, hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Images evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images: Option<usize>,
    /// Images whose label has the highest score.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top1_correct: Option<usize>,
    /// Images whose label is among the five highest scores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top5_correct: Option<usize>,
    /// Top-1 minus the baseline's, with a paired 95 % interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top1_difference: Option<Interval>,
    /// Fraction of the images with the baseline's top-1 class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agreement: Option<f64>,
    /// Signal to quantization noise at the logits in dB; the text `inf` where they equal the baseline's.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "decibel")]
    pub sqnr_db: Option<f64>,
    /// Cosine between the logits and the baseline's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cosine: Option<f64>,
    /// Latency by batch size.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub latency_ms: BTreeMap<usize, Stats>,
    /// Time on the GPU alone by batch size: no copies, no launch from the host.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub compute_ms: BTreeMap<usize, Stats>,
    /// Images per second by batch size.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub throughput_ips: BTreeMap<usize, f64>,
    /// Largest memory of the process (CPU) or the device (GPU) in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
    /// Size of the model's file in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Fraction of the multiply-accumulates that run in INT8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub int8_share: Option<f64>,
    /// Its sites in forward order; empty for a float model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sites: Vec<SiteResult>,
}

/// What the models were evaluated on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DataInfo {
    /// The data set, as the user named it.
    pub path: String,
    /// `train` or `val`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<String>,
    /// Images in the data set's full list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<usize>,
    /// Images asked for, drawn by `seed`; absent where all were used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Seed of the draw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// SHA-256 of the list of images used, hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Corrupt images passed over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<usize>,
    /// Preprocessing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transform: Option<Transform>,
}

impl ModelResult {
    /// A model of which nothing is measured yet.
    pub fn new(name: impl Into<String>, precision: Precision, backend: impl Into<String>) -> ModelResult {
        ModelResult {
            name: name.into(),
            precision,
            backend: backend.into(),
            recipe: None,
            sha256: None,
            images: None,
            top1_correct: None,
            top5_correct: None,
            top1_difference: None,
            agreement: None,
            sqnr_db: None,
            cosine: None,
            latency_ms: BTreeMap::new(),
            compute_ms: BTreeMap::new(),
            throughput_ips: BTreeMap::new(),
            peak_memory_bytes: None,
            size_bytes: None,
            int8_share: None,
            sites: Vec::new(),
        }
    }

    /// Enters counts of correct images.
    pub fn set_accuracy(&mut self, accuracy: &Accuracy) {
        self.images = Some(accuracy.images);
        self.top1_correct = Some(accuracy.top1_correct);
        self.top5_correct = Some(accuracy.top5_correct);
    }

    /// Enters the closeness to the baseline.
    pub fn set_fidelity(&mut self, fidelity: &Fidelity) {
        self.agreement = Some(fidelity.agreement);
        self.sqnr_db = Some(fidelity.sqnr_db);
        self.cosine = Some(fidelity.cosine);
    }

    /// Enters latency and throughput of one batch size.
    pub fn set_latency(&mut self, batch: usize, latency: &crate::Latency) {
        self.latency_ms.insert(batch, latency.stats());
        self.throughput_ips.insert(batch, latency.images_per_second(batch));
    }

    /// Enters the time on the GPU alone of one batch size.
    pub fn set_compute(&mut self, batch: usize, compute: &crate::Latency) {
        self.compute_ms.insert(batch, compute.stats());
    }

    /// Top-1 in percent, where measured.
    pub fn top1_percent(&self) -> Option<f64> {
        Some(percent(self.top1_correct?, self.images?))
    }

    /// Top-5 in percent, where measured.
    pub fn top5_percent(&self) -> Option<f64> {
        Some(percent(self.top5_correct?, self.images?))
    }

    /// Name, precision and backend, as shown to people: `swin_t.safetensors (int8, cpu)`.
    pub fn label(&self) -> String {
        format!("{} ({}, {})", self.name, self.precision, self.backend)
    }
}

impl Results {
    /// No models yet, schema [`SCHEMA`].
    pub fn new(environment: Environment) -> Results {
        Results { schema: SCHEMA, models: Vec::new(), environment, data: None, notes: Vec::new() }
    }

    /// Every batch size that has a latency in some model, ascending.
    pub(crate) fn batch_sizes(&self) -> Vec<usize> {
        let all: std::collections::BTreeSet<usize> =
            self.models.iter().flat_map(|model| model.latency_ms.keys().copied()).collect();
        all.into_iter().collect()
    }
}

/// Reads the JSON of `eval` or `bench`. Unknown keys are passed over.
///
/// # Errors
/// [`EvalError::Io`], [`EvalError::File`] for text that is no such JSON, [`EvalError::Results`] as
/// [`Results::check`].
pub fn read_results(path: &Path) -> Result<Results, EvalError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| EvalError::Io { path: path.to_owned(), source })?;
    let results: Results = serde_json::from_str(&text).map_err(|error| EvalError::File {
        path: path.to_owned(),
        problem: format!("{error}; expected what `swinq eval --json` or `swinq bench --json` writes"),
    })?;
    results.check()?;
    Ok(results)
}

/// Writes `results` as indented JSON, whole or not at all.
///
/// # Errors
/// [`EvalError::Results`] as [`Results::check`], or the reason why `path` cannot be written.
pub fn write_results(path: &Path, results: &Results) -> Result<(), EvalError> {
    results.check()?;
    write_atomic(path, |out: &mut dyn Write| {
        serde_json::to_writer_pretty(&mut *out, results)?;
        writeln!(out)
    })?;
    Ok(())
}
