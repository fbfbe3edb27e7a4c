//! AVX-512: sixteen lanes.

use std::arch::x86_64::*;

use super::{Kernel, Lanes};
use crate::simd_math::avx512 as math;

/// Proof of AVX-512 F, BW, DQ, VL and VNNI: only [`run`] makes one.
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

/// # Safety
/// The processor has AVX-512 F, BW, DQ, VL and VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
pub(super) fn run(kernel: impl Kernel) {
    kernel.vector(Avx512(()));
}

/// The first `count` lanes, at most 16.
#[inline(always)]
fn first(count: usize) -> __mmask16 {
    ((1_u32 << count.min(16)) - 1) as __mmask16
}

/// The halves are added, then halves of halves.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn fold(x: __m512) -> f32 {
    let x = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x));
    let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
    let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
}

/// The second register is added to the first, then halves, and halves of halves.
#[inline]
#[target_feature(enable = "avx512f")]
fn fold_f64(x: [__m512d; 2]) -> f64 {
    let x = _mm512_add_pd(x[0], x[1]);
    let x = _mm256_add_pd(_mm512_castpd512_pd256(x), _mm512_extractf64x4_pd::<1>(x));
    let x = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd::<1>(x));
    _mm_cvtsd_f64(_mm_add_sd(x, _mm_unpackhi_pd(x, x)))
}

/// Sixteen partial sums of elements, and of their squares.
#[derive(Clone, Copy)]
struct Moments([__m512d; 2], [__m512d; 2]);

impl Moments {
    /// With eight more elements in half `half`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn add(&mut self, half: usize, x: __m256) {
        let x = _mm512_cvtps_pd(x);
        self.0[half] = _mm512_add_pd(self.0[half], x);
        self.1[half] = _mm512_fmadd_pd(x, x, self.1[half]);
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn moments(x: &[f32]) -> [f64; 2] {
    let mut sums = Moments([_mm512_setzero_pd(); 2], [_mm512_setzero_pd(); 2]);
    let (blocks, tail) = x.as_chunks::<16>();
    for x in blocks {
        // SAFETY: 16 values.
        let [low, high] = unsafe { [_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x[8..].as_ptr())] };
        sums.add(0, low);
        sums.add(1, high);
    }
    if !tail.is_empty() {
        // SAFETY: only lanes inside `tail` are read. The zeros after them change no sum.
        let tail = unsafe { _mm512_maskz_loadu_ps(first(tail.len()), tail.as_ptr()) };
        sums.add(0, _mm512_castps512_ps256(tail));
        sums.add(1, _mm512_extractf32x8_ps::<1>(tail));
    }
    [fold_f64(sums.0), fold_f64(sums.1)]
}

/// The bodies of methods that are one expression of instructions.
macro_rules! instructions {
    ($($(#[$doc:meta])* fn $name:ident(self $(, $arg:ident: $type:ty)*) -> $out:ty { $body:expr })*) => {$(
        $(#[$doc])*
        #[inline(always)]
        fn $name(self $(, $arg: $type)*) -> $out {
            // SAFETY: an `Avx512` proves the instructions.
            unsafe { $body }
        }
    )*};
}

impl Lanes for Avx512 {
    type F = __m512;
    type I = __m512i;
    const N: usize = 16;
    const TILE: usize = 4;

    instructions! {
        fn splat(self, x: f32) -> __m512 { _mm512_set1_ps(x) }
        fn splat_i(self, x: i32) -> __m512i { _mm512_set1_epi32(x) }
        fn keep(self, x: __m512, count: usize) -> __m512 { _mm512_maskz_mov_ps(first(count), x) }
        fn add(self, a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        fn sub(self, a: __m512, b: __m512) -> __m512 { _mm512_sub_ps(a, b) }
        fn mul(self, a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        fn max(self, a: __m512, b: __m512) -> __m512 { _mm512_max_ps(a, b) }
        fn fold(self, x: [__m512; 2]) -> f32 { fold(x[0]) }
        fn highest(self, x: __m512) -> f32 { _mm512_reduce_max_ps(x) }
        fn exp(self, x: __m512) -> __m512 { math::exp(x) }
        fn gelu(self, x: __m512) -> __m512 { math::gelu(x) }
        fn gelu_tail(self, x: __m512) -> __m512 { math::tail(x).1 }
        fn moments(self, x: &[f32]) -> [f64; 2] { moments(x) }
        fn add_i(self, a: __m512i, b: __m512i) -> __m512i { _mm512_add_epi32(a, b) }
        fn sub_i(self, a: __m512i, b: __m512i) -> __m512i { _mm512_sub_epi32(a, b) }
        fn xor_i(self, a: __m512i, b: __m512i) -> __m512i { _mm512_xor_si512(a, b) }
        fn sum_i(self, x: __m512i) -> i32 { _mm512_reduce_add_epi32(x) }
        fn times_128(self, x: __m512i) -> __m512i { _mm512_slli_epi32::<7>(x) }
        fn dot(self, acc: __m512i, u: __m512i, s: __m512i) -> __m512i { _mm512_dpbusd_epi32(acc, u, s) }
        fn float(self, x: __m512i) -> __m512 { _mm512_cvtepi32_ps(x) }
        fn round(self, x: __m512) -> __m512i {
            _mm512_cvt_roundps_epi32::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x)
        }
        fn clamp(self, x: __m512) -> __m512 {
            _mm512_min_ps(
                _mm512_maskz_max_ps(_mm512_cmp_ps_mask::<_CMP_ORD_Q>(x, x), x, _mm512_set1_ps(-128.0)),
                _mm512_set1_ps(127.0),
            )
        }
        fn interleave(self, bytes: [__m512i; 4]) -> __m512i {
            _mm512_or_si512(
                _mm512_or_si512(bytes[0], _mm512_slli_epi32::<8>(bytes[1])),
                _mm512_or_si512(_mm512_slli_epi32::<16>(bytes[2]), _mm512_slli_epi32::<24>(bytes[3])),
            )
        }
    }

    #[inline(always)]
    fn load_part(self, x: &[f32]) -> __m512 {
        // SAFETY: an `Avx512` proves the instructions; only lanes inside `x` are read.
        unsafe { _mm512_maskz_loadu_ps(first(x.len()), x.as_ptr()) }
    }

    #[inline(always)]
    fn load_or(self, x: &[f32], fill: __m512) -> __m512 {
        // SAFETY: an `Avx512` proves the instructions; only lanes inside `x` are read.
        unsafe { _mm512_mask_loadu_ps(fill, first(x.len()), x.as_ptr()) }
    }

    #[inline(always)]
    fn store_part(self, out: &mut [f32], x: __m512) {
        // SAFETY: an `Avx512` proves the instructions; only lanes inside `out` are written.
        unsafe { _mm512_mask_storeu_ps(out.as_mut_ptr(), first(out.len()), x) }
    }

    #[inline(always)]
    unsafe fn read(self, at: *const f32) -> __m512 {
        // SAFETY: an `Avx512` proves the instructions; readable by the caller's promise.
        unsafe { _mm512_loadu_ps(at) }
    }

    #[inline(always)]
    unsafe fn write(self, at: *mut f32, x: __m512) {
        // SAFETY: an `Avx512` proves the instructions; writable by the caller's promise.
        unsafe { _mm512_storeu_ps(at, x) }
    }

    #[inline(always)]
    unsafe fn read_i(self, at: *const u8) -> __m512i {
        // SAFETY: an `Avx512` proves the instructions; readable by the caller's promise.
        unsafe { _mm512_loadu_si512(at.cast()) }
    }

    #[inline(always)]
    unsafe fn write_i(self, at: *mut u8, x: __m512i) {
        // SAFETY: an `Avx512` proves the instructions; writable by the caller's promise.
        unsafe { _mm512_storeu_si512(at.cast(), x) }
    }

    #[inline(always)]
    unsafe fn widen(self, at: *const u8) -> __m512i {
        // SAFETY: an `Avx512` proves the instructions; readable by the caller's promise.
        unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(at.cast())) }
    }

    #[inline(always)]
    unsafe fn write_codes(self, at: *mut u8, scaled: __m512) {
        // SAFETY: an `Avx512` proves the instructions; writable by the caller's promise.
        unsafe {
            let number = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(scaled, scaled);
            // Values far below convert to the least i32; narrowing saturates it, and all others below -128.
            let code = _mm512_maskz_cvtps_epi32(number, _mm512_min_ps(scaled, _mm512_set1_ps(127.0)));
            let bytes = _mm_xor_si128(_mm512_cvtsepi32_epi8(code), _mm_set1_epi8(-128));
            _mm_storeu_si128(at.cast(), bytes);
        }
    }

    #[inline(always)]
    unsafe fn narrow(self, at: *mut u8, x: __m512i) {
        // SAFETY: an `Avx512` proves the instructions; writable by the caller's promise.
        unsafe { _mm_storeu_si128(at.cast(), _mm512_cvtepi32_epi8(x)) }
    }
}
