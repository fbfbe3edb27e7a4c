//! Products of bytes, and the order of bytes in registers.

use std::arch::aarch64::*;
use std::arch::asm;

/// `acc[c] + sum_i a[4 c + i] * b[4 c + i]`: `vdotq_s32`, which is not stable.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot(mut acc: int32x4_t, a: int32x4_t, b: int32x4_t) -> int32x4_t {
    // SAFETY: only registers are read and written; the processor has the instruction by this function's
    // features.
    unsafe {
        asm!(
            "sdot {acc:v}.4s, {a:v}.16b, {b:v}.16b",
            acc = inout(vreg) acc,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    acc
}

/// As [`sdot`], of unsigned bytes in `u`: `vusdotq_s32`, which is not stable.
#[inline]
#[target_feature(enable = "neon,i8mm")]
pub(super) fn usdot(mut acc: int32x4_t, u: int32x4_t, s: int32x4_t) -> int32x4_t {
    // SAFETY: as in `sdot`.
    unsafe {
        asm!(
            "usdot {acc:v}.4s, {u:v}.16b, {s:v}.16b",
            acc = inout(vreg) acc,
            u = in(vreg) u,
            s = in(vreg) s,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    acc
}

/// [`usdot`] by two signed products: `u * s = (u - 128) * s - (-128) * s`. Loops that multiply one `s` with
/// several `u` compute the second product once.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub(super) fn usdot_by_signed(acc: int32x4_t, u: int32x4_t, s: int32x4_t) -> int32x4_t {
    let least = vreinterpretq_s32_u8(vdupq_n_u8(0x80));
    vsubq_s32(sdot(acc, veorq_s32(u, least), s), sdot(vdupq_n_s32(0), least, s))
}

/// Sixteen bytes of four rows; row `last` stands in for rows after it. Lane `r` of register `i` is bytes
/// `4 i..4 i + 4` of row `from + r`.
///
/// # Safety
/// Sixteen bytes of rows `from.min(last)..=last.min(from + 3)` are readable.
#[inline]
#[target_feature(enable = "neon")]
pub(super) unsafe fn transpose(at: *const u8, stride: usize, last: usize, from: usize) -> [int32x4_t; 4] {
    // SAFETY: the caller's promise.
    let row = |r: usize| unsafe { vreinterpretq_s32_u8(vld1q_u8(at.add((from + r).min(last) * stride))) };
    let (a, b, c, d) = (row(0), row(1), row(2), row(3));
    let pairs = |ab, cd| {
        let (ab, cd) = (vreinterpretq_s64_s32(ab), vreinterpretq_s64_s32(cd));
        [vreinterpretq_s32_s64(vtrn1q_s64(ab, cd)), vreinterpretq_s32_s64(vtrn2q_s64(ab, cd))]
    };
    let [first, third] = pairs(vtrn1q_s32(a, b), vtrn1q_s32(c, d));
    let [second, fourth] = pairs(vtrn2q_s32(a, b), vtrn2q_s32(c, d));
    [first, second, third, fourth]
}

/// `a | b << 8 | c << 16 | d << 24`, of lanes in 0..=255.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn interleave(a: int32x4_t, b: int32x4_t, c: int32x4_t, d: int32x4_t) -> int32x4_t {
    vsliq_n_s32::<24>(vsliq_n_s32::<16>(vsliq_n_s32::<8>(a, b), c), d)
}

/// The lanes, which are in 0..=255, as bytes.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn pack(a: int32x4_t, b: int32x4_t, c: int32x4_t, d: int32x4_t) -> int32x4_t {
    let words = |a, b| vuzp1q_u16(vreinterpretq_u16_s32(a), vreinterpretq_u16_s32(b));
    let bytes = |a, b| vuzp1q_u8(vreinterpretq_u8_u16(a), vreinterpretq_u8_u16(b));
    vreinterpretq_s32_u8(bytes(words(a, b), words(c, d)))
}

/// # Safety
/// Sixteen bytes at each pointer are readable.
#[inline]
#[target_feature(enable = "neon")]
pub(super) unsafe fn interleave_rows(rows: [*const u8; 4]) -> [[int32x4_t; 2]; 2] {
    // SAFETY: the caller's promise.
    let [a, b, c, d] = rows.map(|at| unsafe { vld1q_u8(at) });
    let fours = |ab, cd| {
        let (ab, cd) = (vreinterpretq_u16_u8(ab), vreinterpretq_u16_u8(cd));
        [vreinterpretq_s32_u16(vzip1q_u16(ab, cd)), vreinterpretq_s32_u16(vzip2q_u16(ab, cd))]
    };
    let low = fours(vzip1q_u8(a, b), vzip1q_u8(c, d));
    let high = fours(vzip2q_u8(a, b), vzip2q_u8(c, d));
    [[low[0], high[0]], [low[1], high[1]]]
}

/// Bytes `code + 128` of eight values already multiplied by the reciprocal scale. The conversion rounds ties
/// to even, turns a NaN into 0 and saturates, and so does narrowing, which is the clamp.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn codes(low: float32x4_t, high: float32x4_t) -> uint8x8_t {
    let words = vqmovn_high_s32(vqmovn_s32(vcvtnq_s32_f32(low)), vcvtnq_s32_f32(high));
    veor_u8(vreinterpret_u8_s8(vqmovn_s16(words)), vdup_n_u8(0x80))
}
