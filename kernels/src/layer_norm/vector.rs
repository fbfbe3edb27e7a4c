//! One row by vectors: its mean, then its spread about that mean, then the row, all three out of the first cache.
//!
//! The mean is rounded to f32, which alone would cost rows far from 0 most of their accuracy. So the second pass also
//! sums what is left over, and the result is corrected by it (Chan, Golub and LeVeque, 1983).

use super::Affine;
use crate::lanes::Lanes;
use crate::rows::Segment;

/// Normalises the row `x` into `out`.
#[inline(always)]
pub(super) fn row<L: Lanes>(lanes: L, affine: &Affine, x: &[f32], out: &mut Segment<'_>) {
    let count = x.len() as f32;
    let mean = lanes.splat(sum(lanes, x) / count);
    let (left, squares) = spread(lanes, x, mean);
    let left = left / count;
    let inverse = 1.0 / ((squares / count - left * left).max(0.0) + affine.eps).sqrt();
    let (shift, inverse) = (lanes.splat(-left * inverse), lanes.splat(inverse));
    let vectors =
        x.chunks_exact(L::N).zip(affine.gamma.chunks_exact(L::N)).zip(affine.beta.chunks_exact(L::N));
    for (index, ((x, gamma), beta)) in vectors.enumerate() {
        let x = lanes.fma(lanes.sub(lanes.load(x), mean), inverse, shift);
        out.put(lanes, index * L::N, lanes.fma(x, lanes.load(gamma), lanes.load(beta)));
    }
    let whole = x.len() - x.len() % L::N;
    if whole < x.len() {
        let (gamma, beta) = (lanes.load_part(&affine.gamma[whole..]), lanes.load_part(&affine.beta[whole..]));
        let x = lanes.fma(lanes.sub(lanes.load_part(&x[whole..]), mean), inverse, shift);
        out.put(lanes, whole, lanes.fma(x, gamma, beta));
    }
}

/// The sum of `x`, in four registers that are added at the end.
#[inline(always)]
fn sum<L: Lanes>(lanes: L, x: &[f32]) -> f32 {
    let zero = lanes.splat(0.0);
    let (mut a, mut b, mut c, mut d) = (zero, zero, zero, zero);
    let blocks = x.chunks_exact(4 * L::N);
    let vectors = blocks.remainder().chunks_exact(L::N);
    let tail = vectors.remainder();
    for block in blocks {
        a = lanes.add(a, lanes.load(block));
        b = lanes.add(b, lanes.load(&block[L::N..]));
        c = lanes.add(c, lanes.load(&block[2 * L::N..]));
        d = lanes.add(d, lanes.load(&block[3 * L::N..]));
    }
    for x in vectors {
        a = lanes.add(a, lanes.load(x));
    }
    d = lanes.add(d, lanes.load_part(tail));
    lanes.sum(lanes.add(lanes.add(a, b), lanes.add(c, d)))
}

/// The sums of `x - mean` and of its square.
#[inline(always)]
fn spread<L: Lanes>(lanes: L, x: &[f32], mean: L::F) -> (f32, f32) {
    let zero = lanes.splat(0.0);
    let (mut a, mut b) = ((zero, zero), (zero, zero));
    let pairs = x.chunks_exact(2 * L::N);
    let rest = pairs.remainder();
    for pair in pairs {
        a = add_spread(lanes, a, lanes.sub(lanes.load(pair), mean));
        b = add_spread(lanes, b, lanes.sub(lanes.load(&pair[L::N..]), mean));
    }
    for x in rest.chunks(L::N) {
        a = add_spread(lanes, a, lanes.keep(lanes.sub(lanes.load_part(x), mean), x.len()));
    }
    (lanes.sum(lanes.add(a.0, b.0)), lanes.sum(lanes.add(a.1, b.1)))
}

/// The sums with one more register of differences.
#[inline(always)]
fn add_spread<L: Lanes>(lanes: L, (sum, squares): (L::F, L::F), x: L::F) -> (L::F, L::F) {
    (lanes.add(sum, x), lanes.fma(x, x, squares))
}
