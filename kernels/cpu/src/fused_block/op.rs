//! One op of a fused block, and the intermediate results between two ops.

use std::ops::Range;
use std::sync::Arc;

use swinq_numerics::sizes::elements;
use swinq_numerics::{RowStore, code_stride};

use super::FusedRows;
use crate::attention::{AttentionIn, WindowAttention};
use crate::buffer::{AlignedBuf, bytes, bytes_mut};
use crate::layer_norm::{LayerNorm, ResidualNorm};
use crate::linear::{Dest, LinearF32, LinearI8, Store};
use crate::pool::Parts;
use crate::qk_norm::QkNorm;
use crate::quantize::QuantizeRows;
use crate::rows::RowOut;

/// An op of a [`FusedBlock`](super::FusedBlock).
#[derive(Clone)]
pub enum BlockOp {
    /// Reads the residual.
    Norm(Arc<LayerNorm>),
    /// Reads the residual.
    Quantize(Arc<QuantizeRows>),
    /// Reads the f32 that the op before it wrote, and adds to the residual.
    ResidualNorm(Arc<ResidualNorm>),
    /// Reads the f32 that the op before it wrote.
    QkNorm(Arc<QkNorm>),
    /// Reads the result of the op before it.
    Attention(Arc<WindowAttention>),
    /// Reads the codes that the op before it wrote.
    LinearI8(Arc<LinearI8>),
    /// Reads the f32 that the op before it wrote.
    LinearF32(Arc<LinearF32>),
}

/// The result that one op writes and the next op reads: rows of `columns` codes or f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Intermediate {
    columns: usize,
    codes: bool,
}

impl Intermediate {
    /// Checks that two results of `rows` rows fit in memory, so that [`Intermediate::bytes`] of no more rows
    /// cannot overflow.
    ///
    /// # Panics
    /// If they do not.
    pub(super) fn check_rows(self, rows: usize) {
        let row = code_stride(self.columns);
        elements("FusedBlock", "results between ops", &[2, rows, row, size_of::<f32>()]);
    }

    /// Bytes of `rows` rows.
    pub(super) fn bytes(self, rows: usize) -> usize {
        rows * if self.codes { code_stride(self.columns) } else { 4 * self.columns }
    }

    /// The first `rows` rows in `memory`.
    pub(super) fn rows(self, rows: usize, memory: &[f32]) -> OpInput<'_> {
        if self.codes {
            OpInput::Codes(&bytes(memory)[..self.bytes(rows)])
        } else {
            OpInput::F32(&memory[..rows * self.columns])
        }
    }

    /// Room for `rows` rows in `memory`.
    pub(super) fn rows_mut(self, rows: usize, memory: &mut [f32]) -> RowOut<'_> {
        if self.codes {
            RowOut::Codes(&mut bytes_mut(memory)[..self.bytes(rows)])
        } else {
            RowOut::F32(&mut memory[..rows * self.columns])
        }
    }
}

/// The input of an op.
pub(super) enum OpInput<'a> {
    /// The task's rows of the residual.
    Residual,
    F32(&'a [f32]),
    Codes(&'a [u8]),
}

/// The rows that one thread takes through all ops of a block.
pub(super) struct TaskRows<'a> {
    /// Rows in the map's order over all images.
    pub(super) rows: Range<usize>,
    /// The residual. Only this task accesses its rows: tasks have distinct rows, and a map names each token
    /// once.
    pub(super) residual: Parts<'a, f32>,
    /// The rows of each image.
    pub(super) image: FusedRows<'a>,
}

impl<'a> TaskRows<'a> {
    /// The task's rows of the residual, as a destination.
    fn dest(&self) -> Dest<'a> {
        // SAFETY: only this task accesses these rows, and one thread runs its ops one after the other.
        unsafe { Dest::scatter(self.residual, self.image.map, self.rows.start) }
    }

    /// Runs `op` over the windows of the rows.
    fn attend(
        &self,
        op: &WindowAttention,
        input: AttentionIn<'_>,
        out: RowOut<'_>,
        scratch: &mut AlignedBuf,
    ) {
        let (tokens, ..) = op.sizes();
        let windows = self.rows.start / tokens..self.rows.end / tokens;
        op.run_on_this_thread(windows, self.image.masks, input, out, scratch);
    }
}

impl BlockOp {
    /// The op, if it is an attention.
    pub(super) fn attention(&self) -> Option<&WindowAttention> {
        match self {
            BlockOp::Attention(op) => Some(op),
            _ => None,
        }
    }

    /// The op's result, or `None` if it adds to the residual. `previous` is the result of the op before it,
    /// `columns` the residual's columns.
    pub(super) fn result_after(
        &self,
        previous: Option<Intermediate>,
        columns: usize,
    ) -> Option<Intermediate> {
        let (input, result) = match self {
            BlockOp::Norm(op) => {
                let (channels, store) = op.shape();
                assert_eq!(channels, columns, "FusedBlock: a norm of {channels} channels");
                (None, Some(row_result(channels, store)))
            }
            BlockOp::Quantize(op) => {
                let (channels, store) = op.shape();
                assert_eq!(channels, columns, "FusedBlock: {channels} columns are quantized");
                (None, Some(row_result(channels, store)))
            }
            BlockOp::ResidualNorm(op) => {
                assert_eq!(op.channels(), columns, "FusedBlock: a norm of {} channels", op.channels());
                (Some(Intermediate { columns, codes: false }), None)
            }
            BlockOp::QkNorm(op) => {
                let input = Intermediate { columns: op.columns_in(), codes: false };
                let result = Intermediate { columns: op.columns_out(), codes: op.stores_codes() };
                (Some(input), Some(result))
            }
            BlockOp::Attention(op) => {
                let (_, channels, store) = op.sizes();
                let codes = previous.is_some_and(|previous| previous.codes);
                (
                    Some(Intermediate { columns: op.columns_in(codes), codes }),
                    Some(row_result(channels, store)),
                )
            }
            BlockOp::LinearI8(op) => {
                let (k, n, store) = op.shape();
                (Some(Intermediate { columns: k, codes: true }), linear_result(n, store, columns))
            }
            BlockOp::LinearF32(op) => {
                let (k, n, store) = op.shape();
                (Some(Intermediate { columns: k, codes: false }), linear_result(n, store, columns))
            }
        };
        assert_eq!(input, previous, "FusedBlock: an op cannot read the result of the op before it");
        result
    }

    /// Runs the op over the rows of `task`, from `input` to `out`, or to the residual where `out` is `None`.
    pub(super) fn run(
        &self,
        task: &TaskRows<'_>,
        input: OpInput<'_>,
        out: Option<RowOut<'_>>,
        scratch: &mut AlignedBuf,
    ) {
        let (rows, map) = (task.rows.len(), task.image.map);
        match (self, input, out) {
            (BlockOp::Norm(op), OpInput::Residual, Some(out)) => {
                // SAFETY: only this task accesses its rows of the residual, and this op does not write them.
                unsafe { op.run_on_this_thread(task.rows.clone(), task.residual, map, out, scratch) };
            }
            (BlockOp::Quantize(op), OpInput::Residual, Some(out)) => {
                // SAFETY: as above.
                unsafe { op.run_on_this_thread(task.rows.clone(), task.residual, map, out) };
            }
            (BlockOp::ResidualNorm(op), OpInput::F32(x), None) => {
                // SAFETY: only this task accesses its rows of the residual.
                unsafe { op.run_on_this_thread(task.rows.clone(), x, task.residual, map, scratch) };
            }
            (BlockOp::QkNorm(op), OpInput::F32(x), Some(out)) => op.run_on_this_thread(rows, x, out),
            (BlockOp::Attention(op), OpInput::Codes(x), Some(out)) => {
                task.attend(op, AttentionIn::Codes(x), out, scratch);
            }
            (BlockOp::Attention(op), OpInput::F32(x), Some(out)) => {
                task.attend(op, AttentionIn::F32(x), out, scratch);
            }
            (BlockOp::LinearI8(op), OpInput::Codes(x), out) => {
                let dest = out.map_or_else(|| task.dest(), |out| op.dest(rows, out.into()));
                op.run_on_this_thread(rows, x, &dest, scratch);
            }
            (BlockOp::LinearF32(op), OpInput::F32(x), out) => {
                let dest = out.map_or_else(|| task.dest(), |out| op.dest(rows, out.into()));
                op.run_on_this_thread(rows, x, &dest);
            }
            _ => unreachable!("`FusedBlock::new` checked what each op reads"),
        }
    }
}

fn row_result(columns: usize, store: RowStore) -> Intermediate {
    Intermediate { columns, codes: matches!(store, RowStore::Codes(_)) }
}

/// The result of a linear of `n` columns; `None` if it adds to the residual of `columns` columns.
fn linear_result(n: usize, store: &Store, columns: usize) -> Option<Intermediate> {
    match store {
        Store::Residual { .. } => {
            assert_eq!(n, columns, "FusedBlock: a linear of {n} columns is added to the residual");
            None
        }
        store => Some(Intermediate { columns: n, codes: matches!(store, Store::Codes(_)) }),
    }
}
