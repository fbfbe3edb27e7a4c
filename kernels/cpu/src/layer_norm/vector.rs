//! LayerNorm by vectors, a few rows at a time. First it computes the norms of all these rows, so that their
//! long chains of dependent operations overlap; then it normalises the rows, which are still in the
//! first-level cache.

use swinq_numerics::Quantizer;
use swinq_numerics::reference::RowNorm;

use super::norms::{Group, Norms, ROWS, norms};
use super::{Affine, Target};
use crate::lanes::Lanes;
use crate::rows::Cast;

/// The most f32 values of rows that are normalised together: half of a first-level cache of 48 KiB.
const VALUES: usize = 6144;

/// How many rows of `channels` values are normalised together.
pub(super) fn together(channels: usize) -> usize {
    (VALUES / channels).clamp(1, ROWS)
}

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
        // Rows that are summed side by side, because the additions of one row wait for each other: as many as
        // registers hold the sums of.
        let norms = match L::N {
            16 => norms::<L, 4>(lanes, affine.eps, &group),
            _ => norms::<L, 2>(lanes, affine.eps, &group),
        };
        if !T::put_group(lanes, affine, &norms, &group, |i| out(from + i)) {
            for i in 0..group.count {
                out(from + i).put_vector(lanes, affine, norms.of(i), group.row(i));
            }
        }
        from = end;
    }
}

/// Writes the codes of `group`, whose results are all numbers, at `out`: two rows by two
/// registers at a time, so that `gamma` and `beta` are loaded once for all rows.
///
/// # Safety
/// As many bytes as a row has values are writable at the first `group.count` of `out`.
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
    assert_eq!(group.rows[0].len(), len, "rows of the same length as the parameters");
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
                    // SAFETY: the rows of a group have one length, `len`, of which `at + 2 N` is at most the
                    // last.
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
