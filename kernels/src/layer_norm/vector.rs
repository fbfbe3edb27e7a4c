//! LayerNorm by vectors, a few rows at a time. First it computes the norms of all these rows, so that their
//! long chains of dependent operations overlap; then it normalises the rows, which are still in the
//! first-level cache.

use super::{Affine, Target};
use crate::lanes::Lanes;
use crate::reference::RowNorm;
use crate::rows::Cast;

/// The most rows that are normalised together: as many as [`Lanes::folds`] folds.
const ROWS: usize = 16;

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
        // Rows that are summed side by side, because the additions of one row wait for each other: as many as registers
        // hold the sums of.
        let norms = match L::N {
            16 => norms::<L, 4>(lanes, affine.eps, &sources[..rows]),
            _ => norms::<L, 2>(lanes, affine.eps, &sources[..rows]),
        };
        for (i, (source, norm)) in sources[..rows].iter().zip(norms).enumerate() {
            out(from + i).put_vector(lanes, affine, norm, *source);
        }
        from += rows;
    }
}

/// [`RowNorm::of`] each of at most [`ROWS`] rows of the same length, `R` side by side; meaningless for `None`.
#[inline(always)]
fn norms<L: Lanes, const R: usize>(lanes: L, eps: f32, sources: &[Option<&[f32]>]) -> [RowNorm; ROWS] {
    let mut norms = [RowNorm::default(); ROWS];
    let Some(&any) = sources.iter().flatten().next() else { return norms };
    // A row without a source has a stand-in.
    let mut rows = [any; ROWS];
    rows.iter_mut().zip(sources).for_each(|(row, source)| *row = source.unwrap_or(any));
    assert!(rows.iter().all(|row| row.len() == any.len()), "rows of one length");
    let (rows, _) = rows[..sources.len().next_multiple_of(R)].as_chunks::<R>();
    let (zero, count) = (lanes.splat(0.0), lanes.splat(any.len() as f32));

    let mut sums = [zero; ROWS];
    for (rows, sums) in rows.iter().zip(sums.as_chunks_mut::<R>().0) {
        *sums = sums_of(lanes, rows);
    }
    let mut means = lanes.folds(sums);
    for means in means.chunks_exact_mut(L::N) {
        lanes.store(means, lanes.div(lanes.load(means), count));
    }

    let (mut rests, mut squares) = ([zero; ROWS], [zero; ROWS]);
    let sums = rests.as_chunks_mut::<R>().0.iter_mut().zip(squares.as_chunks_mut::<R>().0);
    for ((rows, means), (rests, squares)) in rows.iter().zip(means.as_chunks::<R>().0).zip(sums) {
        [*rests, *squares] = differences_of(lanes, rows, means);
    }
    let (mut shifts, mut inverses) = (lanes.folds(rests), lanes.folds(squares));
    for (shifts, inverses) in shifts.chunks_exact_mut(L::N).zip(inverses.chunks_exact_mut(L::N)) {
        let variance = lanes.div(lanes.load(inverses), count);
        let deviation = lanes.sqrt(lanes.add(variance, lanes.splat(eps)));
        let inverse = lanes.div(lanes.splat(1.0), deviation);
        lanes.store(inverses, inverse);
        lanes.store(shifts, lanes.mul(lanes.div(lanes.load(shifts), count), inverse));
    }
    for (i, norm) in norms.iter_mut().enumerate() {
        *norm = RowNorm { mean: means[i], inverse: inverses[i], shift: -shifts[i] };
    }
    norms
}

/// Sixteen partial sums of each row, which have one length. A register holds sixteen lanes, or the sums of the two halves.
#[inline(always)]
fn sums_of<L: Lanes, const R: usize>(lanes: L, rows: &[&[f32]; R]) -> [L::F; R] {
    let mut sums = [[lanes.splat(0.0); R]; 2];
    let len = rows[0].len();
    let whole = len - len % 16;
    for at in (0..whole).step_by(16) {
        for (half, sums) in sums.iter_mut().enumerate().take(16 / L::N) {
            for (row, sum) in rows.iter().zip(sums) {
                // SAFETY: `at + 16` is at most the length of the rows, which the caller has checked to be one.
                *sum = lanes.add(*sum, unsafe { lanes.read(row.as_ptr().add(at + half * L::N)) });
            }
        }
    }
    for (from, sums) in (whole..len).step_by(L::N).zip(&mut sums) {
        for (row, sum) in rows.iter().zip(sums) {
            *sum = lanes.add(*sum, lanes.load_part(&row[from..]));
        }
    }
    halves(lanes, sums)
}

/// As [`sums_of`], of the differences from the row's mean, and of their squares.
#[inline(always)]
fn differences_of<L: Lanes, const R: usize>(
    lanes: L,
    rows: &[&[f32]; R],
    means: &[f32; R],
) -> [[L::F; R]; 2] {
    let [mut rests, mut squares] = [[[lanes.splat(0.0); R]; 2]; 2];
    let means = means.map(|mean| lanes.splat(mean));
    let len = rows[0].len();
    let whole = len - len % 16;
    for at in (0..whole).step_by(16) {
        for half in 0..16 / L::N {
            for (i, row) in rows.iter().enumerate() {
                // SAFETY: `at + 16` is at most the length of the rows, which the caller has checked to be one.
                let x = unsafe { lanes.read(row.as_ptr().add(at + half * L::N)) };
                let d = lanes.sub(x, means[i]);
                rests[half][i] = lanes.add(rests[half][i], d);
                squares[half][i] = lanes.fma(d, d, squares[half][i]);
            }
        }
    }
    for (half, from) in (whole..len).step_by(L::N).enumerate() {
        for (i, row) in rows.iter().enumerate() {
            let d = lanes.sub(lanes.load_part(&row[from..]), means[i]);
            let d = lanes.keep(d, len - from);
            rests[half][i] = lanes.add(rests[half][i], d);
            squares[half][i] = lanes.fma(d, d, squares[half][i]);
        }
    }
    [halves(lanes, rests), halves(lanes, squares)]
}

/// Sixteen lanes in one register, or the sums of the two halves.
#[inline(always)]
fn halves<L: Lanes, const R: usize>(lanes: L, [low, high]: [[L::F; R]; 2]) -> [L::F; R] {
    let mut sums = low;
    if L::N < 16 {
        for (sum, high) in sums.iter_mut().zip(high) {
            *sum = lanes.add(*sum, high);
        }
    }
    sums
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
