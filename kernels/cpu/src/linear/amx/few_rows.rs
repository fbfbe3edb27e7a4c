//! Up to two rows beyond full tiles, such as the last row of 49 = 3 * 16 + 1. On tiles they take as long as
//! 16 rows, so they are multiplied by `vpdpbusd` after each step of the tiles, which has loaded most of the
//! weights into the first-level cache.

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::avx512::COLUMNS;
use super::product::{GROUP_BYTES, Operands};
use super::tile::{Element, TILE_ROWS};

/// The most rows beyond full tiles.
pub(super) const FEW: usize = 2;

/// Of `rows` rows, those on tiles: those in full tiles if few are beyond, otherwise all.
pub(super) fn on_tiles(rows: usize) -> usize {
    let beyond = rows % TILE_ROWS;
    if rows > TILE_ROWS && beyond <= FEW { rows - beyond } else { rows }
}

/// The rows beyond full tiles of a product. Its accumulators, the first field, are whole cache lines.
#[repr(C, align(64))]
pub(super) struct FewRows<'a> {
    acc: [[i32; COLUMNS]; FEW],
    /// The operands from the first of the rows on; at least one row.
    operands: Operands<'a>,
}

impl<'a> FewRows<'a> {
    /// Divides the rows asked for into those on tiles and those beyond, if there are any.
    #[inline(always)]
    pub(super) fn split(operands: Operands<'a>) -> (Operands<'a>, Option<FewRows<'a>>) {
        let on_tiles = on_tiles(operands.rows);
        let rows = operands.rows - on_tiles;
        if rows == 0 {
            return (operands, None);
        }
        let input = &operands.input[on_tiles * operands.stride..];
        let few = FewRows { operands: Operands { input, rows, ..operands }, acc: [*operands.initial; FEW] };
        (Operands { rows: on_tiles, ..operands }, Some(few))
    }

    /// Adds the products with `groups` of the inputs.
    ///
    /// # Panics
    /// If the operands are too short.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub(super) fn add(&mut self, groups: Range<usize>) {
        match self.operands.rows {
            1 => self.add_rows::<1>(groups),
            _ => self.add_rows::<2>(groups),
        }
    }

    /// [`FewRows::add`] for `R` rows. Never inlined: it would take registers of the loop over tiles.
    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn add_rows<const R: usize>(&mut self, groups: Range<usize>) {
        let Operands { input, stride, panel, .. } = self.operands;
        let weights = &panel.as_chunks::<GROUP_BYTES>().0[groups.clone()];
        let rows: [&[[u8; 4]]; R] =
            std::array::from_fn(|r| &input[r * stride..].as_chunks().0[groups.clone()]);
        let mut acc: [[__m512i; 2]; R] = std::array::from_fn(|r| read_both(&self.acc[r]));
        for (i, weights) in weights.iter().enumerate() {
            let b = read_both(weights);
            for (row, acc) in rows.iter().zip(&mut acc) {
                let a = _mm512_set1_epi32(i32::from_ne_bytes(row[i]));
                *acc = [_mm512_dpbusd_epi32(acc[0], a, b[0]), _mm512_dpbusd_epi32(acc[1], a, b[1])];
            }
        }
        for (row, acc) in self.acc.iter_mut().zip(acc) {
            // SAFETY: a row holds two registers.
            unsafe {
                _mm512_storeu_si512(row.as_mut_ptr().cast(), acc[0]);
                _mm512_storeu_si512(row[16..].as_mut_ptr().cast(), acc[1]);
            }
        }
    }

    /// The accumulators of the rows.
    #[inline(always)]
    pub(super) fn accumulators(&self) -> &[[i32; COLUMNS]] {
        &self.acc[..self.operands.rows]
    }
}

/// The 128 bytes of `from`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn read_both<E: Element, const N: usize>(from: &[E; N]) -> [__m512i; 2] {
    const { assert!(size_of::<[E; N]>() == 128) };
    let from = from.as_ptr().cast::<__m512i>();
    // SAFETY: `from` holds two registers by the assertion.
    unsafe { [_mm512_loadu_si512(from), _mm512_loadu_si512(from.add(1))] }
}

#[cfg(test)]
mod tests {
    use super::super::self_test::Case;
    use super::*;
    use crate::isa::Isa;

    #[test]
    fn rows_beyond_tiles_are_few() {
        let rows = [0, 1, 2, 15, 16, 17, 18, 19, 32, 33, 34, 35, 49, 50, 98];
        assert_eq!(rows.map(|rows| rows - on_tiles(rows)), [0, 0, 0, 0, 0, 1, 2, 0, 0, 1, 2, 0, 1, 2, 2]);
    }

    #[test]
    fn products_equal_the_sums_of_a_direct_loop() {
        if !Isa::Avx512Vnni.is_available() {
            return eprintln!("SKIPPED: few rows are multiplied by AVX-512");
        }
        for (rows, k) in [(17, 4), (18, 64), (33, 96), (34, 132), (34, 0), (32, 64), (1, 64)] {
            let case = Case::new(rows, k, 3);
            let (operands, few) = FewRows::split(case.operands());
            assert_eq!(operands.rows, on_tiles(rows));
            assert_eq!(few.is_some(), operands.rows < rows, "{rows} rows");
            let Some(mut few) = few else { continue };
            assert_eq!(operands.rows + few.accumulators().len(), rows);
            let groups = k.div_ceil(4);
            for part in [0..groups / 3, groups / 3..groups] {
                // SAFETY: the features are available.
                unsafe { few.add(part) };
            }
            for (i, row) in few.accumulators().iter().enumerate() {
                let input = &case.input.as_u8()[(operands.rows + i) * case.stride..];
                let weight = |i: usize, c: usize| case.panel.as_i8()[i / 4 * GROUP_BYTES + 4 * c + i % 4];
                let product = |i: usize, c| i32::from(input[i]) * i32::from(weight(i, c));
                let sum = |c: usize| case.initial[c] + (0..k).map(|i| product(i, c)).sum::<i32>();
                assert_eq!(
                    *row,
                    std::array::from_fn(sum),
                    "row {i} beyond {} rows, {k} inputs",
                    operands.rows
                );
            }
        }
    }
}
