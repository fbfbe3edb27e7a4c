//! Keys and values of one window and head, packed.

use super::{Rows, Sizes, Work};
use crate::lanes::Lanes;

/// What turns codes + 128 into codes.
pub(super) const SIGN: i32 = 0x8080_8080_u32.cast_signed();

/// Packs the keys of whole blocks, and their offsets. Lanes past the last key repeat it.
#[inline(always)]
pub(super) fn pack_keys<L: Lanes>(lanes: L, sizes: Sizes, rows: Rows<'_, u8>, work: &mut Work<'_>) {
    let Sizes { n, d, blocks, .. } = sizes;
    assert!(d.is_multiple_of(16) && rows.data.len() >= (n - 1) * rows.stride + d);
    let (sign, ones) = (lanes.splat_i(SIGN), lanes.splat_i(0x0101_0101));
    let packed = work.keys[..blocks * L::N * d].chunks_exact_mut(L::N * d);
    for (b, (packed, offsets)) in packed.zip(work.offsets.chunks_exact_mut(4 * L::N)).enumerate() {
        let first = b * L::N;
        let mut sum = lanes.splat_i(0);
        for (c, packed) in packed.chunks_exact_mut(16 * L::N).enumerate() {
            // SAFETY: rows from `first` to `n - 1` have `d` bytes, by the assertion above, of which these are 16.
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
        // SAFETY: `chunks_exact_mut` gives 4 N bytes.
        unsafe { lanes.write_i(offsets.as_mut_ptr(), lanes.sub_i(lanes.splat_i(0), lanes.times_128(sum))) };
    }
}

/// Packs values: groups of four keys in the order in which [`Lanes::pack`] leaves their weights, then the lone key. Keys
/// past the last, whose weights are 0, repeat it.
#[inline(always)]
pub(super) fn pack_values<L: Lanes>(lanes: L, sizes: Sizes, rows: Rows<'_, u8>, packed: &mut [u8]) {
    let (groups, bytes) = (sizes.groups::<L>(), 8 * L::N);
    for (p, packed) in packed[..groups * 4 * sizes.d].chunks_exact_mut(groups * bytes).enumerate() {
        let column = p * 2 * L::N;
        let mut group = 0;
        for pack in 0..sizes.packs {
            for lane in (0..L::N).step_by(4) {
                for block in 0..sizes.blocks_of(pack) {
                    let key = (4 * pack + block) * L::N + lane;
                    pack_group(lanes, sizes, rows, key, column, &mut packed[group * bytes..]);
                    group += 1;
                }
            }
        }
        if sizes.lone {
            pack_group(lanes, sizes, rows, sizes.n - 1, column, &mut packed[group * bytes..]);
        }
    }
}

/// Columns `column..column + 2 N` of four keys from `key` on.
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
    // SAFETY: `2 N` bytes from `column` on are in each row and two registers in `packed`, by the assertion above.
    unsafe {
        let [a, b] = lanes.weave(at);
        lanes.write_i(packed.as_mut_ptr(), lanes.xor_i(a, sign));
        lanes.write_i(packed.as_mut_ptr().add(4 * L::N), lanes.xor_i(b, sign));
    }
}
