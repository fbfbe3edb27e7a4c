//! The swinq engine: runs a quantized (or float) Swin on a CPU or on an NVIDIA GPU.
//!
//! Loading resolves the model and its recipe to a device-independent [`Plan`]. A backend lowers the plan to
//! its own launches and packs the weights once ([`PackedModel`]); an [`Engine`] adds threads and an arena, in
//! which every buffer has a fixed place. An inference then allocates nothing. This crate depends on neither
//! calibration nor training: the quantized model is its only input.

mod arena;
mod backend;
mod cpu;
pub mod cuda;
mod engine;
mod error;
mod launches;
mod memory;
mod packed;
mod profile;
mod trace;

pub use backend::{Backend, MAX_BATCH, MAX_THREADS, usable_gpu};
pub use cpu::{CpuOptions, Position, Start, Variant, VariantRunner};
pub use cuda::CudaOptions;
pub use engine::{
    DeviceImages, DeviceOutput, Engine, LOGITS, MOST_OUTPUTS, OutputLayout, OutputMut, OutputShape,
    OutputValues,
};
pub use error::RuntimeError;
pub use launches::{LaunchSteps, Launches};
pub use packed::PackedModel;
pub use profile::LaunchProfile;
pub use swinq_numerics::{ImageLayout, Images, Pixels};
pub use swinq_plan::{Outline, Output, OutputKind, Plan};
pub use trace::{Traced, TracedValues};
