//! Linears: products with a weight, and their epilogues.

use super::{Gelu, code, fma};
use crate::quantizer::Quantizer;

/// The largest k of an INT8 product: 255 * 128 * k fits an i32.
pub const MAX_INT8_K: usize = 65_793;

/// `sum_k input[k] * weight[k]`, exact: INT8 times INT8 accumulated in INT32.
///
/// # Panics
/// If there are more than [`MAX_INT8_K`] products.
#[inline]
pub fn accumulate_i8(input: &[i8], weight: &[i8]) -> i32 {
    assert!(input.len() <= MAX_INT8_K, "a sum of {} products may not fit an i32", input.len());
    // No sum overflows, and without checks the loop is vectorised.
    let pairs = input.iter().zip(weight);
    pairs.fold(0, |sum: i32, (&x, &w)| sum.wrapping_add(i32::from(x) * i32::from(w)))
}

/// `sum_k zero_points[k] * weight[k]`, exact: the subtrahend of [`accumulate_i8`] of a weight and of codes
/// that stand for `code - zero_point`.
///
/// The difference is at most 255 * 128 * k in magnitude, which fits an i32 for k up to
/// [`MAX_INT8_K`].
#[inline]
pub fn correction_i8(zero_points: &[i8], weight: &[i8]) -> i32 {
    accumulate_i8(zero_points, weight)
}

/// `sums[c] = sum_k input[k] * weights[k][c]` in f32: one fused multiply-add after the other, in the order of
/// k, starting from 0. `weights` is `[input.len(), sums.len()]`.
#[inline(always)]
pub fn accumulate_f32(input: &[f32], weights: &[f32], sums: &mut [f32]) {
    sums.fill(0.0);
    for (&x, weights) in input.iter().zip(weights.chunks_exact(sums.len())) {
        for (sum, &w) in sums.iter_mut().zip(weights) {
            *sum = fma(x, w, *sum);
        }
    }
}

/// The value after bias and GELU, from an accumulator.
///
/// ```text
/// y = fma(acc, multiplier, bias)                                        without `output`
/// y = fma(round(clamp(acc * (multiplier * output.recip))), output.scale, bias)   with `output`
/// ```
/// `multiplier` is the input's scale times the weight's, in f32; the product with `output.recip` is one f32
/// too.
#[inline]
pub fn epilogue_i8(
    acc: i32,
    multiplier: f32,
    bias: f32,
    output: Option<Quantizer>,
    gelu: Option<Gelu>,
) -> f32 {
    let y = match output {
        None => fma(acc as f32, multiplier, bias),
        Some(q) => fma(f32::from(code(acc as f32 * (multiplier * q.recip()))), q.scale(), bias),
    };
    gelu.map_or(y, |gelu| gelu.of(y))
}

/// As [`epilogue_i8`], for a product in float.
#[inline]
pub fn epilogue_f32(product: f32, bias: f32, output: Option<Quantizer>, gelu: Option<Gelu>) -> f32 {
    let y = match output {
        None => product + bias,
        Some(q) => fma(f32::from(q.code(product)), q.scale(), bias),
    };
    gelu.map_or(y, |gelu| gelu.of(y))
}
