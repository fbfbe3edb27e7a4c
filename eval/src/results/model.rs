//! The results of one model.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use swinq_model::{Calibrator, Granularity, Int8, Kind};

use super::{
    ClassResult, Disagreement, Flips, ImageResult, Origin, OutputResult, Profile, RangeHistogram, decibel,
};
use crate::accuracy::{Accuracy, percent};
use crate::fidelity::Fidelity;
use crate::interval::Interval;
use crate::latency::Latency;

/// The arithmetic with which a model ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Everything in 32-bit float.
    Fp32,
    /// Matrix products in 16-bit float.
    Fp16,
    /// Matrix products in INT8 where the recipe enables it.
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

/// Latency of one batch size in milliseconds. Percentiles are those of
/// [`Latency::percentile`](crate::Latency::percentile).
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
    /// Number of runs.
    pub runs: usize,
    /// Limits of the 95 % confidence interval of the median, from order statistics
    /// ([`Latency::median_interval`](crate::Latency::median_interval)).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub median_interval: Option<[f64; 2]>,
}

/// The state of a site of a quantized model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SiteResult {
    /// Name of the site, such as `layers.0.blocks.0.mlp.fc1.input`.
    pub site: String,
    /// Whether it is quantized.
    pub enabled: bool,
    /// Kind of its integer codes if it is quantized.
    pub kind: Kind,
    /// Its scale; absent if it has no scale or one per channel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<f32>,
    /// Signal-to-quantization-noise ratio at the site in dB.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "decibel")]
    pub sqnr_db: Option<f64>,
    /// The reason why it is not quantized, such as the rule that disables it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Bits of its codes, if it is quantized.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bits: Option<u8>,
    /// Granularity of its scales, if it is a quantized weight; `channel` also for an activation whose
    /// channels have their own scales and zero points.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granularity: Option<Granularity>,
    /// How its range was chosen, if it is quantized and has a scale.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibrator: Option<Calibrator>,
    /// The magnitudes that calibration observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub histogram: Option<RangeHistogram>,
}

impl SiteResult {
    /// A site without figures.
    pub fn new(site: impl Into<String>, enabled: bool, kind: Kind) -> SiteResult {
        SiteResult {
            site: site.into(),
            enabled,
            kind,
            scale: None,
            sqnr_db: None,
            reason: None,
            bits: None,
            granularity: None,
            calibrator: None,
            histogram: None,
        }
    }

    /// The largest magnitude that its codes represent, if it has a scale.
    pub fn amax(&self) -> Option<f64> {
        self.scale.map(|scale| f64::from(Int8::MAX) * f64::from(scale))
    }
}

/// The times of a backbone for images of one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SizeResult {
    /// Height and width of the images in pixels.
    pub size: [usize; 2],
    /// Latency by batch size.
    pub latency_ms: BTreeMap<usize, Stats>,
    /// Time on the GPU alone by batch size.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub compute_ms: BTreeMap<usize, Stats>,
}

/// The results of one model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelResult {
    /// Name to display.
    pub name: String,
    /// Path of its file or directory, as the user gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Its architecture, such as `Swin-T`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    /// Height and width of the images that were timed, where sizes were asked for; absent for the model's own
    /// size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_size: Option<[usize; 2]>,
    /// The arithmetic with which it ran.
    pub precision: Precision,
    /// The backend that ran it: `cpu`, `cuda`, or another name.
    pub backend: String,
    /// Name of its recipe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipe: Option<String>,
    /// SHA-256 of its file, hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Number of images evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images: Option<usize>,
    /// Number of images whose label has the highest score.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top1_correct: Option<usize>,
    /// Number of images whose label is among the five highest scores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top5_correct: Option<usize>,
    /// Top-1 accuracy minus the baseline's, with a paired 95 % confidence interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top1_difference: Option<Interval>,
    /// Fraction of the images for which it has the same top-1 class as the baseline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agreement: Option<f64>,
    /// Signal-to-quantization-noise ratio of the logits in dB, relative to the baseline's; the text `inf` if
    /// they are equal. Of a backbone, the lowest of its outputs.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "decibel")]
    pub sqnr_db: Option<f64>,
    /// Cosine similarity of the logits and the baseline's. Of a backbone, the lowest of its outputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cosine: Option<f64>,
    /// The distance of each output of a backbone from the baseline's, over all images.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<OutputResult>,
    /// The images whose feature maps are farthest from the baseline's: those with the lowest SQNR at any
    /// output, worst first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub worst_images: Vec<ImageResult>,
    /// The times of a backbone by the size of the images, from the size that most images have. The other
    /// times of the model are those of the first size.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sizes: Vec<SizeResult>,
    /// Latency by batch size.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub latency_ms: BTreeMap<usize, Stats>,
    /// Time on the GPU alone by batch size, without copies and without launches from the host.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub compute_ms: BTreeMap<usize, Stats>,
    /// Images per second by batch size.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub throughput_ips: BTreeMap<usize, f64>,
    /// Images per second of batches from host memory that do not wait for each other, by batch size: on all
    /// GPUs of the model, or of callers that share its CPU engine.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub stream_ips: BTreeMap<usize, f64>,
    /// Threads of its CPU engine that work on one image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_threads: Option<usize>,
    /// Images that its CPU engine can run side by side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lanes: Option<usize>,
    /// Bytes of its parameters and scales: 1 for an INT8 code, 4 for a float.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Size of its file in bytes, if it is one file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_bytes: Option<u64>,
    /// Fraction of the multiply-accumulate operations that run in INT8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub int8_share: Option<f64>,
    /// Images whose top-1 class differs from the baseline's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flips: Option<Flips>,
    /// Correct images by class, of classes that have images.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<ClassResult>,
    /// The images on which it disagrees most with the baseline, worst first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disagreements: Vec<Disagreement>,
    /// The time of each launch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// Its origin; absent for a float model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Its sites in forward order; empty for a float model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sites: Vec<SiteResult>,
}

impl ModelResult {
    /// A model without figures.
    pub fn new(name: impl Into<String>, precision: Precision, backend: impl Into<String>) -> ModelResult {
        ModelResult {
            name: name.into(),
            path: None,
            architecture: None,
            input_size: None,
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
            outputs: Vec::new(),
            worst_images: Vec::new(),
            sizes: Vec::new(),
            latency_ms: BTreeMap::new(),
            compute_ms: BTreeMap::new(),
            throughput_ips: BTreeMap::new(),
            stream_ips: BTreeMap::new(),
            image_threads: None,
            lanes: None,
            size_bytes: None,
            file_bytes: None,
            int8_share: None,
            flips: None,
            classes: Vec::new(),
            disagreements: Vec::new(),
            profile: None,
            origin: None,
            sites: Vec::new(),
        }
    }

    /// Sets the numbers of correct images.
    pub fn set_accuracy(&mut self, accuracy: &Accuracy) {
        self.images = Some(accuracy.images);
        self.top1_correct = Some(accuracy.top1_correct);
        self.top5_correct = Some(accuracy.top5_correct);
    }

    /// Sets the figures of closeness to the baseline.
    pub fn set_fidelity(&mut self, fidelity: &Fidelity) {
        self.agreement = Some(fidelity.agreement);
        self.sqnr_db = Some(fidelity.sqnr_db);
        self.cosine = Some(fidelity.cosine);
    }

    /// Sets latency and throughput for a batch size.
    pub fn set_latency(&mut self, batch: usize, latency: &Latency) {
        self.latency_ms.insert(batch, latency.stats());
        self.throughput_ips.insert(batch, latency.images_per_second(batch));
    }

    /// Sets the time on the GPU alone for a batch size.
    pub fn set_compute(&mut self, batch: usize, compute: &Latency) {
        self.compute_ms.insert(batch, compute.stats());
    }

    /// The times for images of this height and width, if it is a backbone that was timed on them.
    pub fn at_size(&self, size: [usize; 2]) -> Option<&SizeResult> {
        self.sizes.iter().find(|of_size| of_size.size == size)
    }

    /// Top-1 accuracy in percent, if measured.
    pub fn top1_percent(&self) -> Option<f64> {
        Some(percent(self.top1_correct?, self.images?))
    }

    /// Top-5 accuracy in percent, if measured.
    pub fn top5_percent(&self) -> Option<f64> {
        Some(percent(self.top5_correct?, self.images?))
    }

    /// Name, size of the images, precision and backend for display: `swin_t.safetensors (int8, cpu)`, or
    /// `swin_t.safetensors at 320x480 (int8, cpu)`.
    pub fn label(&self) -> String {
        let size = self.input_size.map_or(String::new(), |[height, width]| format!(" at {height}x{width}"));
        format!("{}{size} ({}, {})", self.name, self.precision, self.backend)
    }
}
