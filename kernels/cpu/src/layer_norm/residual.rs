//! LayerNorm whose result is added to the residual stream, for blocks whose norm comes last.

use std::ops::Range;

use swinq_numerics::sizes::check_len;
use swinq_numerics::{Quantizer, RowMap};

use super::ops::Owned;
use super::{MIN_VALUES, ResidualRow};
use crate::buffer::AlignedBuf;
use crate::cpu::Cpu;
use crate::pool::{Parts, Pool};
use crate::rows::{MapRows, units_per_task};

/// LayerNorm that adds its result to the residual stream:
/// `residual = shortcut.fake(residual) + branch.fake(LayerNorm(x))`, as
/// [`add_layer_norm_row`](swinq_numerics::reference::add_layer_norm_row) defines it. The window reverse
/// happens in its writes.
pub struct ResidualNorm {
    affine: Owned,
    branch: Option<Quantizer>,
    shortcut: Option<Quantizer>,
}

impl ResidualNorm {
    /// The op over rows of `gamma.len()` channels. Before the addition, `branch` quantizes the norm's result
    /// and `shortcut` quantizes the residual; `None` changes nothing.
    ///
    /// # Panics
    /// If there are no channels, `beta` has another length, or `eps` is negative or not finite.
    pub fn new(
        cpu: Cpu,
        gamma: &[f32],
        beta: &[f32],
        eps: f32,
        branch: Option<Quantizer>,
        shortcut: Option<Quantizer>,
    ) -> ResidualNorm {
        ResidualNorm { affine: Owned::new("ResidualNorm", cpu, gamma, beta, eps), branch, shortcut }
    }

    /// Adds the norm of row `(b, i)` of `x` to row `(b, map.rows()[i])` of `residual`; rows of
    /// [`PAD`](swinq_numerics::PAD) are dropped. `x` is f32 `[images, map.rows().len(), c]`, `residual` is
    /// f32 `[images, map.tokens(), c]`.
    ///
    /// # Panics
    /// If a length does not match.
    pub fn run(&self, pool: &mut Pool, images: usize, x: &[f32], map: &RowMap, residual: &mut [f32]) {
        let c = self.affine.channels();
        check_len("ResidualNorm", "input", x.len(), &[images, map.rows().len(), c]);
        check_len("ResidualNorm", "residual", residual.len(), &[images, map.tokens(), c]);
        let rows = x.len() / c;
        let each = units_per_task(rows, pool.threads(), MIN_VALUES / c + 1);
        let residual = Parts::new(residual);
        pool.run(rows.div_ceil(each), &|task, scratch| {
            let rows = task * each..rows.min((task + 1) * each);
            let x = &x[rows.start * c..rows.end * c];
            // SAFETY: tasks have distinct rows, and a map names each token once.
            unsafe { self.scatter(rows, x, residual, map, &mut scratch.op) };
        });
    }

    /// Adds the norms of rows `rows` of `map`'s order over all images, on the caller's thread. `x` holds only
    /// these rows; `residual` is as in [`ResidualNorm::run`].
    ///
    /// # Panics
    /// As [`ResidualNorm::run`].
    ///
    /// # Safety
    /// Nobody else reads or writes these rows of `residual` during the call.
    pub(crate) unsafe fn run_on_this_thread(
        &self,
        rows: Range<usize>,
        x: &[f32],
        residual: Parts<'_, f32>,
        map: &RowMap,
        scratch: &mut AlignedBuf,
    ) {
        check_len("ResidualNorm", "input", x.len(), &[rows.len(), self.affine.channels()]);
        // SAFETY: the caller's promise.
        unsafe { self.scatter(rows, x, residual, map, scratch) };
    }

    /// # Safety
    /// Nobody else reads or writes rows `rows` of `map`'s order in `residual` during the call.
    unsafe fn scatter(
        &self,
        rows: Range<usize>,
        x: &[f32],
        residual: Parts<'_, f32>,
        map: &RowMap,
        scratch: &mut AlignedBuf,
    ) {
        let c = self.affine.channels();
        scratch.reserve(c * size_of::<f32>());
        let map_rows = MapRows::new(map, rows.start);
        let source = |i: usize| map_rows.token(i).map(|_| &x[i * c..][..c]);
        let out = |i: usize| ResidualRow {
            // SAFETY: the caller's promise; a map names each token once, and each row is taken once.
            row: map_rows.token(i).map(|token| unsafe { residual.get(token * c, c) }),
            branch: self.branch,
            shortcut: self.shortcut,
        };
        self.affine.rows(rows.len(), source, out, &mut scratch.as_f32_mut()[..c]);
    }

    /// Channels.
    pub(crate) fn channels(&self) -> usize {
        self.affine.channels()
    }
}
