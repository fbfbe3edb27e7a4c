//! The scalar reference, value by value.

use swinq_numerics::{Quantizer, reference};

use super::Block;
use super::dest::Dest;
use super::epilogue::Epilogue;
use super::kernel::{F32Kernel, Int8Kernel};
use super::pack::Layout;
use super::spec::Store;
use crate::buffer::AlignedBuf;
use crate::isa::Isa;

/// Columns of a panel of f32, whose sums are computed side by side.
const COLUMNS: usize = 8;

/// The kernel of the scalar reference.
pub(super) static KERNEL: Int8Kernel = Int8Kernel {
    name: "scalar",
    isa: Isa::Scalar,
    refusal: || None,
    tile_rows: 1,
    // Weights stay `[n, k]`.
    layout: Layout { columns: 1, group: 1, k_block: 1 },
    unsigned_input: false,
    block: block_i8,
    fused_block_rows: 196,
    min_rows_per_thread: 42,
    macs_per_ns: 2,
    peak: None,
};

/// The f32 kernel of the scalar reference.
pub(super) static F32_KERNEL: F32Kernel = F32Kernel {
    tile_rows: 1,
    layout: Layout { columns: COLUMNS, group: 1, k_block: 1 },
    block: block_f32,
    peak: None,
};

/// One block of an INT8 product. `scratch` holds the codes of a row.
fn block_i8(
    block: &Block<'_, u8, i8>,
    initial: &[i32],
    epilogue: &Epilogue,
    dest: &Dest<'_>,
    scratch: &mut AlignedBuf,
) {
    let k = block.k;
    scratch.reserve(k);
    for row in block.rows.clone() {
        for (code, &byte) in scratch.as_u8_mut()[..k].iter_mut().zip(block.input_from(row)) {
            *code = byte ^ 0x80;
        }
        let codes = &scratch.as_i8()[..k];
        for column in block.panels.clone() {
            let acc = initial[column] + reference::accumulate_i8(codes, block.panel(column));
            let (multiplier, bias) = (epilogue.multiplier[column], epilogue.bias[column]);
            let value = reference::epilogue_i8(acc, multiplier, bias, epilogue.output, epilogue.gelu);
            store(epilogue, value, row, column, dest);
        }
    }
}

/// One block of a product in f32. The same code is also compiled for processors with FMA, because without the
/// instruction each fused multiply-add is a function call.
fn block_f32(block: &Block<'_, f32, f32>, epilogue: &Epilogue, dest: &Dest<'_>) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("fma") {
        // SAFETY: FMA was detected above.
        return unsafe { block_f32_fma(block, epilogue, dest) };
    }
    block_f32_any(block, epilogue, dest);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "fma")]
fn block_f32_fma(block: &Block<'_, f32, f32>, epilogue: &Epilogue, dest: &Dest<'_>) {
    block_f32_any(block, epilogue, dest);
}

#[inline(always)]
fn block_f32_any(block: &Block<'_, f32, f32>, epilogue: &Epilogue, dest: &Dest<'_>) {
    for panel in block.panels.clone() {
        for row in block.rows.clone() {
            let mut sums = [0.0; COLUMNS];
            let input = &block.input_from(row)[..block.stride];
            reference::accumulate_f32(input, block.panel(panel), &mut sums);
            for (column, sum) in (panel * COLUMNS..epilogue.n).zip(sums) {
                let bias = epilogue.bias[column];
                let value = reference::epilogue_f32(sum, bias, epilogue.output, epilogue.gelu);
                store(epilogue, value, row, column, dest);
            }
        }
    }
}

fn store(epilogue: &Epilogue, value: f32, row: usize, column: usize, dest: &Dest<'_>) {
    let Some(at) = dest.offset(row, epilogue.n).map(|start| start + column) else { return };
    let fake = |q: Option<Quantizer>, x: f32| q.map_or(x, |q| q.fake(x));
    match (dest, &epilogue.store) {
        // SAFETY: tasks write disjoint rows and columns, and `Dest` gives each its own place.
        (Dest::F32(out), store) => unsafe {
            out.get(at, 1)[0] = if let Store::Fake(q) = store { q.fake(column, value) } else { value };
        },
        (Dest::Codes(out), Store::Codes(columns)) => {
            // SAFETY: as above.
            unsafe { out.get(at, 1)[0] = columns.code(column, value) as u8 ^ 0x80 };
        }
        (Dest::Residual(residual, _), &Store::Residual { branch, shortcut }) => {
            // SAFETY: as above.
            let place = unsafe { &mut residual.get(at, 1)[0] };
            *place = fake(shortcut, *place) + fake(branch, value);
        }
        _ => unreachable!("`Dest::new` refuses a destination that does not match the store"),
    }
}
