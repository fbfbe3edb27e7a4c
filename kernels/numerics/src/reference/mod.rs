//! The scalar definition of every op. It is the contract: every implementation must equal it bit for bit.
//! This is possible for floating point too, because the order of operations is part of each definition, and
//! every operation is one that IEEE 754 rounds correctly (sums, products, fused multiply-adds, quotients,
//! square roots). The payload of a NaN is unspecified.

mod attention;
mod bicubic;
mod layer_norm;
mod linear;
pub mod math;
mod normalize;

use crate::Int8;

pub use attention::{
    AttentionQuant, CODE_FLOOR, FLOOR, HeadScores, Probs, attention_row_exp, attention_row_u8,
    attention_window,
};
pub use bicubic::resize_bicubic;
pub use layer_norm::{RowNorm, add_layer_norm_row, fold, layer_norm_row, mean_of_rows};
pub use linear::{MAX_INT8_K, accumulate_f32, accumulate_i8, correction_i8, epilogue_f32, epilogue_i8};
pub use math::{
    EXP_255, Gelu, QUADRATIC, QUADRATIC_LAST, QUADRATIC_PER_UNIT, Quadratic, exp, exp_255, fma, gelu,
    gelu_derivative, gelu_quadratic,
};
pub use normalize::{SHORTEST, inverse_length, normalize};

/// The code of a value that is already multiplied by the reciprocal scale: clamped to [-128, 127] as f32,
/// then rounded to nearest, ties to even. A NaN has code 0.
#[inline]
pub fn code(scaled: f32) -> i8 {
    if scaled.is_nan() {
        return 0;
    }
    rint(Int8::clamp(scaled)) as i8
}

/// Rounds a value of magnitude below 2^22 to the nearest integer, ties to even: one unit in the last place of
/// the sum is 1.
#[inline(always)]
fn rint(x: f32) -> f32 {
    (x + math::SIGNED_ROUNDER) - math::SIGNED_ROUNDER
}

/// Steps of a lo code in one hi code.
pub const LO_STEPS: f32 = 256.0;

/// The lo code of a value that is already multiplied by the reciprocal scale: the rounding error of the hi
/// code ([`code`]), in steps of 1/256. With both codes, a hi/lo split, the value is about
/// `code + lo_code / 256`.
///
/// Lo codes are between -127 and 127, so that a sum splits into a hi and a lo code in one way only.
#[inline]
pub fn lo_code(scaled: f32) -> i8 {
    let rest = (scaled - f32::from(code(scaled))) * LO_STEPS;
    code(if rest > -Int8::MAX { rest } else { -Int8::MAX })
}
