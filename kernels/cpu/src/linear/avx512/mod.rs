//! AVX-512: INT8 by `vpdpbusd`, f32 by fused multiply-add; 14 rows by 32 columns of accumulators in 28
//! registers.

mod full_panels;
mod prefetch;

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

use super::dest::Dest;
use super::epilogue::Epilogue;
use super::finish::Accumulator;
use super::kernel::{F32Kernel, Int8Kernel, with_rows};
use super::pack::Layout;
use super::split::row_tiles;
use super::{Block, finish};
use crate::buffer::AlignedBuf;
use crate::isa::Isa;
use crate::lanes::Avx512;
use crate::probe;

pub(super) use prefetch::Prefetch;

/// The most rows of a tile.
const ROWS: usize = 14;

/// Columns of a tile: two registers of 16.
pub(super) const COLUMNS: usize = 32;

/// The order of packed INT8 weights: a group of four inputs has 16 columns in each of two registers.
pub(super) const LAYOUT: Layout = Layout { columns: COLUMNS, group: 4, k_block: 4 };

/// The kernel `avx512_vnni`.
pub(super) static KERNEL: Int8Kernel = Int8Kernel {
    name: "avx512_vnni",
    isa: Isa::Avx512Vnni,
    refusal: || None,
    tile_rows: ROWS,
    layout: LAYOUT,
    unsigned_input: true,
    block: block_i8,
    fused_block_rows: 14 * ROWS,
    min_rows_per_thread: 3 * ROWS,
    macs_per_ns: 280,
    peak: Some(probe::INT8_AVX512),
};

/// The f32 kernel of AVX-512.
pub(super) static F32_KERNEL: F32Kernel = F32Kernel {
    tile_rows: ROWS,
    layout: Layout { columns: COLUMNS, group: 1, k_block: 1 },
    block: block_f32,
    peak: Some(probe::F32_AVX512),
};

/// The accumulators of a tile, `[ROWS][COLUMNS]`, between multiplication and epilogue.
#[repr(C, align(64))]
struct Tile<T>([[T; COLUMNS]; ROWS]);

/// One block of an INT8 product.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn block_i8(
    block: &Block<'_, u8, i8>,
    initial: &[i32],
    epilogue: &Epilogue,
    dest: &Dest<'_>,
    _: &mut AlignedBuf,
) {
    let starts = dest.starts(block.rows.clone(), epilogue.n);
    let mut tile = Tile([[0i32; COLUMNS]; ROWS]);
    let tiles = row_tiles(block.rows.clone(), ROWS);
    each_tile(block, LAYOUT, tiles, dest, &starts, |at, prefetch| {
        let initial = initial[at.panel * COLUMNS..].first_chunk().expect("padded to full panels");
        let weights = Panel { weight: block.panel(at.panel), prefetch };
        rows_i8(at.starts.len(), block.input_from(at.row), block.stride, weights, initial, &mut tile);
        finish(epilogue, &tile.0, at, dest);
    });
}

/// One block of a product in f32.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn block_f32(block: &Block<'_, f32, f32>, epilogue: &Epilogue, dest: &Dest<'_>) {
    let starts = dest.starts(block.rows.clone(), epilogue.n);
    let mut tile = Tile([[0f32; COLUMNS]; ROWS]);
    let tiles = row_tiles(block.rows.clone(), ROWS);
    each_tile(block, F32_KERNEL.layout, tiles, dest, &starts, |at, prefetch| {
        let weights = Panel { weight: block.panel(at.panel), prefetch };
        rows_f32(at.starts.len(), block.input_from(at.row), block.stride, weights, &mut tile);
        finish(epilogue, &tile.0, at, dest);
    });
}

/// A tile: its first row, the starts of its rows in the destination, and its panel.
pub(super) struct At<'a> {
    pub(super) row: usize,
    pub(super) starts: &'a [usize],
    pub(super) panel: usize,
}

/// Calls `tile` with each tile of a block, and with the addresses to prefetch while the tile is multiplied.
/// `tiles` divides the rows of the block, which are stored at `starts`.
///
/// At small batches every weight is read only once, from outside of the second-level cache. While a group of
/// panels is multiplied, the next group is therefore prefetched into that cache, a slice of it with each row
/// tile.
#[inline(always)]
pub(super) fn each_tile<'a, X, W>(
    block: &Block<'_, X, W>,
    layout: Layout,
    tiles: impl Iterator<Item = Range<usize>> + Clone,
    dest: &Dest<'_>,
    starts: &'a [usize],
    mut tile: impl FnMut(&At<'a>, &Prefetch<'a, W>),
) {
    let group = layout.columns * layout.group;
    let step = group.div_ceil(tiles.clone().count().max(1));
    let slice = block.panel_len / group * step;
    for panels in block.panel_groups() {
        let mut later = &starts[..block.rows.len()];
        for (i, rows) in tiles.clone().enumerate() {
            let starts;
            (starts, later) = later.split_at(rows.len());
            for panel in panels.clone() {
                let weights = (panel + panels.len()) * block.panel_len + i * slice;
                let weights = block.weight.as_ptr().wrapping_add(weights);
                let (next, rows_of_next) = match panel + 1 {
                    next if next < panels.end => (next, starts),
                    _ => (panels.start, &later[..later.len().min(rows.len())]),
                };
                let prefetch = Prefetch::new(weights, step, dest.floats(next * COLUMNS), rows_of_next);
                tile(&At { row: rows.start, starts, panel }, &prefetch);
            }
        }
    }
}

/// The weights of a panel.
struct Panel<'a, W> {
    weight: &'a [W],
    prefetch: &'a Prefetch<'a, W>,
}

/// [`tile_i8`] of `rows` rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn rows_i8(
    rows: usize,
    input: &[u8],
    stride: usize,
    panel: Panel<'_, i8>,
    initial: &[i32; COLUMNS],
    tile: &mut Tile<i32>,
) {
    with_rows!(rows, tile_i8(input, stride, panel, initial, tile), [1 2 3 4 5 6 7 8 9 10 11 12 13] 14);
}

/// [`tile_f32`] of `rows` rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn rows_f32(rows: usize, input: &[f32], stride: usize, panel: Panel<'_, f32>, tile: &mut Tile<f32>) {
    with_rows!(rows, tile_f32(input, stride, panel, tile), [1 2 3 4 5 6 7 8 9 10 11 12 13] 14);
}

/// Stores the results of a tile.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn finish<A: Accumulator, const R: usize>(
    epilogue: &Epilogue,
    tile: &[[A; COLUMNS]; R],
    at: &At<'_>,
    dest: &Dest<'_>,
) {
    if !full_panels::finish(epilogue, tile, at.starts, at.panel, dest) {
        finish_any(epilogue, tile, at, dest);
    }
}

/// [`finish`] for the stores and columns that have no faster epilogue.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn finish_any<A: Accumulator>(epilogue: &Epilogue, tile: &[[A; COLUMNS]], at: &At<'_>, dest: &Dest<'_>) {
    // SAFETY: this function has the features.
    let lanes = unsafe { Avx512::assume() };
    finish::finish(lanes, epilogue, tile, at.starts, at.panel, dest);
}

/// Adds four products per column to the accumulators of one row. This is assembly because the compiler would
/// hoist the broadcasts of all rows and run out of registers.
macro_rules! row_i8 {
    ($acc:expr, $b:expr, $address:literal, $x:expr $(, $stride:expr)?) => {{
        let _broadcast: __m512i;
        asm!(
            concat!("vpbroadcastd {a}, dword ptr [", $address, "]"),
            "vpdpbusd {c0}, {a}, {b0}",
            "vpdpbusd {c1}, {a}, {b1}",
            a = out(zmm_reg) _broadcast,
            x = in(reg) $x,
            $(s = in(reg) $stride,)?
            b0 = in(zmm_reg) $b[0],
            b1 = in(zmm_reg) $b[1],
            c0 = inout(zmm_reg) $acc[0],
            c1 = inout(zmm_reg) $acc[1],
            options(readonly, nostack, preserves_flags)
        )
    }};
}

/// `R` rows by one panel of INT8; `input` starts at the first row.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn tile_i8<const R: usize>(
    input: &[u8],
    stride: usize,
    panel: Panel<'_, i8>,
    initial: &[i32; COLUMNS],
    tile: &mut Tile<i32>,
) {
    let Panel { weight, prefetch } = panel;
    let groups = weight.len() / (4 * COLUMNS);
    assert!(input.len() >= (R - 1) * stride + 4 * groups, "the input holds all rows of a tile");
    // SAFETY: `initial` holds two registers.
    let initial = unsafe {
        [_mm512_loadu_si512(initial.as_ptr().cast()), _mm512_loadu_si512(initial[16..].as_ptr().cast())]
    };
    let mut acc = [initial; R];
    let mut w = weight.as_ptr();
    // Addresses of rows 0, 3, 6, 9 and 12; the rows between are one or two strides further. An address
    // without a row is never read.
    let mut x = [0, 3, 6, 9, 12].map(|r| input.as_ptr().wrapping_add(r * stride));
    for group in 0..groups {
        // SAFETY: `w` is at a group of `weight`, of which there are `groups`, each of two registers.
        let b = unsafe { [_mm512_loadu_si512(w.cast()), _mm512_loadu_si512(w.add(64).cast())] };
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
            if R > 6 {
                row_i8!(acc[6], b, "{x}", x[2]);
            }
            if R > 7 {
                row_i8!(acc[7], b, "{x} + {s}", x[2], stride);
            }
            if R > 8 {
                row_i8!(acc[8], b, "{x} + 2 * {s}", x[2], stride);
            }
            if R > 9 {
                row_i8!(acc[9], b, "{x}", x[3]);
            }
            if R > 10 {
                row_i8!(acc[10], b, "{x} + {s}", x[3], stride);
            }
            if R > 11 {
                row_i8!(acc[11], b, "{x} + 2 * {s}", x[3], stride);
            }
            if R > 12 {
                row_i8!(acc[12], b, "{x}", x[4]);
            }
            if R > 13 {
                row_i8!(acc[13], b, "{x} + {s}", x[4], stride);
            }
        }
        prefetch.weights(group);
        prefetch.results(group);
        w = w.wrapping_add(4 * COLUMNS);
        x = x.map(|x| x.wrapping_add(4));
    }
    for (row, acc) in tile.0.iter_mut().zip(acc) {
        // SAFETY: a row of the tile holds two registers.
        unsafe {
            _mm512_storeu_si512(row.as_mut_ptr().cast(), acc[0]);
            _mm512_storeu_si512(row[16..].as_mut_ptr().cast(), acc[1]);
        }
    }
}

/// `R` rows by one panel of f32; `input` starts at the first row.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn tile_f32<const R: usize>(input: &[f32], stride: usize, panel: Panel<'_, f32>, tile: &mut Tile<f32>) {
    let Panel { weight, prefetch } = panel;
    let k = weight.len() / COLUMNS;
    assert!(input.len() >= (R - 1) * stride + k, "the input holds all rows of a tile");
    let mut acc = [[_mm512_setzero_ps(); 2]; R];
    let (mut w, mut x) = (weight.as_ptr(), input.as_ptr());
    for i in 0..k {
        // SAFETY: `w` is at a row of `weight`, of which there are `k`, each of two registers.
        let b = unsafe { [_mm512_loadu_ps(w), _mm512_loadu_ps(w.add(16))] };
        for (r, acc) in acc.iter_mut().enumerate() {
            // SAFETY: the value is in row r < R of `input`, by the assertion above.
            let a = _mm512_set1_ps(unsafe { *x.add(r * stride) });
            acc[0] = _mm512_fmadd_ps(a, b[0], acc[0]);
            acc[1] = _mm512_fmadd_ps(a, b[1], acc[1]);
        }
        prefetch.weights(i);
        // After the last row of weights these pointers are not read.
        (w, x) = (w.wrapping_add(COLUMNS), x.wrapping_add(1));
    }
    for (row, acc) in tile.0.iter_mut().zip(acc) {
        // SAFETY: a row of the tile holds two registers.
        unsafe {
            _mm512_storeu_ps(row.as_mut_ptr(), acc[0]);
            _mm512_storeu_ps(row[16..].as_mut_ptr(), acc[1]);
        }
    }
}
