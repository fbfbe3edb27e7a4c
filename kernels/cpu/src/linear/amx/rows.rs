//! The input rows of a block, where tiles can be loaded from.

use swinq_numerics::odd_lines;

use super::super::Block;
use super::super::avx512::{At, COLUMNS};
use super::few_rows::on_tiles;
use super::product::{Operands, ROWS};
use super::tile::{ROW_BYTES, TILE_ROWS};
use crate::buffer::AlignedBuf;

/// Input rows that start on cache lines: a load of a tile whose rows cross cache lines takes more than twice
/// the time. If the rows of the block do not start on cache lines, they are copied once and multiplied with
/// all of its panels. If they do, only the rows of the last product may be copied, so that its tiles can be
/// loaded whole.
pub(super) struct AlignedRows<'a> {
    input: &'a [u8],
    input_stride: usize,
    copies: &'a [u8],
    /// An odd number of cache lines, so that the rows of a tile lie in different sets of the cache.
    copy_stride: usize,
    /// The first row that is copied.
    pub(super) copied_from: usize,
}

impl<'a> AlignedRows<'a> {
    /// The rows of `block`, copied to `scratch` as far as necessary.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub(super) fn new(block: &Block<'a, u8, i8>, scratch: &'a mut AlignedBuf) -> AlignedRows<'a> {
        let (rows, stride) = (block.rows.clone(), block.stride);
        let aligned =
            block.input.as_ptr().addr().is_multiple_of(ROW_BYTES) && stride.is_multiple_of(ROW_BYTES);
        let in_place = if aligned { whole_products(rows.len()) } else { 0 };
        let copied = rows.start + in_place..rows.end;
        let copy_stride = odd_lines(stride);
        // Copies of rows beyond the block have any values, and their results are dropped.
        let bytes = copied.len().next_multiple_of(TILE_ROWS) * copy_stride;
        scratch.reserve(bytes);
        let copies = scratch.as_u8_mut()[..bytes].chunks_exact_mut(copy_stride);
        for (row, copy) in copied.clone().zip(copies) {
            copy_row(&block.input_from(row)[..stride], copy);
        }
        AlignedRows {
            input: block.input,
            input_stride: stride,
            copies: &scratch.as_u8()[..bytes],
            copy_stride,
            copied_from: copied.start,
        }
    }

    /// The operands of the product `at`, with the panel of `block`.
    #[inline(always)]
    pub(super) fn operands<'b>(
        &'b self,
        block: &'b Block<'_, u8, i8>,
        initial: &'b [i32],
        at: &At<'_>,
    ) -> Operands<'b> {
        let (input, stride) = self.from(at.row);
        let initial = initial[at.panel * COLUMNS..].first_chunk().expect("padded to full panels");
        Operands { input, stride, rows: at.starts.len(), panel: block.panel(at.panel), initial }
    }

    /// The bytes from row `row` on, and from one row to the next.
    #[inline(always)]
    pub(super) fn from(&self, row: usize) -> (&[u8], usize) {
        match row.checked_sub(self.copied_from) {
            Some(copy) => (&self.copies[copy * self.copy_stride..], self.copy_stride),
            None => (&self.input[row * self.input_stride..], self.input_stride),
        }
    }
}

/// Of `rows` rows, those in products whose tiles all have 16 rows: all but less than a product, or all.
fn whole_products(rows: usize) -> usize {
    if on_tiles(rows).is_multiple_of(TILE_ROWS) { rows } else { rows / ROWS * ROWS }
}

/// Copies `row`, a multiple of four bytes, to the start of `copy`. Calls of `memcpy` would take most of the
/// time of a small product.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn copy_row(row: &[u8], copy: &mut [u8]) {
    let (lines, rest) = row.as_chunks::<ROW_BYTES>();
    let (line_copies, rest_copy) = copy.split_at_mut(lines.len() * ROW_BYTES);
    for (copy, line) in line_copies.as_chunks_mut::<ROW_BYTES>().0.iter_mut().zip(lines) {
        *copy = *line;
    }
    let (halves, rest) = rest.as_chunks::<{ ROW_BYTES / 2 }>();
    let (half_copy, rest_copy) = rest_copy.split_at_mut(halves.len() * ROW_BYTES / 2);
    for (copy, half) in half_copy.as_chunks_mut::<{ ROW_BYTES / 2 }>().0.iter_mut().zip(halves) {
        *copy = *half;
    }
    for (copy, group) in rest_copy.as_chunks_mut::<4>().0.iter_mut().zip(rest.as_chunks::<4>().0) {
        *copy = *group;
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::super::products;
    use super::*;
    use crate::isa::Isa;

    /// The bytes from `from` on, which may not be a cache line's first, of `rows` rows of `stride` bytes.
    fn block_at(buffer: &AlignedBuf, from: usize, stride: usize, rows: Range<usize>) -> Block<'_, u8, i8> {
        let input = &buffer.as_u8()[from..][..rows.end * stride];
        Block { input, stride, k: stride, weight: &[], panel_len: 0, rows, panels: 0..0 }
    }

    #[test]
    fn rows_are_copied_unless_tiles_can_be_loaded_from_them() {
        if !Isa::Avx512Vnni.is_available() {
            return eprintln!("SKIPPED: rows are copied by AVX-512");
        }
        let mut buffer = AlignedBuf::new(576 * 32 + 64);
        buffer.as_u8_mut().iter_mut().enumerate().for_each(|(i, byte)| *byte = (i % 251) as u8);
        // Offset, stride, rows, and the first row that is copied.
        let cases = [
            (0, 64, 0..64, 64),
            (0, 192, 5..53, 53),
            (0, 192, 5..54, 54),
            (0, 192, 5..55, 55),
            (0, 192, 5..56, 37),
            (64, 192, 5..22, 22),
            (4, 192, 5..22, 5),
            (0, 384, 0..15, 0),
            (0, 96, 3..75, 3),
            (0, 576, 0..32, 32),
            (4, 64, 0..64, 0),
            (0, 100, 1..20, 1),
            (0, 4, 0..1, 0),
            (0, 0, 0..7, 0),
        ];
        for (from, stride, rows, copied_from) in cases {
            let what = format!("{rows:?} of {stride} bytes at {from}");
            let (block, mut scratch) = (block_at(&buffer, from, stride, rows.clone()), AlignedBuf::new(0));
            // SAFETY: the features are available.
            let aligned = unsafe { AlignedRows::new(&block, &mut scratch) };
            assert_eq!(aligned.copied_from, copied_from, "{what}");
            for product in products(rows) {
                let (bytes, apart) = aligned.from(product.start);
                assert!(
                    bytes.as_ptr().addr().is_multiple_of(64) && apart.is_multiple_of(64),
                    "{what}: alignment"
                );
                let tile_rows = on_tiles(product.len()).next_multiple_of(16);
                assert!(bytes.len() >= tile_rows * apart, "{what}: whole tiles");
                for (i, row) in product.enumerate() {
                    assert_eq!(
                        bytes[i * apart..][..stride],
                        block.input_from(row)[..stride],
                        "{what}: row {row}"
                    );
                }
            }
        }
    }
}
