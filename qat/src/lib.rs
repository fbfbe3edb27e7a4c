//! Quantization-aware training: from a calibrated checkpoint to one as good as the float model.
//!
//! [`Job`] says what is trained and how; [`Trainer`] makes the steps: forward through the network's one description
//! ([`swinq_float`]) with [`sites::TrainSites`] at its sites, backward over its tape, AdamW. [`run()`] is a whole
//! training with checkpoints, records and validation. Images and the engine that validates are the caller's.

pub mod adamw;
mod audit;
mod drop_path;
mod error;
pub mod export;
pub mod init;
pub mod job;
pub mod log;
pub mod loss;
pub mod run;
pub mod scales;
pub mod schedule;
pub mod sites;
pub mod snapshot;
pub mod student;
pub mod trainer;

pub use error::QatError;
pub use job::Job;
pub use run::{Hooks, Outcome, Validation, run};
pub use trainer::{Start, StepReport, Trainer};
