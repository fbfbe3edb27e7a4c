//! LayerNorm by vectors, a few rows at a time. First it computes the norms of all these rows, so that their
//! long chains of dependent operations overlap; then it normalises the rows, which are still in the
//! first-level cache.

use super::{Affine, Target};
use crate::lanes::Lanes;
use crate::reference::RowNorm;
use crate::rows::Cast;
use crate::types::Quantizer;

/// The most rows that are normalised together: as many as [`Lanes::folds`] folds.
pub(super) const ROWS: usize = 16;

/// The most f32 values of rows that are normalised together: half of a first-level cache of 48 KiB.
const VALUES: usize = 6144;

/// How many rows of `channels` values are normalised together.
pub(super) fn together(channels: usize) -> usize {
    (VALUES / channels).clamp(1, ROWS)
}

/// f32 values of a cache line.
const LINE: usize = 16;

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
    let together = together(affine.gamma.len());
    let group_from = |from| {
        let rows = together.min(count - from);
        Group::new(rows, affine.gamma.len(), |i| source(from + i))
    };
    let (mut from, mut next) = (0, (count > 0).then(|| group_from(0)));
    while let Some(group) = next {
        let end = from + group.count;
        next = (end < count).then(|| group_from(end));
        if let Some(next) = &next {
            next.prefetch(lanes);
        }
        // Rows that are summed side by side, because the additions of one row wait for each other: as many as registers
        // hold the sums of.
        let norms = match L::N {
            16 => norms::<L, 4>(lanes, affine.eps, &group),
            _ => norms::<L, 2>(lanes, affine.eps, &group),
        };
        T::put_group(lanes, affine, &norms, &group, |i| out(from + i));
        from = end;
    }
}

/// Rows of one length that are normalised together.
pub(crate) struct Group<'x> {
    /// The rows; a row without a source, and a row beyond the last, has another one for a stand-in.
    rows: [&'x [f32]; ROWS],
    count: usize,
    /// Whether each row has a source.
    present: [bool; ROWS],
}

impl<'x> Group<'x> {
    /// `count` rows of `len` values.
    ///
    /// # Panics
    /// If a row has another length.
    #[inline(always)]
    fn new(count: usize, len: usize, source: impl Fn(usize) -> Option<&'x [f32]>) -> Group<'x> {
        let mut group = Group { rows: [&[]; ROWS], count, present: [false; ROWS] };
        let mut any: &[f32] = &[];
        for (i, (row, present)) in group.rows[..count].iter_mut().zip(&mut group.present).enumerate() {
            if let Some(source) = source(i) {
                assert_eq!(source.len(), len, "rows of one length");
                (*row, *present, any) = (source, true, source);
            }
        }
        group.rows.iter_mut().filter(|row| row.is_empty()).for_each(|row| *row = any);
        group
    }

    /// Prefetches the rows into the second-level cache.
    #[inline(always)]
    fn prefetch<L: Lanes>(&self, lanes: L) {
        for row in &self.rows[..self.count] {
            for line in row.chunks(LINE).take(2) {
                lanes.prefetch(line.as_ptr());
            }
        }
    }

    /// Row `i`, unless it has no source.
    #[inline(always)]
    pub(super) fn row(&self, i: usize) -> Option<&'x [f32]> {
        self.present[i].then(|| self.rows[i])
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Whether every row has a source.
    pub(super) fn is_full(&self) -> bool {
        self.present[..self.count].iter().all(|&present| present)
    }
}

/// [`RowNorm`]s of a [`Group`].
#[derive(Default)]
pub(crate) struct Norms {
    means: [f32; ROWS],
    inverses: [f32; ROWS],
    shifts: [f32; ROWS],
    /// Whether all means, variances and inverses are finite.
    finite: bool,
}

impl Norms {
    /// Whether the means, the variances and the inverses of all rows are finite.
    pub(super) fn are_finite(&self) -> bool {
        self.finite
    }

    #[inline(always)]
    pub(super) fn of(&self, row: usize) -> RowNorm {
        RowNorm { mean: self.means[row], inverse: self.inverses[row], shift: self.shifts[row] }
    }
}

/// [`RowNorm::of`] each row of `group`, `R` side by side; meaningless for rows without a source.
#[inline(always)]
fn norms<L: Lanes, const R: usize>(lanes: L, eps: f32, group: &Group<'_>) -> Norms {
    let len = group.rows[0].len();
    if len == 0 {
        // No row has a source.
        return Norms::default();
    }
    let (rows, _) = group.rows[..group.count.next_multiple_of(R)].as_chunks::<R>();
    let (zero, count) = (lanes.splat(0.0), lanes.splat(len as f32));

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
    let mut finite = zero;
    let rows = shifts.chunks_exact_mut(L::N).zip(inverses.chunks_exact_mut(L::N));
    for ((shifts, inverses), means) in rows.zip(means.chunks_exact(L::N)) {
        let variance = lanes.div(lanes.load(inverses), count);
        let deviation = lanes.sqrt(lanes.add(variance, lanes.splat(eps)));
        let inverse = lanes.div(lanes.splat(1.0), deviation);
        lanes.store(inverses, inverse);
        let shift = lanes.mul(lanes.div(lanes.load(shifts), count), inverse);
        lanes.store(shifts, lanes.mul(shift, lanes.splat(-1.0)));
        // Zero, or a NaN if one of the three is not finite.
        let zeros = lanes.add(lanes.mul(variance, zero), lanes.mul(inverse, zero));
        finite = lanes.add(finite, lanes.fma(lanes.load(means), zero, zeros));
    }
    // `max` returns its second operand if the first is a NaN.
    let finite = lanes.highest(lanes.sub(zero, lanes.max(finite, lanes.splat(-1.0)))) == 0.0;
    Norms { means, inverses, shifts, finite }
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

/// Writes the codes of `group`, whose rows all have a source and results that are numbers, at `out`: two rows by two
/// registers at a time, so that `gamma` and `beta` are loaded once for all rows.
///
/// # Safety
/// As many bytes as a row has values are writable at the first `group.count()` of `out`.
///
/// # Panics
/// Unless rows are whole pairs of registers.
#[inline(always)]
pub(super) unsafe fn codes_of_numbers<L: Lanes>(
    lanes: L,
    affine: Affine<'_>,
    norms: &Norms,
    group: &Group<'_>,
    quantizer: Quantizer,
    out: &[*mut u8; ROWS],
) {
    let (len, recip) = (affine.gamma.len(), lanes.splat(quantizer.recip()));
    assert!(len.is_multiple_of(2 * L::N) && affine.beta.len() == len);
    assert!(group.rows.iter().all(|row| row.len() == len));
    for at in (0..len).step_by(2 * L::N) {
        let [gamma, beta] = [&affine.gamma[at..], &affine.beta[at..]];
        let [gamma, beta] = [gamma, beta].map(|x| [&x[..L::N], &x[L::N..]]);
        let gamma = [lanes.load(gamma[0]), lanes.load(gamma[1])];
        let beta = [lanes.load(beta[0]), lanes.load(beta[1])];
        for first in (0..group.count).step_by(2) {
            // A last row without a partner is its own.
            let pair = [first, (first + 1).min(group.count - 1)];
            let mut scaled = [[recip; 2]; 2];
            for (&row, scaled) in pair.iter().zip(&mut scaled) {
                let normed = Normed::new(lanes, norms.of(row));
                for (i, y) in scaled.iter_mut().enumerate() {
                    // SAFETY: rows have `len` values, of which `at + 2 N` is at most the last.
                    let x = unsafe { lanes.read(group.rows[row].as_ptr().add(at + i * L::N)) };
                    *y = lanes.mul(normed.of(lanes, x, gamma[i], beta[i]), recip);
                }
            }
            // SAFETY: the caller's promise, for columns `at..at + 2 N`.
            unsafe { lanes.write_pair_of_codes_of_numbers(pair.map(|row| out[row].add(at)), scaled) };
        }
    }
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
    assert!([gamma.len(), beta.len(), out.len()].iter().all(|&len| len == x.len()), "rows of one length");
    let normed = Normed::new(lanes, norm);
    let fours = x.len() - x.len() % (4 * L::N);
    for first in (0..fours).step_by(4 * L::N) {
        let mut four = [normed.mean; 4];
        for (i, y) in four.iter_mut().enumerate() {
            let at = first + i * L::N;
            // SAFETY: `at + N` is at most `fours`, and the three are as long as `x`.
            let [x, gamma, beta] = unsafe {
                [
                    lanes.read(x.as_ptr().add(at)),
                    lanes.read(gamma.as_ptr().add(at)),
                    lanes.read(beta.as_ptr().add(at)),
                ]
            };
            *y = normed.of(lanes, x, gamma, beta);
        }
        cast.store4(lanes, &mut out[first..], four);
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
    #[inline(always)]
    fn new<L: Lanes<F = F>>(lanes: L, RowNorm { mean, inverse, shift }: RowNorm) -> Normed<F> {
        Normed { mean: lanes.splat(mean), inverse: lanes.splat(inverse), shift: lanes.splat(shift) }
    }

    /// [`RowNorm::apply`].
    #[inline(always)]
    fn of<L: Lanes<F = F>>(&self, lanes: L, x: F, gamma: F, beta: F) -> F {
        let x = lanes.fma(lanes.sub(x, self.mean), self.inverse, self.shift);
        lanes.fma(x, gamma, beta)
    }
}
