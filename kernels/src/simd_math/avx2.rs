//! Eight lanes.

use std::arch::x86_64::*;

use super::{EXP, EXP_RANGE, LN2_HIGH, LN2_LOW, ROUNDER, Tail};

static TAIL: Tail<8, 8> = Tail {
    powers: [
        [0.5, 0.19447078, 0.042437304, 0.004874384, 2.8431337e-04, 8.248295e-06, 1.17524465e-07, 0.0],
        [
            -0.34370413,
            -0.23714148,
            -0.07788895,
            -0.012178387,
            -9.064612e-04,
            -3.211842e-05,
            -5.417557e-07,
            0.0,
        ],
        [7.159703e-08, 0.088008694, 0.05781317, 0.013559042, 0.001345623, 5.960429e-05, 1.2070276e-06, 0.0],
        [
            0.042517856,
            0.0075615556,
            -0.018972242,
            -0.008557658,
            -0.0012195881,
            -6.9756665e-05,
            -1.7240176e-06,
            0.0,
        ],
        [
            8.563067e-06,
            -0.012285317,
            -1.1514485e-04,
            0.0030874202,
            7.3909346e-04,
            5.7254365e-05,
            1.7566109e-06,
            0.0,
        ],
        [
            -0.004768519,
            9.81119e-04,
            0.0021454885,
            -4.2155597e-04,
            -3.030312e-04,
            -3.4791436e-05,
            -1.3805079e-06,
            0.0,
        ],
        [
            7.338177e-05,
            0.0010611818,
            -4.923051e-04,
            -1.5452773e-04,
            7.475072e-05,
            1.6448577e-05,
            9.3766477e-07,
            0.0,
        ],
        [
            3.4970627e-04,
            -1.9302362e-04,
            -8.0979036e-05,
            8.302326e-05,
            -4.941471e-06,
            -5.382196e-06,
            -4.4628376e-07,
            0.0,
        ],
    ],
    per_unit: 1.160_714_3,
    last: 6.030_769_3,
};

/// GELU by the error function. A NaN stays one; infinities give their limits.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn gelu(x: __m256) -> __m256 {
    let rounder = _mm256_set1_ps(ROUNDER);
    let per_unit = _mm256_set1_ps(TAIL.per_unit);
    let magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0), x);
    // The second operand is returned when the first is a NaN.
    let a = _mm256_min_ps(magnitude, _mm256_set1_ps(TAIL.last));
    let column = _mm256_fmadd_ps(a, per_unit, rounder);
    let u = _mm256_fmsub_ps(a, per_unit, _mm256_sub_ps(column, rounder));
    let column = _mm256_castps_si256(column);
    let [low @ .., highest] = &TAIL.powers;
    let mut h = power(highest, column);
    for row in low.iter().rev() {
        h = _mm256_fmadd_ps(h, u, power(row, column));
    }
    _mm256_fnmadd_ps(a, h, _mm256_max_ps(_mm256_setzero_ps(), x))
}

/// GELU of whole registers, with the coefficients kept in others.
///
/// # Panics
/// When the length is no multiple of 8.
#[target_feature(enable = "avx2,fma")]
pub(crate) fn gelu_in_place(values: &mut [f32]) {
    let (registers, rest) = values.as_chunks_mut::<8>();
    assert!(rest.is_empty(), "whole registers");
    for register in registers {
        // SAFETY: 8 values.
        unsafe { _mm256_storeu_ps(register.as_mut_ptr(), gelu(_mm256_loadu_ps(register.as_ptr()))) };
    }
}

/// One coefficient for each lane's interval.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn power(row: &[f32; 8], column: __m256i) -> __m256 {
    // SAFETY: the reference is to 8 f32.
    let row = unsafe { _mm256_loadu_ps(row.as_ptr()) };
    _mm256_permutevar8x32_ps(row, column)
}

/// `exp`, with subnormal results. A NaN stays one.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn exp(x: __m256) -> __m256 {
    // The second operand is returned when either is a NaN.
    let x = _mm256_max_ps(_mm256_set1_ps(EXP_RANGE.0), x);
    let x = _mm256_min_ps(_mm256_set1_ps(EXP_RANGE.1), x);
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
    // 2^n in two factors: neither under- nor overflows where the product does not.
    let n = _mm256_cvtps_epi32(n);
    let half = _mm256_srai_epi32::<1>(n);
    _mm256_mul_ps(_mm256_mul_ps(p, power_of_two(half)), power_of_two(_mm256_sub_epi32(n, half)))
}

/// `2^n` for n in [-126, 127].
#[inline]
#[target_feature(enable = "avx2,fma")]
fn power_of_two(n: __m256i) -> __m256 {
    _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n, _mm256_set1_epi32(127))))
}
