//! AArch64: INT8 by `sdot`, 8 rows by 8 columns of accumulators in 16 registers.
//!
//! `sdot` multiplies signed by signed: the kernel subtracts the +128 of the input's bytes in registers.

use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};

use super::Block;
use super::dest::{DROPPED, Dest};
use super::epilogue::Epilogue;
use super::kernel::{Int8Kernel, with_rows};
use super::pack::Layout;
use super::spec::Store;
use super::split::row_tiles;
use crate::buffer::AlignedBuf;
use crate::isa::Isa;
use crate::reference;
use crate::types::{ColumnQuantizers, Quantizer};

/// The most rows of a tile.
const ROWS: usize = 8;

/// Columns of a tile: two registers of 4.
const COLUMNS: usize = 8;

/// Bytes of weights of a group of four inputs.
const GROUP: usize = 4 * COLUMNS;

/// The kernel `neon_dotprod`. All other ops run the scalar reference.
pub(super) static KERNEL: Int8Kernel = Int8Kernel {
    name: "neon_dotprod",
    isa: Isa::Scalar,
    supported: || is_aarch64_feature_detected!("neon") && is_aarch64_feature_detected!("dotprod"),
    tile_rows: ROWS,
    layout: Layout { columns: COLUMNS, group: 4, k_block: 4 },
    unsigned_input: false,
    block: block_i8,
    fused_block_rows: 196,
    min_rows_per_thread: 42,
    peak: None,
};

/// The accumulators of a tile, between multiplication and epilogue.
type Tile = [[i32; COLUMNS]; ROWS];

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
    let starts = dest.starts(block.rows.clone(), epilogue.n);
    let mut tile = [[0; COLUMNS]; ROWS];
    for panels in block.panel_groups() {
        for rows in row_tiles(block.rows.clone(), ROWS) {
            let starts = &starts[rows.start - block.rows.start..][..rows.len()];
            for panel in panels.clone() {
                let (input, weight) = (block.input_from(rows.start), block.panel(panel));
                let initial = initial[panel * COLUMNS..].first_chunk().expect("padded to full panels");
                with_rows!(
                    rows.len(),
                    tile_i8(input, block.stride, weight, initial, &mut tile),
                    [1 2 3 4 5 6 7] 8
                );
                Columns::new(epilogue, panel * COLUMNS).finish(&tile, starts, dest);
            }
        }
    }
}

/// `R` rows by one panel; `input` starts at the first row.
#[inline(never)]
#[target_feature(enable = "neon,dotprod")]
fn tile_i8<const R: usize>(
    input: &[u8],
    stride: usize,
    weight: &[i8],
    initial: &[i32; COLUMNS],
    tile: &mut Tile,
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
    for (row, acc) in tile.iter_mut().zip(acc) {
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

/// 8 values of a row.
type Values = [float32x4_t; 2];

/// The columns of a panel, with the parameters of their epilogue in registers.
struct Columns<'a> {
    epilogue: &'a Epilogue,
    /// The first column.
    first: usize,
    /// Columns that exist: at most 8.
    lanes: usize,
    factor: Values,
    bias: Values,
}

impl<'a> Columns<'a> {
    #[inline]
    #[target_feature(enable = "neon")]
    fn new(epilogue: &'a Epilogue, first: usize) -> Columns<'a> {
        Columns {
            epilogue,
            first,
            lanes: epilogue.n.saturating_sub(first).min(COLUMNS),
            factor: load(&epilogue.factor[first..]),
            bias: load(&epilogue.bias[first..]),
        }
    }

    /// Stores the rows that start at `starts` in `dest`, from their accumulators in `tile`.
    #[inline]
    #[target_feature(enable = "neon")]
    fn finish(&self, tile: &Tile, starts: &[usize], dest: &Dest<'_>) {
        match (dest, &self.epilogue.store) {
            (Dest::F32(out), Store::Fake(columns)) => {
                let (recip, zero) = self.codes(columns);
                let scale = load(&columns.scales()[self.first..]);
                for (value, at) in self.rows(tile, starts) {
                    let mut fake = scale;
                    for (i, fake) in fake.iter_mut().enumerate() {
                        let code = vcvtq_f32_s32(code(vfmaq_f32(zero[i], value[i], recip[i])));
                        *fake = vmulq_f32(vsubq_f32(code, zero[i]), *fake);
                    }
                    // SAFETY: tasks write disjoint rows and columns, and `Dest` gives each its own place.
                    put(&array(fake), unsafe { out.get(at, self.lanes) });
                }
            }
            (Dest::F32(out), _) => {
                for (value, at) in self.rows(tile, starts) {
                    // SAFETY: as above.
                    put(&array(value), unsafe { out.get(at, self.lanes) });
                }
            }
            (Dest::Codes(out), Store::Codes(columns)) => {
                let (recip, zero) = self.codes(columns);
                for (value, at) in self.rows(tile, starts) {
                    let scaled =
                        [vfmaq_f32(zero[0], value[0], recip[0]), vfmaq_f32(zero[1], value[1], recip[1])];
                    // SAFETY: as above.
                    put(&bytes(scaled), unsafe { out.get(at, self.lanes) });
                }
            }
            (Dest::Residual(stream, _), &Store::Residual { branch, shortcut }) => {
                for (value, at) in self.rows(tile, starts) {
                    // SAFETY: as above.
                    let place = unsafe { stream.get(at, self.lanes) };
                    let mut held = [0.0; COLUMNS];
                    held[..self.lanes].copy_from_slice(place);
                    let (held, value) = (fake(shortcut, load(&held)), fake(branch, value));
                    put(&array([vaddq_f32(held[0], value[0]), vaddq_f32(held[1], value[1])]), place);
                }
            }
            _ => unreachable!("`Dest::new` refuses a destination that does not match the store"),
        }
    }

    /// The reciprocal scales and the zero points of the columns.
    #[inline]
    #[target_feature(enable = "neon")]
    fn codes(&self, columns: &ColumnQuantizers) -> (Values, Values) {
        (load(&columns.recips()[self.first..]), load(&columns.zero_points()[self.first..]))
    }

    /// The values of each stored row after bias and GELU, and their place in the destination.
    #[inline]
    #[target_feature(enable = "neon")]
    fn rows(&self, tile: &Tile, starts: &[usize]) -> impl Iterator<Item = (Values, usize)> {
        let kept = tile.iter().zip(starts).filter(|&(_, &start)| start != DROPPED);
        kept.map(|(row, &start)| (self.value(row), start + self.first))
    }

    /// Converts accumulators to values after bias and GELU.
    #[inline]
    #[target_feature(enable = "neon")]
    fn value(&self, row: &[i32; COLUMNS]) -> Values {
        let mut value = self.bias;
        for (i, value) in value.iter_mut().enumerate() {
            // SAFETY: a row of the tile holds two registers.
            let acc = vcvtq_f32_s32(unsafe { vld1q_s32(row[4 * i..].as_ptr()) });
            *value = match self.epilogue.output {
                None => vfmaq_f32(*value, acc, self.factor[i]),
                Some(q) => {
                    let code = vcvtq_f32_s32(code(vmulq_f32(acc, self.factor[i])));
                    vfmaq_f32(*value, code, vdupq_n_f32(q.scale()))
                }
            };
        }
        match self.epilogue.gelu {
            Some(gelu) => load(&array(value).map(|x| gelu.of(x))),
            None => value,
        }
    }
}

/// The first 8 of `values`.
#[inline]
#[target_feature(enable = "neon")]
fn load(values: &[f32]) -> Values {
    let values: &[f32; COLUMNS] = values.first_chunk().expect("padded to full panels");
    // SAFETY: 8 values, two registers.
    unsafe { [vld1q_f32(values.as_ptr()), vld1q_f32(values[4..].as_ptr())] }
}

#[inline]
#[target_feature(enable = "neon")]
fn array(values: Values) -> [f32; COLUMNS] {
    let mut array = [0.0; COLUMNS];
    // SAFETY: the array holds two registers.
    unsafe {
        vst1q_f32(array.as_mut_ptr(), values[0]);
        vst1q_f32(array[4..].as_mut_ptr(), values[1]);
    }
    array
}

/// Writes the values of the columns that exist.
#[inline(always)]
fn put<T: Copy>(values: &[T; COLUMNS], place: &mut [T]) {
    match place.first_chunk_mut() {
        Some(all) => *all = *values,
        None => place.copy_from_slice(&values[..place.len()]),
    }
}

/// Codes in [-128, 127] of values already multiplied by the reciprocal scale. The conversion rounds ties to
/// even, turns a NaN into 0 and saturates, so clamping the integers equals clamping the values.
#[inline]
#[target_feature(enable = "neon")]
fn code(scaled: float32x4_t) -> int32x4_t {
    vminq_s32(vmaxq_s32(vcvtnq_s32_f32(scaled), vdupq_n_s32(-128)), vdupq_n_s32(127))
}

/// [`code`] as bytes `code + 128`.
#[inline]
#[target_feature(enable = "neon")]
fn bytes(scaled: Values) -> [u8; COLUMNS] {
    let [low, high] = [vcvtnq_s32_f32(scaled[0]), vcvtnq_s32_f32(scaled[1])];
    // Narrowing saturates, which is the clamp.
    let codes = vqmovn_s16(vcombine_s16(vqmovn_s32(low), vqmovn_s32(high)));
    let mut bytes = [0; COLUMNS];
    // SAFETY: the array holds a register of 8 bytes.
    unsafe { vst1_u8(bytes.as_mut_ptr(), veor_u8(vreinterpret_u8_s8(codes), vdup_n_u8(0x80))) };
    bytes
}

/// Quantizes and dequantizes.
#[inline]
#[target_feature(enable = "neon")]
fn fake(quantizer: Option<Quantizer>, values: Values) -> Values {
    let Some(q) = quantizer else { return values };
    let fake = |x| vmulq_n_f32(vcvtq_f32_s32(code(vmulq_n_f32(x, q.recip()))), q.scale());
    [fake(values[0]), fake(values[1])]
}
