//! Figures about single classes, outputs and images.

use serde::{Deserialize, Serialize};

use super::decibel;
use crate::distortion::Distortion;

/// The images of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassResult {
    /// Class index.
    pub class: usize,
    /// Number of images of the class.
    pub images: usize,
    /// Number of them that the model classifies correctly.
    pub top1_correct: usize,
    /// Number of them that the model classifies correctly and the baseline does not; 0 for the baseline
    /// itself.
    #[serde(default)]
    pub gained: usize,
    /// Number of them that the baseline classifies correctly and the model does not; 0 for the baseline
    /// itself.
    #[serde(default)]
    pub lost: usize,
}

/// Images whose top-1 class differs from the baseline's, by which of the two is right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flips {
    /// The baseline was wrong, the model is right.
    pub gained: usize,
    /// The baseline was right, the model is wrong.
    pub lost: usize,
    /// Both are wrong, with different classes. Without labels it counts all images whose class differs.
    pub other: usize,
}

impl Flips {
    /// Number of images whose class differs.
    pub fn total(self) -> usize {
        self.gained + self.lost + self.other
    }
}

/// A class and its softmax probability.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Guess {
    /// Class index.
    pub class: usize,
    /// Probability, 0 to 1.
    pub probability: f64,
}

/// An image on which the model and the baseline disagree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Disagreement {
    /// Position of the image in the data set's full list.
    pub id: usize,
    /// Name of the image in the data set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Its class, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<usize>,
    /// The baseline's top-1 class.
    pub baseline: Guess,
    /// The model's top-1 class.
    pub own: Guess,
    /// Kullback-Leibler divergence of the model's probabilities from the baseline's, in nats.
    pub kl: f64,
}

/// How far an output of a backbone is from the baseline's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OutputResult {
    /// Name of the output, such as `stage4`.
    pub name: String,
    /// Signal-to-quantization-noise ratio in dB; the text `inf` if the maps are equal.
    #[serde(with = "decibel::plain")]
    pub sqnr_db: f64,
    /// Cosine similarity.
    pub cosine: f64,
    /// The norm of the error relative to the norm of the baseline's output; absent if the latter is 0 and the
    /// former is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relative_error: Option<f64>,
}

/// How far the feature maps of one image are from the baseline's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImageResult {
    /// Position of the image in the data set's full list.
    pub id: usize,
    /// Name of the image in the data set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Height and width before the network, in pixels.
    pub size: [usize; 2],
    /// Every output.
    pub outputs: Vec<OutputResult>,
}

impl OutputResult {
    /// The figures of the output `name` with this distance from the baseline's.
    pub(crate) fn new(name: &str, error: &Distortion) -> OutputResult {
        OutputResult {
            name: name.to_owned(),
            sqnr_db: error.sqnr_db(),
            cosine: error.cosine(),
            relative_error: error.relative(),
        }
    }
}
