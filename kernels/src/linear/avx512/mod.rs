//! AVX-512: INT8 by `vpdpbusd`, f32 by fused multiply-add; 14 rows by 32 columns of accumulators in 28 registers.

mod finish;
mod full_panels;
mod prefetch;
pub(super) mod quick;

use std::arch::asm;
use std::arch::x86_64::*;

use super::Block;
use super::dest::Dest;
use super::epilogue::Epilogue;
use super::pack::Layout;
use super::split::row_tiles;

use finish::Lanes;
use prefetch::Prefetch;
use quick::Late;

/// Rows of a tile at most.
pub(super) const ROWS: usize = 14;

/// Columns of a tile: two registers of 16.
const COLUMNS: usize = 32;

pub(super) const INT8: Layout = Layout { columns: COLUMNS, group: 4 };

pub(super) const F32: Layout = Layout { columns: COLUMNS, group: 1 };

/// Accumulators of a tile, `[ROWS][COLUMNS]`, between the product and the epilogue.
#[repr(C, align(64))]
struct Tile<T>([[T; COLUMNS]; ROWS]);

/// One block of an INT8 product; `start` holds the initial accumulator of each column.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn block_i8(block: &Block<'_, u8, i8>, start: &[i32], epilogue: &Epilogue, dest: &Dest<'_>) {
    let starts = dest.starts(block.rows.clone(), epilogue.n);
    let multiply = |at: &At<'_>, prefetch: &Prefetch<'_, i8>, tile: &mut Tile<i32>| {
        let start = start[at.panel * COLUMNS..].first_chunk().expect("padded to whole panels");
        let weights = Panel { weight: block.panel(at.panel), prefetch };
        rows_i8(at.starts.len(), block.input_from(at.row), block.stride, weights, start, tile);
    };
    if let (Some(plan), Dest::Codes(out)) = (&epilogue.quick, dest) {
        let mut late = Late::new(plan, epilogue, out);
        each_tile(block, INT8, dest, &starts, |at, prefetch| {
            multiply(at, prefetch, late.tile());
            if late.suits(at.panel) {
                late.finish(at.starts, at.panel);
            } else {
                finish(epilogue, late.tile(), at, dest);
            }
        });
        return late.settle();
    }
    let mut tile = Tile([[0i32; COLUMNS]; ROWS]);
    each_tile(block, INT8, dest, &starts, |at, prefetch| {
        multiply(at, prefetch, &mut tile);
        finish(epilogue, &tile, at, dest);
    });
}

/// One block of a product in f32.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn block_f32(block: &Block<'_, f32, f32>, epilogue: &Epilogue, dest: &Dest<'_>) {
    let starts = dest.starts(block.rows.clone(), epilogue.n);
    let mut tile = Tile([[0f32; COLUMNS]; ROWS]);
    each_tile(block, F32, dest, &starts, |at, prefetch| {
        let weights = Panel { weight: block.panel(at.panel), prefetch };
        rows_f32(at.starts.len(), block.input_from(at.row), block.stride, weights, &mut tile);
        finish(epilogue, &tile, at, dest);
    });
}

/// A tile: its first row, where its rows are stored, and its panel.
struct At<'a> {
    row: usize,
    starts: &'a [usize],
    panel: usize,
}

/// Calls `tile` with each tile of a block, whose rows are stored at `starts`, and with what is to be brought nearer meanwhile.
///
/// While a group of panels is multiplied, the next one comes into the second-level cache, a slice of it with each row
/// tile: at small batches every weight is read once, from beyond that cache.
#[inline(always)]
fn each_tile<'a, X, W>(
    block: &Block<'_, X, W>,
    layout: Layout,
    dest: &Dest<'_>,
    starts: &'a [usize],
    mut tile: impl FnMut(&At<'a>, &Prefetch<'a, W>),
) {
    let group = layout.columns * layout.group;
    let step = group.div_ceil(block.rows.len().div_ceil(ROWS).max(1));
    let slice = block.panel_len / group * step;
    for panels in block.panel_groups() {
        let mut later = &starts[..block.rows.len()];
        for (i, rows) in row_tiles(block.rows.clone(), ROWS).enumerate() {
            let starts;
            (starts, later) = later.split_at(rows.len());
            for panel in panels.clone() {
                let weights = (panel + panels.len()) * block.panel_len + i * slice;
                let weights = block.weight.as_ptr().wrapping_add(weights);
                let (next, rows_of_next) = match panel + 1 {
                    next if next < panels.end => (next, starts),
                    _ => (panels.start, &later[..later.len().min(ROWS)]),
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
    start: &[i32; COLUMNS],
    tile: &mut Tile<i32>,
) {
    match rows {
        1 => tile_i8::<1>(input, stride, panel, start, tile),
        2 => tile_i8::<2>(input, stride, panel, start, tile),
        3 => tile_i8::<3>(input, stride, panel, start, tile),
        4 => tile_i8::<4>(input, stride, panel, start, tile),
        5 => tile_i8::<5>(input, stride, panel, start, tile),
        6 => tile_i8::<6>(input, stride, panel, start, tile),
        7 => tile_i8::<7>(input, stride, panel, start, tile),
        8 => tile_i8::<8>(input, stride, panel, start, tile),
        9 => tile_i8::<9>(input, stride, panel, start, tile),
        10 => tile_i8::<10>(input, stride, panel, start, tile),
        11 => tile_i8::<11>(input, stride, panel, start, tile),
        12 => tile_i8::<12>(input, stride, panel, start, tile),
        13 => tile_i8::<13>(input, stride, panel, start, tile),
        _ => tile_i8::<14>(input, stride, panel, start, tile),
    }
}

/// [`tile_f32`] of `rows` rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn rows_f32(rows: usize, input: &[f32], stride: usize, panel: Panel<'_, f32>, tile: &mut Tile<f32>) {
    match rows {
        1 => tile_f32::<1>(input, stride, panel, tile),
        2 => tile_f32::<2>(input, stride, panel, tile),
        3 => tile_f32::<3>(input, stride, panel, tile),
        4 => tile_f32::<4>(input, stride, panel, tile),
        5 => tile_f32::<5>(input, stride, panel, tile),
        6 => tile_f32::<6>(input, stride, panel, tile),
        7 => tile_f32::<7>(input, stride, panel, tile),
        8 => tile_f32::<8>(input, stride, panel, tile),
        9 => tile_f32::<9>(input, stride, panel, tile),
        10 => tile_f32::<10>(input, stride, panel, tile),
        11 => tile_f32::<11>(input, stride, panel, tile),
        12 => tile_f32::<12>(input, stride, panel, tile),
        13 => tile_f32::<13>(input, stride, panel, tile),
        _ => tile_f32::<14>(input, stride, panel, tile),
    }
}

/// The epilogue of a tile.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn finish<T: Lanes>(epilogue: &Epilogue, tile: &Tile<T>, at: &At<'_>, dest: &Dest<'_>) {
    if !full_panels::finish(epilogue, tile, at.starts, at.panel, dest) {
        finish::finish(epilogue, tile, at.starts, at.panel, dest);
    }
}

/// Four products per column of one row, added to its accumulators: as assembly, because the compiler would collect the
/// broadcasts of all rows before their use and run out of registers.
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
    start: &[i32; COLUMNS],
    tile: &mut Tile<i32>,
) {
    let Panel { weight, prefetch } = panel;
    let groups = weight.len() / (4 * COLUMNS);
    assert!(input.len() >= (R - 1) * stride + 4 * groups, "a tile's rows are whole");
    // SAFETY: `start` holds two registers.
    let start = unsafe {
        [_mm512_loadu_si512(start.as_ptr().cast()), _mm512_loadu_si512(start[16..].as_ptr().cast())]
    };
    let mut acc = [start; R];
    let mut w = weight.as_ptr();
    // Rows 0, 3, 6, 9 and 12; those between are one or two strides further. Never read where there is no row.
    let mut x = [0, 3, 6, 9, 12].map(|r| input.as_ptr().wrapping_add(r * stride));
    for group in 0..groups {
        // SAFETY: `w` is at a group of `weight`, of which there are `groups`, each of two registers.
        let b = unsafe { [_mm512_loadu_si512(w.cast()), _mm512_loadu_si512(w.add(64).cast())] };
        // SAFETY: four bytes of rows below R of `input`, by the assertion above; only registers are written.
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
    assert!(input.len() >= (R - 1) * stride + k, "a tile's rows are whole");
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
        // Never read beyond the last row of weights.
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
