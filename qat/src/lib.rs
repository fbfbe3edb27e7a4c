//! Quantization-aware training: from a calibrated checkpoint to one as good as the float model.

pub mod job;
pub mod log;
pub mod schedule;
