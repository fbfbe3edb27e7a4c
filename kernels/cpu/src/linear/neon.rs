//! AArch64: the tiles of all NEON kernels, 8 rows by 8 columns of accumulators in 16 registers, and f32
//! products by fused multiply-add.

use std::arch::aarch64::*;

use super::dest::Dest;
use super::epilogue::Epilogue;
use super::finish::Accumulator;
use super::kernel::{F32Kernel, with_rows};
use super::pack::Layout;
use super::split::row_tiles;
use super::{Block, finish};
use crate::lanes::Neon;
use crate::probe;

/// The most rows of a tile.
pub(super) const ROWS: usize = 8;

/// Columns of a tile: two registers of 4.
pub(super) const COLUMNS: usize = 8;

/// The f32 kernel of NEON, with or without I8MM.
pub(super) static F32_KERNEL: F32Kernel = F32Kernel {
    tile_rows: ROWS,
    layout: Layout { columns: COLUMNS, group: 1, k_block: 1 },
    block: block_f32,
    peak: Some(probe::F32_NEON),
};

/// The accumulators of a tile, `[ROWS][COLUMNS]`, between multiplication and epilogue.
#[repr(C, align(64))]
pub(super) struct Tile<T>(pub(super) [[T; COLUMNS]; ROWS]);

/// Accumulators of one row, in registers.
type Accumulators = [float32x4_t; 2];

/// Computes each tile of a block by `multiply`, from its rows and its panel, and stores it.
#[inline(always)]
pub(super) fn each_tile<X, W, A: Accumulator + Default>(
    block: &Block<'_, X, W>,
    epilogue: &Epilogue,
    dest: &Dest<'_>,
    mut multiply: impl FnMut(std::ops::Range<usize>, usize, &mut Tile<A>),
) {
    let starts = dest.starts(block.rows.clone(), epilogue.n);
    let mut tile = Tile([[A::default(); COLUMNS]; ROWS]);
    for panels in block.panel_groups() {
        for rows in row_tiles(block.rows.clone(), ROWS) {
            let starts = &starts[rows.start - block.rows.start..][..rows.len()];
            for panel in panels.clone() {
                multiply(rows.clone(), panel, &mut tile);
                // SAFETY: only functions with these features call this one.
                unsafe { finish(epilogue, &tile, starts, panel, dest) };
            }
        }
    }
}

/// One block of a product in f32.
#[target_feature(enable = "neon,dotprod")]
fn block_f32(block: &Block<'_, f32, f32>, epilogue: &Epilogue, dest: &Dest<'_>) {
    each_tile(block, epilogue, dest, |rows, panel, tile| {
        let (input, weight) = (block.input_from(rows.start), block.panel(panel));
        with_rows!(rows.len(), tile_f32(input, block.stride, weight, tile), [1 2 3 4 5 6 7] 8);
    });
}

/// `R` rows by one panel of f32; `input` starts at the first row.
#[inline(never)]
#[target_feature(enable = "neon")]
fn tile_f32<const R: usize>(input: &[f32], stride: usize, weight: &[f32], tile: &mut Tile<f32>) {
    let (groups, _) = weight.as_chunks::<COLUMNS>();
    assert!(input.len() >= (R - 1) * stride + groups.len(), "the input holds all rows of a tile");
    let mut acc = [[vdupq_n_f32(0.0); 2]; R];
    let mut x = input.as_ptr();
    let (fours, rest) = groups.as_chunks::<4>();
    for four in fours {
        let mut values = [vdupq_n_f32(0.0); R];
        for (r, values) in values.iter_mut().enumerate() {
            // SAFETY: four values of row r < R of `input`, by the assertion above.
            *values = unsafe { vld1q_f32(x.add(r * stride)) };
        }
        add_inputs::<R, 0>(&mut acc, &values, &four[0]);
        add_inputs::<R, 1>(&mut acc, &values, &four[1]);
        add_inputs::<R, 2>(&mut acc, &values, &four[2]);
        add_inputs::<R, 3>(&mut acc, &values, &four[3]);
        // After the last group this pointer is not read.
        x = x.wrapping_add(4);
    }
    for group in rest {
        let mut values = [vdupq_n_f32(0.0); R];
        for (r, values) in values.iter_mut().enumerate() {
            // SAFETY: a value of row r < R of `input`, by the assertion above.
            *values = unsafe { vld1q_dup_f32(x.add(r * stride)) };
        }
        add_inputs::<R, 0>(&mut acc, &values, group);
        x = x.wrapping_add(1);
    }
    for (row, acc) in tile.0.iter_mut().zip(acc) {
        // SAFETY: a row of the tile holds two registers.
        unsafe {
            vst1q_f32(row.as_mut_ptr(), acc[0]);
            vst1q_f32(row[4..].as_mut_ptr(), acc[1]);
        }
    }
}

/// Adds the products of one input's weights with lane `LANE` of `values`, which has a register for each row.
#[inline]
#[target_feature(enable = "neon")]
fn add_inputs<const R: usize, const LANE: i32>(
    acc: &mut [Accumulators; R],
    values: &[float32x4_t; R],
    weights: &[f32; COLUMNS],
) {
    // SAFETY: the weights are two registers.
    let weights = unsafe { [vld1q_f32(weights.as_ptr()), vld1q_f32(weights[4..].as_ptr())] };
    for (acc, &values) in acc.iter_mut().zip(values) {
        acc[0] = vfmaq_laneq_f32::<LANE>(acc[0], weights[0], values);
        acc[1] = vfmaq_laneq_f32::<LANE>(acc[1], weights[1], values);
    }
}

/// Stores the rows of a tile of `panel` that start at `starts` in `dest`.
#[inline(never)]
#[target_feature(enable = "neon,dotprod")]
fn finish<A: Accumulator>(
    epilogue: &Epilogue,
    tile: &Tile<A>,
    starts: &[usize],
    panel: usize,
    dest: &Dest<'_>,
) {
    // SAFETY: this function has the features.
    let lanes = unsafe { Neon::<false>::assume() };
    finish::finish(lanes, epilogue, &tile.0, starts, panel, dest);
}
