//! Quantization-aware training: it recovers the accuracy that a calibrated checkpoint lost to quantization.
//!
//! A [`Job`] defines a training. [`run()`] is a whole training with checkpoints, records and validation. One
//! iteration is [`Trainer::iterate`]: the float forward ([`swinq_float`]) with [`sites::TrainSites`] at its
//! sites, the backward pass over its tape, and AdamW. The caller provides the images and the engine for
//! validation.

pub mod adamw;
mod audit;
#[cfg(feature = "cuda")]
mod device_step;
mod drop_path;
mod error;
pub mod export;
mod flat;
pub mod init;
pub mod job;
pub mod log;
pub mod loss;
pub mod mixing;
mod progress;
pub mod ranks;
mod recompute;
mod record;
pub mod run;
pub mod scales;
pub mod schedule;
pub mod sites;
pub mod snapshot;
pub mod student;
pub mod trainer;

pub use error::QatError;
pub use job::Job;
pub use record::record;
pub use run::{Begin, Hooks, Outcome, Validation, run};
pub use trainer::{IterationReport, Start, Trainer};
