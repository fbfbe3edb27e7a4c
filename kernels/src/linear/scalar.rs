//! The reference, value by value.

use std::ops::Range;

use super::dest::Dest;
use super::epilogue::Epilogue;
use super::spec::Store;
use crate::buffer::AlignedBuf;
use crate::reference;
use crate::types::{Quantizer, code_stride};

/// Columns of a panel: those whose f32 sums are taken side by side.
pub(super) const COLUMNS: usize = 8;

/// Rows of a tile.
pub(super) const ROWS: usize = 1;

/// Rows `rows` and columns `columns` of an INT8 product; `codes` are the weights `[n, k]`.
pub(super) fn block_i8(
    epilogue: &Epilogue,
    codes: &[i8],
    input: &[u8],
    k: usize,
    (rows, columns): (Range<usize>, Range<usize>),
    dest: &Dest<'_>,
) {
    let mut signed = vec![0i8; k];
    for row in rows {
        for (signed, &byte) in signed.iter_mut().zip(&input[row * code_stride(k)..]) {
            *signed = (byte ^ 0x80) as i8;
        }
        for c in columns.clone() {
            let acc = reference::accumulate_i8(&signed, &codes[c * k..][..k]);
            let value = reference::epilogue_i8(
                acc,
                epilogue.multiplier[c],
                epilogue.bias[c],
                epilogue.output,
                epilogue.gelu,
            );
            store(epilogue, value, row, c, dest);
        }
    }
}

/// Rows `rows` of one panel of a product in float; `panel` is `[k][COLUMNS]`.
pub(super) fn panel_f32(
    epilogue: &Epilogue,
    panel: &[f32],
    input: &[f32],
    k: usize,
    (rows, columns): (Range<usize>, Range<usize>),
    dest: &Dest<'_>,
) {
    for row in rows {
        let mut sums = [0.0; COLUMNS];
        reference::accumulate_f32(&input[row * k..][..k], panel, &mut sums);
        for (c, sum) in columns.clone().zip(sums) {
            let value = reference::epilogue_f32(sum as f32, epilogue.bias[c], epilogue.output, epilogue.gelu);
            store(epilogue, value, row, c, dest);
        }
    }
}

fn store(epilogue: &Epilogue, value: f32, row: usize, column: usize, dest: &Dest<'_>) {
    let Some(at) = dest.offset(row, epilogue.n).map(|start| start + column) else { return };
    let fake = |q: Option<Quantizer>, x: f32| q.map_or(x, |q| q.fake(x));
    match (dest, &epilogue.store) {
        // SAFETY (all three): tasks write disjoint rows and columns, and `Dest` gives each its own place.
        (Dest::F32(out), Store::Fake(q)) => unsafe { out.get(at, 1)[0] = q.fake(value) },
        // SAFETY: as above.
        (Dest::F32(out), _) => unsafe { out.get(at, 1)[0] = value },
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
