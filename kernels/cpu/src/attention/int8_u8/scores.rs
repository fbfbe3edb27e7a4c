//! Logits of a chunk of queries, and the largest logit of each query.

use super::operands::SIGN;
use super::{CHUNK, Chunk, Column, Int8Scratch, Keys, Queries, Rows};
use crate::attention::operands::four;
use crate::attention::products::{Blocks, Integer, Product, products};
use crate::attention::scores::Finish;
use crate::lanes::Lanes;

impl Chunk<'_> {
    /// Stores the logits of all keys except the lone key in `work`, and each query's largest logit, ignoring
    /// NaNs, in `largest`.
    #[inline(always)]
    pub(super) fn scores<L: Lanes>(
        &self,
        lanes: L,
        queries: Queries<'_>,
        work: &mut Int8Scratch<'_>,
        largest: &mut Column<f32>,
    ) {
        // Whether there are registers for the sums of more than four queries with all keys: 21 or 24 of
        // AVX-512's 32.
        let many = L::TILE >= 4 && queries.low.is_none();
        let mut row = 0;
        while row < self.count {
            let largest = &mut largest[row..];
            row += match (self.sizes.blocks, self.count - row) {
                (3, 7..) if many => self.all_keys::<L, 7, 3>(lanes, row, queries.codes, work, largest),
                (4, 6..) if many => self.all_keys::<L, 6, 4>(lanes, row, queries.codes, work, largest),
                (_, 4..) => store_highest(lanes, self.score_rows::<L, 4>(lanes, row, queries, work), largest),
                _ => store_highest(lanes, self.score_rows::<L, 1>(lanes, row, queries, work), largest),
            };
        }
    }

    /// Computes `R` queries from `row` on with all `T` blocks of keys at once; returns `R`.
    #[inline(always)]
    fn all_keys<L: Lanes, const R: usize, const T: usize>(
        &self,
        lanes: L,
        row: usize,
        queries: Rows<'_, u8>,
        work: &mut Int8Scratch<'_>,
        largest: &mut [f32],
    ) -> usize {
        let mut max = [lanes.splat(f32::NEG_INFINITY); R];
        self.tile::<L, R, T>(lanes, row, 0, queries, work, &mut max);
        store_highest(lanes, max, largest)
    }

    /// Computes `R` queries from `row` on; returns the largest logits by lane.
    #[inline(always)]
    fn score_rows<L: Lanes, const R: usize>(
        &self,
        lanes: L,
        row: usize,
        Queries { codes: queries, low }: Queries<'_>,
        work: &mut Int8Scratch<'_>,
    ) -> [L::F; R] {
        let mut max = [lanes.splat(f32::NEG_INFINITY); R];
        let mut block = 0;
        if let Some(low) = low {
            while block < self.sizes.blocks {
                block += match self.sizes.blocks - block {
                    2.. if L::TILE >= 4 => {
                        self.hi_lo_tile::<L, R, 2>(lanes, row, block, [queries, low], work, &mut max)
                    }
                    _ => self.hi_lo_tile::<L, R, 1>(lanes, row, block, [queries, low], work, &mut max),
                };
            }
            return max;
        }
        while block < self.sizes.blocks {
            block += match self.sizes.blocks - block {
                4.. if L::TILE >= 4 => self.tile::<L, R, 4>(lanes, row, block, queries, work, &mut max),
                3 if L::TILE >= 4 => self.tile::<L, R, 3>(lanes, row, block, queries, work, &mut max),
                2.. => self.tile::<L, R, 2>(lanes, row, block, queries, work, &mut max),
                _ => self.tile::<L, R, 1>(lanes, row, block, queries, work, &mut max),
            };
        }
        max
    }

    /// Computes `R` queries by `T` blocks of keys; returns `T`.
    #[inline(always)]
    fn tile<L: Lanes, const R: usize, const T: usize>(
        &self,
        lanes: L,
        row: usize,
        block: usize,
        queries: Rows<'_, u8>,
        work: &mut Int8Scratch<'_>,
        max: &mut [L::F; R],
    ) -> usize {
        let sums = self.products::<L, R, T>(lanes, row, block, queries, &work.keys);
        let mut products = [[lanes.splat(0.0); T]; R];
        for (products, sums) in products.iter_mut().zip(sums) {
            for (product, sum) in products.iter_mut().zip(sums) {
                *product = lanes.float(sum);
            }
        }
        match self.finish.site {
            None => self.put::<L, R, T, false>(lanes, row, block, products, work.logits, max),
            Some(_) => self.put::<L, R, T, true>(lanes, row, block, products, work.logits, max),
        }
        T
    }

    /// As [`Chunk::tile`], for queries (codes and lo codes) and keys that have hi and lo codes.
    #[inline(always)]
    fn hi_lo_tile<L: Lanes, const R: usize, const T: usize>(
        &self,
        lanes: L,
        row: usize,
        block: usize,
        [queries, low]: [Rows<'_, u8>; 2],
        work: &mut Int8Scratch<'_>,
        max: &mut [L::F; R],
    ) -> usize {
        let high = self.products::<L, R, T>(lanes, row, block, queries, &work.keys);
        let first = self.products::<L, R, T>(lanes, row, block, queries, &work.keys_low);
        let second = self.products::<L, R, T>(lanes, row, block, low, &work.keys);
        let (part, mut products) = (lanes.splat(1.0 / 256.0), [[lanes.splat(0.0); T]; R]);
        for (r, products) in products.iter_mut().enumerate() {
            for (t, product) in products.iter_mut().enumerate() {
                let with_low = lanes.float(lanes.add_i(first[r][t], second[r][t]));
                *product = lanes.fma(with_low, part, lanes.float(high[r][t]));
            }
        }
        match self.finish.site {
            None => self.put::<L, R, T, false>(lanes, row, block, products, work.logits, max),
            Some(_) => self.put::<L, R, T, true>(lanes, row, block, products, work.logits, max),
        }
        T
    }

    /// Stores logits in `out`. `SITE` says whether the site `scores` is on.
    #[inline(always)]
    fn put<L: Lanes, const R: usize, const T: usize, const SITE: bool>(
        &self,
        lanes: L,
        row: usize,
        block: usize,
        products: [[L::F; T]; R],
        out: &mut [f32],
        max: &mut [L::F; R],
    ) {
        let (width, from, len) = (self.sizes.logits::<L>(), block * L::N, T * L::N);
        let finish = if SITE { self.finish } else { Finish { site: None, ..self.finish } };
        let terms = starts::<R>(self.bias.len(), row * self.padded + from, self.padded, len);
        assert!(self.mask.is_none_or(|mask| mask.len() == self.bias.len()), "a mask for each bias");
        let rows = starts::<R>(out.len(), row * width + from, width, len);
        for (r, products) in products.into_iter().enumerate() {
            for (t, product) in products.into_iter().enumerate() {
                // SAFETY: `starts` has found that the rows have `len` values.
                let mut bias = unsafe { lanes.read(self.bias.as_ptr().add(terms[r] + t * L::N)) };
                if let Some(mask) = self.mask {
                    // SAFETY: as above; mask and bias are equally long.
                    bias = lanes.add(bias, unsafe { lanes.read(mask.as_ptr().add(terms[r] + t * L::N)) });
                }
                let logit = finish.logit(lanes, product, bias, true);
                // `max` returns its second operand if the first is a NaN.
                max[r] = lanes.max(logit, max[r]);
                // SAFETY: as above.
                unsafe { lanes.write(out.as_mut_ptr().add(rows[r] + t * L::N), logit) };
            }
        }
    }

    /// Products of `R` queries and `T` blocks of keys.
    #[inline(always)]
    fn products<L: Lanes, const R: usize, const T: usize>(
        &self,
        lanes: L,
        row: usize,
        block: usize,
        queries: Rows<'_, u8>,
        keys: &Keys<'_>,
    ) -> [[L::I; T]; R] {
        let (groups, register) = (self.sizes.d / 4, 4 * L::N);
        let data = &keys.codes[block * groups * register..][..T * groups * register];
        let packed = Blocks { data, per_block: groups * register, per_group: register };
        let queries = Rows { data: &queries.data[(self.from + row) * queries.stride..], ..queries };
        let mut initial = [lanes.splat_i(0); T];
        for (t, initial) in initial.iter_mut().enumerate() {
            *initial = Integer::initial(lanes, keys.offsets, block + t);
        }
        products::<L, Integer, R, T>(lanes, groups, queries, packed, initial)
    }

    /// Stores the logits of the lone key in `lone` and updates `largest`.
    #[inline(always)]
    pub(super) fn lone_scores<L: Lanes>(
        &self,
        lanes: L,
        queries: Rows<'_, u8>,
        keys: Rows<'_, u8>,
        largest: &mut Column<f32>,
        lone: &mut Column<f32>,
    ) {
        let (n, d) = (self.sizes.n, self.sizes.d);
        let key = &keys.data[(n - 1) * keys.stride..][..d];
        let sum: i32 = key.iter().map(|&code| i32::from(code) - 128).sum();
        let rows = &queries.data[self.from * queries.stride..];
        assert!(d.is_multiple_of(16) && rows.len() >= (self.count - 1) * queries.stride + d);
        let tables = &self.op.tables;
        let bias = &tables.last_key(self.unit.head)[self.from..];
        let mask = tables.mask(self.unit.mask, n - 1).map(|mask| &mask[self.from..]);
        for first in (0..self.count).step_by(L::N) {
            let mut product = lanes.splat_i(-128 * sum);
            for c in (0..d).step_by(16) {
                // SAFETY: these are 16 of the `d` bytes of the rows from `first` to `count - 1`, which exist
                // by the assertion above.
                let four_dwords = unsafe {
                    let at = rows.as_ptr().add(first * queries.stride + c);
                    lanes.transpose(at, queries.stride, self.count - 1 - first)
                };
                for (i, query) in four_dwords.into_iter().enumerate() {
                    let key = lanes.splat_i(i32::from_ne_bytes(four(key, c + 4 * i)) ^ SIGN);
                    product = lanes.dot(product, query, key);
                }
            }
            let mut bias = lanes.load_part(&bias[first..]);
            if let Some(mask) = mask {
                bias = lanes.add(bias, lanes.load_part(&mask[first..]));
            }
            let logit = self.finish.logit(lanes, lanes.float(product), bias, true);
            let span = first..CHUNK.min(first + L::N);
            // `max` returns its second operand if the first is a NaN.
            let max = lanes.max(logit, lanes.load(&largest[span.clone()]));
            lanes.store(&mut largest[span.clone()], max);
            lanes.store(&mut lone[span], logit);
        }
    }
}

/// Stores the largest lane of each register of `max`; returns their number.
#[inline(always)]
fn store_highest<L: Lanes, const R: usize>(lanes: L, max: [L::F; R], largest: &mut [f32]) -> usize {
    for (max, largest) in max.chunks(4).zip(largest[..R].chunks_mut(4)) {
        if let &[one] = max {
            largest[0] = lanes.highest(one);
        } else {
            let four = std::array::from_fn(|i| max[i.min(max.len() - 1)]);
            largest.copy_from_slice(&lanes.highest4(four)[..largest.len()]);
        }
    }
    R
}

/// Where `R` rows of `len` values start, the first at `first`.
///
/// # Panics
/// If one is not inside `total` values.
#[inline(always)]
fn starts<const R: usize>(total: usize, first: usize, stride: usize, len: usize) -> [usize; R] {
    let mut starts = [first; R];
    for (r, start) in starts.iter_mut().enumerate() {
        *start += r * stride;
    }
    assert!(starts[R - 1] + len <= total, "rows are inside their memory");
    starts
}
