//! Options of an engine on the CPU.

use swinq_kernels::Cpu;

use crate::error::RuntimeError;

/// Options of an engine on the CPU.
#[derive(Clone, Copy, Debug)]
pub struct CpuOptions {
    /// Threads, at most [`MAX_THREADS`](crate::MAX_THREADS); 0 means one per core.
    pub threads: usize,
    /// The most images that run at a time, in `1..=`[`MAX_BATCH`](crate::MAX_BATCH). Larger batches are
    /// split. The engine's memory grows with this number.
    pub max_batch: usize,
    /// The most pixels, height times width, of an image; 0 stands for as many as half of the free memory holds. Images of the
    /// network's own size, and smaller ones, are always accepted.
    pub max_pixels: usize,
    /// Instruction set, as the token that proves that the processor has it.
    pub cpu: Cpu,
}

impl CpuOptions {
    /// All cores, eight images at a time, and the fastest instruction set (or the one that `SWINQ_ISA`
    /// names).
    ///
    /// # Errors
    /// `SWINQ_ISA` names an instruction set that is unknown or not available.
    pub fn detect() -> Result<CpuOptions, RuntimeError> {
        Ok(CpuOptions { threads: 0, max_batch: 8, max_pixels: 0, cpu: Cpu::detect()? })
    }
}
