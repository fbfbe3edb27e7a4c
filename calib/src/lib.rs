//! Post-training quantization: observes activations on images, chooses their ranges, and quantizes the
//! weights.
//!
//! [`calibrate`] makes a [`QuantizedModel`](swinq_model::QuantizedModel) from a float model, a recipe and a
//! source of images. Its parts can be used alone: [`Histogram`], [`amax`], [`quantize_weight`], [`Observe`]
//! and [`quantize`].

mod calibrate;
pub mod calibrator;
mod channels;
mod error;
pub mod histogram;
mod observe;
pub mod part;
mod quantize;
mod reconstruct;
mod refine;
mod refined;
pub mod rounding;
mod run;
mod task;
pub mod weight;

pub use calibrate::{CalibrateOptions, Calibrated, Phase, Progress, calibrate, choose_range};
pub use calibrator::{amax, amax_for_codes};
pub use channels::{fold_factors, set_channel_codes};
pub use error::CalibError;
pub use histogram::Histogram;
pub use observe::Observe;
pub use quantize::quantize;
pub use refine::{Refinement, Trial};
pub use refined::{LayerForm, RefinedParameters, norm_before};
pub use weight::{quantize_by_scales, quantize_weight, weight_scales};
