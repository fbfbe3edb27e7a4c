//! The processor's peak rate: how many multiply-add instructions it executes when they only access registers.
//! Benchmarks report a kernel's rate as a share of it.

#[cfg(target_arch = "x86_64")]
use std::hint::black_box;
use std::time::Instant;

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use crate::cpu::Cpu;
use crate::linear::kernel::f32_kernel;
use crate::pool::Pool;

/// Iterations of a thread's loop: about 100 microseconds, so that starting the threads does not distort the
/// measurement.
const ITERATIONS: usize = 24_000;

/// Accumulators, enough to hide the latency of the instructions.
const WIDE: usize = 24;
/// As [`WIDE`], for 16 registers.
const NARROW: usize = 12;

/// A loop of multiply-add instructions, from and to registers.
#[derive(Clone, Copy)]
pub(crate) struct Peak {
    /// Multiply-accumulates of one iteration.
    macs: usize,
    /// Runs [`ITERATIONS`] iterations. Calling it is sound if the processor can run the kernel that names
    /// this loop.
    run: unsafe fn(),
}

/// `vpdpbusd` on 512-bit registers.
#[cfg(target_arch = "x86_64")]
pub(crate) const INT8_AVX512: Peak = Peak { macs: WIDE * 64, run: int8_avx512 };

/// `vpdpbusd` on 256-bit registers.
#[cfg(target_arch = "x86_64")]
pub(crate) const INT8_AVX_VNNI: Peak = Peak { macs: NARROW * 32, run: int8_avxvnni };

/// `vpmaddwd` and a separate addition on 256-bit registers.
#[cfg(target_arch = "x86_64")]
pub(crate) const INT8_AVX2: Peak = Peak { macs: NARROW * 16, run: int8_avx2 };

/// Fused multiply-adds on 512-bit registers.
#[cfg(target_arch = "x86_64")]
pub(crate) const F32_AVX512: Peak = Peak { macs: WIDE * 16, run: f32_avx512 };

/// Fused multiply-adds on 256-bit registers.
#[cfg(target_arch = "x86_64")]
pub(crate) const F32_AVX2: Peak = Peak { macs: NARROW * 8, run: f32_avx2 };

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

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vnni")]
fn int8_avx512() {
    let (a, b) = (black_box(_mm512_set1_epi32(0x0102_0304)), black_box(_mm512_set1_epi32(1)));
    // Distinct values, because the compiler would merge equal accumulators.
    let mut acc: [__m512i; WIDE] = std::array::from_fn(|i| _mm512_set1_epi32(black_box(i as i32)));
    for _ in 0..ITERATIONS {
        for acc in &mut acc {
            *acc = _mm512_dpbusd_epi32(*acc, a, b);
        }
    }
    black_box(acc);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,avxvnni")]
fn int8_avxvnni() {
    let (a, b) = (black_box(_mm256_set1_epi32(0x0102_0304)), black_box(_mm256_set1_epi32(1)));
    let mut acc: [__m256i; NARROW] = std::array::from_fn(|i| _mm256_set1_epi32(black_box(i as i32)));
    for _ in 0..ITERATIONS {
        for acc in &mut acc {
            *acc = _mm256_dpbusd_avx_epi32(*acc, a, b);
        }
    }
    black_box(acc);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn int8_avx2() {
    let mut acc: [__m256i; NARROW] = std::array::from_fn(|i| _mm256_set1_epi32(black_box(i as i32)));
    for _ in 0..ITERATIONS {
        // Distinct operands that change in every iteration, because the compiler would compute equal products
        // once.
        let a = black_box([_mm256_set1_epi32(1), _mm256_set1_epi32(2), _mm256_set1_epi32(3)]);
        let b = black_box([
            _mm256_set1_epi32(4),
            _mm256_set1_epi32(5),
            _mm256_set1_epi32(6),
            _mm256_set1_epi32(7),
        ]);
        for (i, acc) in acc.iter_mut().enumerate() {
            *acc = _mm256_add_epi32(*acc, _mm256_madd_epi16(a[i % 3], b[i % 4]));
        }
    }
    black_box(acc);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn f32_avx512() {
    let (a, b) = (black_box(_mm512_set1_ps(0.5)), black_box(_mm512_set1_ps(0.25)));
    let mut acc: [__m512; WIDE] = std::array::from_fn(|i| _mm512_set1_ps(black_box(i as f32)));
    for _ in 0..ITERATIONS {
        for acc in &mut acc {
            *acc = _mm512_fmadd_ps(a, b, *acc);
        }
    }
    black_box(acc);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn f32_avx2() {
    let (a, b) = (black_box(_mm256_set1_ps(0.5)), black_box(_mm256_set1_ps(0.25)));
    let mut acc: [__m256; NARROW] = std::array::from_fn(|i| _mm256_set1_ps(black_box(i as f32)));
    for _ in 0..ITERATIONS {
        for acc in &mut acc {
            *acc = _mm256_fmadd_ps(a, b, *acc);
        }
    }
    black_box(acc);
}
