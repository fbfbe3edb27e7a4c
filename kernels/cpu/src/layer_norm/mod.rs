//! Layer normalisation (Ba et al., 2016) of f32 rows, fused with the gather before it and the quantizer after
//! it.
//!
//! ```text
//! y = (x - mean) / sqrt(var + eps) * gamma + beta          var: biased, over the channels of the row
//! ```
//! The definition is [`swinq_numerics::reference::layer_norm_row`], which every instruction set equals bit
//! for bit.

mod norms;
mod ops;
mod residual;
mod vector;

pub use ops::{LayerNorm, MergeNorm, PooledNorm};
pub use residual::ResidualNorm;

use swinq_numerics::Quantizer;
use swinq_numerics::reference::{self, RowNorm};

use crate::cpu::Cpu;
use crate::lanes::{Kernel, Lanes, dispatch};
use crate::rows::{AddToResidual, ColumnRange, ToCodes, ToF32, ToFake};
use norms::{Group, Norms, ROWS};

/// The fewest f32 values of a task, so that distributing the tasks costs little in comparison.
const MIN_VALUES: usize = 4096;

/// Scale, shift and epsilon of one normalisation.
#[derive(Clone, Copy)]
pub(crate) struct Affine<'a> {
    pub(crate) gamma: &'a [f32],
    pub(crate) beta: &'a [f32],
    pub(crate) eps: f32,
    /// No result of a row whose [`RowNorm`] is finite is larger; see [`largest_result`].
    pub(crate) largest: f32,
}

/// A bound on the magnitudes of the results of a row whose variance is finite; NaN or infinite if there is
/// none. A value's square is at most the sum of the row's squares, so `(x - mean) / sqrt(var)` and the shift
/// are at most `sqrt(n)` each, and twice that with all rounding errors. The sums of gamma and of beta bound
/// their values and keep a NaN.
fn largest_result(gamma: &[f32], beta: &[f32]) -> f32 {
    let sum = |x: &[f32]| x.iter().map(|x| x.abs()).sum::<f32>();
    4.0 * (gamma.len() as f32).sqrt() * sum(gamma) + sum(beta)
}

impl Affine<'_> {
    /// Whether all results of rows with these norms, times the reciprocal scale, are numbers with magnitudes
    /// below 2^31. A NaN or an infinity in a row makes its mean infinite or NaN.
    fn results_are_numbers(&self, norms: &Norms, quantizer: Quantizer) -> bool {
        norms.finite && self.largest * quantizer.recip() < 1e9
    }
}

/// Where a normalised row goes.
pub(crate) trait Target {
    /// Normalises `x` into the target by the reference; `None` is a row without a source. `buffer` holds one
    /// row.
    fn put_scalar(self, affine: Affine<'_>, x: Option<&[f32]>, buffer: &mut [f32]);
    /// As [`Target::put_scalar`], with vectors and the norm of the row, which is already computed.
    fn put_vector<L: Lanes>(self, lanes: L, affine: Affine<'_>, norm: RowNorm, x: Option<&[f32]>);
    /// As [`Target::put_vector`] of each row `i` of `group` into `out(i)`, if there is a faster way; returns
    /// whether there is.
    #[inline(always)]
    fn put_group<L: Lanes>(
        _lanes: L,
        _affine: Affine<'_>,
        _norms: &Norms,
        _group: &Group<'_>,
        _out: impl Fn(usize) -> Self,
    ) -> bool
    where
        Self: Sized,
    {
        false
    }
}

/// Stores the row, or zeros if the row has no source.
impl Target for ColumnRange<'_> {
    fn put_scalar(self, Affine { gamma, beta, eps, .. }: Affine<'_>, x: Option<&[f32]>, buffer: &mut [f32]) {
        match (x, self) {
            (None, mut out) => out.clear(),
            (Some(x), ColumnRange::F32(out)) => reference::layer_norm_row(x, gamma, beta, eps, out),
            (Some(x), mut out) => {
                reference::layer_norm_row(x, gamma, beta, eps, buffer);
                out.put_all(buffer);
            }
        }
    }

    #[inline(always)]
    fn put_vector<L: Lanes>(mut self, lanes: L, affine: Affine<'_>, norm: RowNorm, x: Option<&[f32]>) {
        let Some(x) = x else { return self.clear() };
        match self {
            ColumnRange::F32(out) => vector::apply(lanes, affine, norm, x, out, ToF32),
            ColumnRange::Fake(out, quantizer) => {
                vector::apply(lanes, affine, norm, x, out, ToFake(quantizer))
            }
            ColumnRange::Codes(out, quantizer) => {
                vector::apply(lanes, affine, norm, x, out, ToCodes(quantizer))
            }
        }
    }

    #[inline(always)]
    fn put_group<L: Lanes>(
        lanes: L,
        affine: Affine<'_>,
        norms: &Norms,
        group: &Group<'_>,
        out: impl Fn(usize) -> Self,
    ) -> bool {
        let ColumnRange::Codes(_, quantizer) = out(0) else { return false };
        if !affine.gamma.len().is_multiple_of(2 * L::N) || !affine.results_are_numbers(norms, quantizer) {
            return false;
        }
        let mut places = [std::ptr::null_mut(); ROWS];
        for (i, place) in places[..group.count].iter_mut().enumerate() {
            let ColumnRange::Codes(out, _) = out(i) else { unreachable!("all rows of an op are alike") };
            assert_eq!(out.len(), affine.gamma.len(), "a row of codes");
            *place = out.as_mut_ptr();
        }
        // SAFETY: the places are those of rows of codes.
        unsafe { vector::codes_of_numbers(lanes, affine, norms, group, quantizer, &places) };
        // Rows without a source have the codes of their stand-ins.
        (0..group.count).filter(|&i| group.row(i).is_none()).for_each(|i| out(i).clear());
        true
    }
}

/// A row of the residual stream, to which the normalised row is added.
struct ResidualRow<'s> {
    /// `None` drops the row.
    row: Option<&'s mut [f32]>,
    branch: Option<Quantizer>,
    shortcut: Option<Quantizer>,
}

impl Target for ResidualRow<'_> {
    fn put_scalar(self, Affine { gamma, beta, eps, .. }: Affine<'_>, x: Option<&[f32]>, _: &mut [f32]) {
        if let (Some(x), Some(row)) = (x, self.row) {
            reference::add_layer_norm_row(x, gamma, beta, eps, [self.branch, self.shortcut], row);
        }
    }

    #[inline(always)]
    fn put_vector<L: Lanes>(self, lanes: L, affine: Affine<'_>, norm: RowNorm, x: Option<&[f32]>) {
        let ResidualRow { row, branch, shortcut } = self;
        if let (Some(x), Some(row)) = (x, row) {
            vector::apply(lanes, affine, norm, x, row, AddToResidual { branch, shortcut });
        }
    }
}

/// Normalises `count` rows: reads row `i` from `source(i)` (`None` is a row without a source) and writes it
/// to `out(i)`. `buffer` has room for one row; the scalar reference needs it unless it stores f32.
pub(crate) fn normalise<'x, T: Target>(
    cpu: Cpu,
    affine: Affine<'_>,
    count: usize,
    source: impl Fn(usize) -> Option<&'x [f32]>,
    out: impl Fn(usize) -> T,
    buffer: &mut [f32],
) {
    dispatch(cpu, Rows { affine, count, source, out, buffer });
}

/// The normalisation of some rows.
struct Rows<'a, S, O> {
    affine: Affine<'a>,
    count: usize,
    source: S,
    out: O,
    buffer: &'a mut [f32],
}

impl<'x, T: Target, S: Fn(usize) -> Option<&'x [f32]>, O: Fn(usize) -> T> Kernel for Rows<'_, S, O> {
    fn scalar(self) {
        for i in 0..self.count {
            (self.out)(i).put_scalar(self.affine, (self.source)(i), self.buffer);
        }
    }

    #[inline(always)]
    fn vector<L: Lanes>(self, lanes: L) {
        vector::rows(lanes, self.affine, self.count, self.source, self.out);
    }
}
