//! Scratch memory of the general path for one window and head.

use swinq_numerics::AttentionQuant;
use swinq_numerics::sizes::elements;

use super::tables::KEY_BLOCK;
use super::{Shape, integer_scores, integer_values};
use crate::buffer::AlignedBuf;

/// Queries that are processed together.
pub(super) const ROWS: usize = 6;

/// Sizes in f32 of the parts of [`GeneralScratch`], each a multiple of a cache line.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    /// Channels, padded to full registers of every instruction set.
    pub(super) d_padded: usize,
    /// Keys, padded in the same way: the stride of logits and weights.
    pub(super) n_padded: usize,
    rows: usize,
    keys: usize,
    values: usize,
    offsets: usize,
    logits: usize,
    weights: usize,
    keys_low: usize,
    offsets_low: usize,
    logits_low: usize,
}

impl Layout {
    pub(super) fn new(shape: Shape, quant: &AttentionQuant) -> Layout {
        let Shape { d, n, .. } = shape;
        let (d_padded, n_padded) = (d.next_multiple_of(KEY_BLOCK), n.next_multiple_of(KEY_BLOCK));
        // More bytes than any of the paths uses: this one, `int8_u8` (for 64 queries at once) and `scalar`.
        elements("WindowAttention", "working memory", &[n_padded, n_padded + d_padded, 128]);
        let keys = if integer_scores(quant) { n_padded * d.div_ceil(4) } else { n_padded * d };
        let values = if integer_values(quant) { n.div_ceil(4) * d_padded } else { 0 };
        let low = usize::from(shape.hi_lo > 0 && integer_scores(quant));
        let sizes = [n * d_padded, keys, values, n_padded, ROWS * n_padded, ROWS * n_padded / 4];
        let [rows, keys, values, offsets, logits, weights] = sizes.map(|size| size.next_multiple_of(16));
        let (keys_low, offsets_low, logits_low) =
            (2 * low * n_padded * d.div_ceil(4), low * offsets, low * logits);
        Layout {
            d_padded,
            n_padded,
            rows,
            keys,
            values,
            offsets,
            logits,
            weights,
            keys_low: keys_low.next_multiple_of(16),
            offsets_low,
            logits_low,
        }
    }

    fn total(&self) -> usize {
        let low = self.keys_low + self.offsets_low + self.logits_low;
        3 * self.rows + self.keys + self.values + self.offsets + self.logits + self.weights + low
    }
}

/// The scratch memory. The contents of a part depend on whether its product is computed in integers.
pub(super) struct GeneralScratch<'s> {
    /// Rows of q, k and v that cannot be used in place in the input: f32 or codes, `[n, d_padded]`.
    pub(super) rows: [&'s mut [f32]; 3],
    /// `[key block][channel group][lane][4]` s8, or `[key block][channel][lane]` f32.
    pub(super) keys: &'s mut [f32],
    /// `[channel block][key group][lane][4]` s8.
    pub(super) values: &'s mut [f32],
    /// -128 times the sum of each key's codes, i32.
    pub(super) offsets: &'s mut [f32],
    /// Logits, then weights in f32: `[ROWS, n_padded]`.
    pub(super) logits: &'s mut [f32],
    /// Weights as unsigned codes: `[ROWS, n_padded]`.
    pub(super) weights: &'s mut [f32],
    /// For heads with hi and lo codes, as `keys`: the lo codes of each key, then its codes.
    pub(super) keys_low: &'s mut [f32],
    /// As `offsets`, for `keys_low`.
    pub(super) offsets_low: &'s mut [f32],
    /// For heads with hi and lo codes, as `logits`: the products of codes with lo codes.
    pub(super) logits_low: &'s mut [f32],
}

impl<'s> GeneralScratch<'s> {
    pub(super) fn split(layout: &Layout, scratch: &'s mut AlignedBuf) -> GeneralScratch<'s> {
        scratch.reserve(layout.total() * size_of::<f32>());
        let mut rest = scratch.as_f32_mut();
        let mut take = |size| rest.split_off_mut(..size).expect("`reserve` made room for all");
        GeneralScratch {
            rows: [take(layout.rows), take(layout.rows), take(layout.rows)],
            keys: take(layout.keys),
            values: take(layout.values),
            offsets: take(layout.offsets),
            logits: take(layout.logits),
            weights: take(layout.weights),
            keys_low: take(layout.keys_low),
            offsets_low: take(layout.offsets_low),
            logits_low: take(layout.logits_low),
        }
    }
}

/// The words of `x`.
pub(super) fn words_mut(x: &mut [f32]) -> &mut [u32] {
    // SAFETY: the same memory and alignment, all initialised; any bits are a valid u32 and a valid f32, and
    // the borrow is unique.
    unsafe { std::slice::from_raw_parts_mut(x.as_mut_ptr().cast(), x.len()) }
}
