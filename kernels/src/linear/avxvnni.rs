//! AVX-VNNI: INT8 by `vpdpbusd` on 256-bit registers; the tile and its epilogue are AVX2's.

use std::arch::x86_64::*;

use super::Block;
use super::avx2::{COLUMNS, ROWS, Tile, finish};
use super::dest::Dest;
use super::epilogue::Epilogue;
use super::pack::Layout;
use super::split::row_tiles;

pub(super) const INT8: Layout = Layout { columns: COLUMNS, group: 4 };

/// One block of an INT8 product; `start` holds the initial accumulator of each column.
#[target_feature(enable = "avx2,fma,avxvnni")]
pub(super) fn block_i8(block: &Block<'_, u8, i8>, start: &[i32], epilogue: &Epilogue, dest: &Dest<'_>) {
    let mut tile = Tile([[0i32; COLUMNS]; ROWS]);
    for panel in block.panels.clone() {
        let start = start[panel * COLUMNS..].first_chunk().expect("padded to whole panels");
        for rows in row_tiles(block.rows.clone(), ROWS) {
            let (input, weight) = (block.input_from(rows.start), block.panel(panel));
            match rows.len() {
                1 => tile_i8::<1>(input, block.stride, weight, start, &mut tile),
                2 => tile_i8::<2>(input, block.stride, weight, start, &mut tile),
                3 => tile_i8::<3>(input, block.stride, weight, start, &mut tile),
                4 => tile_i8::<4>(input, block.stride, weight, start, &mut tile),
                5 => tile_i8::<5>(input, block.stride, weight, start, &mut tile),
                _ => tile_i8::<6>(input, block.stride, weight, start, &mut tile),
            }
            finish(epilogue, &tile, rows, panel, dest);
        }
    }
}

/// `R` rows by one panel of INT8; `input` starts at the first row.
#[target_feature(enable = "avx2,fma,avxvnni")]
fn tile_i8<const R: usize>(
    input: &[u8],
    stride: usize,
    weight: &[i8],
    start: &[i32; COLUMNS],
    tile: &mut Tile<i32>,
) {
    let groups = weight.len() / (4 * COLUMNS);
    assert!(input.len() >= (R - 1) * stride + 4 * groups, "a tile's rows are whole");
    // SAFETY: `start` holds two registers.
    let start = unsafe {
        [_mm256_loadu_si256(start.as_ptr().cast()), _mm256_loadu_si256(start[8..].as_ptr().cast())]
    };
    let mut acc = [start; R];
    let (mut w, mut x) = (weight.as_ptr(), input.as_ptr());
    for _ in 0..groups {
        // SAFETY: `w` is at a group of `weight`, of which there are `groups`, each of two registers.
        let b = unsafe { [_mm256_loadu_si256(w.cast()), _mm256_loadu_si256(w.add(32).cast())] };
        for (r, acc) in acc.iter_mut().enumerate() {
            // SAFETY: the four bytes are in row r < R of `input`, by the assertion above.
            let a = _mm256_set1_epi32(unsafe { x.add(r * stride).cast::<i32>().read_unaligned() });
            acc[0] = _mm256_dpbusd_avx_epi32(acc[0], a, b[0]);
            acc[1] = _mm256_dpbusd_avx_epi32(acc[1], a, b[1]);
        }
        // Never read beyond the last group.
        (w, x) = (w.wrapping_add(4 * COLUMNS), x.wrapping_add(4));
    }
    for (row, acc) in tile.0.iter_mut().zip(acc) {
        // SAFETY: a row of the tile holds two registers.
        unsafe {
            _mm256_storeu_si256(row.as_mut_ptr().cast(), acc[0]);
            _mm256_storeu_si256(row[8..].as_mut_ptr().cast(), acc[1]);
        }
    }
}
