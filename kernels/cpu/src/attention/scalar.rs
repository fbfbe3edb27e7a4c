//! Attention by the reference, one window and head at a time.

use swinq_numerics::{Quantizer, code_stride, reference};

use super::operands::AttentionOperand;
use super::{AttentionIn, Shape, Unit, WindowAttention};
use crate::buffer::AlignedBuf;
use crate::rows::RowSink;

/// Attention of `unit`.
pub(super) fn unit(
    op: &WindowAttention,
    unit: Unit,
    input: AttentionIn<'_>,
    sink: &RowSink<'_>,
    scratch: &mut AlignedBuf,
) {
    let Shape { d, n, .. } = op.shape;
    scratch.reserve((4 * n * d + n * n) * size_of::<f32>());
    let scratch = &mut scratch.as_f32_mut()[..4 * n * d + n * n];
    let (qkv, rest) = scratch.split_at_mut(3 * n * d);
    let (out, bias) = rest.split_at_mut(n * d);
    for (part, block) in qkv.chunks_exact_mut(n * d).enumerate() {
        let site = [op.quant.q, op.quant.k, op.quant.v][part];
        for (token, row) in block.chunks_exact_mut(d).enumerate() {
            read(op, input, unit, token, part, site, row);
        }
    }
    for (query, row) in bias.chunks_exact_mut(n).enumerate() {
        row.copy_from_slice(&op.tables.bias(unit.head, query)[..n]);
        if let Some(mask) = op.tables.mask(unit.mask, query) {
            row.iter_mut().zip(mask).for_each(|(bias, mask)| *bias += mask);
        }
    }
    let (q, kv) = qkv.split_at(n * d);
    let (k, v) = kv.split_at(n * d);
    reference::attention_window(n, d, (q, k, v), op.head_scores(unit.head), bias, &op.quant, out);
    for (token, out) in out.chunks_exact(d).enumerate() {
        // SAFETY: each unit belongs to one task, and two units differ in their rows or in the columns of
        // their heads.
        unsafe { sink.column_range(unit.row + token, unit.head * d, d) }.put_all(out);
    }
}

/// `q` (part 0), `k` (1) or `v` (2) of one token, in f32. Quantizing the values again returns the same codes.
fn read(
    op: &WindowAttention,
    input: AttentionIn<'_>,
    unit: Unit,
    token: usize,
    part: usize,
    site: Option<Quantizer>,
    row: &mut [f32],
) {
    let shape = op.shape;
    let wide = 3 * shape.heads * shape.d;
    let column = (part * shape.heads + unit.head) * shape.d;
    match input {
        AttentionIn::F32(x) => row.copy_from_slice(&x[(unit.row + token) * wide + column..][..shape.d]),
        AttentionIn::Codes(x) => {
            let codes = &x[(unit.row + token) * code_stride(shape.columns()) + column..][..shape.d];
            let scale = site.expect("`check` saw that codes have scales").scale();
            let low = lo_codes(op, unit, token, part, x);
            for (i, (value, &code)) in row.iter_mut().zip(codes).enumerate() {
                let low = low.map_or(0.0, |low| f32::from((low[i] ^ 0x80).cast_signed()) / 256.0);
                *value = (f32::from((code ^ 0x80).cast_signed()) + low) * scale;
            }
        }
    }
}

/// The lo codes of `q` (part 0) or `k` (1) of one token, if the head has them.
fn lo_codes<'x>(
    op: &WindowAttention,
    unit: Unit,
    token: usize,
    part: usize,
    x: &'x [u8],
) -> Option<&'x [u8]> {
    let part = *[AttentionOperand::QueryLo, AttentionOperand::KeyLo].get(part)?;
    let column = op.shape.column(part, op.low[unit.head]?);
    Some(&x[(unit.row + token) * code_stride(op.shape.columns()) + column..][..op.shape.d])
}
