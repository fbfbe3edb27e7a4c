//! Counting the values of one thread.

use std::ops::Range;

use super::{BINS, Histogram, coarsen, exponent};

/// Number of sets of counters. Neighbouring values use different sets, because an increment of the counter
/// that was just written would wait for that write.
const LANES: usize = 4;
/// Values per block. A block's maximum is computed before its values are counted; it is small enough to stay
/// in the cache.
const BLOCK: usize = 1 << 13;
/// Values per group. The bins of a group are computed in a vectorised loop, then counted in a loop that
/// cannot be vectorised.
const GROUP: usize = 64;

/// Bits of infinity, the smallest magnitude that is not finite.
const INFINITY: u32 = 0x7f80_0000;

/// The running counts of one thread, in 32 bits.
pub(super) struct Counter {
    lanes: Vec<[u32; BINS]>,
    zeros: u64,
    max_bits: u32,
}

impl Counter {
    /// The histogram of the columns `columns` of fewer than 2^32 `values`, rows of `width` values. The error
    /// is the position of the first value that is not finite.
    pub(super) fn count(values: &[f32], width: usize, columns: Range<usize>) -> Result<Histogram, usize> {
        let mut counter = Counter { lanes: vec![[0; BINS]; LANES], zeros: 0, max_bits: 0 };
        if columns.len() == width {
            for (i, block) in values.chunks(BLOCK).enumerate() {
                counter.add(block).map_err(|at| at + i * BLOCK)?;
            }
            return Ok(counter.finish(values.len()));
        }
        let rows_per_block = BLOCK.div_ceil(columns.len());
        let mut block = Vec::with_capacity(rows_per_block * columns.len());
        for (i, rows) in values.chunks(rows_per_block * width).enumerate() {
            block.clear();
            rows.chunks_exact(width).for_each(|row| block.extend_from_slice(&row[columns.clone()]));
            let position = |at| at / columns.len() * width + columns.start + at % columns.len();
            counter.add(&block).map_err(|at| position(at) + i * rows_per_block * width)?;
        }
        Ok(counter.finish(values.len() / width * columns.len()))
    }

    /// Counts a block; the error is the position of its first value that is not finite.
    fn add(&mut self, block: &[f32]) -> Result<(), usize> {
        let (max_bits, zeros) = max_and_zeros(block);
        if max_bits >= INFINITY {
            let first = block.iter().position(|v| !v.is_finite());
            return Err(first.expect("the largest magnitude is not finite"));
        }
        if max_bits > self.max_bits {
            let shift = exponent(max_bits) - exponent(self.max_bits);
            self.lanes.iter_mut().for_each(|lane| coarsen(lane, shift));
            self.max_bits = max_bits;
        }
        self.zeros += u64::from(zeros);
        tally(&mut self.lanes, block, exponent(self.max_bits));
        Ok(())
    }

    fn finish(self, count: usize) -> Histogram {
        let mut counts = vec![0u64; BINS];
        for lane in &self.lanes {
            counts.iter_mut().zip(lane).for_each(|(sum, n)| *sum += u64::from(*n));
        }
        Histogram { counts, zeros: self.zeros, count: count as u64, max_bits: self.max_bits }
    }
}

/// The bits of the largest magnitude and the number of zeros. Magnitudes are ordered like their bits; NaN
/// comes last.
fn max_and_zeros(block: &[f32]) -> (u32, u32) {
    let fold = |(max, zeros): (i32, u32), v: &f32| {
        let bits = v.to_bits() as i32 & i32::MAX;
        (max.max(bits), zeros + u32::from(bits == 0))
    };
    let (max, zeros) = block.iter().fold((0, 0), fold);
    (max as u32, zeros)
}

/// Counts the values of a block, whose magnitudes are below `BINS * 2^exponent`.
fn tally(lanes: &mut [[u32; BINS]], block: &[f32], exponent: i32) {
    // 2^-exponent may exceed the range of f32, so it is split into two factors.
    let factors = (power(-exponent / 2), power(-exponent - -exponent / 2));
    let mut bins = [0; GROUP];
    let (groups, rest) = block.as_chunks();
    for group in groups {
        find_bins(&mut bins, group, factors);
        increment(lanes, &bins);
    }
    let mut last = [0.0; GROUP];
    last[..rest.len()].copy_from_slice(rest);
    find_bins(&mut bins, &last, factors);
    increment(lanes, &bins[..rest.len()]);
}

/// Computes the bins of a group: `floor(|x| 2^-exponent)`, in the low bits of the result.
///
/// The products are exact, or below 1 / [`BINS`]. Adding 2^23 rounds to the nearest integer and leaves it in
/// the low bits of the sum. If that rounded up, one is subtracted.
fn find_bins(bins: &mut [u32; GROUP], group: &[f32; GROUP], factors: (f32, f32)) {
    const ROUND: f32 = (1 << 23) as f32;
    for (bin, x) in bins.iter_mut().zip(group) {
        let y = x.abs() * factors.0 * factors.1;
        let rounded = y + ROUND;
        *bin = rounded.to_bits() - u32::from(rounded - ROUND > y);
    }
}

/// Increments the counters of `bins`, neighbours in different sets.
fn increment(lanes: &mut [[u32; BINS]], bins: &[u32]) {
    let [a, b, c, d] = lanes else { unreachable!("there are {LANES} lanes") };
    let (fours, rest) = bins.as_chunks::<LANES>();
    for &[i, j, k, l] in fours {
        a[i as usize % BINS] += 1;
        b[j as usize % BINS] += 1;
        c[k as usize % BINS] += 1;
        d[l as usize % BINS] += 1;
    }
    rest.iter().for_each(|&i| a[i as usize % BINS] += 1);
}

/// `2^exponent`, which must be a normal number.
fn power(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}
