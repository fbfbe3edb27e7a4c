//! Four lanes.

use std::arch::aarch64::*;

use swinq_numerics::reference::math::{
    EXP, EXP_255, EXP_RANGE, LN2_HIGH, LN2_LOW, QUADRATIC, QUADRATIC_LAST, QUADRATIC_PER_UNIT, ROUNDER,
    SIGNED_ROUNDER, TAIL, TAIL_LAST, TAIL_PER_UNIT,
};

/// [`swinq_numerics::reference::gelu`] of each lane.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn gelu(x: float32x4_t) -> float32x4_t {
    let (a, h) = tail(x);
    vfmsq_f32(positive(x), a, h)
}

/// [`swinq_numerics::reference::gelu_quadratic`] of each lane.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn gelu_quadratic(x: float32x4_t) -> float32x4_t {
    let a = magnitude(x, QUADRATIC_LAST);
    let column = vfmaq_n_f32(vdupq_n_f32(ROUNDER), a, QUADRATIC_PER_UNIT);
    let places = places::<31>(column);
    let [c0, c1, c2] = QUADRATIC.0.each_ref().map(|row| power_of_32(row, places));
    vfmsq_f32(positive(x), a, vfmaq_f32(c0, vfmaq_f32(c1, c2, a), a))
}

/// [`swinq_numerics::reference::math::tail`] of each lane.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn tail(x: float32x4_t) -> (float32x4_t, float32x4_t) {
    let a = magnitude(x, TAIL_LAST);
    let column = vfmaq_n_f32(vdupq_n_f32(ROUNDER), a, TAIL_PER_UNIT);
    let interval = vsubq_f32(column, vdupq_n_f32(ROUNDER));
    let u = vfmaq_n_f32(vnegq_f32(interval), a, TAIL_PER_UNIT);
    let places = places::<15>(column);
    let [low @ .., highest] = &TAIL.0;
    let mut h = power(highest, places);
    for row in low.iter().rev() {
        h = vfmaq_f32(power(row, places), h, u);
    }
    (a, h)
}

/// 0 where `x` is less than 0, otherwise `x`, which may be a NaN.
#[inline]
#[target_feature(enable = "neon")]
fn positive(x: float32x4_t) -> float32x4_t {
    vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(x), vcltzq_f32(x)))
}

/// `min(|x|, last)` of each lane; `last` for a NaN.
#[inline]
#[target_feature(enable = "neon")]
fn magnitude(x: float32x4_t, last: f32) -> float32x4_t {
    // Numbers without sign are in the order of their bits, and NaNs come after them.
    let bits = vreinterpretq_u32_f32(vabsq_f32(x));
    vreinterpretq_f32_u32(vminq_u32(bits, vdupq_n_u32(last.to_bits())))
}

/// The positions of the four bytes of each lane's coefficient, for the interval in the low bits `MASK` of
/// `column`.
#[inline]
#[target_feature(enable = "neon")]
fn places<const MASK: u32>(column: float32x4_t) -> uint8x16_t {
    let interval = vandq_u32(vreinterpretq_u32_f32(column), vdupq_n_u32(MASK));
    vreinterpretq_u8_u32(vmlaq_n_u32(vdupq_n_u32(0x0302_0100), interval, 0x0404_0404))
}

/// The coefficients of 16 intervals in four registers.
#[inline]
#[target_feature(enable = "neon")]
fn table(row: &[f32; 16]) -> uint8x16x4_t {
    // SAFETY: the reference is to 64 bytes.
    unsafe { vld1q_u8_x4(row.as_ptr().cast()) }
}

/// One coefficient for each lane; positions below 64.
#[inline]
#[target_feature(enable = "neon")]
fn power(row: &[f32; 16], places: uint8x16_t) -> float32x4_t {
    vreinterpretq_f32_u8(vqtbl4q_u8(table(row), places))
}

/// As [`power`], of 32 intervals: positions below 128.
#[inline]
#[target_feature(enable = "neon")]
fn power_of_32(row: &[f32; 32], places: uint8x16_t) -> float32x4_t {
    let (rows, _) = row.as_chunks::<16>();
    // A position outside a table gives 0 in the first look-up and changes nothing in the second.
    let low = vqtbl4q_u8(table(&rows[0]), places);
    vreinterpretq_f32_u8(vqtbx4q_u8(low, table(&rows[1]), vsubq_u8(places, vdupq_n_u8(64))))
}

/// [`swinq_numerics::reference::exp`] of each lane.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn exp(x: float32x4_t) -> float32x4_t {
    // `max` and `min` keep a NaN.
    let x = vmaxq_f32(x, vdupq_n_f32(EXP_RANGE.0));
    let (p, n) = exp_parts(vminq_f32(x, vdupq_n_f32(EXP_RANGE.1)));
    // Split 2^n into two factors that do not underflow or overflow unless the product does.
    let half = vshrq_n_s32::<1>(n);
    vmulq_f32(vmulq_f32(p, power_of_two(half)), power_of_two(vsubq_s32(n, half)))
}

/// [`swinq_numerics::reference::exp`] of lanes in [-87, 0], where `2^n` is a normal number, or NaN.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn exp_falling(x: float32x4_t) -> float32x4_t {
    let (p, n) = exp_parts(x);
    vmulq_f32(p, power_of_two(n))
}

/// [`swinq_numerics::reference::exp_255`] of lanes in [-11, 0].
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn exp_255(x: float32x4_t) -> float32x4_t {
    let (per_unit, rounder) = (vdupq_n_f32(std::f32::consts::LOG2_E), vdupq_n_f32(SIGNED_ROUNDER));
    let sum = vfmaq_f32(rounder, x, per_unit);
    let f = vfmaq_f32(vsubq_f32(rounder, sum), x, per_unit);
    let mut p = vdupq_n_f32(EXP_255[4]);
    for power in (0..4).rev() {
        p = vfmaq_f32(vdupq_n_f32(EXP_255[power]), p, f);
    }
    let exponent = vshlq_n_s32::<23>(vreinterpretq_s32_f32(sum));
    vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(p), exponent))
}

/// `p` and `n` of [`swinq_numerics::reference::exp`].
#[inline]
#[target_feature(enable = "neon")]
fn exp_parts(x: float32x4_t) -> (float32x4_t, int32x4_t) {
    let n = vrndnq_f32(vmulq_n_f32(x, std::f32::consts::LOG2_E));
    let r = vfmsq_f32(x, n, vdupq_n_f32(LN2_HIGH));
    let r = vfmsq_f32(r, n, vdupq_n_f32(LN2_LOW));
    let mut p = vdupq_n_f32(EXP[6]);
    for power in (0..6).rev() {
        p = vfmaq_f32(vdupq_n_f32(EXP[power]), p, r);
    }
    (p, vcvtq_s32_f32(n))
}

/// `2^n` for n in [-126, 127].
#[inline]
#[target_feature(enable = "neon")]
fn power_of_two(n: int32x4_t) -> float32x4_t {
    vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(n, vdupq_n_s32(127))))
}
