//! NEON's dot product: INT8 by `sdot`, with the tile and the epilogue of NEON.
//!
//! `sdot` multiplies signed by signed: the kernel subtracts the +128 of the input's bytes in registers.

use std::arch::aarch64::*;
use std::arch::asm;

use super::Block;
use super::dest::Dest;
use super::epilogue::Epilogue;
use super::kernel::{Int8Kernel, with_rows};
use super::neon::{COLUMNS, ROWS, Tile, each_tile};
use super::pack::Layout;
use crate::buffer::AlignedBuf;
use crate::isa::Isa;
use crate::probe;

/// Bytes of weights of a group of four inputs.
const GROUP: usize = 4 * COLUMNS;

/// The kernel `neon_dotprod`.
pub(super) static KERNEL: Int8Kernel = Int8Kernel {
    name: "neon_dotprod",
    isa: Isa::Neon,
    refusal: || None,
    tile_rows: ROWS,
    layout: Layout { columns: COLUMNS, group: 4, k_block: 4 },
    unsigned_input: false,
    block: block_i8,
    fused_block_rows: 196,
    min_rows_per_thread: 42,
    macs_per_ns: 80,
    peak: Some(probe::INT8_NEON_DOTPROD),
};

/// Accumulators of one row, in registers.
type Accumulators = [int32x4_t; 2];

/// One block of an INT8 product.
#[target_feature(enable = "neon,dotprod")]
fn block_i8(
    block: &Block<'_, u8, i8>,
    initial: &[i32],
    epilogue: &Epilogue,
    dest: &Dest<'_>,
    _: &mut AlignedBuf,
) {
    each_tile(block, epilogue, dest, |rows, panel, tile| {
        let (input, weight) = (block.input_from(rows.start), block.panel(panel));
        let initial = initial[panel * COLUMNS..].first_chunk().expect("padded to full panels");
        with_rows!(rows.len(), tile_i8(input, block.stride, weight, initial, tile), [1 2 3 4 5 6 7] 8);
    });
}

/// `R` rows by one panel; `input` starts at the first row.
#[inline(never)]
#[target_feature(enable = "neon,dotprod")]
fn tile_i8<const R: usize>(
    input: &[u8],
    stride: usize,
    weight: &[i8],
    initial: &[i32; COLUMNS],
    tile: &mut Tile<i32>,
) {
    let (groups, _) = weight.as_chunks::<GROUP>();
    assert!(input.len() >= (R - 1) * stride + 4 * groups.len(), "the input holds all rows of a tile");
    // SAFETY: `initial` holds two registers.
    let initial = unsafe { [vld1q_s32(initial.as_ptr()), vld1q_s32(initial[4..].as_ptr())] };
    let mut acc = [initial; R];
    let mut x = input.as_ptr();
    let (fours, rest) = groups.as_chunks::<4>();
    for four in fours {
        let mut codes = [vdupq_n_s8(0); R];
        for (r, codes) in codes.iter_mut().enumerate() {
            // SAFETY: 16 bytes of row r < R of `input`, by the assertion above.
            *codes = signed(unsafe { vld1q_u8(x.add(r * stride)) });
        }
        add_group::<R, 0>(&mut acc, &codes, &four[0]);
        add_group::<R, 1>(&mut acc, &codes, &four[1]);
        add_group::<R, 2>(&mut acc, &codes, &four[2]);
        add_group::<R, 3>(&mut acc, &codes, &four[3]);
        // After the last group this pointer is not read.
        x = x.wrapping_add(16);
    }
    for group in rest {
        let mut codes = [vdupq_n_s8(0); R];
        for (r, codes) in codes.iter_mut().enumerate() {
            // SAFETY: four bytes of row r < R of `input`, by the assertion above.
            let bytes = unsafe { x.add(r * stride).cast::<u32>().read_unaligned() };
            *codes = signed(vreinterpretq_u8_u32(vdupq_n_u32(bytes)));
        }
        add_group::<R, 0>(&mut acc, &codes, group);
        x = x.wrapping_add(4);
    }
    for (row, acc) in tile.0.iter_mut().zip(acc) {
        // SAFETY: a row of the tile holds two registers.
        unsafe {
            vst1q_s32(row.as_mut_ptr(), acc[0]);
            vst1q_s32(row[4..].as_mut_ptr(), acc[1]);
        }
    }
}

/// The codes of bytes `code + 128`.
#[inline]
#[target_feature(enable = "neon")]
fn signed(bytes: uint8x16_t) -> int8x16_t {
    vreinterpretq_s8_u8(veorq_u8(bytes, vdupq_n_u8(0x80)))
}

/// Adds the products of a group of weights with inputs `4 * LANE` to `4 * LANE + 3` of `codes`, which has a
/// register for each row.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn add_group<const R: usize, const LANE: usize>(
    acc: &mut [Accumulators; R],
    codes: &[int8x16_t; R],
    group: &[i8; GROUP],
) {
    // SAFETY: the group is two registers.
    let weights = unsafe { [vld1q_s8(group.as_ptr()), vld1q_s8(group[16..].as_ptr())] };
    for (acc, &codes) in acc.iter_mut().zip(codes) {
        acc[0] = dot::<LANE>(acc[0], weights[0], codes);
        acc[1] = dot::<LANE>(acc[1], weights[1], codes);
    }
}

/// `acc[c] + sum_i weights[4 c + i] * codes[4 LANE + i]`: `vdotq_laneq_s32`, which is not stable.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot<const LANE: usize>(mut acc: int32x4_t, weights: int8x16_t, codes: int8x16_t) -> int32x4_t {
    // SAFETY: only registers are read and written; the processor has the instruction by this function's
    // features.
    unsafe {
        asm!(
            "sdot {acc:v}.4s, {weights:v}.16b, {codes:v}.4b[{lane}]",
            acc = inout(vreg) acc,
            weights = in(vreg) weights,
            codes = in(vreg) codes,
            lane = const LANE,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    acc
}
