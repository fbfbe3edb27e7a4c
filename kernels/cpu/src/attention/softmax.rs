//! Turns the logits of one query into the weights of its keys, as
//! [`swinq_numerics::reference::attention_row_exp`] and [`swinq_numerics::reference::attention_row_u8`]
//! define them.

use swinq_numerics::Quantizer;
use swinq_numerics::reference::{CODE_FLOOR, FLOOR};

use crate::lanes::Lanes;

/// The largest of `logits`, ignoring NaNs, in every lane.
#[inline(always)]
fn largest<L: Lanes>(lanes: L, logits: &[f32]) -> L::F {
    let least = lanes.splat(f32::NEG_INFINITY);
    let (registers, tail) = logits.split_at(logits.len() - logits.len() % L::N);
    let mut max = least;
    for x in registers.chunks_exact(L::N) {
        // `max` returns its second operand if the first is a NaN.
        max = lanes.max(lanes.load(x), max);
    }
    if !tail.is_empty() {
        let last = lanes.load_or(tail, least);
        max = lanes.max(last, max);
    }
    lanes.splat(lanes.highest(max))
}

/// `exp(max(x - max, -60))`; a NaN stays a NaN.
#[inline(always)]
fn exponential<L: Lanes>(lanes: L, x: L::F, max: L::F) -> L::F {
    // `max` returns its second operand if either is a NaN.
    lanes.exp_falling(lanes.max(lanes.splat(FLOOR), lanes.sub(x, max)))
}

/// `round(exp_255(max(x - max, -11)))`; 0 for a NaN.
#[inline(always)]
pub(super) fn unsigned_code<L: Lanes>(lanes: L, x: L::F, max: L::F) -> L::I {
    // `max` returns its second operand if either is a NaN.
    lanes.round(lanes.exp_255(lanes.max(lanes.sub(x, max), lanes.splat(CODE_FLOOR))))
}

/// Replaces each logit by `exp(max(x - max, -60))` and returns the sum. A NaN stays a NaN.
#[inline(always)]
pub(crate) fn exponentials<L: Lanes>(lanes: L, logits: &mut [f32]) -> f32 {
    let max = largest(lanes, logits);
    let mut sums = [lanes.splat(0.0); 2];
    let mut blocks = logits.chunks_exact_mut(16);
    for block in &mut blocks {
        for (x, sum) in block.chunks_exact_mut(L::N).zip(&mut sums) {
            let e = exponential(lanes, lanes.load(x), max);
            *sum = lanes.add(*sum, e);
            lanes.store(x, e);
        }
    }
    for (x, sum) in blocks.into_remainder().chunks_mut(L::N).zip(&mut sums) {
        let e = lanes.keep(exponential(lanes, lanes.load_part(x), max), x.len());
        *sum = lanes.add(*sum, e);
        lanes.store_part(x, e);
    }
    lanes.fold(sums)
}

/// Stores codes `round(exp_255(max(x - max, -11)))` (0 for a NaN) and returns their sum. `codes` may be
/// longer than `logits`; the rest of the last register is filled with codes 0.
#[inline(always)]
pub(crate) fn unsigned_codes<L: Lanes>(lanes: L, logits: &[f32], codes: &mut [u8]) -> i32 {
    let max = largest(lanes, logits);
    let (registers, tail) = logits.split_at(logits.len() - logits.len() % L::N);
    let mut total = lanes.splat_i(0);
    for (index, x) in registers.chunks_exact(L::N).enumerate() {
        let code = unsigned_code(lanes, lanes.load(x), max);
        total = lanes.add_i(total, code);
        lanes.narrow_all(&mut codes[index * L::N..], code);
    }
    if !tail.is_empty() {
        // The code of -inf is 0.
        let code = unsigned_code(lanes, lanes.load_or(tail, lanes.splat(f32::NEG_INFINITY)), max);
        total = lanes.add_i(total, code);
        lanes.narrow_all(&mut codes[registers.len()..], code);
    }
    lanes.sum_i(total)
}

/// Codes of `exps * inverse`. They are not negative, so they are also valid unsigned codes. `codes` is as in
/// [`unsigned_codes`].
#[inline(always)]
pub(crate) fn signed_codes<L: Lanes>(
    lanes: L,
    exps: &[f32],
    inverse: f32,
    quantizer: Quantizer,
    codes: &mut [u8],
) {
    let (inverse, recip) = (lanes.splat(inverse), lanes.splat(quantizer.recip()));
    for (index, x) in exps.chunks(L::N).enumerate() {
        let p = lanes.mul(lanes.load_part(x), inverse);
        lanes.narrow_all(&mut codes[index * L::N..], lanes.round(lanes.clamp(lanes.mul(p, recip))));
    }
}

/// Codes as f32.
#[inline(always)]
pub(crate) fn widened<L: Lanes>(lanes: L, codes: &[u8], out: &mut [f32]) {
    for (codes, out) in codes.chunks_exact(L::N).zip(out.chunks_exact_mut(L::N)) {
        // SAFETY: `chunks_exact` gives N bytes.
        lanes.store(out, lanes.float(unsafe { lanes.widen(codes.as_ptr()) }));
    }
}
