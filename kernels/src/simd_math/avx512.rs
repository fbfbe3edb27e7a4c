//! Sixteen lanes.

use std::arch::x86_64::*;

use super::{EXP, EXP_RANGE, LN2_HIGH, LN2_LOW, ROUNDER, Tail};

static TAIL: Tail<16, 6> = Tail {
    powers: [
        [
            0.5,
            0.34967172,
            0.2199347,
            0.12330542,
            0.061193984,
            0.026739392,
            0.010245292,
            0.003431206,
            0.0010019452,
            2.5460735e-04,
            5.6215587e-05,
            1.0771176e-05,
            1.7891792e-06,
            2.5743756e-07,
            3.206436e-08,
            0.0,
        ],
        [
            -0.15407425,
            -0.14300174,
            -0.114333905,
            -0.07874649,
            -0.046720758,
            -0.023878718,
            -0.010513192,
            -0.0039873165,
            -0.0013027145,
            -3.666404e-04,
            -8.88902e-05,
            -1.856479e-05,
            -3.3400177e-06,
            -5.1764283e-07,
            -6.910897e-08,
            0.0,
        ],
        [
            -5.627412e-08,
            0.010664456,
            0.017053215,
            0.01761811,
            0.013937436,
            0.008904283,
            0.0047044107,
            0.0020815807,
            7.7721174e-04,
            2.4606797e-04,
            6.627968e-05,
            1.5224412e-05,
            2.9873802e-06,
            5.014201e-07,
            7.206368e-08,
            0.0,
        ],
        [
            0.0038306334,
            0.0030246568,
            0.0011465198,
            -6.702422e-04,
            -0.0016103124,
            -0.0016198957,
            -0.0011420117,
            -6.253324e-04,
            -2.7676e-04,
            -1.01001664e-04,
            -3.0748597e-05,
            -7.866936e-06,
            -1.7000258e-06,
            -3.1141298e-07,
            -4.848494e-08,
            0.0,
        ],
        [
            -1.5792099e-06,
            -3.7457835e-04,
            -5.05747e-04,
            -3.616156e-04,
            -1.0729597e-04,
            7.89475e-05,
            1.3748322e-04,
            1.1124969e-04,
            6.3428706e-05,
            2.8007264e-05,
            9.954137e-06,
            2.905338e-06,
            7.0477614e-07,
            1.4320635e-07,
            2.4506914e-08,
            0.0,
        ],
        [
            -8.356974e-05,
            -5.609569e-05,
            4.554972e-06,
            4.707939e-05,
            4.847387e-05,
            2.4232442e-05,
            8.821978e-07,
            -9.192569e-06,
            -8.873173e-06,
            -5.2074897e-06,
            -2.2548954e-06,
            -7.6691845e-07,
            -2.1098029e-07,
            -4.7730254e-08,
            -8.973034e-09,
            0.0,
        ],
    ],
    per_unit: 2.589_285_6,
    last: 5.793_103_7,
};

/// GELU by the error function. A NaN stays one; infinities give their limits.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn gelu(x: __m512) -> __m512 {
    let rounder = _mm512_set1_ps(ROUNDER);
    let per_unit = _mm512_set1_ps(TAIL.per_unit);
    // The second operand is returned when the first is a NaN.
    let a = _mm512_min_ps(_mm512_abs_ps(x), _mm512_set1_ps(TAIL.last));
    let column = _mm512_fmadd_ps(a, per_unit, rounder);
    let u = _mm512_fmsub_ps(a, per_unit, _mm512_sub_ps(column, rounder));
    let column = _mm512_castps_si512(column);
    let [c0, c1, c2, c3, c4, c5] = &TAIL.powers;
    let power = |row| power(row, column);
    let mut h = _mm512_fmadd_ps(power(c5), u, power(c4));
    h = _mm512_fmadd_ps(h, u, power(c3));
    h = _mm512_fmadd_ps(h, u, power(c2));
    h = _mm512_fmadd_ps(h, u, power(c1));
    h = _mm512_fmadd_ps(h, u, power(c0));
    _mm512_fnmadd_ps(a, h, _mm512_max_ps(_mm512_setzero_ps(), x))
}

/// GELU of whole registers, with the coefficients kept in others.
///
/// # Panics
/// When the length is no multiple of 16.
#[target_feature(enable = "avx512f")]
pub(crate) fn gelu_in_place(values: &mut [f32]) {
    let (registers, rest) = values.as_chunks_mut::<16>();
    assert!(rest.is_empty(), "whole registers");
    for register in registers {
        // SAFETY: 16 values.
        unsafe { _mm512_storeu_ps(register.as_mut_ptr(), gelu(_mm512_loadu_ps(register.as_ptr()))) };
    }
}

/// One coefficient for each lane's interval.
#[inline]
#[target_feature(enable = "avx512f")]
fn power(row: &[f32; 16], column: __m512i) -> __m512 {
    // SAFETY: the reference is to 16 f32.
    let row = unsafe { _mm512_loadu_ps(row.as_ptr()) };
    _mm512_permutexvar_ps(column, row)
}

/// `exp`, with subnormal results. A NaN stays one.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn exp(x: __m512) -> __m512 {
    // The second operand is returned when either is a NaN.
    let x = _mm512_max_ps(_mm512_set1_ps(EXP_RANGE.0), x);
    let x = _mm512_min_ps(_mm512_set1_ps(EXP_RANGE.1), x);
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
