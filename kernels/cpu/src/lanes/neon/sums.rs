//! Sums over the lanes of registers.

use std::arch::aarch64::*;

/// The fold of sixteen lanes: the halves are added, then halves of halves.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn fold([a, b]: [[float32x4_t; 2]; 2]) -> f32 {
    let x = vaddq_f32(vaddq_f32(a[0], b[0]), vaddq_f32(a[1], b[1]));
    vpadds_f32(vadd_f32(vget_low_f32(x), vget_high_f32(x)))
}

/// Lane `i` is the fold of register `i`.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn folds(x: &[[float32x4_t; 2]; 4]) -> float32x4_t {
    let fours = |i: usize| vreinterpretq_f64_f32(vaddq_f32(x[i][0], x[i][1]));
    let twos = |a, b| {
        let (low, high) = (vtrn1q_f64(a, b), vtrn2q_f64(a, b));
        vaddq_f32(vreinterpretq_f32_f64(low), vreinterpretq_f32_f64(high))
    };
    vpaddq_f32(twos(fours(0), fours(1)), twos(fours(2), fours(3)))
}
