//! Logits of a few queries against all keys of the window.

use super::AttentionSpec;
use super::operands::Rows;
use crate::buffer::bytes;
use crate::lanes::Lanes;
use crate::types::Quantizer;

/// From products to logits: `fma(site(product * step), scale, bias + mask)`.
#[derive(Clone, Copy)]
pub(super) struct Finish {
    /// `s_q * s_k` of integers; 1 in f32.
    pub(super) step: f32,
    pub(super) scale: f32,
    pub(super) site: Option<Quantizer>,
}

impl Finish {
    /// For each head of `spec`.
    pub(super) fn of_heads(spec: &AttentionSpec<'_>) -> Vec<Finish> {
        let step = match (spec.quant.q, spec.quant.k) {
            (Some(q), Some(k)) => q.scale() * k.scale(),
            _ => 1.0,
        };
        spec.scales.iter().map(|&scale| Finish { step, scale, site: spec.quant.scores }).collect()
    }

    /// `INTEGER`: the product was of codes.
    #[inline(always)]
    pub(super) fn logit<L: Lanes, const INTEGER: bool>(self, lanes: L, product: L::F, bias: L::F) -> L::F {
        match self.site {
            None if INTEGER => lanes.fma(product, lanes.splat(self.step * self.scale), bias),
            None => lanes.fma(product, lanes.splat(self.scale), bias),
            Some(site) => {
                let score = if INTEGER { lanes.mul(product, lanes.splat(self.step)) } else { product };
                lanes.fma(lanes.fake(score, site), lanes.splat(self.scale), bias)
            }
        }
    }
}

/// What the logits of `R` queries are made of, and where they go.
pub(super) struct Logits<'a, const R: usize> {
    /// Of each query, padded to whole registers.
    pub(super) bias: [&'a [f32]; R],
    pub(super) mask: [Option<&'a [f32]>; R],
    pub(super) finish: Finish,
    /// `[R, n_padded]`.
    pub(super) out: &'a mut [f32],
    pub(super) n_padded: usize,
}

impl<const R: usize> Logits<'_, R> {
    #[inline(always)]
    fn put<L: Lanes, const INTEGER: bool>(&mut self, lanes: L, query: usize, block: usize, product: L::F) {
        let keys = block * L::N;
        let mut bias = lanes.load(&self.bias[query][keys..]);
        if let Some(mask) = self.mask[query] {
            bias = lanes.add(bias, lanes.load(&mask[keys..]));
        }
        let logit = self.finish.logit::<L, INTEGER>(lanes, product, bias);
        lanes.store(&mut self.out[query * self.n_padded + keys..], logit);
    }
}

/// Logits of the first `R` rows of `queries`, by products in integers. `keys` and `offsets` are as
/// [`super::operands::pack_keys_i8`] leaves them.
#[inline(always)]
pub(super) fn block_i8<L: Lanes, const R: usize>(
    lanes: L,
    (n, d): (usize, usize),
    queries: Rows<'_, u8>,
    keys: &[f32],
    offsets: &[f32],
    logits: &mut Logits<'_, R>,
) {
    let (blocks, groups) = (n.div_ceil(L::N), d.div_ceil(4));
    let keys = &bytes(keys)[..blocks * groups * 4 * L::N];
    let mut from = 0;
    while from < blocks {
        let (keys, offsets) = (&keys[from * groups * 4 * L::N..], &offsets[from * L::N..]);
        from += if blocks - from >= 4 && L::TILE >= 4 {
            tile_i8::<L, R, 4>(lanes, groups, queries, keys, offsets, from, logits)
        } else if blocks - from >= 2 {
            tile_i8::<L, R, 2>(lanes, groups, queries, keys, offsets, from, logits)
        } else {
            tile_i8::<L, R, 1>(lanes, groups, queries, keys, offsets, from, logits)
        };
    }
}

/// Products of the first `R` of `queries` and the first `T` blocks of `keys`, `[block][group][lane][4]`, on top of the
/// `offsets` of the keys, i32.
#[inline(always)]
pub(super) fn products_i8<L: Lanes, const R: usize, const T: usize>(
    lanes: L,
    groups: usize,
    queries: Rows<'_, u8>,
    keys: &[u8],
    offsets: &[u8],
) -> [[L::I; T]; R] {
    let register = 4 * L::N;
    assert!(keys.len() >= T * groups * register && offsets.len() >= T * register);
    assert!(queries.data.len() >= (R - 1) * queries.stride + 4 * groups);
    let mut sums = [[lanes.splat_i(0); T]; R];
    for t in 0..T {
        // SAFETY: `T` registers of offsets, by the assertion above.
        let offset = unsafe { lanes.read_i(offsets.as_ptr().add(t * register)) };
        for sums in &mut sums {
            sums[t] = offset;
        }
    }
    for g in 0..groups {
        let mut key = [lanes.splat_i(0); T];
        for (t, key) in key.iter_mut().enumerate() {
            // SAFETY: `T` blocks of `groups` registers, by the assertion above.
            *key = unsafe { lanes.read_i(keys.as_ptr().add((t * groups + g) * register)) };
        }
        for (r, sums) in sums.iter_mut().enumerate() {
            // SAFETY: `R` rows of `groups` groups of four bytes, by the assertion above.
            let query = unsafe {
                queries.data.as_ptr().add(r * queries.stride + 4 * g).cast::<i32>().read_unaligned()
            };
            let query = lanes.splat_i(query);
            for (sum, key) in sums.iter_mut().zip(key) {
                *sum = lanes.dot(*sum, query, key);
            }
        }
    }
    sums
}

/// `R` queries by `T` key blocks from `block` on, the first of `keys`; gives `T`.
#[inline(always)]
fn tile_i8<L: Lanes, const R: usize, const T: usize>(
    lanes: L,
    groups: usize,
    queries: Rows<'_, u8>,
    keys: &[u8],
    offsets: &[f32],
    block: usize,
    logits: &mut Logits<'_, R>,
) -> usize {
    let sums = products_i8::<L, R, T>(lanes, groups, queries, keys, bytes(offsets));
    for (r, sums) in sums.into_iter().enumerate() {
        for (t, sum) in sums.into_iter().enumerate() {
            logits.put::<L, true>(lanes, r, block + t, lanes.float(sum));
        }
    }
    T
}

/// As [`block_i8`], in f32, with keys as [`super::operands::pack_keys_f32`] leaves them.
#[inline(always)]
pub(super) fn block_f32<L: Lanes, const R: usize>(
    lanes: L,
    (n, d): (usize, usize),
    queries: Rows<'_, f32>,
    keys: &[f32],
    logits: &mut Logits<'_, R>,
) {
    let blocks = n.div_ceil(L::N);
    let keys = &keys[..blocks * d * L::N];
    let mut from = 0;
    while from < blocks {
        let keys = &keys[from * d * L::N..];
        from += if blocks - from >= 4 && L::TILE >= 4 {
            tile_f32::<L, R, 4>(lanes, d, queries, keys, from, logits)
        } else if blocks - from >= 2 {
            tile_f32::<L, R, 2>(lanes, d, queries, keys, from, logits)
        } else {
            tile_f32::<L, R, 1>(lanes, d, queries, keys, from, logits)
        };
    }
}

/// `R` queries by `T` key blocks from `block` on, the first of `keys`; gives `T`.
#[inline(always)]
fn tile_f32<L: Lanes, const R: usize, const T: usize>(
    lanes: L,
    d: usize,
    queries: Rows<'_, f32>,
    keys: &[f32],
    block: usize,
    logits: &mut Logits<'_, R>,
) -> usize {
    assert!(keys.len() >= T * d * L::N);
    assert!(queries.data.len() >= (R - 1) * queries.stride + d);
    let mut sums = [[lanes.splat(0.0); T]; R];
    for c in 0..d {
        let mut key = [lanes.splat(0.0); T];
        for (t, key) in key.iter_mut().enumerate() {
            // SAFETY: `T` blocks of `d` registers, by the assertion above.
            *key = unsafe { lanes.read(keys.as_ptr().add((t * d + c) * L::N)) };
        }
        for (r, sums) in sums.iter_mut().enumerate() {
            // SAFETY: `R` rows of `d` elements, by the assertion above.
            let query = lanes.splat(unsafe { *queries.data.as_ptr().add(r * queries.stride + c) });
            for (sum, key) in sums.iter_mut().zip(key) {
                *sum = lanes.fma(query, key, *sum);
            }
        }
    }
    for (r, sums) in sums.into_iter().enumerate() {
        for (t, sum) in sums.into_iter().enumerate() {
            logits.put::<L, false>(lanes, r, block + t, sum);
        }
    }
    T
}
