//! LayerNorm by vectors, a few rows at a time. First it computes the norms of all these rows, so that their
//! long chains of dependent operations overlap; then it normalises the rows, which are still in the
//! first-level cache.

use super::{Affine, Target};
use crate::lanes::Lanes;
use crate::reference::RowNorm;
use crate::rows::Cast;

/// The most rows that are normalised together.
const ROWS: usize = 8;

/// The most f32 values of rows that are normalised together: half of a first-level cache of 48 KiB.
const VALUES: usize = 6144;

/// Normalises `count` rows: reads row `i` from `source(i)` (`None` is a row without a source) and writes it
/// to `out(i)`.
#[inline(always)]
pub(super) fn rows<'x, L: Lanes, T: Target>(
    lanes: L,
    affine: Affine<'_>,
    count: usize,
    source: impl Fn(usize) -> Option<&'x [f32]>,
    out: impl Fn(usize) -> T,
) {
    let together = (VALUES / affine.gamma.len()).clamp(1, ROWS);
    let mut from = 0;
    while from < count {
        let rows = together.min(count - from);
        let mut sources = [None; ROWS];
        for (i, row) in sources[..rows].iter_mut().enumerate() {
            *row = source(from + i);
        }
        let norms = norms(lanes, affine.eps, sources);
        for (i, (source, norm)) in sources[..rows].iter().zip(norms).enumerate() {
            out(from + i).put_vector(lanes, affine, norm, *source);
        }
        from += rows;
    }
}

/// The norm of each row; meaningless for `None`.
#[inline(always)]
fn norms<L: Lanes>(lanes: L, eps: f32, rows: [Option<&[f32]>; ROWS]) -> [RowNorm; ROWS] {
    if let [Some(a), Some(b), Some(c), Some(d), Some(e), Some(f), Some(g), Some(h)] = rows {
        return lanes.norms([a, b, c, d, e, f, g, h], eps);
    }
    let mut norms = [RowNorm::default(); ROWS];
    for (row, norm) in rows.into_iter().zip(&mut norms) {
        if let Some(row) = row {
            *norm = RowNorm::new(lanes.moments(row), row.len(), eps);
        }
    }
    norms
}

/// [`RowNorm::apply`] to each element.
#[inline(always)]
pub(super) fn apply<L: Lanes, C: Cast>(
    lanes: L,
    affine: Affine<'_>,
    norm: RowNorm,
    x: &[f32],
    out: &mut [C::To],
    cast: C,
) {
    let (gamma, beta) = (affine.gamma, affine.beta);
    let normed = Normed {
        mean: lanes.splat(norm.mean),
        inverse: lanes.splat(norm.inverse),
        shift: lanes.splat(norm.shift),
    };
    let fours = x.len() - x.len() % (4 * L::N);
    for at in (0..fours).step_by(4 * L::N) {
        let (x, gamma, beta) = (&x[at..], &gamma[at..], &beta[at..]);
        let mut four = [normed.mean; 4];
        for (i, y) in four.iter_mut().enumerate() {
            let i = i * L::N;
            *y = normed.of(lanes, lanes.load(&x[i..]), lanes.load(&gamma[i..]), lanes.load(&beta[i..]));
        }
        cast.store4(lanes, &mut out[at..], four);
    }
    let whole = x.len() - x.len() % L::N;
    for at in (fours..whole).step_by(L::N) {
        let (gamma, beta) = (lanes.load(&gamma[at..]), lanes.load(&beta[at..]));
        cast.store(lanes, &mut out[at..at + L::N], normed.of(lanes, lanes.load(&x[at..]), gamma, beta));
    }
    if whole < x.len() {
        let (gamma, beta) = (lanes.load_part(&gamma[whole..]), lanes.load_part(&beta[whole..]));
        let x = lanes.load_part(&x[whole..]);
        cast.store(lanes, &mut out[whole..], normed.of(lanes, x, gamma, beta));
    }
}

/// A [`RowNorm`] in every lane.
struct Normed<F> {
    mean: F,
    inverse: F,
    shift: F,
}

impl<F: Copy> Normed<F> {
    /// [`RowNorm::apply`].
    #[inline(always)]
    fn of<L: Lanes<F = F>>(&self, lanes: L, x: F, gamma: F, beta: F) -> F {
        let x = lanes.fma(lanes.sub(x, self.mean), self.inverse, self.shift);
        lanes.fma(x, gamma, beta)
    }
}
