//! Several ops that run as one over a residual stream. Each thread takes a few rows through all ops before it
//! takes the next rows, so that intermediate results and the rows of the residual stay in the thread's
//! second-level cache.
//!
//! ```text
//! for each task's rows:  residual[rows] = ... last(... second(first(residual[rows])))
//! ```
//! The ops may only depend on the rows of their own task: norms and linears work row by row, attention window
//! by window. The results are the same, bit for bit, as if each op ran over all rows before the next op.

mod op;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub use op::BlockOp;

use swinq_numerics::RowMap;
use swinq_numerics::sizes::{check_len, elements};

use crate::pool::{Parts, Pool, Scratch};
use op::{Intermediate, OpInput, TaskRows};

/// Several ops that run as one over a residual stream.
pub struct FusedBlock {
    /// Each op with its result for the next op; `None` if the op adds its result to the residual.
    ops: Vec<(BlockOp, Option<Intermediate>)>,
    /// Columns of the residual.
    columns: usize,
    /// Tokens of a window, if an op is an attention.
    window: Option<usize>,
    /// The most units of a task.
    max_units: usize,
}

/// The rows of one image for a [`FusedBlock`], and their windows. All images of a run have the same.
#[derive(Clone, Copy, Debug)]
pub struct FusedRows<'a> {
    /// The token of each row, window by window.
    pub map: &'a RowMap,
    /// The number of the mask of each window, as in [`WindowAttention::run`](crate::WindowAttention::run);
    /// empty if no op is an attention.
    pub masks: &'a [u8],
}

impl FusedBlock {
    /// Prepares `ops` over rows of a residual of `columns` columns, in tasks of about `task_rows` rows.
    /// [`BlockOp`] says which ops read the residual and which read the result of the op before them. Linears
    /// that store [`Store::Residual`](crate::Store::Residual) and residual norms add to the residual.
    ///
    /// # Panics
    /// If an op cannot read the result of the op before it, if the last op does not add to the residual, if
    /// two attentions have windows of different sizes, or if `task_rows` rows of a result are more than a
    /// slice can hold.
    pub fn new(ops: Vec<BlockOp>, columns: usize, task_rows: usize) -> FusedBlock {
        let (window, mut result) = (window_of(&ops), None);
        let unit_rows = window.unwrap_or(1);
        let mut checked = Vec::with_capacity(ops.len());
        for op in ops {
            result = op.result_after(result, columns);
            checked.push((op, result));
        }
        assert!(result.is_none(), "FusedBlock: nothing reads the result of the last op");
        let max_units = (task_rows / unit_rows).max(1);
        for result in checked.iter().filter_map(|(_, result)| *result) {
            result.check_rows(max_units * unit_rows);
        }
        FusedBlock { ops: checked, columns, window, max_units }
    }

    /// Number of rows that must stay in one task: the rows of a window, or 1 without attention.
    pub fn unit_rows(&self) -> usize {
        self.window.unwrap_or(1)
    }

    /// Units of [`unit_rows`](FusedBlock::unit_rows) rows in `images` images of `rows` rows each, the length
    /// of [`FusedRows::map`].
    ///
    /// # Panics
    /// If they have more rows than a slice can hold.
    pub fn units(&self, images: usize, rows: usize) -> usize {
        elements("FusedBlock", "rows", &[images, rows]) / self.unit_rows()
    }

    /// Runs the ops over `residual`, f32 `[images * rows.map.tokens(), columns]`.
    ///
    /// # Panics
    /// If `residual` has another length, if the windows of an attention do not cover the rows of an image, if
    /// a mask is one that an attention does not have, or if there are masks without an attention.
    pub fn run(&self, pool: &mut Pool, images: usize, rows: FusedRows<'_>, residual: &mut [f32]) {
        self.run_tasks(pool, images, rows, residual, None);
    }

    /// As [`FusedBlock::run`], and returns the time of each op: the elapsed time, divided in proportion to
    /// the thread time that each op took.
    ///
    /// # Panics
    /// As [`FusedBlock::run`].
    pub fn run_timed(
        &self,
        pool: &mut Pool,
        images: usize,
        rows: FusedRows<'_>,
        residual: &mut [f32],
    ) -> Vec<Duration> {
        let nanos: Vec<AtomicU64> = self.ops.iter().map(|_| AtomicU64::new(0)).collect();
        let start = Instant::now();
        self.run_tasks(pool, images, rows, residual, Some(&nanos));
        let elapsed = start.elapsed();
        let nanos: Vec<f64> = nanos.into_iter().map(|n| n.into_inner() as f64).collect();
        let all = nanos.iter().sum::<f64>().max(1.0);
        nanos.iter().map(|n| elapsed.mul_f64(n / all)).collect()
    }

    fn run_tasks(
        &self,
        pool: &mut Pool,
        images: usize,
        image: FusedRows<'_>,
        residual: &mut [f32],
        nanos: Option<&[AtomicU64]>,
    ) {
        self.check_windows(image);
        check_len("FusedBlock", "residual", residual.len(), &[images, image.map.tokens(), self.columns]);
        let (units, unit_rows) = (self.units(images, image.map.rows().len()), self.unit_rows());
        let tasks = units.div_ceil(self.max_units).next_multiple_of(pool.threads()).min(units);
        elements("FusedBlock", "units and tasks", &[units, tasks]);
        let residual = Parts::new(residual);
        pool.run(tasks, &|task, scratch| {
            let rows = units * task / tasks * unit_rows..units * (task + 1) / tasks * unit_rows;
            self.run_task(&TaskRows { rows, residual, image }, scratch, nanos);
        });
    }

    /// Checks that the windows of the attentions, if there are any, cover the rows of an image.
    fn check_windows(&self, FusedRows { map, masks }: FusedRows<'_>) {
        let (rows, windows) = (map.rows().len(), masks.len());
        let Some(tokens) = self.window else {
            assert!(masks.is_empty(), "FusedBlock: {windows} masks without an attention");
            return;
        };
        assert!(
            windows.checked_mul(tokens) == Some(rows),
            "FusedBlock: {windows} windows of {tokens} tokens are not {rows} rows"
        );
        self.ops.iter().filter_map(|(op, _)| op.attention()).for_each(|op| op.check_masks(masks));
    }

    /// Takes the rows of one task through all ops. An op reads one half of the intermediate memory and writes
    /// the other.
    fn run_task(&self, task: &TaskRows<'_>, scratch: &mut Scratch, nanos: Option<&[AtomicU64]>) {
        let Scratch { op: op_scratch, intermediate, .. } = scratch;
        let max_rows = self.max_units * self.unit_rows();
        let half = self.ops.iter().flat_map(|(_, result)| result).map(|result| result.bytes(max_rows));
        let half = half.max().unwrap_or(0).next_multiple_of(64);
        intermediate.reserve(2 * half);
        let (mut read, mut write) = intermediate.as_f32_mut().split_at_mut(half / 4);
        let (mut previous, rows) = (None::<Intermediate>, task.rows.len());
        for (i, (op, result)) in self.ops.iter().enumerate() {
            let start = nanos.map(|_| Instant::now());
            let input = previous.map_or(OpInput::Residual, |previous| previous.rows(rows, read));
            op.run(task, input, result.map(|result| result.rows_mut(rows, write)), op_scratch);
            std::mem::swap(&mut read, &mut write);
            previous = *result;
            if let (Some(nanos), Some(start)) = (nanos, start) {
                nanos[i].fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
            }
        }
    }
}

/// Tokens of a window of the attentions among `ops`.
///
/// # Panics
/// If two of them have windows of different sizes.
fn window_of(ops: &[BlockOp]) -> Option<usize> {
    let mut tokens = ops.iter().filter_map(BlockOp::attention).map(|op| op.sizes().0);
    let first = tokens.next()?;
    for other in tokens {
        assert!(first == other, "FusedBlock: windows of {first} and {other} tokens");
    }
    Some(first)
}
