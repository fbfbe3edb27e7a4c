//! AVX-VNNI: INT8 by `vpdpbusd` on 256-bit registers, with the tile and the epilogue of AVX2.

use std::arch::asm;
use std::arch::x86_64::*;

use super::Block;
use super::avx2::{COLUMNS, ROWS, Tile, finish};
use super::dest::Dest;
use super::epilogue::Epilogue;
use super::kernel::{Int8Kernel, with_rows};
use super::pack::Layout;
use super::split::row_tiles;
use crate::buffer::AlignedBuf;
use crate::isa::Isa;
use crate::probe;

/// The kernel `avx_vnni`.
pub(super) static KERNEL: Int8Kernel = Int8Kernel {
    name: "avx_vnni",
    isa: Isa::Avx2Vnni,
    refusal: || None,
    tile_rows: ROWS,
    layout: Layout { columns: COLUMNS, group: 4, k_block: 4 },
    unsigned_input: true,
    block: block_i8,
    fused_block_rows: 196,
    min_rows_per_thread: 42,
    macs_per_ns: 110,
    peak: Some(probe::INT8_AVX_VNNI),
};

/// One block of an INT8 product.
#[target_feature(enable = "avx2,fma,avxvnni")]
fn block_i8(
    block: &Block<'_, u8, i8>,
    initial: &[i32],
    epilogue: &Epilogue,
    dest: &Dest<'_>,
    _: &mut AlignedBuf,
) {
    let starts = dest.starts(block.rows.clone(), epilogue.n);
    let mut tile = Tile([[0i32; COLUMNS]; ROWS]);
    for panel in block.panels.clone() {
        let initial = initial[panel * COLUMNS..].first_chunk().expect("padded to full panels");
        for rows in row_tiles(block.rows.clone(), ROWS) {
            let (input, weight) = (block.input_from(rows.start), block.panel(panel));
            with_rows!(rows.len(), tile_i8(input, block.stride, weight, initial, &mut tile), [1 2 3 4 5] 6);
            finish(epilogue, &tile, &starts[rows.start - block.rows.start..][..rows.len()], panel, dest);
        }
    }
}

/// Adds four products per column to the accumulators of one row. This is assembly because the compiler would
/// hoist the broadcasts of all rows and run out of registers.
macro_rules! row_i8 {
    ($acc:expr, $b:expr, $address:literal, $x:expr $(, $stride:expr)?) => {{
        let _broadcast: __m256i;
        asm!(
            concat!("vpbroadcastd {a}, dword ptr [", $address, "]"),
            "{{vex}} vpdpbusd {c0}, {a}, {b0}",
            "{{vex}} vpdpbusd {c1}, {a}, {b1}",
            a = out(ymm_reg) _broadcast,
            x = in(reg) $x,
            $(s = in(reg) $stride,)?
            b0 = in(ymm_reg) $b[0],
            b1 = in(ymm_reg) $b[1],
            c0 = inout(ymm_reg) $acc[0],
            c1 = inout(ymm_reg) $acc[1],
            options(readonly, nostack, preserves_flags)
        )
    }};
}

/// `R` rows by one panel of INT8; `input` starts at the first row.
#[target_feature(enable = "avx2,fma,avxvnni")]
fn tile_i8<const R: usize>(
    input: &[u8],
    stride: usize,
    weight: &[i8],
    initial: &[i32; COLUMNS],
    tile: &mut Tile<i32>,
) {
    let groups = weight.len() / (4 * COLUMNS);
    assert!(input.len() >= (R - 1) * stride + 4 * groups, "the input holds all rows of a tile");
    // SAFETY: `initial` holds two registers.
    let initial = unsafe {
        [_mm256_loadu_si256(initial.as_ptr().cast()), _mm256_loadu_si256(initial[8..].as_ptr().cast())]
    };
    let mut acc = [initial; R];
    let mut w = weight.as_ptr();
    // Addresses of rows 0 and 3; the rows between are one or two strides further. An address without a row is
    // never read.
    let mut x = [0, 3].map(|r| input.as_ptr().wrapping_add(r * stride));
    for _ in 0..groups {
        // SAFETY: `w` is at a group of `weight`, of which there are `groups`, each of two registers.
        let b = unsafe { [_mm256_loadu_si256(w.cast()), _mm256_loadu_si256(w.add(32).cast())] };
        // SAFETY: reads four bytes of rows below R of `input`, which exist by the assertion above; writes
        // only registers.
        unsafe {
            if R > 0 {
                row_i8!(acc[0], b, "{x}", x[0]);
            }
            if R > 1 {
                row_i8!(acc[1], b, "{x} + {s}", x[0], stride);
            }
            if R > 2 {
                row_i8!(acc[2], b, "{x} + 2 * {s}", x[0], stride);
            }
            if R > 3 {
                row_i8!(acc[3], b, "{x}", x[1]);
            }
            if R > 4 {
                row_i8!(acc[4], b, "{x} + {s}", x[1], stride);
            }
            if R > 5 {
                row_i8!(acc[5], b, "{x} + 2 * {s}", x[1], stride);
            }
        }
        w = w.wrapping_add(4 * COLUMNS);
        x = x.map(|x| x.wrapping_add(4));
    }
    for (row, acc) in tile.0.iter_mut().zip(acc) {
        // SAFETY: a row of the tile holds two registers.
        unsafe {
            _mm256_storeu_si256(row.as_mut_ptr().cast(), acc[0]);
            _mm256_storeu_si256(row[8..].as_mut_ptr().cast(), acc[1]);
        }
    }
}
