//! I8MM: INT8 by `usmmla`, with the tile and the epilogue of NEON.
//!
//! `usmmla` multiplies two rows of eight unsigned bytes with two columns of eight signed bytes, and adds to a
//! register of 2 by 2 accumulators.

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

/// Inputs of a group.
const INPUTS: usize = 8;

/// Bytes of weights of a group of inputs.
const GROUP: usize = INPUTS * COLUMNS;

/// The kernel `neon_i8mm`.
pub(super) static KERNEL: Int8Kernel = Int8Kernel {
    name: "neon_i8mm",
    isa: Isa::NeonI8mm,
    refusal: || None,
    tile_rows: ROWS,
    layout: Layout { columns: COLUMNS, group: INPUTS, k_block: INPUTS },
    unsigned_input: true,
    block: block_i8,
    fused_block_rows: 196,
    min_rows_per_thread: 42,
    macs_per_ns: 150,
    peak: Some(probe::INT8_NEON_I8MM),
};

/// Accumulators of two rows: a register for each two columns, with the row in the upper bit of the lane.
type Accumulators = [int32x4_t; COLUMNS / 2];

/// One block of an INT8 product.
#[target_feature(enable = "neon,dotprod,i8mm")]
fn block_i8(
    block: &Block<'_, u8, i8>,
    initial: &[i32],
    epilogue: &Epilogue,
    dest: &Dest<'_>,
    _: &mut AlignedBuf,
) {
    each_tile(block, epilogue, dest, |rows, panel, tile| {
        let (from, stride) = (block.input_from(rows.start), block.stride);
        let input = Input { from, stride, len: block.k.next_multiple_of(4), rows: rows.len() };
        let initial = initial[panel * COLUMNS..].first_chunk().expect("padded to full panels");
        let weight = block.panel(panel);
        with_rows!(rows.len().div_ceil(2), tile_i8(input, weight, initial, tile), [1 2 3] 4);
    });
}

/// The input of a tile.
#[derive(Clone, Copy)]
struct Input<'a> {
    /// The codes from the first row on.
    from: &'a [u8],
    /// Bytes from one row to the next.
    stride: usize,
    /// Bytes of a row, a multiple of four.
    len: usize,
    /// At least one.
    rows: usize,
}

impl Input<'_> {
    /// The first bytes of the rows of each pair. Of an odd number of rows the last one is both rows of its
    /// pair.
    #[inline(always)]
    fn pairs<const P: usize>(&self) -> [[*const u8; 2]; P] {
        let row = |r: usize| self.from[r.min(self.rows - 1) * self.stride..].as_ptr();
        std::array::from_fn(|p| [row(2 * p), row(2 * p + 1)])
    }
}

/// [`Input::pairs`] by one panel.
#[inline(never)]
#[target_feature(enable = "neon,dotprod,i8mm")]
fn tile_i8<const P: usize>(input: Input<'_>, weight: &[i8], initial: &[i32; COLUMNS], tile: &mut Tile<i32>) {
    let (groups, _) = weight.as_chunks::<GROUP>();
    let whole = input.len / INPUTS;
    let end = (input.rows - 1) * input.stride + input.len;
    assert!(input.from.len() >= end, "the input holds all rows of a tile");
    assert!(groups.len() == input.len.div_ceil(INPUTS), "weights for every input");
    let mut acc = [initial_of(initial); P];
    let rows = input.pairs::<P>();
    let (pairs, last) = groups[..whole].as_chunks::<2>();
    for (i, [low, high]) in pairs.iter().enumerate() {
        let mut x = [[vdupq_n_u8(0); 2]; P];
        for (x, rows) in x.iter_mut().zip(rows) {
            // SAFETY: bytes `16 i..16 i + 16` of two rows of `len` bytes, which are inside the input by the
            // assertion above.
            *x = zip(rows.map(|row| unsafe { vld1q_u8(row.add(2 * INPUTS * i)) }));
        }
        add_group(&mut acc, &x.map(|x| x[0]), low);
        add_group(&mut acc, &x.map(|x| x[1]), high);
    }
    if let [group] = last {
        // SAFETY: bytes `8 (whole - 1)..8 whole` of each row, which are inside the input by the assertion
        // above.
        let eight = |row: *const u8| unsafe { vld1_u8(row.add(INPUTS * (whole - 1))) };
        add_group(&mut acc, &rows.map(|[a, b]| vcombine_u8(eight(a), eight(b))), group);
    }
    if let [group] = &groups[whole..] {
        // SAFETY: the last four bytes of each row, which are inside the input by the assertion above.
        let four = |row: *const u8| unsafe { row.add(INPUTS * whole).cast::<u32>().read_unaligned() };
        add_group(&mut acc, &rows.map(|[a, b]| four_of_each(four(a), four(b))), group);
    }
    store(&acc, tile);
}

/// The initial accumulators of two rows.
#[inline]
#[target_feature(enable = "neon")]
fn initial_of(initial: &[i32; COLUMNS]) -> Accumulators {
    let mut acc = [vdupq_n_s32(0); COLUMNS / 2];
    for (acc, two) in acc.iter_mut().zip(initial.as_chunks::<2>().0) {
        // SAFETY: two values.
        let two = unsafe { vld1_s32(two.as_ptr()) };
        *acc = vcombine_s32(two, two);
    }
    acc
}

/// The first eight bytes of both rows, and the last eight bytes of both.
#[inline]
#[target_feature(enable = "neon")]
fn zip(rows: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
    let [a, b] = rows.map(|row| vreinterpretq_u64_u8(row));
    [vreinterpretq_u8_u64(vtrn1q_u64(a, b)), vreinterpretq_u8_u64(vtrn2q_u64(a, b))]
}

/// Four bytes of each row, and zeros after them.
#[inline]
#[target_feature(enable = "neon")]
fn four_of_each(a: u32, b: u32) -> uint8x16_t {
    vcombine_u8(vcreate_u8(u64::from(a)), vcreate_u8(u64::from(b)))
}

/// Adds the products of a group of weights with eight inputs of each row.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn add_group<const P: usize>(acc: &mut [Accumulators; P], x: &[uint8x16_t; P], group: &[i8; GROUP]) {
    for (j, weights) in group.as_chunks::<16>().0.iter().enumerate() {
        // SAFETY: 16 bytes.
        let weights = unsafe { vld1q_s8(weights.as_ptr()) };
        for (acc, &x) in acc.iter_mut().zip(x) {
            acc[j] = usmmla(acc[j], x, weights);
        }
    }
}

/// `acc[2 r + c] + sum_i x[8 r + i] * weights[8 c + i]`: `vusmmlaq_s32`, which is not stable.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn usmmla(mut acc: int32x4_t, x: uint8x16_t, weights: int8x16_t) -> int32x4_t {
    // SAFETY: only registers are read and written; the processor has the instruction by this function's
    // features.
    unsafe {
        asm!(
            "usmmla {acc:v}.4s, {x:v}.16b, {weights:v}.16b",
            acc = inout(vreg) acc,
            x = in(vreg) x,
            weights = in(vreg) weights,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    acc
}

/// Stores the accumulators of all pairs of rows.
#[inline]
#[target_feature(enable = "neon")]
fn store<const P: usize>(acc: &[Accumulators; P], tile: &mut Tile<i32>) {
    for (rows, acc) in tile.0.as_chunks_mut::<2>().0.iter_mut().zip(acc) {
        for (at, four) in [0, 4].into_iter().zip(acc.as_chunks::<2>().0) {
            let [a, b] = four.map(|two| vreinterpretq_s64_s32(two));
            // SAFETY: four values of a row of eight.
            unsafe {
                vst1q_s32(rows[0][at..].as_mut_ptr(), vreinterpretq_s32_s64(vtrn1q_s64(a, b)));
                vst1q_s32(rows[1][at..].as_mut_ptr(), vreinterpretq_s32_s64(vtrn2q_s64(a, b)));
            }
        }
    }
}
