//! One row by vectors: its mean, then its variance about that mean, then the row, all three out of the first cache.

use super::Affine;
use crate::lanes::Lanes;
use crate::rows::Segment;

/// Normalises the row `x` into `out`.
#[inline(always)]
pub(super) fn row<L: Lanes>(lanes: L, affine: &Affine, x: &[f32], out: &mut Segment<'_>) {
    let count = x.len() as f32;
    let mean = lanes.splat(total::<L, false>(lanes, x, lanes.splat(0.0)) / count);
    let variance = total::<L, true>(lanes, x, mean) / count;
    let inverse = lanes.splat(1.0 / (variance + affine.eps).sqrt());
    let whole = x.len() - x.len() % L::N;
    let vectors = x.chunks_exact(L::N).zip(affine.gamma.chunks_exact(L::N)).zip(affine.beta.chunks_exact(L::N));
    for (index, ((x, gamma), beta)) in vectors.enumerate() {
        let x = lanes.mul(lanes.sub(lanes.load(x), mean), inverse);
        out.put(lanes, index * L::N, lanes.fma(x, lanes.load(gamma), lanes.load(beta)));
    }
    if whole < x.len() {
        let [x, gamma, beta] = [x, &affine.gamma, &affine.beta].map(|x| lanes.load_part(&x[whole..]));
        let x = lanes.mul(lanes.sub(x, mean), inverse);
        out.put(lanes, whole, lanes.fma(x, gamma, beta));
    }
}

/// The sum of `x`, or if `SQUARES` of `(x - mean)^2`, in four registers that are added at the end.
#[inline(always)]
fn total<L: Lanes, const SQUARES: bool>(lanes: L, x: &[f32], mean: L::F) -> f32 {
    let zero = lanes.splat(0.0);
    let (mut a, mut b, mut c, mut d) = (zero, zero, zero, zero);
    let blocks = x.chunks_exact(4 * L::N);
    let vectors = blocks.remainder().chunks_exact(L::N);
    let tail = vectors.remainder();
    for block in blocks {
        a = add_term::<L, SQUARES>(lanes, a, lanes.load(block), mean);
        b = add_term::<L, SQUARES>(lanes, b, lanes.load(&block[L::N..]), mean);
        c = add_term::<L, SQUARES>(lanes, c, lanes.load(&block[2 * L::N..]), mean);
        d = add_term::<L, SQUARES>(lanes, d, lanes.load(&block[3 * L::N..]), mean);
    }
    for x in vectors {
        a = add_term::<L, SQUARES>(lanes, a, lanes.load(x), mean);
    }
    if !tail.is_empty() {
        let terms = add_term::<L, SQUARES>(lanes, zero, lanes.load_part(tail), mean);
        d = lanes.add(d, lanes.keep(terms, tail.len()));
    }
    lanes.sum(lanes.add(lanes.add(a, b), lanes.add(c, d)))
}

#[inline(always)]
fn add_term<L: Lanes, const SQUARES: bool>(lanes: L, sum: L::F, x: L::F, mean: L::F) -> L::F {
    if !SQUARES {
        return lanes.add(sum, x);
    }
    let x = lanes.sub(x, mean);
    lanes.fma(x, x, sum)
}
