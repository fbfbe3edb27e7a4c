//! The swinq engine: runs a quantized (or float) Swin classifier.
//!
//! Loading builds a device-independent [`Plan`] of logical ops from the model and its recipe; a backend lowers it to
//! its own launches, packs the weights once and places every buffer in an arena ahead of time. An inference then
//! allocates nothing. Knows neither calibration nor training: the quantized checkpoint is the only way in.

mod arena;
mod cpu;
pub mod cuda;
mod engine;
mod error;
mod expand;
pub mod plan;
mod trace;

pub use cuda::{CudaEngine, CudaOptions};
pub use engine::{Engine, EngineOptions, LaunchProfile};
pub use error::RuntimeError;
pub use plan::Plan;
pub use trace::{Traced, TracedValues};
