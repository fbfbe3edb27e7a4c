//! Values of a window weighted by the probabilities of a few queries.

use super::operands::Rows;
use crate::buffer::bytes;
use crate::lanes::Lanes;
use crate::rows::RowSink;

/// Where the results of `R` queries go: columns `column..column + d` of rows `row..row + R`.
pub(super) struct Results<'a, 'o, const R: usize> {
    pub(super) sink: &'a RowSink<'o>,
    pub(super) row: usize,
    pub(super) column: usize,
    pub(super) d: usize,
    /// What the sums of each query are multiplied by.
    pub(super) factors: [f32; R],
}

impl<const R: usize> Results<'_, '_, R> {
    #[inline(always)]
    fn put<L: Lanes>(&self, lanes: L, query: usize, block: usize, sum: L::F) {
        let at = block * L::N;
        let value = lanes.mul(sum, lanes.splat(self.factors[query]));
        // SAFETY: a unit is one task's, and units have distinct rows or distinct heads' columns; the segment does not
        // outlive this call.
        let mut out = unsafe { self.sink.segment(self.row + query, self.column + at, L::N.min(self.d - at)) };
        out.put(lanes, 0, value);
    }
}

/// Products in integers: `weights` are codes, `n_padded` bytes to a query, `values` are as
/// [`super::operands::pack_values_i8`] leaves them.
#[inline(always)]
pub(super) fn block_i8<L: Lanes, const R: usize>(
    lanes: L,
    n: usize,
    weights: &[f32],
    n_padded: usize,
    values: &[f32],
    results: &Results<'_, '_, R>,
) {
    let (blocks, groups) = (results.d.div_ceil(L::N), n.div_ceil(4));
    let values = &bytes(values)[..blocks * groups * 4 * L::N];
    let weights = Rows { data: bytes(weights), stride: n_padded };
    let mut from = 0;
    while from < blocks {
        let values = &values[from * groups * 4 * L::N..];
        from += if blocks - from >= 2 {
            tile_i8::<L, R, 2>(lanes, groups, weights, values, from, results)
        } else {
            tile_i8::<L, R, 1>(lanes, groups, weights, values, from, results)
        };
    }
}

/// `R` queries by `T` channel blocks from `block` on, the first of `values`; gives `T`.
#[inline(always)]
fn tile_i8<L: Lanes, const R: usize, const T: usize>(
    lanes: L,
    groups: usize,
    weights: Rows<'_, u8>,
    values: &[u8],
    block: usize,
    results: &Results<'_, '_, R>,
) -> usize {
    assert!(values.len() >= T * groups * 4 * L::N);
    assert!(weights.data.len() >= (R - 1) * weights.stride + 4 * groups);
    let mut sums = [[lanes.splat_i(0); T]; R];
    for g in 0..groups {
        let mut value = [lanes.splat_i(0); T];
        for (t, value) in value.iter_mut().enumerate() {
            // SAFETY: `T` blocks of `groups` registers, by the assertion above.
            *value = unsafe { lanes.read_i(values.as_ptr().add((t * groups + g) * 4 * L::N)) };
        }
        for (r, sums) in sums.iter_mut().enumerate() {
            // SAFETY: `R` rows of `groups` groups of four bytes, by the assertion above.
            let weight = unsafe {
                weights.data.as_ptr().add(r * weights.stride + 4 * g).cast::<i32>().read_unaligned()
            };
            let weight = lanes.splat_i(weight);
            for (sum, value) in sums.iter_mut().zip(value) {
                *sum = lanes.dot(*sum, weight, value);
            }
        }
    }
    for (r, sums) in sums.into_iter().enumerate() {
        for (t, sum) in sums.into_iter().enumerate() {
            results.put(lanes, r, block + t, lanes.float(sum));
        }
    }
    T
}

/// Products in f32: `weights` are `n_padded` f32 to a query.
#[inline(always)]
pub(super) fn block_f32<L: Lanes, const R: usize>(
    lanes: L,
    n: usize,
    weights: &[f32],
    n_padded: usize,
    values: Rows<'_, f32>,
    results: &Results<'_, '_, R>,
) {
    let blocks = results.d.div_ceil(L::N);
    let weights = Rows { data: weights, stride: n_padded };
    let mut from = 0;
    while from < blocks {
        from += if blocks - from >= 2 {
            tile_f32::<L, R, 2>(lanes, n, weights, values, from, results)
        } else {
            tile_f32::<L, R, 1>(lanes, n, weights, values, from, results)
        };
    }
}

/// `R` queries by `T` channel blocks from `block` on; gives `T`.
#[inline(always)]
fn tile_f32<L: Lanes, const R: usize, const T: usize>(
    lanes: L,
    n: usize,
    weights: Rows<'_, f32>,
    values: Rows<'_, f32>,
    block: usize,
    results: &Results<'_, '_, R>,
) -> usize {
    assert!(values.data.len() >= (n - 1) * values.stride + (block + T) * L::N);
    assert!(weights.data.len() >= (R - 1) * weights.stride + n);
    let mut sums = [[lanes.splat(0.0); T]; R];
    for key in 0..n {
        let mut value = [lanes.splat(0.0); T];
        for (t, value) in value.iter_mut().enumerate() {
            // SAFETY: `n` rows of whole registers up to block `block + T`, by the assertion above.
            *value =
                unsafe { lanes.read(values.data.as_ptr().add(key * values.stride + (block + t) * L::N)) };
        }
        for (r, sums) in sums.iter_mut().enumerate() {
            // SAFETY: `R` rows of `n` weights, by the assertion above.
            let weight = lanes.splat(unsafe { *weights.data.as_ptr().add(r * weights.stride + key) });
            for (sum, value) in sums.iter_mut().zip(value) {
                *sum = lanes.fma(weight, value, *sum);
            }
        }
    }
    for (r, sums) in sums.into_iter().enumerate() {
        for (t, sum) in sums.into_iter().enumerate() {
            results.put(lanes, r, block + t, sum);
        }
    }
    T
}
