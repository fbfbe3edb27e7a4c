//! AVX2 and FMA, with or without AVX-VNNI: eight lanes.

use std::arch::x86_64::*;

use super::{Kernel, Lanes};
use crate::simd_math::avx2 as math;

/// Proof of AVX2 and FMA, and of AVX-VNNI if `VNNI`.
#[derive(Clone, Copy)]
pub(crate) struct Avx2<const VNNI: bool>(());

impl<const VNNI: bool> Avx2<VNNI> {
    /// # Safety
    /// The processor has AVX2 and FMA, and AVX-VNNI if `VNNI`.
    #[inline(always)]
    pub(crate) unsafe fn assume() -> Avx2<VNNI> {
        Avx2(())
    }
}

/// # Safety
/// The processor has AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub(super) fn run(kernel: impl Kernel) {
    kernel.vector(Avx2::<false>(()));
}

/// # Safety
/// The processor has AVX2, FMA and AVX-VNNI.
#[target_feature(enable = "avx2,fma,avxvnni")]
pub(super) fn run_vnni(kernel: impl Kernel) {
    kernel.vector(Avx2::<true>(()));
}

/// All ones in the first `count` lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn first(count: usize) -> __m256i {
    let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    _mm256_cmpgt_epi32(_mm256_set1_epi32(count.min(8) as i32), lanes)
}

/// Folds the halves of `x`, then halves of halves, with `f`.
macro_rules! fold {
    ($x:expr, $halves:ident, $f:ident) => {{
        let [low, high] = $halves($x);
        let x = $f(low, high);
        let x = $f(x, _mm_movehl_ps(x, x));
        _mm_cvtss_f32($f(x, _mm_movehdup_ps(x)))
    }};
}

/// Lane `i` is the fold of register `i`.
#[inline]
#[target_feature(enable = "avx2")]
fn folds(x: &[__m256; 8]) -> __m256 {
    let fours =
        |a, b| _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b));
    let twos = |a, b| _mm256_add_ps(_mm256_shuffle_ps::<0x44>(a, b), _mm256_shuffle_ps::<0xee>(a, b));
    let ones = |a, b| _mm256_add_ps(_mm256_shuffle_ps::<0x88>(a, b), _mm256_shuffle_ps::<0xdd>(a, b));
    let four = |i: usize| fours(x[i], x[i + 4]);
    ones(twos(four(0), four(1)), twos(four(2), four(3)))
}

#[inline]
#[target_feature(enable = "avx2")]
fn halves(x: __m256) -> [__m128; 2] {
    [_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x)]
}

#[inline]
#[target_feature(enable = "avx2")]
fn sum_i(x: __m256i) -> i32 {
    let x = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
    let x = _mm_add_epi32(x, _mm_shuffle_epi32::<0b01_00_11_10>(x));
    _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32::<0b10_11_00_01>(x)))
}

/// Multiplies even bytes and odd bytes separately, widened to 16 bits. Sums of two products fit 32 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn dot_by_widening(acc: __m256i, u: __m256i, s: __m256i) -> __m256i {
    let u_even = _mm256_and_si256(u, _mm256_set1_epi16(0xff));
    let u_odd = _mm256_srli_epi16::<8>(u);
    let s_even = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(s));
    let s_odd = _mm256_srai_epi16::<8>(s);
    let even = _mm256_madd_epi16(u_even, s_even);
    _mm256_add_epi32(acc, _mm256_add_epi32(even, _mm256_madd_epi16(u_odd, s_odd)))
}

/// The low byte of each lane.
#[inline]
#[target_feature(enable = "avx2")]
fn low_bytes(x: __m256i) -> __m128i {
    let words = _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
    _mm_packus_epi16(words, words)
}

/// # Safety
/// Sixteen bytes of rows `0..=last.min(7)` are readable.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn transpose(at: *const u8, stride: usize, last: usize) -> [__m256i; 4] {
    // SAFETY: the caller's promise.
    let row = |r: usize| unsafe { _mm_loadu_si128(at.add(r.min(last) * stride).cast()) };
    let rows = |i: usize| _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(row(i)), row(i + 4));
    let (a, b, c, d) = (rows(0), rows(1), rows(2), rows(3));
    let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
    let (ab_high, cd_high) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
    [
        _mm256_unpacklo_epi64(ab, cd),
        _mm256_unpackhi_epi64(ab, cd),
        _mm256_unpacklo_epi64(ab_high, cd_high),
        _mm256_unpackhi_epi64(ab_high, cd_high),
    ]
}

/// # Safety
/// Sixteen bytes at each pointer are readable.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn interleave_rows(rows: [*const u8; 4]) -> [__m256i; 2] {
    // SAFETY: the caller's promise.
    let [a, b, c, d] = rows.map(|at| unsafe { _mm256_cvtepu8_epi16(_mm_loadu_si128(at.cast())) });
    let ab = _mm256_or_si256(a, _mm256_slli_epi16::<8>(b));
    let cd = _mm256_or_si256(c, _mm256_slli_epi16::<8>(d));
    [_mm256_unpacklo_epi16(ab, cd), _mm256_unpackhi_epi16(ab, cd)]
}

/// # Safety
/// Sixteen bytes at `at` are writable.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn write_interleaved_codes(at: *mut u8, scaled: [__m256; 2]) {
    // Values far below the range convert to the smallest i32; packing saturates everything below -128.
    let [a, b] = scaled.map(|x| _mm256_cvtps_epi32(_mm256_min_ps(x, _mm256_set1_ps(127.0))));
    let words = _mm256_packs_epi32(a, b);
    let bytes = _mm256_permute4x64_epi64::<0b10_00>(_mm256_packs_epi16(words, words));
    // SAFETY: the caller's promise.
    unsafe { _mm_storeu_si128(at.cast(), _mm_xor_si128(_mm256_castsi256_si128(bytes), _mm_set1_epi8(-128))) };
}

/// # Safety
/// 16 bytes at each address are writable.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn write_pair_of_codes_of_numbers(at: [*mut u8; 2], [first, second]: [[__m256; 2]; 2]) {
    let words = |[a, b]: [__m256; 2]| _mm256_packs_epi32(_mm256_cvtps_epi32(a), _mm256_cvtps_epi32(b));
    // Each 128-bit lane holds four codes of each register.
    let bytes = _mm256_packs_epi16(words(first), words(second));
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    let bytes = _mm256_xor_si256(_mm256_permutevar8x32_epi32(bytes, order), _mm256_set1_epi8(-128));
    // SAFETY: the caller's promise.
    unsafe {
        _mm_storeu_si128(at[0].cast(), _mm256_castsi256_si128(bytes));
        _mm_storeu_si128(at[1].cast(), _mm256_extracti128_si256::<1>(bytes));
    }
}

/// The codes of values already multiplied by the reciprocal scale, except that values far below the range
/// become the smallest i32; instructions that pack saturate everything below -128.
#[inline]
#[target_feature(enable = "avx2")]
fn codes(scaled: __m256) -> __m256i {
    let numbers = _mm256_and_ps(scaled, _mm256_cmp_ps::<_CMP_ORD_Q>(scaled, scaled));
    _mm256_cvtps_epi32(_mm256_min_ps(numbers, _mm256_set1_ps(127.0)))
}

/// Stores integers as bytes, saturated, plus 128.
///
/// # Safety
/// Sixteen bytes at `at` are writable.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn pack2(at: *mut u8, [a, b]: [__m256i; 2]) {
    // Each half holds four codes of `a`, then four of `b`.
    let words = _mm256_packs_epi32(a, b);
    let bytes = _mm256_packs_epi16(words, words);
    let bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5));
    // SAFETY: the caller's promise.
    unsafe { _mm_storeu_si128(at.cast(), _mm_xor_si128(_mm256_castsi256_si128(bytes), _mm_set1_epi8(-128))) };
}

/// The bodies of methods that are one expression of instructions.
macro_rules! instructions {
    ($($(#[$doc:meta])* fn $name:ident(self $(, $arg:ident: $type:ty)*) -> $out:ty { $body:expr })*) => {$(
        $(#[$doc])*
        #[inline(always)]
        fn $name(self $(, $arg: $type)*) -> $out {
            // SAFETY: an `Avx2` proves the instructions.
            unsafe { $body }
        }
    )*};
}

impl<const VNNI: bool> Lanes for Avx2<VNNI> {
    type F = __m256;
    type I = __m256i;
    const N: usize = 8;
    const TILE: usize = 2;

    instructions! {
        fn splat(self, x: f32) -> __m256 { _mm256_set1_ps(x) }
        fn splat_i(self, x: i32) -> __m256i { _mm256_set1_epi32(x) }
        fn keep(self, x: __m256, count: usize) -> __m256 {
            _mm256_and_ps(x, _mm256_castsi256_ps(first(count)))
        }
        fn add(self, a: __m256, b: __m256) -> __m256 { _mm256_add_ps(a, b) }
        fn sub(self, a: __m256, b: __m256) -> __m256 { _mm256_sub_ps(a, b) }
        fn mul(self, a: __m256, b: __m256) -> __m256 { _mm256_mul_ps(a, b) }
        fn div(self, a: __m256, b: __m256) -> __m256 { _mm256_div_ps(a, b) }
        fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 { _mm256_fmadd_ps(a, b, c) }
        fn sqrt(self, x: __m256) -> __m256 { _mm256_sqrt_ps(x) }
        fn max(self, a: __m256, b: __m256) -> __m256 { _mm256_max_ps(a, b) }
        fn fold(self, x: [__m256; 2]) -> f32 { fold!(_mm256_add_ps(x[0], x[1]), halves, _mm_add_ps) }
        fn highest(self, x: __m256) -> f32 { fold!(x, halves, _mm_max_ps) }
        fn exp(self, x: __m256) -> __m256 { math::exp(x) }
        fn exp_falling(self, x: __m256) -> __m256 { math::exp_falling(x) }
        fn exp_255(self, x: __m256) -> __m256 { math::exp_255(x) }
        fn gelu(self, x: __m256) -> __m256 { math::gelu(x) }
        fn gelu_quadratic(self, x: __m256) -> __m256 { math::gelu_quadratic(x) }
        fn gelu_tail(self, x: __m256) -> __m256 { math::tail(x).1 }
        fn add_i(self, a: __m256i, b: __m256i) -> __m256i { _mm256_add_epi32(a, b) }
        fn sub_i(self, a: __m256i, b: __m256i) -> __m256i { _mm256_sub_epi32(a, b) }
        fn xor_i(self, a: __m256i, b: __m256i) -> __m256i { _mm256_xor_si256(a, b) }
        fn sum_i(self, x: __m256i) -> i32 { sum_i(x) }
        fn pack(self, x: [__m256i; 4]) -> __m256i {
            _mm256_packus_epi16(_mm256_packus_epi32(x[0], x[1]), _mm256_packus_epi32(x[2], x[3]))
        }
        fn deinterleave(self, x: [__m256; 2]) -> [__m256; 2] {
            [_mm256_permute2f128_ps::<0x20>(x[0], x[1]), _mm256_permute2f128_ps::<0x31>(x[0], x[1])]
        }
        fn times_128(self, x: __m256i) -> __m256i { _mm256_slli_epi32::<7>(x) }
        fn dot(self, acc: __m256i, u: __m256i, s: __m256i) -> __m256i {
            if VNNI { _mm256_dpbusd_avx_epi32(acc, u, s) } else { dot_by_widening(acc, u, s) }
        }
        fn float(self, x: __m256i) -> __m256 { _mm256_cvtepi32_ps(x) }
        fn round(self, x: __m256) -> __m256i {
            _mm256_cvtps_epi32(_mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x))
        }
        fn clamp(self, x: __m256) -> __m256 {
            _mm256_min_ps(
                _mm256_max_ps(
                    _mm256_and_ps(x, _mm256_cmp_ps::<_CMP_ORD_Q>(x, x)),
                    _mm256_set1_ps(-128.0),
                ),
                _mm256_set1_ps(127.0),
            )
        }
        fn interleave(self, bytes: [__m256i; 4]) -> __m256i {
            _mm256_or_si256(
                _mm256_or_si256(bytes[0], _mm256_slli_epi32::<8>(bytes[1])),
                _mm256_or_si256(_mm256_slli_epi32::<16>(bytes[2]), _mm256_slli_epi32::<24>(bytes[3])),
            )
        }
    }

    #[inline(always)]
    fn folds(self, x: [__m256; 16]) -> [f32; 16] {
        let mut out = [0.0; 16];
        for (x, out) in x.as_chunks::<8>().0.iter().zip(out.as_chunks_mut::<8>().0) {
            // SAFETY: an `Avx2` proves the instructions; eight f32.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr(), folds(x)) };
        }
        out
    }

    #[inline(always)]
    fn load_part(self, x: &[f32]) -> __m256 {
        // SAFETY: an `Avx2` proves the instructions; only lanes inside `x` are read.
        unsafe { _mm256_maskload_ps(x.as_ptr(), first(x.len())) }
    }

    #[inline(always)]
    fn load_or(self, x: &[f32], fill: __m256) -> __m256 {
        // SAFETY: an `Avx2` proves the instructions; only lanes inside `x` are read.
        unsafe {
            let mask = first(x.len());
            _mm256_blendv_ps(fill, _mm256_maskload_ps(x.as_ptr(), mask), _mm256_castsi256_ps(mask))
        }
    }

    #[inline(always)]
    fn store_part(self, out: &mut [f32], x: __m256) {
        // SAFETY: an `Avx2` proves the instructions; only lanes inside `out` are written.
        unsafe { _mm256_maskstore_ps(out.as_mut_ptr(), first(out.len()), x) }
    }

    #[inline(always)]
    unsafe fn read(self, at: *const f32) -> __m256 {
        // SAFETY: an `Avx2` proves the instructions; readable by the caller's promise.
        unsafe { _mm256_loadu_ps(at) }
    }

    #[inline(always)]
    unsafe fn write(self, at: *mut f32, x: __m256) {
        // SAFETY: an `Avx2` proves the instructions; writable by the caller's promise.
        unsafe { _mm256_storeu_ps(at, x) }
    }

    #[inline(always)]
    unsafe fn read_i(self, at: *const u8) -> __m256i {
        // SAFETY: an `Avx2` proves the instructions; readable by the caller's promise.
        unsafe { _mm256_loadu_si256(at.cast()) }
    }

    #[inline(always)]
    unsafe fn write_i(self, at: *mut u8, x: __m256i) {
        // SAFETY: an `Avx2` proves the instructions; writable by the caller's promise.
        unsafe { _mm256_storeu_si256(at.cast(), x) }
    }

    #[inline(always)]
    fn prefetch(self, at: *const f32) {
        // SAFETY: every processor of this architecture has the instruction, and it reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }

    #[inline(always)]
    unsafe fn widen(self, at: *const u8) -> __m256i {
        // SAFETY: an `Avx2` proves the instructions; readable by the caller's promise.
        unsafe { _mm256_cvtepu8_epi32(_mm_loadl_epi64(at.cast())) }
    }

    #[inline(always)]
    unsafe fn write_codes(self, at: *mut u8, scaled: __m256) {
        // SAFETY: the caller's promise.
        unsafe { self.narrow(at, self.add_i(self.round(self.clamp(scaled)), self.splat_i(128))) }
    }

    #[inline(always)]
    unsafe fn write_codes2(self, at: *mut u8, scaled: [__m256; 2]) {
        // SAFETY: an `Avx2` proves the instructions; writable by the caller's promise.
        unsafe { pack2(at, [codes(scaled[0]), codes(scaled[1])]) }
    }

    #[inline(always)]
    unsafe fn write_pair_of_codes_of_numbers(self, at: [*mut u8; 2], scaled: [[__m256; 2]; 2]) {
        // SAFETY: an `Avx2` proves the instructions; writable by the caller's promise.
        unsafe { write_pair_of_codes_of_numbers(at, scaled) }
    }

    #[inline(always)]
    unsafe fn narrow(self, at: *mut u8, x: __m256i) {
        // SAFETY: an `Avx2` proves the instructions; writable by the caller's promise.
        unsafe { _mm_storel_epi64(at.cast(), low_bytes(x)) }
    }

    #[inline(always)]
    unsafe fn transpose(self, at: *const u8, stride: usize, last: usize) -> [__m256i; 4] {
        // SAFETY: an `Avx2` proves the instructions; readable by the caller's promise.
        unsafe { transpose(at, stride, last) }
    }

    #[inline(always)]
    unsafe fn interleave_rows(self, rows: [*const u8; 4]) -> [__m256i; 2] {
        // SAFETY: an `Avx2` proves the instructions; readable by the caller's promise.
        unsafe { interleave_rows(rows) }
    }

    #[inline(always)]
    unsafe fn write_interleaved_codes(self, at: *mut u8, scaled: [__m256; 2]) {
        // SAFETY: an `Avx2` proves the instructions; writable by the caller's promise.
        unsafe { write_interleaved_codes(at, scaled) }
    }
}
