//! The general path: values of a window weighted by the probabilities of a few queries.

use super::operands::Rows;
use super::products::{Blocks, Product, products};
use crate::lanes::Lanes;
use crate::rows::RowSink;

/// The destination of `R` queries: columns `column..column + d` of rows `row..row + R`.
pub(super) struct Results<'a, 'o, const R: usize> {
    pub(super) sink: &'a RowSink<'o>,
    pub(super) row: usize,
    pub(super) column: usize,
    pub(super) d: usize,
    /// Factor of the sums of each query.
    pub(super) factors: [f32; R],
}

impl<const R: usize> Results<'_, '_, R> {
    #[inline(always)]
    fn put<L: Lanes>(&self, lanes: L, query: usize, block: usize, sum: L::F) {
        let at = block * L::N;
        let value = lanes.mul(sum, lanes.splat(self.factors[query]));
        // SAFETY: each unit belongs to one task, and two units differ in their rows or in the columns of
        // their heads; the range does not outlive this call.
        let mut out =
            unsafe { self.sink.column_range(self.row + query, self.column + at, L::N.min(self.d - at)) };
        out.put(lanes, 0, value);
    }
}

/// Stores the values weighted by `weights`, over `groups` groups of keys.
#[inline(always)]
pub(super) fn weighted<L: Lanes, P: Product<L>, const R: usize>(
    lanes: L,
    groups: usize,
    weights: Rows<'_, P::Left>,
    values: Blocks<'_, P::Right>,
    results: &Results<'_, '_, R>,
) {
    let blocks = results.d.div_ceil(L::N);
    let mut from = 0;
    while from < blocks {
        from += if blocks - from >= 2 {
            tile::<L, P, R, 2>(lanes, groups, weights, values, from, results)
        } else {
            tile::<L, P, R, 1>(lanes, groups, weights, values, from, results)
        };
    }
}

/// `R` queries by `T` blocks of channels from `block` on; returns `T`.
#[inline(always)]
fn tile<L: Lanes, P: Product<L>, const R: usize, const T: usize>(
    lanes: L,
    groups: usize,
    weights: Rows<'_, P::Left>,
    values: Blocks<'_, P::Right>,
    block: usize,
    results: &Results<'_, '_, R>,
) -> usize {
    let initial = [P::zero(lanes); T];
    let sums = products::<L, P, R, T>(lanes, groups, weights, values.from(block), initial);
    for (r, sums) in sums.into_iter().enumerate() {
        for (t, sum) in sums.into_iter().enumerate() {
            results.put(lanes, r, block + t, P::float(lanes, sum));
        }
    }
    T
}
