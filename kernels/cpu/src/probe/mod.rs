//! The processor's peak rate: how many multiply-add instructions it executes when they only access registers.
//! Benchmarks report a kernel's rate as a share of it.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use std::time::Instant;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

use crate::cpu::Cpu;
use crate::linear::kernel::f32_kernel;
use crate::pool::Pool;

/// Iterations of a thread's loop: about 100 microseconds, so that starting the threads does not distort the
/// measurement.
const ITERATIONS: usize = 24_000;

/// A loop of multiply-add instructions, from and to registers.
#[derive(Clone, Copy)]
pub(crate) struct Peak {
    /// Multiply-accumulates of one iteration.
    macs: usize,
    /// Runs [`ITERATIONS`] iterations. Calling it is sound if the processor can run the kernel that names
    /// this loop.
    run: unsafe fn(),
}

/// INT8 multiply-accumulates per second that all threads of `pool` reach together with the multiply-add
/// instruction of `cpu`'s kernel, in one measurement of 0.1 ms or more. `None` if the kernel has no such
/// loop.
pub fn int8_peak(cpu: Cpu, pool: &mut Pool) -> Option<f64> {
    cpu.kernel().peak.map(|peak| rate(pool, peak))
}

/// As [`int8_peak`], for f32.
pub fn f32_peak(cpu: Cpu, pool: &mut Pool) -> Option<f64> {
    f32_kernel(cpu.isa()).peak.map(|peak| rate(pool, peak))
}

/// Multiply-accumulates per second when every thread runs the loop once.
fn rate(pool: &mut Pool, peak: Peak) -> f64 {
    let macs = (ITERATIONS * peak.macs * pool.threads()) as f64;
    let start = Instant::now();
    // SAFETY: a `Cpu` exists only if the processor can run its kernels, whose descriptors name the loop.
    pool.run(pool.threads(), &|_, _| unsafe { (peak.run)() });
    macs / start.elapsed().as_secs_f64()
}
