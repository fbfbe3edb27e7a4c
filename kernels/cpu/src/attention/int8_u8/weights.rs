//! Turns the logits of a chunk of queries into codes of weights, their sums, and the factors of the results.

use super::{CHUNK, Chunk, Column, Int8Scratch};
use crate::attention::softmax::unsigned_code;
use crate::lanes::Lanes;
use crate::rows::RowSink;

/// Queries that are processed together.
const ROWS: usize = 4;

impl Chunk<'_> {
    /// Stores the codes of all keys except the lone key in `work`, and adds them to `sums`.
    #[inline(always)]
    pub(super) fn weights<L: Lanes>(
        &self,
        lanes: L,
        work: &mut Int8Scratch<'_>,
        largest: &Column<f32>,
        sums: &mut Column<i32>,
    ) {
        for pack in 0..self.sizes.packs {
            match self.sizes.blocks_of(pack) {
                4 => self.pack_of_weights::<L, 4>(lanes, pack, work, largest, sums),
                3 => self.pack_of_weights::<L, 3>(lanes, pack, work, largest, sums),
                2 => self.pack_of_weights::<L, 2>(lanes, pack, work, largest, sums),
                _ => self.pack_of_weights::<L, 1>(lanes, pack, work, largest, sums),
            }
        }
    }

    /// [`Chunk::weights`] of the `B` blocks of one register of weights.
    #[inline(always)]
    fn pack_of_weights<L: Lanes, const B: usize>(
        &self,
        lanes: L,
        pack: usize,
        work: &mut Int8Scratch<'_>,
        largest: &Column<f32>,
        sums: &mut Column<i32>,
    ) {
        let mut row = 0;
        while self.count - row >= ROWS {
            // Not a loop: the registers of a loop over an array lie in memory.
            let totals = [
                self.row_weights::<L, B>(lanes, pack, row, work, largest),
                self.row_weights::<L, B>(lanes, pack, row + 1, work, largest),
                self.row_weights::<L, B>(lanes, pack, row + 2, work, largest),
                self.row_weights::<L, B>(lanes, pack, row + 3, work, largest),
            ];
            let sums = &mut sums[row..][..ROWS];
            sums.iter_mut().zip(lanes.sum4_i(totals)).for_each(|(sum, total)| *sum += total);
            row += ROWS;
        }
        for (row, sum) in sums[..self.count].iter_mut().enumerate().skip(row) {
            *sum += lanes.sum_i(self.row_weights::<L, B>(lanes, pack, row, work, largest));
        }
    }

    /// Stores the codes of the `B` blocks of register `pack` of query `row`, in the order of [`Lanes::pack`];
    /// returns their sums by lane.
    #[inline(always)]
    fn row_weights<L: Lanes, const B: usize>(
        &self,
        lanes: L,
        pack: usize,
        row: usize,
        work: &mut Int8Scratch<'_>,
        largest: &Column<f32>,
    ) -> L::I {
        let (wide, bytes, at) = (self.sizes.logits::<L>(), self.sizes.weights::<L>(), pack * 4 * L::N);
        let logits = &work.logits[row * wide + at..][..B * L::N];
        let (mut codes, largest) = ([lanes.splat_i(0); 4], lanes.splat(largest[row]));
        for b in 0..B {
            codes[b] = unsigned_code(lanes, lanes.load(&logits[b * L::N..]), largest);
        }
        let packed = lanes.pack(codes);
        let weights = &mut work.weights[row * bytes + at..][..4 * L::N];
        // SAFETY: `weights` holds 4 N bytes.
        unsafe { lanes.write_i(weights.as_mut_ptr(), packed) };
        lanes.dot(lanes.splat_i(0), packed, lanes.splat_i(0x0101_0101))
    }

    /// Stores the codes of the lone key in `weights` and adds them to `sums`.
    #[inline(always)]
    pub(super) fn lone_weights<L: Lanes>(
        &self,
        lanes: L,
        largest: &Column<f32>,
        lone: &Column<f32>,
        weights: &mut Column<i32>,
        sums: &mut Column<i32>,
    ) {
        for first in (0..self.count).step_by(L::N) {
            let code = unsigned_code(lanes, lanes.load(&lone[first..]), lanes.load(&largest[first..]));
            const { assert!(CHUNK.is_multiple_of(L::N)) };
            // SAFETY: `first` is a multiple of N below `CHUNK`, which is a multiple of N as well.
            unsafe {
                lanes.write_i(weights.as_mut_ptr().add(first).cast(), code);
                let sum = sums.as_mut_ptr().add(first).cast();
                lanes.write_i(sum, lanes.add_i(code, lanes.read_i(sum)));
            }
        }
    }

    /// The factor of each query's sums of products: the scale of the values over the sum of the weights.
    ///
    /// If all logits are NaN, all weights are 0 and the reference's result is NaN, whose code is 0. If codes
    /// are stored, the factor of such a row is finite instead, which gives code 0 too.
    #[inline(always)]
    pub(super) fn factors<L: Lanes>(&self, lanes: L, sums: &Column<i32>, sink: &RowSink<'_>) -> Column<f32> {
        let value_scale = self.op.quant.v.expect("a product in integers has both its sites on").scale();
        let least = lanes.splat(if sink.is_codes() { 1.0 } else { 0.0 });
        let mut factors = [0.0; CHUNK];
        for (sums, factors) in sums.chunks_exact(L::N).zip(factors.chunks_exact_mut(L::N)) {
            // SAFETY: `chunks_exact` gives N values of four bytes.
            let sum = lanes.float(unsafe { lanes.read_i(sums.as_ptr().cast()) });
            lanes.store(factors, lanes.div(lanes.splat(value_scale), lanes.max(sum, least)));
        }
        factors
    }
}
