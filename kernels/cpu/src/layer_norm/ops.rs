//! The three LayerNorm ops: rows in window order, merged patches, and the pooled mean.

use std::ops::Range;

use swinq_numerics::sizes::{check_len, elements};
use swinq_numerics::{PAD, RowMap, RowStore, reference};

use super::vector::together;
use super::{Affine, MIN_VALUES, Target, largest_result, normalise};
use crate::buffer::{Aligned, AlignedBuf};
use crate::cpu::Cpu;
use crate::pool::{Parts, Pool};
use crate::rows::{ColumnRange, MapRows, RowOut, RowSink, units_per_task};

/// An instruction set and an [`Affine`].
pub(super) struct Owned {
    cpu: Cpu,
    gamma: Aligned<f32>,
    beta: Aligned<f32>,
    eps: f32,
    largest: f32,
}

impl Owned {
    pub(super) fn new(op: &str, cpu: Cpu, gamma: &[f32], beta: &[f32], eps: f32) -> Owned {
        assert!(!gamma.is_empty(), "{op}: no channels");
        assert_eq!(gamma.len(), beta.len(), "{op}: gamma and beta differ in length");
        assert!(eps.is_finite() && eps >= 0.0, "{op}: epsilon is {eps}");
        elements(op, "working memory", &[together(gamma.len()) + 1, gamma.len(), size_of::<f32>()]);
        Owned { cpu, gamma: gamma.into(), beta: beta.into(), eps, largest: largest_result(gamma, beta) }
    }

    pub(super) fn channels(&self) -> usize {
        self.gamma.len()
    }

    /// [`normalise`] with these parameters.
    pub(super) fn rows<'x, T: Target>(
        &self,
        count: usize,
        source: impl Fn(usize) -> Option<&'x [f32]>,
        out: impl Fn(usize) -> T,
        buffer: &mut [f32],
    ) {
        let Owned { gamma, beta, eps, largest, .. } = self;
        let affine = Affine { gamma, beta, eps: *eps, largest: *largest };
        normalise(self.cpu, affine, count, source, out, buffer);
    }
}

/// LayerNorm of rows that a [`RowMap`] gathers. The cyclic shift, padding and window partition happen in its
/// reads.
pub struct LayerNorm {
    affine: Owned,
    store: RowStore,
}

impl LayerNorm {
    /// The op over rows of `gamma.len()` channels.
    ///
    /// # Panics
    /// If there are no channels, `beta` has another length, or `eps` is negative or not finite.
    pub fn new(cpu: Cpu, gamma: &[f32], beta: &[f32], eps: f32, store: RowStore) -> LayerNorm {
        LayerNorm { affine: Owned::new("LayerNorm", cpu, gamma, beta, eps), store }
    }

    /// Row `(b, i)` of `out` is the norm of row `(b, map.rows()[i])` of `x`, and zeros (byte 128 in codes)
    /// for [`PAD`]. `x` is f32 `[images * map.tokens(), c]`, `out` is `[images * map.rows().len(), c]`.
    ///
    /// # Panics
    /// If a length or the variant of `out` does not match.
    pub fn run(&self, pool: &mut Pool, images: usize, x: &[f32], map: &RowMap, out: RowOut<'_>) {
        let (c, n) = (self.affine.channels(), map.rows().len());
        check_len("LayerNorm", "input", x.len(), &[images, map.tokens(), c]);
        let rows = elements("LayerNorm", "rows", &[images, n]);
        let sink = RowSink::new("LayerNorm", self.store, out, rows, c);
        let each = units_per_task(rows, pool.threads(), MIN_VALUES / c + 1);
        pool.run(rows.div_ceil(each), &|task, scratch| {
            let rows = task * each..rows.min((task + 1) * each);
            let source = |row: usize| &x[row * c..][..c];
            // SAFETY: rows are distinct, and each is written, once, by the one task that holds it.
            let out = |row| unsafe { sink.row(row) };
            self.gather(rows, map, source, out, &mut scratch.op);
        });
    }

    /// Normalises rows `rows` of `map`'s order over all images on the caller's thread. `out` holds only these
    /// rows; `x` is as in [`LayerNorm::run`].
    ///
    /// # Panics
    /// As [`LayerNorm::run`].
    ///
    /// # Safety
    /// Nobody writes these rows of `x` during the call.
    pub(crate) unsafe fn run_on_this_thread(
        &self,
        rows: Range<usize>,
        x: Parts<'_, f32>,
        map: &RowMap,
        out: RowOut<'_>,
        scratch: &mut AlignedBuf,
    ) {
        let (c, first) = (self.affine.channels(), rows.start);
        let sink = RowSink::new("LayerNorm", self.store, out, rows.len(), c);
        // SAFETY: the caller's promise.
        let source = |row| unsafe { x.read(row * c, c) };
        // SAFETY: rows are distinct, and each is written once, here.
        let out = |row| unsafe { sink.row(row - first) };
        self.gather(rows, map, source, out, scratch);
    }

    /// Normalises rows `rows` of `map`'s order over all images; `source` gives rows of tokens, `out` rows of
    /// the order.
    fn gather<'x, 's>(
        &self,
        rows: Range<usize>,
        map: &RowMap,
        source: impl Fn(usize) -> &'x [f32],
        out: impl Fn(usize) -> ColumnRange<'s>,
        scratch: &mut AlignedBuf,
    ) {
        let (c, from) = (self.affine.channels(), rows.start);
        scratch.reserve(c * size_of::<f32>());
        let map_rows = MapRows::new(map, from);
        let source = |i: usize| map_rows.token(i).map(&source);
        self.affine.rows(rows.len(), source, |i| out(from + i), &mut scratch.as_f32_mut()[..c]);
    }

    /// Channels, and how results are stored.
    pub(crate) fn shape(&self) -> (usize, RowStore) {
        (self.affine.channels(), self.store)
    }

    /// Normalises each row of `x`, f32 `[rows, c]`, in place.
    ///
    /// # Panics
    /// Unless the op stores [`RowStore::F32`] and the channels divide the length of `x`.
    pub fn run_in_place(&self, pool: &mut Pool, x: &mut [f32]) {
        let c = self.affine.channels();
        assert_eq!(self.store, RowStore::F32, "LayerNorm: only f32 is stored in place");
        assert!(x.len().is_multiple_of(c), "LayerNorm: {c} channels do not divide {}", x.len());
        let rows = x.len() / c;
        let each = units_per_task(rows, pool.threads(), MIN_VALUES / c + 1);
        let parts = Parts::new(x);
        pool.run(rows.div_ceil(each), &|task, scratch| {
            let together = together(c);
            scratch.op.reserve((together + 1) * c * size_of::<f32>());
            let (buffer, copy) = scratch.op.as_f32_mut()[..(together + 1) * c].split_at_mut(c);
            let end = rows.min((task + 1) * each);
            for from in (task * each..end).step_by(together) {
                let count = together.min(end - from);
                // SAFETY: rows are distinct, and each belongs to the one task that holds it.
                copy[..count * c].copy_from_slice(unsafe { parts.get(from * c, count * c) });
                // SAFETY: as above; the part copied from is no longer held.
                let out = |i| ColumnRange::F32(unsafe { parts.get((from + i) * c, c) });
                self.affine.rows(count, |i| Some(&copy[i * c..][..c]), out, buffer);
            }
        });
    }
}

/// Patch merging without its linear: four rows of `c` channels side by side, normalised as one row of `4c`.
pub struct MergeNorm {
    affine: Owned,
    store: RowStore,
}

impl MergeNorm {
    /// The op with the norm of `gamma` and `beta`, `4c` elements each.
    ///
    /// # Panics
    /// If the length of `gamma` is 0, is not a multiple of four, or differs from the length of `beta`; if
    /// `eps` is negative or not finite.
    pub fn new(cpu: Cpu, gamma: &[f32], beta: &[f32], eps: f32, store: RowStore) -> MergeNorm {
        let affine = Owned::new("MergeNorm", cpu, gamma, beta, eps);
        assert!(gamma.len().is_multiple_of(4), "MergeNorm: {} channels are no four rows", gamma.len());
        MergeNorm { affine, store }
    }

    /// Reads `x`, f32 `[images * map.tokens(), c]`; writes `[images * map.rows().len() / 4, 4c]`. Row `i` of
    /// an image is the norm of its rows `map.rows()[4 * i..4 * i + 4]`, side by side in that order; [`PAD`]
    /// is a row of zeros, inserted before the norm.
    ///
    /// # Panics
    /// If a length or the variant of `out` does not match, or if the rows of the map are no multiple of four.
    pub fn run(&self, pool: &mut Pool, images: usize, x: &[f32], map: &RowMap, out: RowOut<'_>) {
        let (sources, rest) = map.rows().as_chunks::<4>();
        assert!(rest.is_empty(), "MergeNorm: {} rows are no multiple of four", map.rows().len());
        let (wide, n, tokens) = (self.affine.channels(), sources.len(), map.tokens());
        let c = wide / 4;
        check_len("MergeNorm", "input", x.len(), &[images, tokens, c]);
        let rows = elements("MergeNorm", "rows", &[images, n]);
        let sink = RowSink::new("MergeNorm", self.store, out, rows, wide);
        let each = units_per_task(rows, pool.threads(), MIN_VALUES / wide + 1);
        pool.run(rows.div_ceil(each), &|task, scratch| {
            let together = together(wide);
            scratch.op.reserve((together + 1) * wide * size_of::<f32>());
            let (buffer, merged) = scratch.op.as_f32_mut()[..(together + 1) * wide].split_at_mut(wide);
            let end = rows.min((task + 1) * each);
            for from in (task * each..end).step_by(together) {
                let count = together.min(end - from);
                for (row, merged) in (from..from + count).zip(merged.chunks_exact_mut(wide)) {
                    let image = &x[row / n * tokens * c..][..tokens * c];
                    gather(image, &sources[row % n], merged);
                }
                // SAFETY: rows are distinct, and each is written, once, by the one task that holds it.
                let out = |i| unsafe { sink.row(from + i) };
                self.affine.rows(count, |i| Some(&merged[i * wide..][..wide]), out, buffer);
            }
        });
    }
}

/// The rows `sources` of `image`, side by side in `merged`.
fn gather(image: &[f32], sources: &[u32; 4], merged: &mut [f32]) {
    let c = merged.len() / 4;
    for (part, &source) in merged.chunks_exact_mut(c).zip(sources) {
        match source {
            PAD => part.fill(0.0),
            token => part.copy_from_slice(&image[token as usize * c..][..c]),
        }
    }
}

/// LayerNorm of every token of an image, then the mean over its tokens as
/// [`mean_of_rows`](swinq_numerics::reference::mean_of_rows) defines it.
pub struct PooledNorm {
    affine: Owned,
    store: RowStore,
}

impl PooledNorm {
    /// The op over tokens of `gamma.len()` channels.
    ///
    /// # Panics
    /// If there are no channels, `beta` has another length, or `eps` is negative or not finite.
    pub fn new(cpu: Cpu, gamma: &[f32], beta: &[f32], eps: f32, store: RowStore) -> PooledNorm {
        PooledNorm { affine: Owned::new("PooledNorm", cpu, gamma, beta, eps), store }
    }

    /// Reads images of `tokens` tokens each, `x` f32 `[images * tokens, c]`; writes `[images, c]`.
    ///
    /// # Panics
    /// If there are no tokens or too many of them, or if a length or the variant of `out` does not match.
    pub fn run(&self, pool: &mut Pool, images: usize, tokens: usize, x: &[f32], out: RowOut<'_>) {
        assert!(tokens > 0, "PooledNorm: no tokens");
        let c = self.affine.channels();
        elements("PooledNorm", "working memory", &[tokens.saturating_add(2), c, size_of::<f32>()]);
        check_len("PooledNorm", "input", x.len(), &[images, tokens, c]);
        let sink = RowSink::new("PooledNorm", self.store, out, images, c);
        pool.run(images, &|image, scratch| {
            scratch.op.reserve((tokens + 2) * c * size_of::<f32>());
            let (mean, rest) = scratch.op.as_f32_mut()[..(tokens + 2) * c].split_at_mut(c);
            let (buffer, normed) = rest.split_at_mut(c);
            let x = &x[image * tokens * c..][..tokens * c];
            let parts = Parts::new(normed);
            // SAFETY: rows are distinct, and each is written once.
            let out = |i| ColumnRange::F32(unsafe { parts.get(i * c, c) });
            self.affine.rows(tokens, |i| Some(&x[i * c..][..c]), out, buffer);
            reference::mean_of_rows(normed, mean);
            // SAFETY: an image is one task.
            unsafe { sink.row(image) }.put_all(mean);
        });
    }
}
