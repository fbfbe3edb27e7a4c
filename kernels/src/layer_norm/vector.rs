//! Rows by vectors, a few at a time: first the norms of all, whose long chains of dependent operations then overlap, then
//! the rows themselves, which are in the first cache still.

use super::Affine;
use crate::lanes::Lanes;
use crate::reference::RowNorm;
use crate::rows::{Cast, Segment, ToCodes, ToF32, ToFake};

/// Rows taken together at most.
const ROWS: usize = 8;

/// f32 values of rows taken together at most: a third of a first cache of 48 KiB.
const VALUES: usize = 4096;

/// Normalises `count` rows: row `i` is `source(i)`, or zeros for `None`, and goes to `out(i)`.
#[inline(always)]
pub(super) fn rows<'x, 's, L: Lanes>(
    lanes: L,
    affine: Affine<'_>,
    count: usize,
    source: impl Fn(usize) -> Option<&'x [f32]>,
    out: impl Fn(usize) -> Segment<'s>,
) {
    let together = (VALUES / affine.gamma.len()).clamp(1, ROWS);
    let mut from = 0;
    while from < count {
        let rows = together.min(count - from);
        let mut norms = [RowNorm { mean: 0.0, inverse: 0.0, shift: 0.0 }; ROWS];
        for (i, norm) in norms[..rows].iter_mut().enumerate() {
            if let Some(x) = source(from + i) {
                *norm = RowNorm::new(lanes.moments(x), x.len(), affine.eps);
            }
        }
        for (i, &norm) in norms[..rows].iter().enumerate() {
            match source(from + i) {
                None => out(from + i).clear(),
                Some(x) => row(lanes, affine, norm, x, out(from + i)),
            }
        }
        from += rows;
    }
}

/// Puts the row `x`, normalised, into `out`.
#[inline(always)]
fn row<L: Lanes>(lanes: L, affine: Affine<'_>, norm: RowNorm, x: &[f32], out: Segment<'_>) {
    match out {
        Segment::F32(out) => apply(lanes, affine, norm, x, out, ToF32),
        Segment::Fake(out, quantizer) => apply(lanes, affine, norm, x, out, ToFake(quantizer)),
        Segment::Codes(out, quantizer) => apply(lanes, affine, norm, x, out, ToCodes(quantizer)),
    }
}

/// [`RowNorm::apply`] to each element.
#[inline(always)]
fn apply<L: Lanes, C: Cast>(
    lanes: L,
    affine: Affine<'_>,
    norm: RowNorm,
    x: &[f32],
    out: &mut [C::To],
    cast: C,
) {
    let (mean, inverse, shift) = (lanes.splat(norm.mean), lanes.splat(norm.inverse), lanes.splat(norm.shift));
    let whole = x.len() - x.len() % L::N;
    let vectors = x
        .chunks_exact(L::N)
        .zip(affine.gamma.chunks_exact(L::N).zip(affine.beta.chunks_exact(L::N)))
        .zip(out.chunks_exact_mut(L::N));
    for ((x, (gamma, beta)), out) in vectors {
        let x = lanes.fma(lanes.sub(lanes.load(x), mean), inverse, shift);
        cast.store(lanes, out, lanes.fma(x, lanes.load(gamma), lanes.load(beta)));
    }
    if whole < x.len() {
        let (gamma, beta) = (lanes.load_part(&affine.gamma[whole..]), lanes.load_part(&affine.beta[whole..]));
        let x = lanes.fma(lanes.sub(lanes.load_part(&x[whole..]), mean), inverse, shift);
        cast.store(lanes, &mut out[whole..], lanes.fma(x, gamma, beta));
    }
}
