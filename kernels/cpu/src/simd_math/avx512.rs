//! Sixteen lanes.

use std::arch::x86_64::*;

use swinq_numerics::reference::math::{
    EXP, EXP_255, EXP_RANGE, LN2_HIGH, LN2_LOW, QUADRATIC, QUADRATIC_LAST, QUADRATIC_PER_UNIT, ROUNDER,
    SIGNED_ROUNDER, TAIL, TAIL_LAST, TAIL_PER_UNIT,
};

/// [`swinq_numerics::reference::gelu`] of each lane.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
pub(crate) fn gelu(x: __m512) -> __m512 {
    let (a, h) = tail(x);
    _mm512_fnmadd_ps(a, h, _mm512_max_ps(_mm512_setzero_ps(), x))
}

/// [`swinq_numerics::reference::gelu_quadratic`] of each lane.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
pub(crate) fn gelu_quadratic(x: __m512) -> __m512 {
    // As in `tail`.
    let a = _mm512_range_ps::<0b1010>(x, _mm512_set1_ps(QUADRATIC_LAST));
    let column = _mm512_fmadd_ps(a, _mm512_set1_ps(QUADRATIC_PER_UNIT), _mm512_set1_ps(ROUNDER));
    let column = _mm512_castps_si512(column);
    let [c0, c1, c2] = &QUADRATIC.0;
    let h = _mm512_fmadd_ps(power_of_32(c2, column), a, power_of_32(c1, column));
    let h = _mm512_fmadd_ps(h, a, power_of_32(c0, column));
    _mm512_fnmadd_ps(a, h, _mm512_max_ps(_mm512_setzero_ps(), x))
}

/// [`swinq_numerics::reference::math::tail`] of each lane.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
pub(crate) fn tail(x: __m512) -> (__m512, __m512) {
    let rounder = _mm512_set1_ps(ROUNDER);
    let per_unit = _mm512_set1_ps(TAIL_PER_UNIT);
    // The smaller magnitude, without sign; the second operand if the first is a NaN.
    let a = _mm512_range_ps::<0b1010>(x, _mm512_set1_ps(TAIL_LAST));
    let column = _mm512_fmadd_ps(a, per_unit, rounder);
    let u = _mm512_fmsub_ps(a, per_unit, _mm512_sub_ps(column, rounder));
    let column = _mm512_castps_si512(column);
    let [c0, c1, c2, c3, c4, c5] = &TAIL.0;
    let power = |row| power(row, column);
    let mut h = _mm512_fmadd_ps(power(c5), u, power(c4));
    h = _mm512_fmadd_ps(h, u, power(c3));
    h = _mm512_fmadd_ps(h, u, power(c2));
    h = _mm512_fmadd_ps(h, u, power(c1));
    h = _mm512_fmadd_ps(h, u, power(c0));
    (a, h)
}

/// One coefficient for each lane's interval.
#[inline]
#[target_feature(enable = "avx512f")]
fn power(row: &[f32; 16], column: __m512i) -> __m512 {
    // SAFETY: the reference is to 16 f32.
    let row = unsafe { _mm512_loadu_ps(row.as_ptr()) };
    _mm512_permutexvar_ps(column, row)
}

/// As [`power`], of 32 intervals.
#[inline]
#[target_feature(enable = "avx512f")]
fn power_of_32(row: &[f32; 32], column: __m512i) -> __m512 {
    // SAFETY: the reference is to 32 f32.
    let [low, high] = unsafe { [_mm512_loadu_ps(row.as_ptr()), _mm512_loadu_ps(row[16..].as_ptr())] };
    _mm512_permutex2var_ps(low, column, high)
}

/// [`swinq_numerics::reference::exp`] of each lane.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn exp(x: __m512) -> __m512 {
    // `max` and `min` return their second operand if either is a NaN.
    let x = _mm512_max_ps(_mm512_set1_ps(EXP_RANGE.0), x);
    exp_in_range(_mm512_min_ps(_mm512_set1_ps(EXP_RANGE.1), x))
}

/// [`swinq_numerics::reference::exp`] of lanes in `EXP_RANGE` or NaN.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn exp_in_range(x: __m512) -> __m512 {
    let n = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(_mm512_mul_ps(
        x,
        _mm512_set1_ps(std::f32::consts::LOG2_E),
    ));
    let r = _mm512_fnmadd_ps(n, _mm512_set1_ps(LN2_HIGH), x);
    let r = _mm512_fnmadd_ps(n, _mm512_set1_ps(LN2_LOW), r);
    let mut p = _mm512_set1_ps(EXP[6]);
    for power in (0..6).rev() {
        p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP[power]));
    }
    _mm512_scalef_ps(p, n)
}

/// [`swinq_numerics::reference::exp_255`] of lanes in [-11, 0].
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn exp_255(x: __m512) -> __m512 {
    let (per_unit, rounder) = (_mm512_set1_ps(std::f32::consts::LOG2_E), _mm512_set1_ps(SIGNED_ROUNDER));
    let sum = _mm512_fmadd_ps(x, per_unit, rounder);
    let f = _mm512_fmsub_ps(x, per_unit, _mm512_sub_ps(sum, rounder));
    let mut p = _mm512_set1_ps(EXP_255[4]);
    for power in (0..4).rev() {
        p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(EXP_255[power]));
    }
    let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(sum));
    _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), exponent))
}
