//! Options of an engine on the CPU.

use swinq_kernels::Cpu;

use crate::error::RuntimeError;
use crate::memory::machine_memory;

/// Options of an engine on the CPU.
#[derive(Clone, Copy, Debug)]
pub struct CpuOptions {
    /// Threads, at most [`MAX_THREADS`](crate::MAX_THREADS); 0 means one per core.
    pub threads: usize,
    /// Threads that work on one image, at most `threads`; 0 means as many as make it faster.
    pub image_threads: usize,
    /// The most images that one thread runs at a time, in `1..=`[`MAX_BATCH`](crate::MAX_BATCH). The engine's
    /// memory grows with this number.
    pub max_batch: usize,
    /// The most bytes of memory for the tensors of images of one size; 0 is a quarter of the machine's
    /// memory, or of its control group's. Images run on as many threads at the same time as it permits, on
    /// one at least. Memory is kept, so that images of several sizes can take more.
    pub max_memory: usize,
    /// The most pixels, height times width, of an image; 0 stands for as many as half of the free memory
    /// holds. Images of the network's own size, and smaller ones, are always accepted.
    pub max_pixels: usize,
    /// Instruction set, as the token that proves that the processor has it.
    pub cpu: Cpu,
}

impl CpuOptions {
    /// `max_memory`, or the default that 0 stands for.
    pub(super) fn most_memory(&self) -> usize {
        match self.max_memory {
            0 => machine_memory().map_or(usize::MAX, |bytes| bytes / 4),
            bytes => bytes,
        }
    }

    /// All cores, two images at a time on each thread, and the fastest instruction set (or the one that
    /// `SWINQ_ISA` names).
    ///
    /// # Errors
    /// `SWINQ_ISA` names an instruction set that is unknown or not available.
    pub fn detect() -> Result<CpuOptions, RuntimeError> {
        Ok(CpuOptions {
            threads: 0,
            image_threads: 0,
            max_batch: 2,
            max_memory: 0,
            max_pixels: 0,
            cpu: Cpu::detect()?,
        })
    }
}
