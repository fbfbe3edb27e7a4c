//! AVX2 and FMA: f32 by fused multiply-add, INT8 by widening to 16 bits and `vpmaddwd`; 6 rows by 16 columns
//! of accumulators in 12 registers. AVX-VNNI shares the epilogue.
//!
//! The sum of two products is at most 2 * 128 * 128, so `vpmaddwd` is exact; `vpmaddubsw` would saturate.

use std::arch::x86_64::*;

use super::dest::Dest;
use super::epilogue::Epilogue;
use super::finish::Accumulator;
use super::kernel::{F32Kernel, Int8Kernel, with_rows};
use super::pack::Layout;
use super::split::row_tiles;
use super::{Block, finish};
use crate::buffer::AlignedBuf;
use crate::isa::Isa;
use crate::lanes::Avx2;
use crate::probe;

/// The most rows of a tile.
pub(super) const ROWS: usize = 6;

/// Columns of a tile: two registers of 8.
pub(super) const COLUMNS: usize = 16;

/// The kernel `avx2`.
pub(super) static KERNEL: Int8Kernel = Int8Kernel {
    name: "avx2",
    isa: Isa::Avx2,
    refusal: || None,
    tile_rows: ROWS,
    layout: Layout { columns: COLUMNS, group: 2, k_block: 2 },
    unsigned_input: false,
    block: block_i8,
    fused_block_rows: 196,
    min_rows_per_thread: 42,
    macs_per_ns: 60,
    peak: Some(probe::INT8_AVX2),
};

/// The f32 kernel of AVX2, with or without AVX-VNNI.
pub(super) static F32_KERNEL: F32Kernel = F32Kernel {
    tile_rows: ROWS,
    layout: Layout { columns: COLUMNS, group: 1, k_block: 1 },
    block: block_f32,
    peak: Some(probe::F32_AVX2),
};

/// The accumulators of a tile, `[ROWS][COLUMNS]`, between multiplication and epilogue.
#[repr(C, align(64))]
pub(super) struct Tile<T>(pub(super) [[T; COLUMNS]; ROWS]);

/// One block of an INT8 product. `scratch` holds the widened rows of a tile.
#[target_feature(enable = "avx2,fma")]
fn block_i8(
    block: &Block<'_, u8, i8>,
    initial: &[i32],
    epilogue: &Epilogue,
    dest: &Dest<'_>,
    scratch: &mut AlignedBuf,
) {
    let pairs = block.panel_len / (2 * COLUMNS);
    scratch.reserve(4 * ROWS * pairs);
    let widened = &mut scratch.as_i32_mut()[..ROWS * pairs];
    let starts = dest.starts(block.rows.clone(), epilogue.n);
    let mut tile = Tile([[0i32; COLUMNS]; ROWS]);
    for rows in row_tiles(block.rows.clone(), ROWS) {
        if pairs > 0 {
            for (row, widened) in rows.clone().zip(widened.chunks_exact_mut(pairs)) {
                widen(block.input_from(row), widened);
            }
        }
        for panel in block.panels.clone() {
            let initial = initial[panel * COLUMNS..].first_chunk().expect("padded to full panels");
            let weight = block.panel(panel);
            with_rows!(rows.len(), tile_i8(widened, weight, initial, &mut tile), [1 2 3 4 5] 6);
            finish(epilogue, &tile, &starts[rows.start - block.rows.start..][..rows.len()], panel, dest);
        }
    }
}

/// One block of a product in f32.
#[target_feature(enable = "avx2,fma")]
fn block_f32(block: &Block<'_, f32, f32>, epilogue: &Epilogue, dest: &Dest<'_>) {
    let starts = dest.starts(block.rows.clone(), epilogue.n);
    let mut tile = Tile([[0f32; COLUMNS]; ROWS]);
    for panel in block.panels.clone() {
        for rows in row_tiles(block.rows.clone(), ROWS) {
            let (input, weight) = (block.input_from(rows.start), block.panel(panel));
            with_rows!(rows.len(), tile_f32(input, block.stride, weight, &mut tile), [1 2 3 4 5] 6);
            finish(epilogue, &tile, &starts[rows.start - block.rows.start..][..rows.len()], panel, dest);
        }
    }
}

/// Codes of one row as pairs of i16: the low half of each i32 comes first.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn widen(input: &[u8], pairs: &mut [i32]) {
    for (pair, bytes) in pairs.iter_mut().zip(input.as_chunks::<2>().0) {
        let [low, high] = bytes.map(|byte| i32::from(byte) - 128);
        *pair = (high << 16) | (low & 0xffff);
    }
}

/// `R` rows of `widened` by one panel of INT8.
#[target_feature(enable = "avx2,fma")]
fn tile_i8<const R: usize>(widened: &[i32], weight: &[i8], initial: &[i32; COLUMNS], tile: &mut Tile<i32>) {
    let pairs = weight.len() / (2 * COLUMNS);
    assert!(widened.len() >= R * pairs, "the input holds all rows of a tile");
    // SAFETY: `initial` holds two registers.
    let initial = unsafe {
        [_mm256_loadu_si256(initial.as_ptr().cast()), _mm256_loadu_si256(initial[8..].as_ptr().cast())]
    };
    let mut acc = [initial; R];
    let (mut w, mut x) = (weight.as_ptr(), widened.as_ptr());
    for _ in 0..pairs {
        // SAFETY: `w` is at a group of `weight`, of which there are `pairs`, each of 32 bytes.
        let b = unsafe {
            let [low, high] = [_mm_loadu_si128(w.cast()), _mm_loadu_si128(w.add(16).cast())];
            [_mm256_cvtepi8_epi16(low), _mm256_cvtepi8_epi16(high)]
        };
        for (r, acc) in acc.iter_mut().enumerate() {
            // SAFETY: the pair is in row r < R of `widened`, by the assertion above.
            let a = _mm256_set1_epi32(unsafe { *x.add(r * pairs) });
            acc[0] = _mm256_add_epi32(acc[0], _mm256_madd_epi16(a, b[0]));
            acc[1] = _mm256_add_epi32(acc[1], _mm256_madd_epi16(a, b[1]));
        }
        // After the last group these pointers are not read.
        (w, x) = (w.wrapping_add(2 * COLUMNS), x.wrapping_add(1));
    }
    for (row, acc) in tile.0.iter_mut().zip(acc) {
        // SAFETY: a row of the tile holds two registers.
        unsafe {
            _mm256_storeu_si256(row.as_mut_ptr().cast(), acc[0]);
            _mm256_storeu_si256(row[8..].as_mut_ptr().cast(), acc[1]);
        }
    }
}

/// `R` rows by one panel of f32; `input` starts at the first row.
#[target_feature(enable = "avx2,fma")]
fn tile_f32<const R: usize>(input: &[f32], stride: usize, weight: &[f32], tile: &mut Tile<f32>) {
    let k = weight.len() / COLUMNS;
    assert!(input.len() >= (R - 1) * stride + k, "the input holds all rows of a tile");
    let mut acc = [[_mm256_setzero_ps(); 2]; R];
    let (mut w, mut x) = (weight.as_ptr(), input.as_ptr());
    for _ in 0..k {
        // SAFETY: `w` is at a row of `weight`, of which there are `k`, each of two registers.
        let b = unsafe { [_mm256_loadu_ps(w), _mm256_loadu_ps(w.add(8))] };
        for (r, acc) in acc.iter_mut().enumerate() {
            // SAFETY: the value is in row r < R of `input`, by the assertion above.
            let a = _mm256_set1_ps(unsafe { *x.add(r * stride) });
            acc[0] = _mm256_fmadd_ps(a, b[0], acc[0]);
            acc[1] = _mm256_fmadd_ps(a, b[1], acc[1]);
        }
        // After the last row of weights these pointers are not read.
        (w, x) = (w.wrapping_add(COLUMNS), x.wrapping_add(1));
    }
    for (row, acc) in tile.0.iter_mut().zip(acc) {
        // SAFETY: a row of the tile holds two registers.
        unsafe {
            _mm256_storeu_ps(row.as_mut_ptr(), acc[0]);
            _mm256_storeu_ps(row[8..].as_mut_ptr(), acc[1]);
        }
    }
}

/// Stores the rows of a tile of `panel` that start at `starts` in `dest`.
#[inline(never)]
#[target_feature(enable = "avx2,fma")]
pub(super) fn finish<A: Accumulator>(
    epilogue: &Epilogue,
    tile: &Tile<A>,
    starts: &[usize],
    panel: usize,
    dest: &Dest<'_>,
) {
    // SAFETY: this function has the features.
    let lanes = unsafe { Avx2::<false>::assume() };
    finish::finish(lanes, epilogue, &tile.0, starts, panel, dest);
}
