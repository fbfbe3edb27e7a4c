//! Bias and mask in the layout that the kernels read.

use swinq_numerics::sizes::{check_len, elements};

use super::{Shape, Unit};
use crate::buffer::Aligned;

/// Keys are padded to a multiple of this number, the most keys that any instruction set processes at once.
pub(super) const KEY_BLOCK: usize = 16;

/// Bias and mask of one block's windows. Rows are padded to full key blocks, bias with -inf, so that a padded
/// key gets no weight. Windows with the same division into regions share one mask.
pub(super) struct Tables {
    n: usize,
    /// Keys with their padding.
    padded: usize,
    /// `[heads, n, padded]`.
    bias: Aligned<f32>,
    /// Bias of the last key, `[heads, padded]` (head, query).
    last: Aligned<f32>,
    /// `[n, padded]` each, symmetric.
    masks: Vec<Aligned<f32>>,
    /// Mask of each window.
    mask_of: Vec<Option<usize>>,
}

impl Tables {
    /// The tables for `bias`, and for the regions of tokens and the value that is added to logits between them.
    pub(super) fn new(shape: Shape, windows: usize, bias: &[f32], regions: Option<(&[u8], f32)>) -> Tables {
        let Shape { heads, n, .. } = shape;
        check_len("WindowAttention", "bias", bias.len(), &[heads, n, n]);
        let padded = n.next_multiple_of(KEY_BLOCK);
        let column: Vec<f32> = bias.chunks_exact(n).map(|row| row[n - 1]).collect();
        elements("WindowAttention", "padded bias", &[heads, n, padded]);
        let last = pad_rows(&column, n, padded, 0.0);
        let bias = pad_rows(bias, n, padded, f32::NEG_INFINITY);
        let mut tables = Tables { n, padded, bias, last, masks: Vec::new(), mask_of: vec![None; windows] };
        if let Some((regions, value)) = regions {
            check_len("WindowAttention", "regions", regions.len(), &[windows, n]);
            tables.add_masks(regions, value);
        }
        tables
    }

    fn add_masks(&mut self, regions: &[u8], value: f32) {
        let mut patterns: Vec<Vec<u8>> = Vec::new();
        for (window, regions) in regions.chunks_exact(self.n).enumerate() {
            let pattern = canonical(regions);
            if pattern.iter().all(|&region| region == 0) {
                continue;
            }
            let known = patterns.iter().position(|p| *p == pattern);
            self.mask_of[window] = Some(known.unwrap_or_else(|| {
                self.masks.push(mask(&pattern, self.padded, value));
                patterns.push(pattern);
                patterns.len() - 1
            }));
        }
    }

    /// Bias and mask (if anything in the window is masked) of the queries from `query` on: rows of padded keys, and the
    /// length of a row.
    pub(super) fn from(
        &self,
        Unit { window, head, .. }: Unit,
        query: usize,
    ) -> (&[f32], Option<&[f32]>, usize) {
        let (size, first) = (self.n * self.padded, query * self.padded);
        let bias = &self.bias[head * size..][first..size];
        let mask = self.mask_of[window].map(|mask| &self.masks[mask][first..]);
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

    /// Mask of one query (or key), unless nothing in its window is masked.
    #[inline]
    pub(super) fn mask(&self, window: usize, query: usize) -> Option<&[f32]> {
        self.mask_of[window].map(|mask| &self.masks[mask][query * self.padded..][..self.padded])
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

/// The same division into regions, with regions numbered in order of appearance.
fn canonical(regions: &[u8]) -> Vec<u8> {
    let mut seen: Vec<u8> = Vec::new();
    let number = |&region: &u8| {
        let known = seen.iter().position(|&s| s == region);
        known.unwrap_or_else(|| {
            seen.push(region);
            seen.len() - 1
        }) as u8
    };
    regions.iter().map(number).collect()
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

    #[test]
    fn windows_divided_alike_share_a_mask() {
        let regions = [4, 4, 4, 0, 0, 9, 3, 3, 1, 7, 2, 7];
        let shape = Shape { heads: 1, d: 4, n: 3, two_codes: 0 };
        let tables = Tables::new(shape, 4, &[0.5; 9], Some((&regions, MASKED)));
        assert_eq!(tables.mask_of, [None, Some(0), Some(0), Some(1)]);
        assert_eq!(tables.mask(1, 0).unwrap()[..4], [0.0, 0.0, MASKED, 0.0]);
        assert_eq!(tables.mask(1, 2).unwrap()[..3], [MASKED, MASKED, 0.0]);
        assert_eq!(tables.mask(3, 2).unwrap()[..3], [0.0, MASKED, 0.0]);
        assert!(tables.mask(0, 1).is_none());
    }

    #[test]
    fn padded_keys_get_no_weight() {
        let tables = Tables::new(Shape { heads: 2, d: 4, n: 3, two_codes: 0 }, 1, &[0.5; 18], None);
        assert_eq!(tables.bias(1, 2)[..3], [0.5; 3]);
        assert!(tables.bias(1, 2)[3..].iter().all(|&b| b == f32::NEG_INFINITY));
    }
}
