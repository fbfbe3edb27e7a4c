//! What can go wrong between a float model and a quantized one.

use swinq_float::FloatError;
use swinq_model::{BoxError, Calibrator, ModelError, Site};

/// An error of this crate. Every message names the site, tensor or batch at fault and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibError {
    /// A range was asked of a histogram that holds no value.
    #[error("no value was observed, so there is no range to choose; calibrate on at least one image")]
    Empty,
    /// A value to be counted is NaN or infinite.
    #[error("value {value} at flat index {index}; only finite values can be observed")]
    NotFinite {
        /// The value.
        value: f32,
        /// Its position in the slice given.
        index: usize,
    },
    /// The calibrator chose a range that cannot be one.
    #[error(
        "site {site}: calibrator {calibrator} chose amax {amax} (the largest magnitude seen is {max}, and {zeros} of \
         {count} values are zero), but a range must be positive and so large that 127 / amax is finite; use another \
         calibrator for this site (`max` where most values are zero), calibrate on images that reach it, or disable \
         it with a rule"
    )]
    Range {
        /// The site.
        site: Site,
        /// What chose the range.
        calibrator: Calibrator,
        /// The range it chose.
        amax: f32,
        /// The largest magnitude seen.
        max: f32,
        /// Values that are exactly zero.
        zeros: u64,
        /// Values seen.
        count: u64,
    },
    /// The calibration never reached a site that needs a range.
    #[error(
        "site {site} is enabled but the forward never passed a value through it; disable it with a rule, or give it a \
         fixed `amax`"
    )]
    Unseen {
        /// The site.
        site: Site,
    },
    /// Ranges were given for a site that the model does not have.
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
    /// A weight cannot be quantized as its site says.
    #[error("weight of shape {shape:?}, output channel {channel}: {problem}")]
    Weight {
        /// Shape of the weight.
        shape: Vec<usize>,
        /// Output channel at fault (0 where there is one scale in all).
        channel: usize,
        /// What is wrong with it and what to do.
        problem: String,
    },
    /// The weight of a site cannot be quantized.
    #[error("site {site}: {source}")]
    WeightSite {
        /// The site.
        site: Site,
        /// What is wrong with its weight.
        source: Box<CalibError>,
    },
    /// There is no image to calibrate on.
    #[error("the calibration set has no image; give a larger --batches or another --data-path")]
    NoImages,
    /// The data set failed.
    #[error("calibration batch {index}: {source}")]
    Batch {
        /// Index of the batch.
        index: usize,
        /// What the data set met.
        source: BoxError,
    },
    /// The progress callback asked to stop.
    #[error("interrupted after {images} images; nothing was written")]
    Interrupted {
        /// Images observed until then.
        images: usize,
    },
    /// The model or its recipe is at fault.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The float forward failed.
    #[error(transparent)]
    Float(#[from] FloatError),
}
