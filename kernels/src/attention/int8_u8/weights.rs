//! Turns the logits of a chunk of queries into codes of weights, their sums, and the factors of the results.

use super::{CHUNK, Chunk, Column, Work};
use crate::attention::softmax::unsigned_code;
use crate::lanes::Lanes;
use crate::rows::RowSink;

/// Queries that are processed together.
const ROWS: usize = 4;

impl Chunk<'_> {
    /// Stores the codes of all keys except the lone key in `work`, and their sums in `sums`.
    #[inline(always)]
    pub(super) fn weights<L: Lanes>(
        &self,
        lanes: L,
        work: &mut Work<'_>,
        largest: &Column<f32>,
        sums: &mut Column<i32>,
    ) {
        let (wide, bytes) = (self.sizes.logits::<L>(), self.sizes.weights::<L>());
        for first in (0..self.count).step_by(ROWS) {
            let mut totals = [lanes.splat_i(0); ROWS];
            for (row, total) in (first..self.count).zip(&mut totals) {
                let logits = &work.logits[row * wide..][..wide];
                let weights = &mut work.weights[row * bytes..][..bytes];
                *total = row_weights(lanes, logits, lanes.splat(largest[row]), weights);
            }
            sums[first..first + ROWS].copy_from_slice(&lanes.sum4_i(totals));
        }
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

/// Stores the codes of one query's logits in the order of [`Lanes::pack`]; returns their sums by lane.
#[inline(always)]
fn row_weights<L: Lanes>(lanes: L, logits: &[f32], max: L::F, weights: &mut [u8]) -> L::I {
    let mut total = lanes.splat_i(0);
    for (logits, weights) in logits.chunks(4 * L::N).zip(weights.chunks_exact_mut(4 * L::N)) {
        let packed = match logits.len() / L::N {
            4 => packed_weights::<L, 4>(lanes, logits, max),
            3 => packed_weights::<L, 3>(lanes, logits, max),
            2 => packed_weights::<L, 2>(lanes, logits, max),
            _ => packed_weights::<L, 1>(lanes, logits, max),
        };
        total = lanes.dot(total, packed, lanes.splat_i(0x0101_0101));
        // SAFETY: `chunks_exact_mut` gives 4 N bytes.
        unsafe { lanes.write_i(weights.as_mut_ptr(), packed) };
    }
    total
}

/// The codes of `B` blocks of logits.
#[inline(always)]
fn packed_weights<L: Lanes, const B: usize>(lanes: L, logits: &[f32], max: L::F) -> L::I {
    let logits = &logits[..B * L::N];
    let mut codes = [lanes.splat_i(0); 4];
    for b in 0..B {
        codes[b] = unsigned_code(lanes, lanes.load(&logits[b * L::N..]), max);
    }
    lanes.pack(codes)
}
