//! What the processor can do at best: the rate of the multiply-add instructions alone, from and to registers. Benchmarks
//! quote a kernel's rate as a share of it.

#[cfg(target_arch = "x86_64")]
use std::hint::black_box;
use std::time::Instant;

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use crate::isa::{Cpu, Isa};
use crate::pool::Pool;

/// Steps of a thread's loop: some 100 microseconds, so that starting the threads does not count.
const STEPS: usize = 24_000;

/// Accumulators, enough to hide the latency of the instructions.
const WIDE: usize = 24;
/// As [`WIDE`], where there are 16 registers.
const NARROW: usize = 12;

/// INT8 multiply-accumulates per second that all threads of `pool` reach together, by the instructions that `cpu`'s
/// products use: one measurement of 0.1 ms or more. `None` for the scalar reference and on AArch64.
pub fn int8_peak(cpu: Cpu, pool: &mut Pool) -> Option<f64> {
    let each = match cpu.isa() {
        Isa::Scalar | Isa::NeonDotprod => return None,
        Isa::Avx2 => NARROW * 16,
        Isa::AvxVnni => NARROW * 32,
        Isa::Avx512Vnni => WIDE * 64,
    };
    Some(rate(pool, each, || match cpu.isa() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves the features.
        Isa::Avx512Vnni => unsafe { int8_avx512() },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves the features.
        Isa::AvxVnni => unsafe { int8_avxvnni() },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves the features.
        Isa::Avx2 => unsafe { int8_avx2() },
        _ => unreachable!("refused above, or not of this architecture"),
    }))
}

/// As [`int8_peak`], in f32.
pub fn f32_peak(cpu: Cpu, pool: &mut Pool) -> Option<f64> {
    let each = match cpu.isa() {
        Isa::Scalar | Isa::NeonDotprod => return None,
        Isa::Avx2 | Isa::AvxVnni => NARROW * 8,
        Isa::Avx512Vnni => WIDE * 16,
    };
    Some(rate(pool, each, || match cpu.isa() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves the features.
        Isa::Avx512Vnni => unsafe { f32_avx512() },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves the features.
        Isa::Avx2 | Isa::AvxVnni => unsafe { f32_avx2() },
        _ => unreachable!("refused above, or not of this architecture"),
    }))
}

/// Multiply-accumulates per second of `steps` on every thread, each step of which has `each`.
fn rate(pool: &mut Pool, each: usize, steps: impl Fn() + Sync) -> f64 {
    let macs = (STEPS * each * pool.threads()) as f64;
    let start = Instant::now();
    pool.run(pool.threads(), &|_, _| steps());
    macs / start.elapsed().as_secs_f64()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vnni")]
fn int8_avx512() {
    let (a, b) = (black_box(_mm512_set1_epi32(0x0102_0304)), black_box(_mm512_set1_epi32(1)));
    // Unequal, or the compiler keeps one for all.
    let mut acc: [__m512i; WIDE] = std::array::from_fn(|i| _mm512_set1_epi32(black_box(i as i32)));
    for _ in 0..STEPS {
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
    for _ in 0..STEPS {
        for acc in &mut acc {
            *acc = _mm256_dpbusd_avx_epi32(*acc, a, b);
        }
    }
    black_box(acc);
}

/// `vpmaddwd` and the addition that AVX2 has to do apart.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn int8_avx2() {
    let mut acc: [__m256i; NARROW] = std::array::from_fn(|i| _mm256_set1_epi32(black_box(i as i32)));
    for _ in 0..STEPS {
        // Unequal operands that are new in every step, or products are computed once.
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
    for _ in 0..STEPS {
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
    for _ in 0..STEPS {
        for acc in &mut acc {
            *acc = _mm256_fmadd_ps(a, b, *acc);
        }
    }
    black_box(acc);
}
