//! The general vector path, for every combination of sites and any size. It packs the operands of one window
//! and head first. Then it computes logits, weights and results of a few queries at a time.

use swinq_numerics::{Probs, Quantizer};

use super::operands::{AttentionOperand, Rows, Source, join, pack_keys_f32, pack_keys_i8, pack_values_i8};
use super::products::{Blocks, Float, Integer};
use super::scores::{self, Logits};
use super::scratch::{GeneralScratch, ROWS};
use super::softmax;
use super::values::{self, Results};
use super::{AttentionIn, Shape, Unit, WindowAttention, integer_scores, integer_values};
use crate::buffer::{AlignedBuf, bytes, bytes_mut};
use crate::lanes::Lanes;
use crate::rows::RowSink;

/// The left operand of `QK^T`.
enum Queries<'a> {
    Codes(Rows<'a, u8>),
    F32(Rows<'a, f32>),
}

/// The right operand of `PV`.
enum Values<'a> {
    /// Packed, with the scale of the codes.
    Codes(f32),
    F32(Rows<'a, f32>),
}

/// One window and head, with its operands ready.
struct Window<'a> {
    op: &'a WindowAttention,
    unit: Unit,
    queries: Queries<'a>,
    values: Values<'a>,
    packed_keys: &'a [f32],
    packed_values: &'a [f32],
    offsets: &'a [f32],
    /// Present if the head has hi and lo codes for each query and key.
    low: Option<WithLo<'a>>,
}

/// The operands of the products of codes with lo codes: the codes of each query and then its lo codes, times
/// the lo codes of each key and then its codes.
struct WithLo<'a> {
    queries: Rows<'a, u8>,
    /// Length of the rows of `queries`.
    length: usize,
    keys: &'a [f32],
    offsets: &'a [f32],
}

/// Computes attention of `unit`.
#[inline(always)]
pub(super) fn unit<L: Lanes>(
    lanes: L,
    op: &WindowAttention,
    unit: Unit,
    input: AttentionIn<'_>,
    sink: &RowSink<'_>,
    scratch: &mut AlignedBuf,
) {
    let Shape { d, n, .. } = op.shape;
    let GeneralScratch {
        rows: [q, k, v],
        keys,
        values: packed_values,
        offsets,
        logits,
        weights,
        keys_low,
        offsets_low,
        logits_low,
    } = GeneralScratch::split(&op.layout, scratch);
    let source = |part, site| Source { input, shape: op.shape, unit, part, low: op.low[unit.head], site };
    let d_padded = op.layout.d_padded;
    // A row of f32 has room for four rows of codes: codes, lo codes, and both.
    let room = n * d_padded / 4;
    let mut low = None;
    let (query, key) =
        (source(AttentionOperand::Query, op.quant.q), source(AttentionOperand::Key, op.quant.k));
    let queries = if integer_scores(&op.quant) {
        let ((q, q_low), (k, k_low)) = (q.split_at_mut(room), k.split_at_mut(room));
        let (queries, key_codes) = (query.codes(lanes, d_padded, q), key.codes(lanes, d_padded, k));
        pack_keys_i8(lanes, (n, d), key_codes, keys, offsets);
        if op.low[unit.head].is_some() {
            let ((q_low, q_both), (k_low, k_both)) = (q_low.split_at_mut(room), k_low.split_at_mut(room));
            let q_low = source(AttentionOperand::QueryLo, op.quant.q).codes(lanes, d_padded, q_low);
            let k_low = source(AttentionOperand::KeyLo, op.quant.k).codes(lanes, d_padded, k_low);
            let (both, length) = join((n, d), [queries, q_low], q_both);
            let (key_rows, _) = join((n, d), [k_low, key_codes], k_both);
            pack_keys_i8(lanes, (n, length), key_rows, keys_low, offsets_low);
            low = Some(WithLo { queries: both, length, keys: keys_low, offsets: offsets_low });
        }
        Queries::Codes(queries)
    } else {
        pack_keys_f32(lanes, (n, d), key.floats(lanes, d_padded, k), keys);
        Queries::F32(query.floats(lanes, d_padded, q))
    };
    let value = source(AttentionOperand::Value, op.quant.v);
    let values = if integer_values(&op.quant) {
        pack_values_i8(lanes, (n, d), value.codes(lanes, d_padded, v), packed_values);
        Values::Codes(op.quant.v.map_or(1.0, Quantizer::scale))
    } else {
        Values::F32(value.floats(lanes, d_padded, v))
    };
    let window = Window { op, unit, queries, values, packed_keys: keys, packed_values, offsets, low };
    let mut from = 0;
    while from < n {
        from += match n - from {
            ROWS.. => window.rows::<L, ROWS>(lanes, from, [logits, logits_low], weights, sink),
            3.. => window.rows::<L, 3>(lanes, from, [logits, logits_low], weights, sink),
            _ => window.rows::<L, 1>(lanes, from, [logits, logits_low], weights, sink),
        };
    }
}

impl Window<'_> {
    /// Computes `R` queries from `from` on; returns `R`.
    #[inline(always)]
    fn rows<L: Lanes, const R: usize>(
        &self,
        lanes: L,
        from: usize,
        [logits, logits_low]: [&mut [f32]; 2],
        weights: &mut [f32],
        sink: &RowSink<'_>,
    ) -> usize {
        self.scores::<L, R>(lanes, from, logits, logits_low);
        let factors = self.weights::<L, R>(lanes, logits, weights);
        let Shape { d, n, .. } = self.op.shape;
        let n_padded = self.op.layout.n_padded;
        let results = Results { sink, row: self.unit.row + from, column: self.unit.head * d, d, factors };
        match self.values {
            Values::Codes(_) => {
                let (groups, data) = (n.div_ceil(4), bytes(self.packed_values));
                let values = Blocks { data, per_block: groups * 4 * L::N, per_group: 4 * L::N };
                let weights = Rows { data: bytes(weights), stride: n_padded };
                values::weighted::<L, Integer, R>(lanes, groups, weights, values, &results);
            }
            Values::F32(Rows { data, stride }) => {
                let values = Blocks { data, per_block: L::N, per_group: stride };
                let weights = Rows { data: logits, stride: n_padded };
                values::weighted::<L, Float, R>(lanes, n, weights, values, &results);
            }
        }
        R
    }

    /// Stores the logits of `R` queries in `out`. `out_low` is scratch for a head with hi and lo codes.
    #[inline(always)]
    fn scores<L: Lanes, const R: usize>(&self, lanes: L, from: usize, out: &mut [f32], out_low: &mut [f32]) {
        let Shape { d, n, .. } = self.op.shape;
        let (tables, unit) = (&self.op.tables, self.unit);
        let (mut bias, mut mask) = ([&[][..]; R], [None; R]);
        for r in 0..R {
            bias[r] = tables.bias(unit.head, from + r);
            mask[r] = tables.mask(unit.mask, from + r);
        }
        let (finish, n_padded) = (self.op.finish[unit.head], self.op.layout.n_padded);
        let (groups, keys) = (d.div_ceil(4), bytes(self.packed_keys));
        match (&self.queries, &self.low) {
            (Queries::Codes(queries), Some(low)) => {
                let zeros = &self.op.zeros;
                let mut raw = scores::raw::<R>(zeros, out, n_padded);
                let queries = queries.from(from);
                scores::scores::<L, Integer, R>(lanes, (n, groups), queries, keys, self.offsets, &mut raw);
                let mut raw = scores::raw::<R>(zeros, out_low, n_padded);
                let (sizes, keys) = ((n, low.length / 4), bytes(low.keys));
                let queries = low.queries.from(from);
                scores::scores::<L, Integer, R>(lanes, sizes, queries, keys, low.offsets, &mut raw);
                let mut logits = Logits { bias, mask, finish, out, n_padded };
                scores::combine(lanes, n, out_low, &mut logits);
            }
            (Queries::Codes(queries), None) => {
                let mut logits = Logits { bias, mask, finish, out, n_padded };
                let queries = queries.from(from);
                scores::scores::<L, Integer, R>(lanes, (n, groups), queries, keys, self.offsets, &mut logits);
            }
            (Queries::F32(queries), _) => {
                let mut logits = Logits { bias, mask, finish, out, n_padded };
                let queries = queries.from(from);
                scores::scores::<L, Float, R>(lanes, (n, d), queries, self.packed_keys, &[], &mut logits);
            }
        }
    }

    /// Turns the logits of `R` queries into weights: codes in `weights`, or f32 in place. Returns their
    /// factors.
    #[inline(always)]
    fn weights<L: Lanes, const R: usize>(
        &self,
        lanes: L,
        logits: &mut [f32],
        weights: &mut [f32],
    ) -> [f32; R] {
        let n_padded = self.op.layout.n_padded;
        let rows = logits.chunks_exact_mut(n_padded).zip(bytes_mut(weights).chunks_exact_mut(n_padded));
        let mut factors = [0.0; R];
        for (factor, (logits, codes)) in factors.iter_mut().zip(rows) {
            *factor = self.weigh(lanes, logits, codes);
        }
        factors
    }

    /// [`Window::weights`] of one query; `logits` and `codes` are padded to full registers.
    #[inline(always)]
    fn weigh<L: Lanes>(&self, lanes: L, logits: &mut [f32], codes: &mut [u8]) -> f32 {
        let keys = &mut logits[..self.op.shape.n];
        let value_scale = match self.values {
            Values::Codes(scale) => scale,
            Values::F32(_) => 1.0,
        };
        let factor = match self.op.quant.probs {
            Probs::Float => return 1.0 / softmax::exponentials(lanes, keys),
            Probs::U8 => value_scale / softmax::unsigned_codes(lanes, keys, codes) as f32,
            Probs::S8(quantizer) => {
                let inverse = 1.0 / softmax::exponentials(lanes, keys);
                softmax::signed_codes(lanes, keys, inverse, quantizer, codes);
                quantizer.scale() * value_scale
            }
        };
        if let Values::F32(_) = self.values {
            softmax::widened(lanes, codes, logits);
        }
        factor
    }
}
