//! Bias and mask in the layout that the kernels read.

use std::array;

use swinq_numerics::MASKS;
use swinq_numerics::sizes::{check_len, elements};

use super::{Shape, Unit};
use crate::buffer::Aligned;

/// Keys are padded to a multiple of this number, the most keys that any instruction set processes at once.
pub(super) const KEY_BLOCK: usize = 16;

/// Bias and masks of one block's windows. Rows are padded to full key blocks, bias with -inf, so that a
/// padded key gets no weight.
pub(super) struct Tables {
    n: usize,
    /// Keys with their padding.
    padded: usize,
    /// `[heads, n, padded]`.
    bias: Aligned<f32>,
    /// Bias of the last key, `[heads, padded]` (head, query).
    last: Aligned<f32>,
    /// The masks by number, `[n, padded]` each, symmetric; `None` masks nothing.
    masks: [Option<Aligned<f32>>; MASKS],
    /// Whether the op has regions, and so all masks.
    has_regions: bool,
}

impl Tables {
    /// The tables for `bias`, and for the regions of tokens and the value that is added to logits between
    /// them.
    pub(super) fn new(shape: Shape, bias: &[f32], regions: Option<(&[u8], f32)>) -> Tables {
        let Shape { heads, n, .. } = shape;
        check_len("WindowAttention", "bias", bias.len(), &[heads, n, n]);
        let padded = n.next_multiple_of(KEY_BLOCK);
        let column: Vec<f32> = bias.chunks_exact(n).map(|row| row[n - 1]).collect();
        elements("WindowAttention", "padded bias", &[heads, n, padded]);
        let last = pad_rows(&column, n, padded, 0.0);
        let bias = pad_rows(bias, n, padded, f32::NEG_INFINITY);
        let masks = regions.map(|(regions, value)| masks(regions, n, padded, value));
        Tables { n, padded, bias, last, has_regions: masks.is_some(), masks: masks.unwrap_or_default() }
    }

    /// Whether the op has masks other than 0.
    pub(super) fn has_regions(&self) -> bool {
        self.has_regions
    }

    /// Bias and mask (if anything in the window is masked) of the queries from `query` on: rows of padded
    /// keys, and the length of a row.
    pub(super) fn from(
        &self,
        Unit { mask, head, .. }: Unit,
        query: usize,
    ) -> (&[f32], Option<&[f32]>, usize) {
        let (size, first) = (self.n * self.padded, query * self.padded);
        let bias = &self.bias[head * size..][first..size];
        let mask = self.masks[usize::from(mask)].as_ref().map(|mask| &mask[first..]);
        (bias, mask, self.padded)
    }

    /// Bias of one query: a row of padded keys.
    #[inline]
    pub(super) fn bias(&self, head: usize, query: usize) -> &[f32] {
        &self.bias[(head * self.n + query) * self.padded..][..self.padded]
    }

    /// Bias of the last key by query, padded.
    pub(super) fn last_key(&self, head: usize) -> &[f32] {
        &self.last[head * self.padded..][..self.padded]
    }

    /// Row of one query (or key) in the mask number `mask`, unless it masks nothing.
    #[inline]
    pub(super) fn mask(&self, mask: u8, query: usize) -> Option<&[f32]> {
        let mask = self.masks[usize::from(mask)].as_ref()?;
        Some(&mask[query * self.padded..][..self.padded])
    }
}

/// Rows of `n` with `fill` after each, `padded` long.
fn pad_rows(rows: &[f32], n: usize, padded: usize, fill: f32) -> Aligned<f32> {
    let mut out = vec![fill; rows.len() / n * padded];
    for (out, row) in out.chunks_exact_mut(padded).zip(rows.chunks_exact(n)) {
        out[..n].copy_from_slice(row);
    }
    out.into()
}

/// The mask of each number for the regions `[MASKS, n]`; `None` if all its tokens lie in one region.
fn masks(regions: &[u8], n: usize, padded: usize, value: f32) -> [Option<Aligned<f32>>; MASKS] {
    check_len("WindowAttention", "regions", regions.len(), &[MASKS, n]);
    let masks = array::from_fn(|number| {
        let regions = &regions[number * n..][..n];
        let divided = regions.iter().any(|region| *region != regions[0]);
        divided.then(|| mask(regions, padded, value))
    });
    assert!(masks[0].is_none(), "WindowAttention: mask 0 has several regions");
    masks
}

/// The mask `[n, padded]` of a division into regions: `masked` between regions, 0 for padded keys.
fn mask(regions: &[u8], padded: usize, masked: f32) -> Aligned<f32> {
    let mut mask = vec![0.0; regions.len() * padded];
    for (row, query) in mask.chunks_exact_mut(padded).zip(regions) {
        for (value, key) in row.iter_mut().zip(regions) {
            *value = if query == key { 0.0 } else { masked };
        }
    }
    mask.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MASKED: f32 = -200.0;

    const SHAPE: Shape = Shape { heads: 1, d: 4, n: 3, hi_lo: 0 };

    #[test]
    fn masks_are_found_by_number() {
        let regions = [4, 4, 4, 0, 0, 9, 3, 3, 3, 7, 2, 7];
        let tables = Tables::new(SHAPE, &[0.5; 9], Some((&regions, MASKED)));
        assert_eq!(tables.mask(1, 0).unwrap()[..4], [0.0, 0.0, MASKED, 0.0]);
        assert_eq!(tables.mask(1, 2).unwrap()[..3], [MASKED, MASKED, 0.0]);
        assert_eq!(tables.mask(3, 2).unwrap()[..3], [0.0, MASKED, 0.0]);
        let unit = Unit { mask: 3, head: 0, row: 0 };
        assert_eq!(tables.from(unit, 1).1.unwrap()[..3], [MASKED, 0.0, MASKED]);
        assert!(
            tables.mask(0, 1).is_none() && tables.mask(2, 1).is_none(),
            "all their tokens lie in one region"
        );
    }

    #[test]
    #[should_panic(expected = "WindowAttention: mask 0 has several regions")]
    fn a_mask_0_that_masks_is_refused() {
        Tables::new(SHAPE, &[0.5; 9], Some((&[0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], MASKED)));
    }

    #[test]
    fn padded_keys_get_no_weight() {
        let tables = Tables::new(Shape { heads: 2, ..SHAPE }, &[0.5; 18], None);
        assert_eq!(tables.bias(1, 2)[..3], [0.5; 3]);
        assert!(tables.bias(1, 2)[3..].iter().all(|&b| b == f32::NEG_INFINITY));
    }
}
