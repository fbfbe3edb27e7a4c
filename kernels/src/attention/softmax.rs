//! From the logits of one query to the weights of its keys, and the factor of their product with the values.

use crate::lanes::Lanes;
use crate::reference::Probs;
use crate::types::Quantizer;

/// Logits further than this below the largest are taken to be this far below: `e^-60` is lost in the rounding of any
/// sum that has a 1 in it, and its products are still normal numbers, where subnormal ones would be slow.
const FLOOR: f32 = -60.0;

/// The weights of one query.
pub(super) struct Row<'a> {
    /// Logits of all keys, whole registers; left as f32 weights unless `codes` is there.
    pub(super) logits: &'a mut [f32],
    /// The weights as unsigned codes, as long as `logits`, when the values are multiplied in integers.
    pub(super) codes: Option<&'a mut [u8]>,
}

impl Row<'_> {
    /// Turns logits into weights, which are to be multiplied by the factor returned; `value_step` is the step of the
    /// values' codes, 1 in f32.
    #[inline(always)]
    pub(super) fn weigh<L: Lanes>(&mut self, lanes: L, probs: Probs, value_step: f32) -> f32 {
        let max = self.highest(lanes);
        match probs {
            Probs::Float => 1.0 / self.exponentials(lanes, max),
            Probs::U8 => value_step / self.unsigned_codes(lanes, max) as f32,
            Probs::S8(quantizer) => {
                let total = self.exponentials(lanes, max);
                self.signed_codes(lanes, total, quantizer);
                quantizer.scale() * value_step
            }
        }
    }

    #[inline(always)]
    fn highest<L: Lanes>(&self, lanes: L) -> L::F {
        let mut max = lanes.splat(f32::NEG_INFINITY);
        for x in self.logits.chunks_exact(L::N) {
            max = lanes.max(max, lanes.load(x));
        }
        lanes.splat(lanes.highest(max))
    }

    /// Puts `exp(x - max)` in place of each logit; gives their sum.
    #[inline(always)]
    fn exponentials<L: Lanes>(&mut self, lanes: L, max: L::F) -> f32 {
        let mut total = lanes.splat(0.0);
        for x in self.logits.chunks_exact_mut(L::N) {
            let e = exponential(lanes, lanes.load(x), max);
            total = lanes.add(total, e);
            lanes.store(x, e);
        }
        lanes.sum(total)
    }

    /// Codes `round(255 * exp(x - max))`; gives their sum.
    #[inline(always)]
    fn unsigned_codes<L: Lanes>(&mut self, lanes: L, max: L::F) -> i32 {
        let mut total = lanes.splat_i(0);
        for at in (0..self.logits.len()).step_by(L::N) {
            let e = exponential(lanes, lanes.load(&self.logits[at..]), max);
            let code = lanes.round(lanes.mul(e, lanes.splat(255.0)));
            total = lanes.add_i(total, code);
            self.put(lanes, at, code);
        }
        lanes.sum_i(total)
    }

    /// Codes of `exp / total`. They are not negative, so that they serve as unsigned ones.
    #[inline(always)]
    fn signed_codes<L: Lanes>(&mut self, lanes: L, total: f32, quantizer: Quantizer) {
        let recip = lanes.splat(quantizer.recip());
        let inverse = lanes.splat(1.0 / total);
        for at in (0..self.logits.len()).step_by(L::N) {
            let p = lanes.mul(lanes.load(&self.logits[at..]), inverse);
            self.put(lanes, at, lanes.round(lanes.clamp(lanes.mul(p, recip))));
        }
    }

    /// Stores a register of codes from key `at` on.
    #[inline(always)]
    fn put<L: Lanes>(&mut self, lanes: L, at: usize, code: L::I) {
        match &mut self.codes {
            Some(codes) => lanes.narrow_all(&mut codes[at..], code),
            None => lanes.store(&mut self.logits[at..], lanes.float(code)),
        }
    }
}

/// `exp(x - max)`; a NaN stays one.
#[inline(always)]
fn exponential<L: Lanes>(lanes: L, x: L::F, max: L::F) -> L::F {
    lanes.exp(lanes.max(lanes.splat(FLOOR), lanes.sub(x, max)))
}
