//! The destination of a linear, shared by the tasks that write it.

use std::ops::Range;

use swinq_numerics::sizes::check_len;
use swinq_numerics::{PAD, RowMap, code_stride};

use super::spec::{LinearOut, Store};
use super::split::MAX_ROWS;
use crate::pool::Parts;

/// The start of a row that is dropped.
pub(super) const DROPPED: usize = usize::MAX;

/// Memory of the results. Every row and column of the linear has its own place in it.
pub(crate) enum Dest<'a> {
    F32(Parts<'a, f32>),
    Codes(Parts<'a, u8>),
    Residual(Parts<'a, f32>, Scatter<'a>),
}

/// The row of a residual stream for each row of a linear.
pub(crate) struct Scatter<'a> {
    map: &'a RowMap,
    /// The linear's first row, in the map's order over all images.
    first: usize,
}

impl<'a> Dest<'a> {
    /// The destination `out` of a linear of `rows` rows and `n` columns.
    ///
    /// # Panics
    /// If `out` does not match `store` or has another size.
    pub(super) fn new(out: LinearOut<'a>, store: &Store, rows: usize, n: usize) -> Dest<'a> {
        match (out, store) {
            (LinearOut::F32(out), Store::F32 | Store::Fake(_)) => {
                check_len("linear", "output", out.len(), &[rows, n]);
                Dest::F32(Parts::new(out))
            }
            (LinearOut::Codes(out), Store::Codes(_)) => {
                check_len("linear", "output of codes", out.len(), &[rows, code_stride(n)]);
                Dest::Codes(Parts::new(out))
            }
            (LinearOut::Residual { residual, map }, Store::Residual { .. }) => {
                let (period, tokens) = (map.rows().len(), map.tokens());
                let multiple = rows.is_multiple_of(period);
                assert!(multiple, "{rows} rows are not a multiple of the {period} rows of the map");
                let images = rows.checked_div(period).unwrap_or(0);
                check_len("linear", "residual stream", residual.len(), &[images, tokens, n]);
                Dest::Residual(Parts::new(residual), Scatter { map, first: 0 })
            }
            (out, store) => panic!("a linear that stores {store:?} cannot write {out:?}"),
        }
    }

    /// The rows of `residual` from row `first` of `map`'s order over all images.
    ///
    /// # Safety
    /// Nobody else reads or writes these rows of `residual` while the result is alive.
    pub(crate) unsafe fn scatter(residual: Parts<'a, f32>, map: &'a RowMap, first: usize) -> Dest<'a> {
        Dest::Residual(residual, Scatter { map, first })
    }

    /// The start of row `row` of a linear of `n` columns; `None` if the row is dropped.
    pub(super) fn offset(&self, row: usize, n: usize) -> Option<usize> {
        match self {
            Dest::F32(_) => Some(row * n),
            Dest::Codes(_) => Some(row * code_stride(n)),
            Dest::Residual(_, Scatter { map, first }) => {
                let (image, row) = ((first + row) / map.rows().len(), (first + row) % map.rows().len());
                match map.rows()[row] {
                    PAD => None,
                    token => Some((image * map.tokens() + token as usize) * n),
                }
            }
        }
    }

    /// The address of column `column` of a row that starts at 0, if results are f32. It may lie outside of
    /// the destination.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn floats(&self, column: usize) -> Option<*const f32> {
        match self {
            Dest::F32(out) | Dest::Residual(out, _) => Some(out.address(column)),
            Dest::Codes(_) => None,
        }
    }

    /// [`Dest::offset`] of each of `rows`; [`DROPPED`] for dropped rows.
    pub(super) fn starts(&self, rows: Range<usize>, n: usize) -> [usize; MAX_ROWS] {
        let mut starts = [DROPPED; MAX_ROWS];
        let starts_of = starts[..rows.len()].iter_mut();
        match self {
            Dest::F32(_) => starts_of.zip(rows).for_each(|(start, row)| *start = row * n),
            Dest::Codes(_) => starts_of.zip(rows).for_each(|(start, row)| *start = row * code_stride(n)),
            Dest::Residual(_, Scatter { map, first }) => {
                // Two divisions for all rows instead of two for each row.
                let period = map.rows().len().max(1);
                let from = first + rows.start;
                let (mut image, mut row) = (from / period, from % period);
                for start in starts_of {
                    if row == period {
                        (image, row) = (image + 1, 0);
                    }
                    if map.rows()[row] != PAD {
                        *start = (image * map.tokens() + map.rows()[row] as usize) * n;
                    }
                    row += 1;
                }
            }
        }
        starts
    }
}
