//! Several ops that run as one over a residual stream. Each thread takes a few rows through all ops before it
//! takes the next rows, so that intermediate results and the rows of the stream stay in the thread's
//! second-level cache.
//!
//! ```text
//! for each task's rows:  stream[rows] = ... last(... second(first(stream[rows])))
//! ```
//! The ops may only depend on the rows of their own task: norms and linears work row by row, attention window
//! by window. The results are the same, bit for bit, as if each op ran over all rows before the next op.

mod op;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub use op::BlockOp;

use swinq_numerics::RowMap;
use swinq_numerics::sizes::{check_len, elements};

use crate::pool::{Parts, Pool, Scratch};
use op::{Intermediate, OpInput, TaskRows};

/// Several ops that run as one over a residual stream.
pub struct FusedBlock {
    /// Each op with its result for the next op; `None` if the op adds its result to the stream.
    ops: Vec<(BlockOp, Option<Intermediate>)>,
    map: Arc<RowMap>,
    /// Columns of the stream.
    columns: usize,
    /// Number of rows that must stay in one task: the rows of a window, or 1 without attention.
    unit_rows: usize,
    /// The most units of a task.
    max_units: usize,
}

impl FusedBlock {
    /// Prepares `ops` over rows of a stream of `columns` columns in the order of `map`, in tasks of about
    /// `task_rows` rows. [`BlockOp`] says which ops read the stream and which read the result of the op
    /// before them. Linears that store [`Store::Residual`](crate::Store::Residual) and residual norms add to
    /// the stream.
    ///
    /// # Panics
    /// If an op cannot read the result of the op before it, if the last op does not add to the stream, if the
    /// windows of an attention do not cover the rows of `map`, if two attentions have windows of different
    /// sizes, or if `task_rows` rows of a result are more than a slice can hold.
    pub fn new(ops: Vec<BlockOp>, map: Arc<RowMap>, columns: usize, task_rows: usize) -> FusedBlock {
        let (mut unit_rows, mut result) = (1, None);
        let mut checked = Vec::with_capacity(ops.len());
        for op in ops {
            let rows = op.unit_rows(map.rows().len());
            assert!(
                unit_rows == 1 || rows == 1 || rows == unit_rows,
                "FusedBlock: windows of {unit_rows} and {rows} tokens"
            );
            unit_rows = unit_rows.max(rows);
            result = op.result_after(result, columns);
            checked.push((op, result));
        }
        assert!(result.is_none(), "FusedBlock: nothing reads the result of the last op");
        let max_units = (task_rows / unit_rows).max(1);
        for result in checked.iter().filter_map(|(_, result)| *result) {
            result.check_rows(max_units * unit_rows);
        }
        FusedBlock { ops: checked, map, columns, unit_rows, max_units }
    }

    /// Number of rows that must stay in one task: the rows of a window, or 1 without attention.
    pub fn unit_rows(&self) -> usize {
        self.unit_rows
    }

    /// Units of [`unit_rows`](FusedBlock::unit_rows) rows in `images` images.
    ///
    /// # Panics
    /// If they have more rows than a slice can hold.
    pub fn units(&self, images: usize) -> usize {
        elements("FusedBlock", "rows", &[images, self.map.rows().len()]) / self.unit_rows
    }

    /// Runs the ops over `stream`, f32 `[images * map.tokens(), columns]`.
    ///
    /// # Panics
    /// If `stream` has another length.
    pub fn run(&self, pool: &mut Pool, images: usize, stream: &mut [f32]) {
        self.run_tasks(pool, images, stream, None);
    }

    /// As [`FusedBlock::run`], and returns the time of each op: the elapsed time, divided in proportion to
    /// the thread time that each op took.
    ///
    /// # Panics
    /// As [`FusedBlock::run`].
    pub fn run_timed(&self, pool: &mut Pool, images: usize, stream: &mut [f32]) -> Vec<Duration> {
        let nanos: Vec<AtomicU64> = self.ops.iter().map(|_| AtomicU64::new(0)).collect();
        let start = Instant::now();
        self.run_tasks(pool, images, stream, Some(&nanos));
        let elapsed = start.elapsed();
        let nanos: Vec<f64> = nanos.into_iter().map(|n| n.into_inner() as f64).collect();
        let all = nanos.iter().sum::<f64>().max(1.0);
        nanos.iter().map(|n| elapsed.mul_f64(n / all)).collect()
    }

    fn run_tasks(&self, pool: &mut Pool, images: usize, stream: &mut [f32], nanos: Option<&[AtomicU64]>) {
        check_len("FusedBlock", "stream", stream.len(), &[images, self.map.tokens(), self.columns]);
        let units = self.units(images);
        let tasks = units.div_ceil(self.max_units).next_multiple_of(pool.threads()).min(units);
        elements("FusedBlock", "units and tasks", &[units, tasks]);
        let (stream, map) = (Parts::new(stream), &*self.map);
        pool.run(tasks, &|task, scratch| {
            let rows = units * task / tasks * self.unit_rows..units * (task + 1) / tasks * self.unit_rows;
            self.run_task(&TaskRows { rows, stream, map }, scratch, nanos);
        });
    }

    /// Takes the rows of one task through all ops. An op reads one half of the intermediate memory and writes
    /// the other.
    fn run_task(&self, task: &TaskRows<'_>, scratch: &mut Scratch, nanos: Option<&[AtomicU64]>) {
        let Scratch { op: op_scratch, intermediate } = scratch;
        let max_rows = self.max_units * self.unit_rows;
        let half = self.ops.iter().flat_map(|(_, result)| result).map(|result| result.bytes(max_rows));
        let half = half.max().unwrap_or(0).next_multiple_of(64);
        intermediate.reserve(2 * half);
        let (mut read, mut write) = intermediate.as_f32_mut().split_at_mut(half / 4);
        let (mut previous, rows) = (None::<Intermediate>, task.rows.len());
        for (i, (op, result)) in self.ops.iter().enumerate() {
            let start = nanos.map(|_| Instant::now());
            let input = previous.map_or(OpInput::Stream, |previous| previous.rows(rows, read));
            op.run(task, input, result.map(|result| result.rows_mut(rows, write)), op_scratch);
            std::mem::swap(&mut read, &mut write);
            previous = *result;
            if let (Some(nanos), Some(start)) = (nanos, start) {
                nanos[i].fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
            }
        }
    }
}
