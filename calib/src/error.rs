//! Errors of calibration and quantization.

use swinq_float::FloatError;
use swinq_model::{BoxError, Calibrator, Linear, ModelError, Site};

/// An error of this crate. The message names the site, tensor or batch at fault, and the next step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibError {
    /// A calibrator was given a histogram without values.
    #[error("no value was observed, so there is no range to choose; calibrate on at least one image")]
    Empty,
    /// A value to count is NaN or infinite.
    #[error("value {value} at flat index {index}; only finite values can be observed")]
    NotFinite {
        /// The value.
        value: f32,
        /// Its position in the slice.
        index: usize,
    },
    /// The calibrator chose an unusable range.
    #[error(
        "site {site}: calibrator {calibrator} chose amax {amax} (the largest magnitude seen is {max}, and {zeros} of \
         {count} values are zero), but a range must be positive and so large that 127 / amax is finite; use another \
         calibrator for this site (`max` if most values are zero), calibrate on images that give it larger values, or \
         disable it with a rule"
    )]
    Range {
        /// The site.
        site: Site,
        /// The calibrator.
        calibrator: Calibrator,
        /// The range it chose.
        amax: f32,
        /// The largest magnitude seen.
        max: f32,
        /// Number of values that are exactly zero.
        zeros: u64,
        /// Number of values seen.
        count: u64,
    },
    /// No value passed through a site that needs a range.
    #[error(
        "site {site} is enabled but the forward never passed a value through it; disable it with a rule, or give it a \
         fixed `amax`"
    )]
    Unseen {
        /// The site.
        site: Site,
    },
    /// A range was given for a site that the model does not have.
    #[error(
        "a range was given for site {site}, which {config} does not have; take the ranges from a file of the same \
         architecture"
    )]
    UnknownSite {
        /// The site.
        site: Site,
        /// Name of the model's configuration.
        config: String,
    },
    /// A weight cannot be quantized with the settings of its site.
    #[error("weight of shape {shape:?}, output channel {channel}: {problem}")]
    Weight {
        /// Shape of the weight.
        shape: Vec<usize>,
        /// Output channel at fault; 0 if the whole tensor has one scale.
        channel: usize,
        /// The problem, and the next step.
        problem: String,
    },
    /// The weight of a site cannot be quantized.
    #[error("site {site}: {source}")]
    WeightSite {
        /// The site.
        site: Site,
        /// The problem of its weight.
        source: Box<CalibError>,
    },
    /// The source has no image.
    #[error("the calibration set has no image; give a larger --batches or another --data-path")]
    NoImages,
    /// The source failed to deliver a batch.
    #[error("calibration batch {index}: {source}")]
    Batch {
        /// Index of the batch.
        index: usize,
        /// The source's error.
        source: BoxError,
    },
    /// The progress callback stopped the calibration.
    #[error("interrupted after {images} images; nothing was written")]
    Interrupted {
        /// Number of images observed before.
        images: usize,
    },
    /// The progress callback stopped the refinement or the reconstruction.
    #[error("interrupted; nothing was written")]
    Stopped,
    /// An error of the model or of its recipe.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The float forward failed.
    #[error(transparent)]
    Float(#[from] FloatError),
}

impl CalibError {
    /// This error of the weight of `layer`, with its site.
    pub fn of_weight(self, layer: Linear) -> CalibError {
        CalibError::WeightSite { site: Site::Weight(layer), source: Box::new(self) }
    }
}

impl From<candle_core::Error> for CalibError {
    fn from(error: candle_core::Error) -> CalibError {
        CalibError::Float(error.into())
    }
}
