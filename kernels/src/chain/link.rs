//! An op of a chain, and what lies between two.

use std::ops::Range;
use std::sync::Arc;

use crate::attention::{AttentionIn, WindowAttention};
use crate::buffer::{AlignedBuf, bytes, bytes_mut};
use crate::layer_norm::LayerNorm;
use crate::linear::{Dest, LinearF32, LinearI8, Store};
use crate::pool::Parts;
use crate::types::{RowMap, RowOut, RowStore, code_stride};

/// An op of a [`Chain`](super::Chain).
#[derive(Clone)]
pub enum Link {
    /// Reads the stream.
    Norm(Arc<LayerNorm>),
    /// Reads what the op before it wrote.
    Attention(Arc<WindowAttention>),
    /// Reads codes that the op before it wrote.
    LinearI8(Arc<LinearI8>),
    /// Reads f32 that the op before it wrote.
    LinearF32(Arc<LinearF32>),
}

/// What lies between two ops: rows of `columns` codes or f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Between {
    columns: usize,
    codes: bool,
}

impl Between {
    /// Bytes of `rows` rows.
    pub(super) fn bytes(self, rows: usize) -> usize {
        rows * if self.codes { code_stride(self.columns) } else { 4 * self.columns }
    }

    /// The first `rows` rows in `memory`.
    pub(super) fn rows(self, rows: usize, memory: &[f32]) -> RowIn<'_> {
        if self.codes {
            RowIn::Codes(&bytes(memory)[..self.bytes(rows)])
        } else {
            RowIn::F32(&memory[..rows * self.columns])
        }
    }

    /// Room for `rows` rows.
    pub(super) fn rows_mut(self, rows: usize, memory: &mut [f32]) -> RowOut<'_> {
        if self.codes {
            RowOut::Codes(&mut bytes_mut(memory)[..self.bytes(rows)])
        } else {
            RowOut::F32(&mut memory[..rows * self.columns])
        }
    }
}

/// What an op reads.
pub(super) enum RowIn<'a> {
    /// The group's rows of the stream.
    Stream,
    F32(&'a [f32]),
    Codes(&'a [u8]),
}

/// Rows that one thread takes through a chain.
pub(super) struct Group<'a> {
    /// Of the map's order over all images.
    pub(super) rows: Range<usize>,
    /// What these rows are in it is this group's alone: groups have distinct rows, and a map has each token once.
    pub(super) stream: Parts<'a, f32>,
    pub(super) map: &'a RowMap,
}

impl<'a> Group<'a> {
    /// The rows in units of `unit`.
    fn units(&self, unit: usize) -> Range<usize> {
        self.rows.start / unit..self.rows.end / unit
    }

    /// The group's rows of the stream.
    fn dest(&self) -> Dest<'a> {
        // SAFETY: these rows are the group's own, which one thread takes from op to op.
        unsafe { Dest::scatter(self.stream, self.map, self.rows.start) }
    }
}

impl Link {
    /// Rows that the op needs together, out of `rows` of an image.
    pub(super) fn unit(&self, rows: usize) -> usize {
        let Link::Attention(op) = self else { return 1 };
        let (tokens, windows, ..) = op.sizes();
        assert_eq!(tokens * windows, rows, "Chain: {windows} windows of {tokens} tokens are not {rows} rows");
        tokens
    }

    /// What the op leaves; `before` is what the op before it leaves, `columns` those of the stream.
    pub(super) fn connect(&self, before: Option<Between>, columns: usize) -> Option<Between> {
        let (want, left) = match self {
            Link::Norm(op) => {
                let (channels, store) = op.shape();
                assert_eq!(channels, columns, "Chain: a norm of {channels} channels");
                (None, Some(row_between(channels, store)))
            }
            Link::Attention(op) => {
                let (.., channels, store) = op.sizes();
                let codes = before.is_some_and(|before| before.codes);
                (Some(Between { columns: 3 * channels, codes }), Some(row_between(channels, store)))
            }
            Link::LinearI8(op) => {
                let (k, n, store) = op.shape();
                (Some(Between { columns: k, codes: true }), product_between(n, store, columns))
            }
            Link::LinearF32(op) => {
                let (k, n, store) = op.shape();
                (Some(Between { columns: k, codes: false }), product_between(n, store, columns))
            }
        };
        assert_eq!(want, before, "Chain: an op cannot read what the op before it leaves");
        left
    }

    /// Runs the op over the rows of `group`, from `read` to `write`, or to the stream where that is `None`.
    pub(super) fn run(
        &self,
        group: &Group<'_>,
        read: RowIn<'_>,
        write: Option<RowOut<'_>>,
        scratch: &mut AlignedBuf,
    ) {
        let rows = group.rows.len();
        match (self, read, write) {
            (Link::Norm(op), RowIn::Stream, Some(out)) => {
                // SAFETY: the stream's rows of a group are its own, and this op does not write them.
                unsafe { op.here(group.rows.clone(), group.stream, group.map, out, scratch) };
            }
            (Link::Attention(op), RowIn::Codes(x), Some(out)) => {
                op.here(group.units(op.sizes().0), AttentionIn::Codes(x), out, scratch);
            }
            (Link::Attention(op), RowIn::F32(x), Some(out)) => {
                op.here(group.units(op.sizes().0), AttentionIn::F32(x), out, scratch);
            }
            (Link::LinearI8(op), RowIn::Codes(x), out) => {
                let dest = out.map_or_else(|| group.dest(), |out| op.dest(rows, out.into()));
                op.here(rows, x, &dest, scratch);
            }
            (Link::LinearF32(op), RowIn::F32(x), out) => {
                let dest = out.map_or_else(|| group.dest(), |out| op.dest(rows, out.into()));
                op.here(rows, x, &dest);
            }
            _ => unreachable!("checked when the chain was made"),
        }
    }
}

fn row_between(columns: usize, store: RowStore) -> Between {
    Between { columns, codes: matches!(store, RowStore::Codes(_)) }
}

/// What a product of `n` columns leaves: nothing, if it adds to the stream of `columns` columns.
fn product_between(n: usize, store: &Store, columns: usize) -> Option<Between> {
    match store {
        Store::Residual { .. } => {
            assert_eq!(n, columns, "Chain: a product of {n} columns is added to the stream");
            None
        }
        store => Some(Between { columns: n, codes: matches!(store, Store::Codes(_)) }),
    }
}
