//! Packs keys and values of one window and head.

use super::{Int8Scratch, Keys, Rows, Sizes};
use crate::lanes::Lanes;

/// XOR with this turns bytes `code + 128` into codes.
pub(super) const SIGN: i32 = 0x8080_8080_u32.cast_signed();

/// Packs the keys of all blocks, and their offsets. Lanes after the last key repeat it.
#[inline(always)]
pub(super) fn pack_keys<L: Lanes>(lanes: L, sizes: Sizes, rows: Rows<'_, u8>, keys: &mut Keys<'_>) {
    let Sizes { n, d, blocks, .. } = sizes;
    assert!(d.is_multiple_of(16) && rows.data.len() >= (n - 1) * rows.stride + d);
    let (sign, ones) = (lanes.splat_i(SIGN), lanes.splat_i(0x0101_0101));
    let packed = keys.codes[..blocks * L::N * d].chunks_exact_mut(L::N * d);
    for (b, (packed, offsets)) in packed.zip(keys.offsets.chunks_exact_mut(L::N)).enumerate() {
        let first = b * L::N;
        let mut sum = lanes.splat_i(0);
        for (c, packed) in packed.chunks_exact_mut(16 * L::N).enumerate() {
            // SAFETY: these are 16 of the `d` bytes of the rows from `first` to `n - 1`, which exist by the
            // assertion above.
            let four = unsafe {
                let at = rows.data.as_ptr().add(first * rows.stride + 16 * c);
                lanes.transpose(at, rows.stride, n - 1 - first)
            };
            for (x, packed) in four.into_iter().zip(packed.chunks_exact_mut(4 * L::N)) {
                let codes = lanes.xor_i(x, sign);
                sum = lanes.dot(sum, ones, codes);
                // SAFETY: `chunks_exact_mut` gives 4 N bytes.
                unsafe { lanes.write_i(packed.as_mut_ptr(), codes) };
            }
        }
        // SAFETY: `chunks_exact_mut` gives N values of four bytes.
        unsafe {
            lanes.write_i(offsets.as_mut_ptr().cast(), lanes.sub_i(lanes.splat_i(0), lanes.times_128(sum)))
        };
    }
}

/// The positions of all groups of four keys in a query's weights, ascending. [`Lanes::pack`] determines the
/// order of the weights.
pub(super) fn order<L: Lanes>(sizes: Sizes, order: &mut [u32]) {
    let mut group = 0;
    for pack in 0..sizes.packs {
        for lane in (0..L::N).step_by(4) {
            for block in 0..sizes.blocks_of(pack) {
                order[group] = (4 * (pack * L::N + lane + block)) as u32;
                group += 1;
            }
        }
    }
}

/// Packs values: groups of four keys in [`order`], then the lone key. Keys after the last one repeat it;
/// their weights are 0.
#[inline(always)]
pub(super) fn pack_values<L: Lanes>(lanes: L, sizes: Sizes, rows: Rows<'_, u8>, work: &mut Int8Scratch<'_>) {
    let (groups, bytes) = (sizes.groups::<L>(), 8 * L::N);
    let packed = work.values[..groups * 4 * sizes.d].chunks_exact_mut(groups * bytes);
    for (pair, packed) in packed.enumerate() {
        let packed = packed.chunks_exact_mut(bytes);
        for (group, packed) in packed.enumerate() {
            let key = work.order.get(group).map_or(sizes.n - 1, |&at| key_of::<L>(at as usize / 4));
            pack_group(lanes, sizes, rows, key, pair * 2 * L::N, packed);
        }
    }
}

/// The first key of group `place` of a query's weights.
#[inline(always)]
fn key_of<L: Lanes>(place: usize) -> usize {
    let (pack, lane, block) = (place / L::N, place % L::N / 4, place % 4);
    (4 * pack + block) * L::N + 4 * lane
}

/// Packs columns `column..column + 2 N` of four keys from `key` on.
#[inline(always)]
fn pack_group<L: Lanes>(
    lanes: L,
    Sizes { n, d, .. }: Sizes,
    rows: Rows<'_, u8>,
    key: usize,
    column: usize,
    packed: &mut [u8],
) {
    assert!(
        column + 2 * L::N <= d && rows.data.len() >= (n - 1) * rows.stride + d && packed.len() >= 8 * L::N
    );
    let mut at = [rows.data.as_ptr(); 4];
    for (i, at) in at.iter_mut().enumerate() {
        // SAFETY: rows to `n - 1` have `d` bytes, by the assertion above.
        *at = unsafe { at.add((key + i).min(n - 1) * rows.stride + column) };
    }
    let sign = lanes.splat_i(SIGN);
    // SAFETY: `2 N` bytes from `column` on are in each row and two registers in `packed`, by the assertion
    // above.
    unsafe {
        let [a, b] = lanes.interleave_rows(at);
        lanes.write_i(packed.as_mut_ptr(), lanes.xor_i(a, sign));
        lanes.write_i(packed.as_mut_ptr().add(4 * L::N), lanes.xor_i(b, sign));
    }
}
