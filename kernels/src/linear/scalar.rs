//! The reference, value by value.

use super::Block;
use super::dest::Dest;
use super::epilogue::Epilogue;
use super::pack::Layout;
use super::spec::Store;
use crate::buffer::AlignedBuf;
use crate::reference;
use crate::types::Quantizer;

/// Rows of a tile.
pub(super) const ROWS: usize = 1;

/// Columns of a panel of f32: those whose sums are taken side by side.
const COLUMNS: usize = 8;

/// INT8 weights stay `[n, k]`.
pub(super) const INT8: Layout = Layout { columns: 1, group: 1 };

pub(super) const F32: Layout = Layout { columns: COLUMNS, group: 1 };

/// One block of an INT8 product. `scratch` takes the codes of a row.
pub(super) fn block_i8(
    block: &Block<'_, u8, i8>,
    k: usize,
    epilogue: &Epilogue,
    dest: &Dest<'_>,
    scratch: &mut AlignedBuf,
) {
    scratch.reserve(k);
    for row in block.rows.clone() {
        for (code, &byte) in scratch.as_u8_mut()[..k].iter_mut().zip(block.input_from(row)) {
            *code = byte ^ 0x80;
        }
        let codes = &scratch.as_i8()[..k];
        for column in block.panels.clone() {
            let acc = reference::accumulate_i8(codes, block.panel(column));
            let (multiplier, bias) = (epilogue.multiplier[column], epilogue.bias[column]);
            let value = reference::epilogue_i8(acc, multiplier, bias, epilogue.output, epilogue.gelu);
            store(epilogue, value, row, column, dest);
        }
    }
}

/// One block of a product in f32: the same code compiled for FMA where there is one, for without it each fused
/// multiply-add is a call.
pub(super) fn block_f32(block: &Block<'_, f32, f32>, epilogue: &Epilogue, dest: &Dest<'_>) {
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
            out.get(at, 1)[0] = if let Store::Fake(q) = store { q.fake(value) } else { value };
        },
        (Dest::Codes(out), Store::Codes(recip)) => {
            let code = reference::code(value * recip[column]);
            // SAFETY: as above.
            unsafe { out.get(at, 1)[0] = code as u8 ^ 0x80 };
        }
        (Dest::Residual(stream, _), &Store::Residual { branch, shortcut }) => {
            // SAFETY: as above.
            let place = unsafe { &mut stream.get(at, 1)[0] };
            *place = fake(shortcut, *place) + fake(branch, value);
        }
        _ => unreachable!("`Dest::new` refuses what does not suit the store"),
    }
}
