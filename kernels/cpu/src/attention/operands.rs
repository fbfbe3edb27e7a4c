//! Queries, keys and values of one window and head: used in place or copied through their sites, and packed.

use swinq_numerics::{Quantizer, code_stride};

use super::{AttentionIn, Shape, Unit};
use crate::buffer::bytes_mut;
use crate::lanes::Lanes;
use crate::qk_norm::lo_scaled;

/// One of the operands.
#[derive(Clone, Copy)]
pub(super) enum AttentionOperand {
    Query,
    Key,
    Value,
    /// The lo codes of queries.
    QueryLo,
    /// The lo codes of keys.
    KeyLo,
}

impl AttentionOperand {
    fn is_low(self) -> bool {
        matches!(self, AttentionOperand::QueryLo | AttentionOperand::KeyLo)
    }
}

/// Rows of `d` elements, `stride` apart. From every element of a row, a full register can be read.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a, T> {
    pub(super) data: &'a [T],
    pub(super) stride: usize,
}

impl<T> Rows<'_, T> {
    /// The rows from row `first` on.
    #[inline(always)]
    pub(super) fn from(&self, first: usize) -> Rows<'_, T> {
        Rows { data: &self.data[first * self.stride..], stride: self.stride }
    }
}

/// The location of one operand of one window and head.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) input: AttentionIn<'a>,
    pub(super) shape: Shape,
    pub(super) unit: Unit,
    pub(super) part: AttentionOperand,
    /// The position of the head among the heads with lo codes; `None` for hi codes.
    pub(super) low: Option<usize>,
    pub(super) site: Option<Quantizer>,
}

impl<'a> Source<'a> {
    fn wide(&self) -> usize {
        3 * self.shape.heads * self.shape.d
    }

    /// The first column of the operand in rows of f32, which have no lo codes.
    fn column(&self) -> usize {
        let part = match self.part {
            AttentionOperand::QueryLo => AttentionOperand::Query,
            AttentionOperand::KeyLo => AttentionOperand::Key,
            part => part,
        };
        self.shape.column(part, self.unit.head)
    }

    /// The first column of the operand in rows of codes.
    fn code_column(&self) -> usize {
        match self.low.filter(|_| self.part.is_low()) {
            Some(position) => self.shape.column(self.part, position),
            None => self.column(),
        }
    }

    /// The window's rows of f32 input, starting at the operand's first column.
    fn floats_in(&self, x: &'a [f32]) -> Rows<'a, f32> {
        let wide = self.wide();
        let window = &x[self.unit.row * wide..][..self.shape.n * wide];
        Rows { data: &window[self.column()..], stride: wide }
    }

    /// The window's rows of codes, starting at the operand's first column.
    pub(super) fn codes_in(&self, x: &'a [u8]) -> Rows<'a, u8> {
        let stride = code_stride(self.shape.columns());
        let window = &x[self.unit.row * stride..][..self.shape.n * stride];
        Rows { data: &window[self.code_column()..], stride }
    }

    /// The operand as codes + 128: in place in the input, or in `copy` with rows `d_padded` apart, padded
    /// with code 0.
    #[inline(always)]
    pub(super) fn codes<L: Lanes>(&self, lanes: L, d_padded: usize, copy: &'a mut [f32]) -> Rows<'a, u8> {
        let d = self.shape.d;
        if let AttentionIn::Codes(x) = self.input
            && d.is_multiple_of(L::N)
        {
            return self.codes_in(x);
        }
        let copy = bytes_mut(copy);
        let quantizer = self.site.expect("a product in integers has both its sites on");
        for (token, row) in copy.chunks_exact_mut(d_padded).take(self.shape.n).enumerate() {
            row[d..].fill(128);
            match self.input {
                AttentionIn::Codes(x) => {
                    let x = self.codes_in(x);
                    row[..d].copy_from_slice(&x.data[token * x.stride..][..d]);
                }
                AttentionIn::F32(x) => {
                    let x = self.floats_in(x);
                    let recip = lanes.splat(quantizer.recip());
                    for at in (0..d).step_by(L::N) {
                        let x = lanes.load_part(&x.data[token * x.stride..][at..d]);
                        let scaled = lanes.mul(x, recip);
                        let scaled = if self.part.is_low() { lo_scaled(lanes, scaled) } else { scaled };
                        lanes.store_codes(&mut row[at..d], scaled);
                    }
                }
            }
        }
        Rows { data: copy, stride: d_padded }
    }

    /// The operand in f32 as its site returns it: in place in the input, or in `copy` with rows `d_padded`
    /// apart.
    #[inline(always)]
    pub(super) fn floats<L: Lanes>(&self, lanes: L, d_padded: usize, copy: &'a mut [f32]) -> Rows<'a, f32> {
        let d = self.shape.d;
        if let (AttentionIn::F32(x), None) = (self.input, self.site)
            && d.is_multiple_of(L::N)
        {
            return self.floats_in(x);
        }
        for (token, row) in copy.chunks_exact_mut(d_padded).take(self.shape.n).enumerate() {
            match self.input {
                AttentionIn::Codes(x) => {
                    let x = self.codes_in(x);
                    let scale = self.site.expect("`check` saw that codes have scales").scale();
                    for (value, &code) in row.iter_mut().zip(&x.data[token * x.stride..][..d]) {
                        *value = f32::from((code ^ 0x80).cast_signed()) * scale;
                    }
                }
                AttentionIn::F32(x) => {
                    let x = self.floats_in(x);
                    for at in (0..d).step_by(L::N) {
                        let x = lanes.load_part(&x.data[token * x.stride..][at..d]);
                        let x = match self.site {
                            Some(site) => lanes.fake(x, site),
                            None => x,
                        };
                        lanes.store_part(&mut row[at..d], x);
                    }
                }
            }
        }
        Rows { data: copy, stride: d_padded }
    }
}

/// Rows of the first operand's codes and then the second's, in `out`: each is filled up to a multiple of four
/// with code 0. Returns the rows and their length.
pub(super) fn join<'o>(
    (n, d): (usize, usize),
    [first, second]: [Rows<'_, u8>; 2],
    out: &'o mut [f32],
) -> (Rows<'o, u8>, usize) {
    let half = d.next_multiple_of(4);
    let out = &mut bytes_mut(out)[..n * 2 * half];
    for (token, row) in out.chunks_exact_mut(2 * half).enumerate() {
        for (row, codes) in row.chunks_exact_mut(half).zip([first, second]) {
            row[..d].copy_from_slice(&codes.data[token * codes.stride..][..d]);
            row[d..].fill(128);
        }
    }
    (Rows { data: out, stride: 2 * half }, 2 * half)
}

/// Four bytes at `at`.
pub(super) fn four(x: &[u8], at: usize) -> [u8; 4] {
    *x[at..].first_chunk().expect("rows of codes are whole groups of four")
}

/// Packs keys for [`super::scores`]: `[key block][channel group][lane][4]` s8, and `-128 * sum(codes)` of
/// each key. Lanes after the last key may hold anything.
#[inline(always)]
pub(super) fn pack_keys_i8<L: Lanes>(
    lanes: L,
    (n, d): (usize, usize),
    rows: Rows<'_, u8>,
    packed: &mut [f32],
    offsets: &mut [f32],
) {
    let groups = d.div_ceil(4);
    let block = groups * L::N * 4;
    let packed = &mut bytes_mut(packed)[..n.div_ceil(L::N) * block];
    for (b, block) in packed.chunks_exact_mut(block).enumerate() {
        for lane in 0..L::N.min(n - b * L::N) {
            let row = &rows.data[(b * L::N + lane) * rows.stride..];
            for (group, out) in row.chunks_exact(4).zip(block.chunks_exact_mut(4 * L::N)) {
                let out = out[4 * lane..].first_chunk_mut().expect("a lane has four bytes");
                *out = (u32::from_ne_bytes(four(group, 0)) ^ 0x8080_8080).to_ne_bytes();
            }
        }
        let mut sum = lanes.splat_i(0);
        for group in block.chunks_exact(4 * L::N) {
            // SAFETY: `chunks_exact` gives 4 N bytes.
            let codes = unsafe { lanes.read_i(group.as_ptr()) };
            sum = lanes.dot(sum, lanes.splat_i(0x0101_0101), codes);
        }
        let offsets = bytes_mut(&mut offsets[b * L::N..][..L::N]);
        // SAFETY: `offsets` holds 4 N bytes.
        unsafe { lanes.write_i(offsets.as_mut_ptr(), lanes.sub_i(lanes.splat_i(0), lanes.times_128(sum))) };
    }
}

/// Packs keys for [`super::scores`]: `[key block][channel][lane]`, zeros after the last key.
#[inline(always)]
pub(super) fn pack_keys_f32<L: Lanes>(
    _lanes: L,
    (n, d): (usize, usize),
    rows: Rows<'_, f32>,
    packed: &mut [f32],
) {
    let block = d * L::N;
    for (b, block) in packed[..n.div_ceil(L::N) * block].chunks_exact_mut(block).enumerate() {
        let keys = L::N.min(n - b * L::N);
        if keys < L::N {
            block.fill(0.0);
        }
        for lane in 0..keys {
            let row = &rows.data[(b * L::N + lane) * rows.stride..][..d];
            for (x, out) in row.iter().zip(block.chunks_exact_mut(L::N)) {
                out[lane] = *x;
            }
        }
    }
}

/// Packs values for [`super::values`]: `[channel block][key group][lane][4]` s8. Keys after the last one may
/// hold anything, because their weights are 0.
#[inline(always)]
pub(super) fn pack_values_i8<L: Lanes>(
    lanes: L,
    (n, d): (usize, usize),
    rows: Rows<'_, u8>,
    packed: &mut [f32],
) {
    let groups = n.div_ceil(4);
    let packed = &mut bytes_mut(packed)[..d.div_ceil(L::N) * groups * 4 * L::N];
    let sign = lanes.splat_i(0x8080_8080_u32.cast_signed());
    for (b, block) in packed.chunks_exact_mut(groups * 4 * L::N).enumerate() {
        for (group, out) in block.chunks_exact_mut(4 * L::N).enumerate() {
            let mut four = [lanes.splat_i(0); 4];
            for (key, four) in four.iter_mut().enumerate() {
                let row = &rows.data[(group * 4 + key).min(n - 1) * rows.stride + b * L::N..][..L::N];
                // SAFETY: `row` holds N bytes.
                *four = unsafe { lanes.widen(row.as_ptr()) };
            }
            // SAFETY: `chunks_exact_mut` gives 4 N bytes.
            unsafe { lanes.write_i(out.as_mut_ptr(), lanes.xor_i(lanes.interleave(four), sign)) };
        }
    }
}
