//! The general path: logits of a few queries against all keys of the window.

use swinq_numerics::{AttentionSpec, HeadScores, Quantizer};

use super::operands::Rows;
use super::products::{Blocks, Product, products};
use crate::lanes::Lanes;

/// How a product becomes a logit: `fma(site(product * product_scale), scale, bias + mask)`.
#[derive(Clone, Copy)]
pub(super) struct Finish {
    /// `s_q * s_k` for integers; 1 for f32.
    pub(super) product_scale: f32,
    pub(super) scale: f32,
    pub(super) site: Option<Quantizer>,
}

impl Finish {
    /// For each head of `spec`.
    pub(super) fn of_heads(spec: &AttentionSpec<'_>) -> Vec<Finish> {
        let product_scale = match (spec.quant.q, spec.quant.k) {
            (Some(q), Some(k)) => q.scale() * k.scale(),
            _ => 1.0,
        };
        let finish = |HeadScores { scale, .. }| Finish { product_scale, scale, site: spec.quant.scores };
        spec.head_scores().map(finish).collect()
    }

    /// The logit of a product; `integer` says whether it is a product of codes.
    #[inline(always)]
    pub(super) fn logit<L: Lanes>(self, lanes: L, product: L::F, bias: L::F, integer: bool) -> L::F {
        match self.site {
            None if integer => lanes.fma(product, lanes.splat(self.product_scale * self.scale), bias),
            None => lanes.fma(product, lanes.splat(self.scale), bias),
            Some(site) => {
                let score =
                    if integer { lanes.mul(product, lanes.splat(self.product_scale)) } else { product };
                lanes.fma(lanes.fake(score, site), lanes.splat(self.scale), bias)
            }
        }
    }
}

/// The other terms of the logits of `R` queries, and where the logits go.
pub(super) struct Logits<'a, const R: usize> {
    /// For each query, padded to full registers.
    pub(super) bias: [&'a [f32]; R],
    pub(super) mask: [Option<&'a [f32]>; R],
    pub(super) finish: Finish,
    /// `[R, n_padded]`.
    pub(super) out: &'a mut [f32],
    pub(super) n_padded: usize,
}

/// Products as they are: the finish of sums that [`combine`] reads.
const RAW: Finish = Finish { product_scale: 1.0, scale: 1.0, site: None };

/// Where [`scores`] puts raw products of integers, as f32: they are less than 2^24.
pub(super) fn raw<'a, const R: usize>(
    zeros: &'a [f32],
    out: &'a mut [f32],
    n_padded: usize,
) -> Logits<'a, R> {
    Logits { bias: [zeros; R], mask: [None; R], finish: RAW, out, n_padded }
}

/// Turns products of codes, which `logits` holds, and products of codes with lo codes into logits.
#[inline(always)]
pub(super) fn combine<L: Lanes, const R: usize>(
    lanes: L,
    n: usize,
    with_low: &[f32],
    logits: &mut Logits<'_, R>,
) {
    let part = lanes.splat(1.0 / 256.0);
    for query in 0..R {
        for block in 0..n.div_ceil(L::N) {
            let at = query * logits.n_padded + block * L::N;
            let (high, low) = (lanes.load(&logits.out[at..]), lanes.load(&with_low[at..]));
            let product = lanes.fma(low, part, high);
            logits.put(lanes, query, block, product, true);
        }
    }
}

impl<const R: usize> Logits<'_, R> {
    #[inline(always)]
    fn put<L: Lanes>(&mut self, lanes: L, query: usize, block: usize, product: L::F, integer: bool) {
        let keys = block * L::N;
        let mut bias = lanes.load(&self.bias[query][keys..]);
        if let Some(mask) = self.mask[query] {
            bias = lanes.add(bias, lanes.load(&mask[keys..]));
        }
        let logit = self.finish.logit(lanes, product, bias, integer);
        lanes.store(&mut self.out[query * self.n_padded + keys..], logit);
    }
}

/// Logits of the first `R` of `queries`; the keys are packed for the product `P`.
#[inline(always)]
pub(super) fn scores<L: Lanes, P: Product<L>, const R: usize>(
    lanes: L,
    (n, groups): (usize, usize),
    queries: Rows<'_, P::Left>,
    keys: &[P::Right],
    offsets: &[f32],
    logits: &mut Logits<'_, R>,
) {
    let per_block = groups * P::REGISTER;
    let (blocks, keys) = (n.div_ceil(L::N), Blocks { data: keys, per_block, per_group: P::REGISTER });
    let mut from = 0;
    while from < blocks {
        from += if blocks - from >= 4 && L::TILE >= 4 {
            tile::<L, P, R, 4>(lanes, groups, queries, keys, offsets, from, logits)
        } else if blocks - from >= 2 {
            tile::<L, P, R, 2>(lanes, groups, queries, keys, offsets, from, logits)
        } else {
            tile::<L, P, R, 1>(lanes, groups, queries, keys, offsets, from, logits)
        };
    }
}

/// `R` queries by `T` blocks of keys from `block` on; returns `T`.
#[inline(always)]
fn tile<L: Lanes, P: Product<L>, const R: usize, const T: usize>(
    lanes: L,
    groups: usize,
    queries: Rows<'_, P::Left>,
    keys: Blocks<'_, P::Right>,
    offsets: &[f32],
    block: usize,
    logits: &mut Logits<'_, R>,
) -> usize {
    let mut initial = [P::zero(lanes); T];
    for (t, initial) in initial.iter_mut().enumerate() {
        *initial = P::initial(lanes, offsets, block + t);
    }
    let sums = products::<L, P, R, T>(lanes, groups, queries, keys.from(block), initial);
    for (r, sums) in sums.into_iter().enumerate() {
        for (t, sum) in sums.into_iter().enumerate() {
            logits.put(lanes, r, block + t, P::float(lanes, sum), P::INTEGER);
        }
    }
    T
}
