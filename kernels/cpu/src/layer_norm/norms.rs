//! Rows that are normalised together, and their [`RowNorm`]s.

use swinq_numerics::reference::RowNorm;

use crate::lanes::Lanes;

/// The most rows that are normalised together: as many as [`Lanes::folds`] folds.
pub(super) const ROWS: usize = 16;

/// f32 values of a cache line.
const LINE: usize = 16;

/// Rows of one length that are normalised together.
pub(crate) struct Group<'x> {
    /// The rows, all of one length; a row without a source, and a row beyond the last, has another one for a
    /// stand-in.
    pub(super) rows: [&'x [f32]; ROWS],
    pub(super) count: usize,
    /// Whether each row has a source.
    present: [bool; ROWS],
}

impl<'x> Group<'x> {
    /// `count` rows of `len` values.
    ///
    /// # Panics
    /// If a row has another length.
    #[inline(always)]
    pub(super) fn new(count: usize, len: usize, source: impl Fn(usize) -> Option<&'x [f32]>) -> Group<'x> {
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

    /// Prefetches the first lines of each row into the second-level cache. The processor fetches the others
    /// by itself; to prefetch all of them takes longer where they are in that cache.
    #[inline(always)]
    pub(super) fn prefetch<L: Lanes>(&self, lanes: L) {
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
}

/// [`RowNorm`]s of a [`Group`].
#[derive(Default)]
pub(crate) struct Norms {
    means: [f32; ROWS],
    inverses: [f32; ROWS],
    shifts: [f32; ROWS],
    /// Whether all means, variances and inverses are finite.
    pub(super) finite: bool,
}

impl Norms {
    #[inline(always)]
    pub(super) fn of(&self, row: usize) -> RowNorm {
        RowNorm { mean: self.means[row], inverse: self.inverses[row], shift: self.shifts[row] }
    }
}

/// [`RowNorm::of`] each row of `group`, `R` side by side; meaningless for rows without a source.
#[inline(always)]
pub(super) fn norms<L: Lanes, const R: usize>(lanes: L, eps: f32, group: &Group<'_>) -> Norms {
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

/// Sixteen partial sums of each row, which have one length. A register holds sixteen lanes, or the sums of
/// the two halves.
#[inline(always)]
fn sums_of<L: Lanes, const R: usize>(lanes: L, rows: &[&[f32]; R]) -> [L::F; R] {
    let mut sums = [[lanes.splat(0.0); R]; 2];
    let len = rows[0].len();
    let whole = len - len % 16;
    for at in (0..whole).step_by(16) {
        for (half, sums) in sums.iter_mut().enumerate().take(16 / L::N) {
            for (row, sum) in rows.iter().zip(sums) {
                // SAFETY: `at + 16` is at most the length of the rows, which the caller has checked to be
                // one.
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
                // SAFETY: `at + 16` is at most the length of the rows, which the caller has checked to be
                // one.
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
