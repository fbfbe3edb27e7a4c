//! AVX-512: sixteen lanes.

use std::arch::x86_64::*;

use super::{Kernel, Lanes};
use crate::simd_math::avx512 as math;

/// Proof of AVX-512 F, BW, DQ, VL and VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// # Safety
    /// The processor has AVX-512 F, BW, DQ, VL and VNNI.
    #[inline(always)]
    pub(crate) unsafe fn assume() -> Avx512 {
        Avx512(())
    }
}

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

/// Lane `i` is the fold of register `i`.
#[inline]
#[target_feature(enable = "avx512f")]
fn folds(x: [__m512; 16]) -> __m512 {
    let eights = |a, b| _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b));
    let fours = |a, b| _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
    // Each 128-bit lane is one register's.
    let four = |i: usize| fours(eights(x[i], x[i + 4]), eights(x[i + 8], x[i + 12]));
    let twos = |a, b| _mm512_add_ps(_mm512_shuffle_ps::<0x44>(a, b), _mm512_shuffle_ps::<0xee>(a, b));
    let ones = |a, b| _mm512_add_ps(_mm512_shuffle_ps::<0x88>(a, b), _mm512_shuffle_ps::<0xdd>(a, b));
    ones(twos(four(0), four(1)), twos(four(2), four(3)))
}

/// The codes of values already multiplied by the reciprocal scale, except that values far below the range
/// become the smallest i32; instructions that narrow saturate everything below -128.
#[inline]
#[target_feature(enable = "avx512f")]
fn codes(scaled: __m512) -> __m512i {
    let number = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(scaled, scaled);
    _mm512_maskz_cvtps_epi32(number, _mm512_min_ps(scaled, _mm512_set1_ps(127.0)))
}

/// # Safety
/// 32 bytes at `at` are writable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn write_codes2(at: *mut u8, [a, b]: [__m512; 2]) {
    let words = _mm512_packs_epi32(codes(a), codes(b));
    // Each 128-bit lane holds four codes of `a`, then four of `b`.
    let order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    let bytes = _mm512_cvtsepi16_epi8(_mm512_permutexvar_epi64(order, words));
    // SAFETY: the caller's promise.
    unsafe { _mm256_storeu_si256(at.cast(), _mm256_xor_si256(bytes, _mm256_set1_epi8(-128))) };
}

/// Stores integers as bytes, saturated, plus 128.
///
/// # Safety
/// 64 bytes at `at` are writable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn pack4(at: *mut u8, [a, b, c, d]: [__m512i; 4]) {
    let bytes = _mm512_packs_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    let bytes = _mm512_xor_si512(_mm512_permutexvar_epi32(order, bytes), _mm512_set1_epi8(-128));
    // SAFETY: the caller's promise.
    unsafe { _mm512_storeu_si512(at.cast(), bytes) };
}

/// The largest lane of each register.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn highest4([a, b, c, d]: [__m512; 4]) -> [f32; 4] {
    let ab = _mm512_max_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    let cd = _mm512_max_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
    let [low, high] = [_mm512_unpacklo_pd(ab, cd), _mm512_unpackhi_pd(ab, cd)].map(|x| _mm512_castpd_ps(x));
    let x = _mm512_max_ps(low, high);
    let x = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x));
    let x = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
    let mut out = [0.0; 4];
    // SAFETY: four f32.
    unsafe { _mm_storeu_ps(out.as_mut_ptr(), x) };
    out
}

/// The sum of the lanes of each register.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn sum4_i([a, b, c, d]: [__m512i; 4]) -> [i32; 4] {
    let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    let x = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    let x = _mm256_add_epi32(_mm512_castsi512_si256(x), _mm512_extracti32x8_epi32::<1>(x));
    let x = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
    let mut out = [0; 4];
    // SAFETY: four i32.
    unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), x) };
    out
}

/// Sixteen bytes of rows `i`, `i + 4`, `i + 8` and `i + 12`; with `CLAMP`, row `last` stands in for rows
/// after it.
///
/// # Safety
/// These bytes are readable.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn four_rows<const CLAMP: bool>(at: *const u8, stride: usize, last: usize, i: usize) -> __m512i {
    let row = |r: usize| {
        let r = if CLAMP { r.min(last) } else { r };
        // SAFETY: the caller's promise.
        unsafe { _mm_loadu_si128(at.add(r * stride).cast()) }
    };
    let x = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(row(i)), row(i + 4));
    _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(x, row(i + 8)), row(i + 12))
}

/// # Safety
/// Sixteen bytes of rows `0..=last.min(15)` are readable.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn transpose(at: *const u8, stride: usize, last: usize) -> [__m512i; 4] {
    // SAFETY: the caller's promise.
    let rows = |i: usize| unsafe {
        if last >= 15 {
            four_rows::<false>(at, stride, last, i)
        } else {
            four_rows::<true>(at, stride, last, i)
        }
    };
    let (a, b, c, d) = (rows(0), rows(1), rows(2), rows(3));
    let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
    let (ab_high, cd_high) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
    [
        _mm512_unpacklo_epi64(ab, cd),
        _mm512_unpackhi_epi64(ab, cd),
        _mm512_unpacklo_epi64(ab_high, cd_high),
        _mm512_unpackhi_epi64(ab_high, cd_high),
    ]
}

/// # Safety
/// 32 bytes at each pointer are readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn interleave_rows(rows: [*const u8; 4]) -> [__m512i; 2] {
    // SAFETY: the caller's promise.
    let [a, b, c, d] = rows.map(|at| unsafe { _mm512_cvtepu8_epi16(_mm256_loadu_si256(at.cast())) });
    let ab = _mm512_or_si512(a, _mm512_slli_epi16::<8>(b));
    let cd = _mm512_or_si512(c, _mm512_slli_epi16::<8>(d));
    [_mm512_unpacklo_epi16(ab, cd), _mm512_unpackhi_epi16(ab, cd)]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn deinterleave([a, b]: [__m512; 2]) -> [__m512; 2] {
    let low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    let high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    [_mm512_permutex2var_ps(a, low, b), _mm512_permutex2var_ps(a, high, b)]
}

/// # Safety
/// 32 bytes at `at` are writable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn write_interleaved_codes(at: *mut u8, scaled: [__m512; 2]) {
    // Values far below the range convert to the smallest i32; packing saturates everything below -128.
    let [a, b] = scaled.map(|x| _mm512_cvtps_epi32(_mm512_min_ps(x, _mm512_set1_ps(127.0))));
    let bytes = _mm512_cvtsepi16_epi8(_mm512_packs_epi32(a, b));
    // SAFETY: the caller's promise.
    unsafe { _mm256_storeu_si256(at.cast(), _mm256_xor_si256(bytes, _mm256_set1_epi8(-128))) };
}

/// The codes of two rows, which are numbers: four of each register, in each of four 128-bit lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn packed_pair([first, second]: [[__m512; 2]; 2]) -> __m512i {
    let words = |[a, b]: [__m512; 2]| _mm512_packs_epi32(_mm512_cvtps_epi32(a), _mm512_cvtps_epi32(b));
    _mm512_packs_epi16(words(first), words(second))
}

/// # Safety
/// 32 bytes at each address are writable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn write_pair_of_codes_of_numbers(at: [*mut u8; 2], scaled: [[__m512; 2]; 2]) {
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    // SAFETY: the caller's promise.
    unsafe { write_halves(at, _mm512_permutexvar_epi32(order, packed_pair(scaled))) };
}

/// # Safety
/// 32 bytes at each address are writable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn write_interleaved_codes_of_numbers(at: [*mut u8; 2], scaled: [[__m512; 2]; 2]) {
    // The registers are interleaved, so that the eight codes of a row in a lane are adjacent columns.
    let order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    // SAFETY: the caller's promise.
    unsafe { write_halves(at, _mm512_permutexvar_epi64(order, packed_pair(scaled))) };
}

/// Writes each half of `codes`, plus 128.
///
/// # Safety
/// 32 bytes at each address are writable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn write_halves(at: [*mut u8; 2], codes: __m512i) {
    let bytes = _mm512_xor_si512(codes, _mm512_set1_epi8(-128));
    // SAFETY: the caller's promise.
    unsafe {
        _mm256_storeu_si256(at[0].cast(), _mm512_castsi512_si256(bytes));
        _mm256_storeu_si256(at[1].cast(), _mm512_extracti64x4_epi64::<1>(bytes));
    }
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
        fn div(self, a: __m512, b: __m512) -> __m512 { _mm512_div_ps(a, b) }
        fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        fn sqrt(self, x: __m512) -> __m512 { _mm512_sqrt_ps(x) }
        fn max(self, a: __m512, b: __m512) -> __m512 { _mm512_max_ps(a, b) }
        fn fold(self, x: [__m512; 2]) -> f32 { fold(x[0]) }
        fn highest(self, x: __m512) -> f32 { _mm512_reduce_max_ps(x) }
        fn exp(self, x: __m512) -> __m512 { math::exp(x) }
        fn exp_falling(self, x: __m512) -> __m512 { math::exp_in_range(x) }
        fn exp_255(self, x: __m512) -> __m512 { math::exp_255(x) }
        fn gelu(self, x: __m512) -> __m512 { math::gelu(x) }
        fn gelu_quadratic(self, x: __m512) -> __m512 { math::gelu_quadratic(x) }
        fn gelu_tail(self, x: __m512) -> __m512 { math::tail(x).1 }
        fn add_i(self, a: __m512i, b: __m512i) -> __m512i { _mm512_add_epi32(a, b) }
        fn sub_i(self, a: __m512i, b: __m512i) -> __m512i { _mm512_sub_epi32(a, b) }
        fn xor_i(self, a: __m512i, b: __m512i) -> __m512i { _mm512_xor_si512(a, b) }
        fn sum_i(self, x: __m512i) -> i32 { _mm512_reduce_add_epi32(x) }
        fn highest4(self, x: [__m512; 4]) -> [f32; 4] { highest4(x) }
        fn sum4_i(self, x: [__m512i; 4]) -> [i32; 4] { sum4_i(x) }
        fn pack(self, x: [__m512i; 4]) -> __m512i {
            _mm512_packus_epi16(_mm512_packus_epi32(x[0], x[1]), _mm512_packus_epi32(x[2], x[3]))
        }
        fn deinterleave(self, x: [__m512; 2]) -> [__m512; 2] { deinterleave(x) }
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
    fn folds(self, x: [__m512; 16]) -> [f32; 16] {
        let mut out = [0.0; 16];
        // SAFETY: an `Avx512` proves the instructions; sixteen f32.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), folds(x)) };
        out
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
    fn prefetch(self, at: *const f32) {
        // SAFETY: every processor of this architecture has the instruction, and it reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
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
            let bytes = _mm_xor_si128(_mm512_cvtsepi32_epi8(codes(scaled)), _mm_set1_epi8(-128));
            _mm_storeu_si128(at.cast(), bytes);
        }
    }

    #[inline(always)]
    unsafe fn write_codes2(self, at: *mut u8, scaled: [__m512; 2]) {
        // SAFETY: an `Avx512` proves the instructions; writable by the caller's promise.
        unsafe { write_codes2(at, scaled) }
    }

    #[inline(always)]
    unsafe fn write_codes4(self, at: *mut u8, scaled: [__m512; 4]) {
        // SAFETY: an `Avx512` proves the instructions; writable by the caller's promise.
        unsafe { pack4(at, [codes(scaled[0]), codes(scaled[1]), codes(scaled[2]), codes(scaled[3])]) }
    }

    #[inline(always)]
    unsafe fn write_pair_of_codes_of_numbers(self, at: [*mut u8; 2], scaled: [[__m512; 2]; 2]) {
        // SAFETY: an `Avx512` proves the instructions; writable by the caller's promise.
        unsafe { write_pair_of_codes_of_numbers(at, scaled) }
    }

    #[inline(always)]
    unsafe fn narrow(self, at: *mut u8, x: __m512i) {
        // SAFETY: an `Avx512` proves the instructions; writable by the caller's promise.
        unsafe { _mm_storeu_si128(at.cast(), _mm512_cvtepi32_epi8(x)) }
    }

    #[inline(always)]
    unsafe fn transpose(self, at: *const u8, stride: usize, last: usize) -> [__m512i; 4] {
        // SAFETY: an `Avx512` proves the instructions; readable by the caller's promise.
        unsafe { transpose(at, stride, last) }
    }

    #[inline(always)]
    unsafe fn interleave_rows(self, rows: [*const u8; 4]) -> [__m512i; 2] {
        // SAFETY: an `Avx512` proves the instructions; readable by the caller's promise.
        unsafe { interleave_rows(rows) }
    }

    #[inline(always)]
    unsafe fn write_interleaved_codes_of_numbers(self, at: [*mut u8; 2], scaled: [[__m512; 2]; 2]) {
        // SAFETY: an `Avx512` proves the instructions; writable by the caller's promise.
        unsafe { write_interleaved_codes_of_numbers(at, scaled) }
    }

    #[inline(always)]
    unsafe fn write_interleaved_codes(self, at: *mut u8, scaled: [__m512; 2]) {
        // SAFETY: an `Avx512` proves the instructions; writable by the caller's promise.
        unsafe { write_interleaved_codes(at, scaled) }
    }
}
