//! The three ops: by window, by merged patch, and pooled.

use super::Affine;
use crate::isa::Cpu;
use crate::pool::{Parts, Pool};
use crate::rows::{RowSink, Segment, units_per_task};
use crate::types::{PAD, RowMap, RowOut, RowStore};

/// f32 values that a task takes at least, so that sharing out costs little beside the work.
const LEAST_VALUES: usize = 4096;

/// LayerNorm of rows that a [`RowMap`] gathers: shift, padding and window partition happen in its reads.
pub struct LayerNorm {
    affine: Affine,
    store: RowStore,
}

impl LayerNorm {
    /// The op over rows of `gamma.len()` channels.
    ///
    /// # Panics
    /// If there are no channels, `beta` has another length, or `eps` is negative or not finite.
    pub fn new(cpu: Cpu, gamma: &[f32], beta: &[f32], eps: f32, store: RowStore) -> LayerNorm {
        LayerNorm { affine: Affine::new("LayerNorm", cpu, gamma, beta, eps), store }
    }

    /// Row `(b, i)` of `out` is the norm of row `(b, map.rows()[i])` of `x`, and zeros (byte 128 in codes) for
    /// [`PAD`]. `x` is f32 `[images * map.tokens(), c]`, `out` is `[images * map.rows().len(), c]`.
    ///
    /// # Panics
    /// If a length or the variant of `out` does not suit.
    pub fn run(&self, pool: &mut Pool, images: usize, x: &[f32], map: &RowMap, out: RowOut<'_>) {
        let (c, n) = (self.affine.channels(), map.rows().len());
        let tokens = map.tokens();
        assert_eq!(x.len(), images * tokens * c, "LayerNorm: input is not [{}, {c}]", images * tokens);
        let rows = images * n;
        let sink = RowSink::new("LayerNorm", self.store, out, rows, c);
        let each = units_per_task(rows, pool.threads(), LEAST_VALUES / c + 1);
        pool.run(rows.div_ceil(each), &|task, scratch| {
            scratch.reserve(c * size_of::<f32>());
            for row in task * each..rows.min((task + 1) * each) {
                // SAFETY: rows are distinct, and each is written by the one task that holds it.
                let mut out = unsafe { sink.row(row) };
                match map.rows()[row % n] {
                    PAD => out.clear(),
                    token => {
                        let token = row / n * tokens + token as usize;
                        self.affine.row(&x[token * c..][..c], &mut scratch.as_f32_mut()[..c], out);
                    }
                }
            }
        });
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
        let each = units_per_task(rows, pool.threads(), LEAST_VALUES / c + 1);
        let parts = Parts::new(x);
        pool.run(rows.div_ceil(each), &|task, scratch| {
            scratch.reserve(2 * c * size_of::<f32>());
            let (copy, buffer) = scratch.as_f32_mut()[..2 * c].split_at_mut(c);
            for row in task * each..rows.min((task + 1) * each) {
                // SAFETY: rows are distinct, and each belongs to the one task that holds it.
                let x = unsafe { parts.get(row * c, c) };
                copy.copy_from_slice(x);
                self.affine.row(copy, buffer, Segment::F32(x));
            }
        });
    }
}

/// Patch merging up to its product: four rows of `c` channels side by side, normalised as one row of `4c`.
pub struct MergeNorm {
    affine: Affine,
    store: RowStore,
    sources: Vec<[u32; 4]>,
    tokens: usize,
}

impl MergeNorm {
    /// The op that makes row `i` of each image from the rows `sources[i]` of its `tokens` rows, in that order; `None`
    /// is a row of zeros, put in before the norm. `gamma` and `beta` have `4c` elements.
    ///
    /// # Panics
    /// If `gamma` is empty, not a multiple of four long, or as long as `beta` is not; if `eps` is negative or not
    /// finite; if a source is outside `0..tokens`.
    pub fn new(
        cpu: Cpu,
        gamma: &[f32],
        beta: &[f32],
        eps: f32,
        store: RowStore,
        sources: &[[Option<usize>; 4]],
        tokens: usize,
    ) -> MergeNorm {
        let affine = Affine::new("MergeNorm", cpu, gamma, beta, eps);
        assert!(gamma.len().is_multiple_of(4), "MergeNorm: {} channels are no four rows", gamma.len());
        assert!(tokens < PAD as usize, "MergeNorm: {tokens} tokens are too many");
        let number = |source: Option<usize>| match source {
            None => PAD,
            Some(token) => {
                assert!(token < tokens, "MergeNorm: source {token} is outside 0..{tokens}");
                token as u32
            }
        };
        let sources = sources.iter().map(|four| four.map(number)).collect();
        MergeNorm { affine, store, sources, tokens }
    }

    /// Reads `x`, f32 `[images * tokens, c]`; writes `[images * sources.len(), 4c]`.
    ///
    /// # Panics
    /// If a length or the variant of `out` does not suit.
    pub fn run(&self, pool: &mut Pool, images: usize, x: &[f32], out: RowOut<'_>) {
        let (wide, n) = (self.affine.channels(), self.sources.len());
        let c = wide / 4;
        assert_eq!(
            x.len(),
            images * self.tokens * c,
            "MergeNorm: input is not [{}, {c}]",
            images * self.tokens
        );
        let rows = images * n;
        let sink = RowSink::new("MergeNorm", self.store, out, rows, wide);
        let each = units_per_task(rows, pool.threads(), LEAST_VALUES / wide + 1);
        pool.run(rows.div_ceil(each), &|task, scratch| {
            scratch.reserve(2 * wide * size_of::<f32>());
            let (merged, buffer) = scratch.as_f32_mut()[..2 * wide].split_at_mut(wide);
            for row in task * each..rows.min((task + 1) * each) {
                let image = &x[row / n * self.tokens * c..][..self.tokens * c];
                gather(image, &self.sources[row % n], merged);
                // SAFETY: rows are distinct, and each is written by the one task that holds it.
                self.affine.row(merged, buffer, unsafe { sink.row(row) });
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

/// LayerNorm of every token of an image, then the mean over its tokens.
pub struct PooledNorm {
    affine: Affine,
    store: RowStore,
    tokens: usize,
}

impl PooledNorm {
    /// The op over images of `tokens` rows of `gamma.len()` channels.
    ///
    /// # Panics
    /// If there are no channels or tokens, `beta` has another length, or `eps` is negative or not finite.
    pub fn new(
        cpu: Cpu,
        gamma: &[f32],
        beta: &[f32],
        eps: f32,
        store: RowStore,
        tokens: usize,
    ) -> PooledNorm {
        assert!(tokens > 0, "PooledNorm: no tokens");
        PooledNorm { affine: Affine::new("PooledNorm", cpu, gamma, beta, eps), store, tokens }
    }

    /// Reads `x`, f32 `[images * tokens, c]`; writes `[images, c]`.
    ///
    /// # Panics
    /// If a length or the variant of `out` does not suit.
    pub fn run(&self, pool: &mut Pool, images: usize, x: &[f32], out: RowOut<'_>) {
        let (c, tokens) = (self.affine.channels(), self.tokens);
        assert_eq!(x.len(), images * tokens * c, "PooledNorm: input is not [{}, {c}]", images * tokens);
        let sink = RowSink::new("PooledNorm", self.store, out, images, c);
        pool.run(images, &|image, scratch| {
            scratch.reserve(3 * c * size_of::<f32>());
            let (mean, rest) = scratch.as_f32_mut()[..3 * c].split_at_mut(c);
            let (normed, buffer) = rest.split_at_mut(c);
            mean.fill(0.0);
            for x in x[image * tokens * c..][..tokens * c].chunks_exact(c) {
                self.affine.row(x, buffer, Segment::F32(normed));
                mean.iter_mut().zip(&*normed).for_each(|(mean, y)| *mean += y);
            }
            mean.iter_mut().for_each(|mean| *mean /= tokens as f32);
            // SAFETY: an image is one task.
            unsafe { sink.row(image) }.put_all(mean);
        });
    }
}
