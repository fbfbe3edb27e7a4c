//! Eight lanes.

use std::arch::x86_64::*;

use swinq_numerics::reference::math::{
    EXP, EXP_255, EXP_RANGE, LN2_HIGH, LN2_LOW, QUADRATIC, QUADRATIC_LAST, QUADRATIC_PER_UNIT, ROUNDER,
    SIGNED_ROUNDER, TAIL, TAIL_LAST, TAIL_PER_UNIT,
};

/// [`swinq_numerics::reference::gelu`] of each lane.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn gelu(x: __m256) -> __m256 {
    let (a, h) = tail(x);
    _mm256_fnmadd_ps(a, h, _mm256_max_ps(_mm256_setzero_ps(), x))
}

/// [`swinq_numerics::reference::gelu_quadratic`] of each lane.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn gelu_quadratic(x: __m256) -> __m256 {
    let a = magnitude(x, QUADRATIC_LAST);
    let column = _mm256_fmadd_ps(a, _mm256_set1_ps(QUADRATIC_PER_UNIT), _mm256_set1_ps(ROUNDER));
    let column = _mm256_castps_si256(column);
    let [c0, c1, c2] = &QUADRATIC.0;
    let h = _mm256_fmadd_ps(power_of_32(c2, column), a, power_of_32(c1, column));
    let h = _mm256_fmadd_ps(h, a, power_of_32(c0, column));
    _mm256_fnmadd_ps(a, h, _mm256_max_ps(_mm256_setzero_ps(), x))
}

/// `min(|x|, last)` of each lane; `last` for a NaN.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn magnitude(x: __m256, last: f32) -> __m256 {
    // `min` returns its second operand if the first is a NaN.
    _mm256_min_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0), x), _mm256_set1_ps(last))
}

/// [`swinq_numerics::reference::math::tail`] of each lane.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn tail(x: __m256) -> (__m256, __m256) {
    let rounder = _mm256_set1_ps(ROUNDER);
    let per_unit = _mm256_set1_ps(TAIL_PER_UNIT);
    let a = magnitude(x, TAIL_LAST);
    let column = _mm256_fmadd_ps(a, per_unit, rounder);
    let u = _mm256_fmsub_ps(a, per_unit, _mm256_sub_ps(column, rounder));
    let column = _mm256_castps_si256(column);
    let [low @ .., highest] = &TAIL.0;
    let mut h = power(highest, column);
    for row in low.iter().rev() {
        h = _mm256_fmadd_ps(h, u, power(row, column));
    }
    (a, h)
}

/// One coefficient for each lane, for the interval in the low 4 bits of `column`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn power(row: &[f32; 16], column: __m256i) -> __m256 {
    // SAFETY: the reference is to 16 f32.
    let [low, high] = unsafe { [_mm256_loadu_ps(row.as_ptr()), _mm256_loadu_ps(row[8..].as_ptr())] };
    let (low, high) = (_mm256_permutevar8x32_ps(low, column), _mm256_permutevar8x32_ps(high, column));
    // Bit 3 of the interval, moved to the sign.
    _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32::<28>(column)))
}

/// As [`power`], of 32 intervals in the low 5 bits of `column`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn power_of_32(row: &[f32; 32], column: __m256i) -> __m256 {
    let (rows, _) = row.as_chunks::<16>();
    let (low, high) = (power(&rows[0], column), power(&rows[1], column));
    // Bit 4 of the interval, moved to the sign.
    _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32::<27>(column)))
}

/// [`swinq_numerics::reference::exp`] of each lane.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn exp(x: __m256) -> __m256 {
    // `max` and `min` return their second operand if either is a NaN.
    let x = _mm256_max_ps(_mm256_set1_ps(EXP_RANGE.0), x);
    let (p, n) = exp_parts(_mm256_min_ps(_mm256_set1_ps(EXP_RANGE.1), x));
    // Split 2^n into two factors that do not underflow or overflow unless the product does.
    let half = _mm256_srai_epi32::<1>(n);
    _mm256_mul_ps(_mm256_mul_ps(p, power_of_two(half)), power_of_two(_mm256_sub_epi32(n, half)))
}

/// [`swinq_numerics::reference::exp`] of lanes in [-87, 0], where `2^n` is a normal number, or NaN.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn exp_falling(x: __m256) -> __m256 {
    let (p, n) = exp_parts(x);
    _mm256_mul_ps(p, power_of_two(n))
}

/// [`swinq_numerics::reference::exp_255`] of lanes in [-11, 0].
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn exp_255(x: __m256) -> __m256 {
    let (per_unit, rounder) = (_mm256_set1_ps(std::f32::consts::LOG2_E), _mm256_set1_ps(SIGNED_ROUNDER));
    let sum = _mm256_fmadd_ps(x, per_unit, rounder);
    let f = _mm256_fmsub_ps(x, per_unit, _mm256_sub_ps(sum, rounder));
    let mut p = _mm256_set1_ps(EXP_255[4]);
    for power in (0..4).rev() {
        p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(EXP_255[power]));
    }
    let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(sum));
    _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent))
}

/// `p` and `n` of [`swinq_numerics::reference::exp`].
#[inline]
#[target_feature(enable = "avx2,fma")]
fn exp_parts(x: __m256) -> (__m256, __m256i) {
    let n = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(_mm256_mul_ps(
        x,
        _mm256_set1_ps(std::f32::consts::LOG2_E),
    ));
    let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(LN2_HIGH), x);
    let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(LN2_LOW), r);
    let mut p = _mm256_set1_ps(EXP[6]);
    for power in (0..6).rev() {
        p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXP[power]));
    }
    (p, _mm256_cvtps_epi32(n))
}

/// `2^n` for n in [-126, 127].
#[inline]
#[target_feature(enable = "avx2,fma")]
fn power_of_two(n: __m256i) -> __m256 {
    _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n, _mm256_set1_epi32(127))))
}
