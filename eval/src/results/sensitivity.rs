//! The JSON of `sensitivity`: the effect of each site and layer on a model's logits, and the statistics of
//! the ranges. Schema version 1.

use std::path::Path;

use serde::{Deserialize, Serialize};
use swinq_model::Recipe;

use super::{DataInfo, OutputResult, decibel, file};
use crate::distortion::Distortion;
use crate::environment::Environment;
use crate::error::EvalError;
use crate::text::counted;

/// Version of the JSON of `sensitivity` that this crate reads and writes.
pub const SENSITIVITY_SCHEMA: u32 = 1;

/// The results of a run of `sensitivity`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sensitivity {
    /// Schema version, [`SENSITIVITY_SCHEMA`].
    pub schema: u32,
    /// The float model.
    pub model: Subject,
    /// The recipe whose sites were measured.
    pub recipe: Recipe,
    /// Number of images.
    pub images: usize,
    /// Number of images that the float model classifies correctly; absent without labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub float_correct: Option<usize>,
    /// The model with the whole recipe.
    pub whole: Effect,
    /// Number of images on which single sites were measured.
    pub site_images: usize,
    /// The model with the whole recipe on these images.
    pub site_whole: Effect,
    /// Linear layers and attention products that run in INT8, in forward order.
    pub layers: Vec<Element>,
    /// Sites that are quantized, in forward order.
    pub sites: Vec<Element>,
    /// Error of the residual stream, with the whole recipe, after each block, patch merging and the patch
    /// embedding, in forward order.
    pub blocks: Vec<BlockError>,
    /// Ranges of the quantized sites, in forward order.
    pub ranges: Vec<RangeStatistics>,
    /// The machine and software of the run.
    pub environment: Environment,
    /// The images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<DataInfo>,
}

/// The model that was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Subject {
    /// Name to display, usually the file name.
    pub name: String,
    /// Name of the architecture.
    pub architecture: String,
    /// SHA-256 of the checkpoint, hexadecimal; empty for a model in memory.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sha256: String,
}

/// Distance of a model's outputs from those of the float model on the same images.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Effect {
    /// Signal-to-quantization-noise ratio over all logits in dB; the text `inf` if they are equal. Of a
    /// backbone, the lowest of its outputs that count.
    #[serde(with = "decibel::plain")]
    pub sqnr_db: f64,
    /// Cosine similarity of the two vectors of all logits. Of a backbone, the lowest of its outputs that
    /// count.
    pub cosine: f64,
    /// Mean over the images of the Kullback-Leibler divergence from the float model's class probabilities to
    /// this model's, in nats; absent for a backbone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kl: Option<f64>,
    /// Number of images whose top-1 class is not the float model's; absent for a backbone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top1_changes: Option<usize>,
    /// Number of images that are classified correctly; absent without labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top1_correct: Option<usize>,
    /// The outputs of a backbone that count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<OutputResult>,
}

/// What an [`Element`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ElementKind {
    /// One site.
    Site,
    /// A linear layer: its sites together.
    Linear,
    /// A product of attention: the sites of its operands together.
    AttentionProduct,
    /// A block: all of its sites together.
    Block,
}

/// A site, a linear layer or an attention product, and the effect of its quantization.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Element {
    /// Name: of the site, of the layer, of the block, or `layers.S.blocks.B.attn.qk` and
    /// `layers.S.blocks.B.attn.pv` for the products of attention.
    pub name: String,
    /// What it is.
    pub kind: ElementKind,
    /// Names of its quantized sites.
    pub sites: Vec<String>,
    /// Multiply-accumulates of an image; 0 for a site.
    pub macs: u64,
    /// The float model in which only this element is quantized.
    pub alone: Effect,
    /// The model with the whole recipe in which only this element is left in float.
    pub without: Effect,
    /// Half of the 95 % interval of the SQNR of `alone` in dB, over images; absent for fewer than two images
    /// and for equal outputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alone_spread_db: Option<f64>,
    /// The same of the gain, the SQNR of `without` above that of the whole recipe on the same images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain_spread_db: Option<f64>,
}

impl Element {
    /// The SQNR of `without` above that of `whole`, the whole recipe on the same images, in dB.
    pub fn gain_db(&self, whole: &Effect) -> f64 {
        let gain = self.without.sqnr_db - whole.sqnr_db;
        // Two infinite ratios are equal.
        if gain.is_nan() { 0.0 } else { gain }
    }

    /// Whether the images separate the gain over `whole` from none: its 95 % interval excludes 0. `None`
    /// without an interval.
    pub fn separates(&self, whole: &Effect) -> Option<bool> {
        self.gain_spread_db.map(|spread| self.gain_db(whole).abs() > spread)
    }

    /// The gain over `whole` in words, as in `+0.29 ± 0.35 ?`; the mark says that it does not separate from
    /// none.
    pub fn gain_in_words(&self, whole: &Effect) -> String {
        let spread = self.gain_spread_db.map_or(String::new(), |spread| format!(" ± {spread:.2}"));
        let mark = if self.separates(whole) == Some(false) { " ?" } else { "" };
        format!("{:+.2}{spread}{mark}", self.gain_db(whole))
    }
}

/// Effects on fewer images are rough.
const ENOUGH: usize = 64;

/// The warning that effects were measured on few images; `None` for enough.
pub fn few_images(images: usize) -> Option<String> {
    (images < ENOUGH).then(|| {
        format!(
            "Effects on {} are rough: a few images decide them, and others may rank the parts differently. {ENOUGH} or more are better.",
            counted(images, "image")
        )
    })
}

/// Error of the residual stream at one place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockError {
    /// The place: `patch_embed`, `layers.S.blocks.B` or `layers.S.downsample`.
    pub name: String,
    /// Signal-to-quantization-noise ratio of the residual in dB; the text `inf` if the residuals are equal.
    #[serde(with = "decibel::plain")]
    pub sqnr_db: f64,
    /// Cosine similarity of the two residuals.
    pub cosine: f64,
}

impl BlockError {
    /// The error that `distortion` has accumulated at the place `name`.
    pub fn new(name: impl Into<String>, distortion: &Distortion) -> BlockError {
        BlockError { name: name.into(), sqnr_db: distortion.sqnr_db(), cosine: distortion.cosine() }
    }
}

/// A percentile of the magnitudes at a site.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Percentile {
    /// The percentage of the magnitudes that are not larger.
    pub percent: f64,
    /// The magnitude.
    pub value: f32,
}

/// The largest magnitude of each channel, over all channels: input channels of an activation, output channels
/// of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChannelSpread {
    /// Number of channels.
    pub channels: usize,
    /// The least of the channels.
    pub least: f32,
    /// The median of the channels.
    pub median: f32,
    /// The largest of the channels.
    pub largest: f32,
    /// Index of the channel with the largest.
    pub outlier: usize,
}

impl ChannelSpread {
    /// The largest channel's magnitude divided by the median's; `None` if the median is 0.
    pub fn ratio(&self) -> Option<f64> {
        (self.median > 0.0).then(|| f64::from(self.largest) / f64::from(self.median))
    }
}

/// Statistics of the magnitudes at a site, and the range that quantization keeps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RangeStatistics {
    /// Name of the site.
    pub site: String,
    /// How the range was chosen, such as `percentile 99.99`.
    pub calibrator: String,
    /// The largest magnitude seen.
    pub max: f32,
    /// The range that quantization keeps: the amax; absent for weights with a range per channel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amax: Option<f32>,
    /// Percentiles of the magnitudes, ascending.
    pub percentiles: Vec<Percentile>,
    /// Fraction of the values beyond the range.
    pub clipped: f64,
    /// Fraction of the values that are not zero and whose code is zero.
    pub zeroed: f64,
    /// The spread over channels; absent where the tensor has no channels, as attention probabilities.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<ChannelSpread>,
    /// Counts of the magnitudes in equal bins from 0 to `max`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub histogram: Vec<u64>,
}

/// `parts` in order of harm: the one whose quantization alone loses the most (the least SQNR) first.
pub fn ranking(parts: &[Element]) -> Vec<&Element> {
    let mut all: Vec<&Element> = parts.iter().collect();
    all.sort_by(|a, b| a.alone.sqnr_db.total_cmp(&b.alone.sqnr_db));
    all
}

/// Reads the JSON of `sensitivity`.
///
/// # Errors
/// [`EvalError::Io`], or [`EvalError::File`] if the text is not such JSON of version [`SENSITIVITY_SCHEMA`].
pub fn read_sensitivity(path: &Path) -> Result<Sensitivity, EvalError> {
    file::read(path, "swinq sensitivity", SENSITIVITY_SCHEMA)
}

/// Writes `results` as indented JSON. The file is replaced atomically.
///
/// # Errors
/// An error if `path` cannot be written.
pub fn write_sensitivity(path: &Path, results: &Sensitivity) -> Result<(), EvalError> {
    file::write(path, results)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(sqnr_db: f64) -> Effect {
        let (kl, top1_changes, top1_correct) = (None, None, None);
        Effect { sqnr_db, cosine: 1.0, kl, top1_changes, top1_correct, outputs: Vec::new() }
    }

    /// The gain of a part over a whole recipe with 40 dB, in words.
    fn gain(without_db: f64, gain_spread_db: Option<f64>) -> String {
        let element = Element {
            name: "layers.0.downsample.reduction".to_owned(),
            kind: ElementKind::Linear,
            sites: Vec::new(),
            macs: 0,
            alone: effect(50.0),
            without: effect(without_db),
            alone_spread_db: None,
            gain_spread_db,
        };
        element.gain_in_words(&effect(40.0))
    }

    #[test]
    fn a_gain_within_its_spread_is_marked() {
        assert_eq!(gain(43.3, Some(4.6)), "+3.30 ± 4.60 ?");
        assert_eq!(gain(43.3, Some(0.5)), "+3.30 ± 0.50");
        assert_eq!(gain(39.0, Some(0.5)), "-1.00 ± 0.50");
        assert_eq!(gain(43.3, None), "+3.30", "one image has no spread");
        assert_eq!(gain(f64::INFINITY, None), "+inf");
    }

    #[test]
    fn effects_on_few_images_are_said_to_be_rough() {
        assert!(
            few_images(8).unwrap().contains("8 images") && few_images(1).unwrap().contains("on 1 image are")
        );
        assert_eq!(few_images(64), None);
    }
}
