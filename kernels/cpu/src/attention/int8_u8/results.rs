//! Results of a chunk of queries: values weighted by codes.

use super::{Chunk, Column, Int8Scratch};
use crate::lanes::Lanes;
use crate::rows::RowSink;

impl Chunk<'_> {
    /// Stores the results of all queries.
    #[inline(always)]
    pub(super) fn results<L: Lanes>(
        &self,
        lanes: L,
        work: &Int8Scratch<'_>,
        lone: &Column<i32>,
        factors: &Column<f32>,
        sink: &RowSink<'_>,
    ) {
        for pair in 0..self.sizes.d / (2 * L::N) {
            let mut row = 0;
            while row < self.count {
                row += match self.count - row {
                    8.. if L::TILE >= 4 => {
                        self.result_rows::<L, 8>(lanes, row, pair, work, lone, factors, sink)
                    }
                    4.. => self.result_rows::<L, 4>(lanes, row, pair, work, lone, factors, sink),
                    _ => self.result_rows::<L, 1>(lanes, row, pair, work, lone, factors, sink),
                };
            }
        }
    }

    /// Computes `R` queries from `row` on; returns `R`.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    fn result_rows<L: Lanes, const R: usize>(
        &self,
        lanes: L,
        row: usize,
        pair: usize,
        work: &Int8Scratch<'_>,
        lone: &Column<i32>,
        factors: &Column<f32>,
        sink: &RowSink<'_>,
    ) -> usize {
        let sums = self.weighted::<L, R>(lanes, row, pair, work, lone);
        self.store(lanes, row, pair, sums, factors, sink);
        R
    }

    /// Sums of `R` queries from `row` on for `2 N` channels, interleaved.
    #[inline(always)]
    fn weighted<L: Lanes, const R: usize>(
        &self,
        lanes: L,
        row: usize,
        pair: usize,
        work: &Int8Scratch<'_>,
        lone: &Column<i32>,
    ) -> [[L::I; 2]; R] {
        let (sizes, bytes) = (self.sizes, self.sizes.weights::<L>());
        let values = Values {
            at: &work.values[pair * sizes.groups::<L>() * 8 * L::N..][..sizes.groups::<L>() * 8 * L::N],
        };
        let weights = &work.weights[row * bytes..][..R * bytes];
        let mut sums = [[lanes.splat_i(0); 2]; R];
        for (group, &at) in work.order.iter().enumerate() {
            let value = values.group(lanes, group);
            let at = at as usize;
            assert!(at + 4 <= bytes);
            for (r, sums) in sums.iter_mut().enumerate() {
                // SAFETY: `weights` has `R` rows of `bytes` bytes, and the group is inside a row, by the
                // assertion.
                let weight = unsafe { weights.as_ptr().add(r * bytes + at).cast::<i32>().read_unaligned() };
                add(lanes, sums, weight, value);
            }
        }
        if sizes.lone {
            let value = values.group(lanes, work.order.len());
            for (sums, &weight) in sums.iter_mut().zip(&lone[row..]) {
                add(lanes, sums, weight, value);
            }
        }
        sums
    }

    /// Stores the sums of [`Chunk::weighted`].
    #[inline(always)]
    fn store<L: Lanes, const R: usize>(
        &self,
        lanes: L,
        row: usize,
        pair: usize,
        sums: [[L::I; 2]; R],
        factors: &Column<f32>,
        sink: &RowSink<'_>,
    ) {
        let (column, factors) = (self.unit.head * self.sizes.d + pair * 2 * L::N, &factors[row..row + R]);
        let first = self.unit.row + self.from + row;
        let mut values = [[lanes.splat(0.0); 2]; R];
        for ((values, sums), &factor) in values.iter_mut().zip(sums).zip(factors) {
            let factor = lanes.splat(factor);
            *values = [lanes.mul(lanes.float(sums[0]), factor), lanes.mul(lanes.float(sums[1]), factor)];
        }
        if let Some((rows, quantizer)) = sink.codes::<R>(first, column, 2 * L::N) {
            let recip = lanes.splat(quantizer.recip());
            for values in &mut values {
                *values = [lanes.mul(values[0], recip), lanes.mul(values[1], recip)];
            }
            // SAFETY: the addresses are those of `2 N` bytes. Each unit belongs to one task, and two units
            // differ in their rows or in the columns of their heads, so that nobody else writes these bytes.
            return unsafe { write_codes(lanes, rows, values, self.op.results_are_bounded) };
        }
        for (r, values) in values.into_iter().enumerate() {
            // SAFETY: as above; the range does not outlive this iteration.
            let mut out = unsafe { sink.column_range(first + r, column, 2 * L::N) };
            let [a, b] = lanes.deinterleave(values);
            out.put(lanes, 0, a);
            out.put(lanes, L::N, b);
        }
    }
}

/// Writes codes of `2 N` interleaved columns at each of `rows`; `bounded` says that their magnitudes are
/// below 2^31.
///
/// # Safety
/// `2 N` bytes at each of `rows` are writable.
#[inline(always)]
unsafe fn write_codes<L: Lanes, const R: usize>(
    lanes: L,
    rows: [*mut u8; R],
    scaled: [[L::F; 2]; R],
    bounded: bool,
) {
    if bounded && R.is_multiple_of(2) {
        for (rows, scaled) in rows.as_chunks().0.iter().zip(scaled.as_chunks().0) {
            // SAFETY: the caller's promise.
            unsafe { lanes.write_interleaved_codes_of_numbers(*rows, *scaled) };
        }
        return;
    }
    for (row, scaled) in rows.into_iter().zip(scaled) {
        // SAFETY: the caller's promise.
        unsafe { lanes.write_interleaved_codes(row, scaled) };
    }
}

/// Packed values of `2 N` channels.
struct Values<'a> {
    at: &'a [u8],
}

impl Values<'_> {
    #[inline(always)]
    fn group<L: Lanes>(&self, lanes: L, group: usize) -> [L::I; 2] {
        let group = &self.at[group * 8 * L::N..][..8 * L::N];
        // SAFETY: `group` holds two registers of 4 N bytes.
        unsafe { [lanes.read_i(group.as_ptr()), lanes.read_i(group.as_ptr().add(4 * L::N))] }
    }
}

/// Adds the products of four weights with four values in each lane.
#[inline(always)]
fn add<L: Lanes>(lanes: L, sums: &mut [L::I; 2], weight: i32, value: [L::I; 2]) {
    let weight = lanes.splat_i(weight);
    sums[0] = lanes.dot(sums[0], weight, value[0]);
    sums[1] = lanes.dot(sums[1], weight, value[1]);
}
