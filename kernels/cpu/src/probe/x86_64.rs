//! The loops of x86-64.

use std::arch::x86_64::*;
use std::hint::black_box;

use super::{ITERATIONS, Peak};

/// Accumulators, enough to hide the latency of the instructions.
const WIDE: usize = 24;
/// As [`WIDE`], for 16 registers.
const NARROW: usize = 12;

/// `vpdpbusd` on 512-bit registers.
pub(crate) const INT8_AVX512: Peak = Peak { macs: WIDE * 64, run: int8_avx512 };

/// `tdpbusd` on tiles of 16 by 64 bytes.
pub(crate) const INT8_AMX: Peak = Peak { macs: 4 * 16 * 16 * 64, run: int8_amx };

/// `vpdpbusd` on 256-bit registers.
pub(crate) const INT8_AVX_VNNI: Peak = Peak { macs: NARROW * 32, run: int8_avxvnni };

/// `vpmaddwd` and a separate addition on 256-bit registers.
pub(crate) const INT8_AVX2: Peak = Peak { macs: NARROW * 16, run: int8_avx2 };

/// Fused multiply-adds on 512-bit registers.
pub(crate) const F32_AVX512: Peak = Peak { macs: WIDE * 16, run: f32_avx512 };

/// Fused multiply-adds on 256-bit registers.
pub(crate) const F32_AVX2: Peak = Peak { macs: NARROW * 8, run: f32_avx2 };

/// # Safety
/// The kernel `amx_int8` is available.
unsafe fn int8_amx() {
    // SAFETY: the caller's promise.
    unsafe { crate::linear::amx::peak_loop(ITERATIONS) };
}

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
