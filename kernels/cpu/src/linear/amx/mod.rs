//! AMX: INT8 by `tdpbusd` on tile registers, with the weights, the panels and the epilogue of AVX-512.
//!
//! Two kernels differ in the tiles only: `amx_int8` uses the processor's, `amx_emulated` emulates
//! them in Rust, so that everything above the tiles can be tested on processors without AMX.

mod emulated;
mod few_rows;
mod probe;
mod product;
mod real;
mod resident;
mod rows;
mod self_test;
mod tile;

#[cfg(test)]
mod tests;

use std::ops::Range;

use super::Block;
use super::avx512::{LAYOUT, each_tile, finish};
use super::dest::Dest;
use super::epilogue::Epilogue;
use super::kernel::{BlockI8, Int8Kernel};
use crate::buffer::AlignedBuf;
use crate::isa::Isa;
use crate::probe::{INT8_AMX, Peak};

use emulated::Emulated;
use few_rows::{FewRows, on_tiles};
use product::{Accumulators, Multiply, Products, ROWS, Steps, WeightLoad};
use real::Real;
use resident::Resident;
use rows::AlignedRows;
use tile::{Configured, ROW_BYTES, TILE_ROWS, Tiles};

/// The kernel `amx_int8`.
pub(super) static KERNEL: Int8Kernel = kernel("amx_int8", block_real, probe::refusal, Some(INT8_AMX), 350);

/// The kernel `amx_emulated`.
pub(super) static EMULATED: Int8Kernel = kernel("amx_emulated", block_emulated, || None, None, 20);

const fn kernel(
    name: &'static str,
    block: BlockI8,
    refusal: fn() -> Option<String>,
    peak: Option<Peak>,
    macs_per_ns: u64,
) -> Int8Kernel {
    Int8Kernel {
        name,
        isa: Isa::Avx512Vnni,
        refusal,
        tile_rows: ROWS,
        layout: LAYOUT,
        unsigned_input: true,
        block,
        fused_block_rows: 8 * ROWS,
        min_rows_per_thread: 3 * TILE_ROWS,
        macs_per_ns,
        peak,
    }
}

/// [`block`] with the processor's tiles.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn block_real(
    block_of: &Block<'_, u8, i8>,
    initial: &[i32],
    epilogue: &Epilogue,
    dest: &Dest<'_>,
    scratch: &mut AlignedBuf,
) {
    // SAFETY: the kernel is available, so the probe has found that this process may use tiles. Nothing else
    // in this crate uses them while a block is computed.
    block(unsafe { Real::assume() }, block_of, initial, epilogue, dest, scratch);
}

/// [`block`] with emulated tiles.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn block_emulated(
    block_of: &Block<'_, u8, i8>,
    initial: &[i32],
    epilogue: &Epilogue,
    dest: &Dest<'_>,
    scratch: &mut AlignedBuf,
) {
    block(Emulated::new(), block_of, initial, epilogue, dest, scratch);
}

/// One block of an INT8 product. The thread's tiles are configured for its duration.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn block<T: Tiles>(
    tiles: T,
    block: &Block<'_, u8, i8>,
    initial: &[i32],
    epilogue: &Epilogue,
    dest: &Dest<'_>,
    scratch: &mut AlignedBuf,
) {
    let groups = LAYOUT.groups(block.k);
    if Resident::<T>::fits(groups) {
        multiply(Resident::new(tiles, groups), block, initial, epilogue, dest, scratch);
    } else {
        multiply(Products::new(tiles, groups), block, initial, epilogue, dest, scratch);
    }
}

/// [`block`] with tiles that are configured for its inputs.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn multiply(
    mut tiles: impl Multiply,
    block: &Block<'_, u8, i8>,
    initial: &[i32],
    epilogue: &Epilogue,
    dest: &Dest<'_>,
    scratch: &mut AlignedBuf,
) {
    let input = AlignedRows::new(block, scratch);
    let starts = dest.starts(block.rows.clone(), epilogue.n);
    let mut acc = Accumulators::new(0);
    let (mut taken, groups) = (None, LAYOUT.groups(block.k));
    each_tile(block, LAYOUT, products(block.rows.clone()), dest, &starts, |at, prefetch| {
        let (operands, mut few) = FewRows::split(input.operands(block, initial, at));
        if taken != Some(at.row) {
            tiles.take_rows(operands);
            taken = Some(at.row);
        }
        let weights = WeightLoad::of(groups, few.is_some());
        tiles.product(operands, weights, &mut acc, |groups| {
            prefetch.all(groups.clone());
            if let Some(few) = &mut few {
                few.add(groups);
            }
        });
        if let Some(few) = few {
            acc.0[operands.rows..].iter_mut().zip(few.accumulators()).for_each(|(acc, few)| *acc = *few);
        }
        finish(epilogue, &acc.0, at, dest);
    });
}

/// The rows of each product: full tiles, and the remaining rows. Every tile of the processor is multiplied as
/// 16 rows, so equal shares would waste more of them. [`FewRows`] belong to the last product.
fn products(rows: Range<usize>) -> impl Iterator<Item = Range<usize>> + Clone {
    let tiles_end = rows.start + on_tiles(rows.len());
    let end_of = move |from: usize| if from + ROWS < tiles_end { from + ROWS } else { rows.end };
    (rows.start..tiles_end).step_by(ROWS).map(move |from| from..end_of(from))
}

/// Runs `tdpbusd` `4 * iterations` times on registers only.
///
/// # Safety
/// The kernel `amx_int8` is available.
pub(crate) unsafe fn peak_loop(iterations: usize) {
    // SAFETY: the probe has found that this process may use tiles; the caller promises that it has run.
    let tiles = unsafe { Real::assume() };
    let mut tiles = Configured::new(tiles, &Steps::new(ROW_BYTES / 4).config());
    for _ in 0..iterations {
        // SAFETY: the tiles are configured for full steps.
        unsafe {
            tiles.tiles().dot::<0, 4, 6>();
            tiles.tiles().dot::<1, 4, 7>();
            tiles.tiles().dot::<2, 5, 6>();
            tiles.tiles().dot::<3, 5, 7>();
        }
    }
}
