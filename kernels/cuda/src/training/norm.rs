//! LayerNorm and its gradients.

use cudarc::driver::{CudaSlice, CudaView};

use super::{Call, THREADS, Training, int};
use crate::params::train_norm::Params;
use crate::{CudaError, LaunchConfig, Program};

/// Maximum columns per thread for which a warp processes a row; for longer rows a block does.
const CHUNKS_OF_WARP: usize = 12;

/// Maximum blocks of a backward pass; each block produces sums over its rows.
const BLOCKS: usize = 1024;

/// Constants for which a LayerNorm in training is compiled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormProgram {
    /// Number of columns of a row.
    pub columns: usize,
}

impl NormProgram {
    /// Maximum number of columns.
    pub const MOST_COLUMNS: usize = 16 * THREADS as usize;

    /// Threads per row, and columns per thread.
    fn threads_and_chunks(self) -> (u32, usize) {
        let threads = if self.columns <= 32 * CHUNKS_OF_WARP { 32 } else { THREADS };
        (threads, self.columns.div_ceil(threads as usize))
    }

    /// Rows that a block processes at the same time.
    fn groups(self) -> usize {
        (THREADS / self.threads_and_chunks().0) as usize
    }

    /// The program of `entry`: `norm_forward` or `norm_backward`.
    pub fn program(self, entry: &'static str) -> Program {
        let (threads, chunks) = self.threads_and_chunks();
        Program::new("train_norm.cu", entry)
            .define("THREADS", THREADS.into())
            .define("ROW_THREADS", threads.into())
            .define("CHUNKS", chunks as i64)
    }

    /// Launch configuration of the forward pass for `rows` rows.
    pub fn forward_launch(self, rows: usize) -> LaunchConfig {
        let blocks = int(rows.div_ceil(self.groups())).unsigned_abs();
        LaunchConfig { shared: THREADS / 8, ..LaunchConfig::linear(blocks, THREADS) }
    }

    /// Rows per block of the backward pass.
    pub fn rows_of_block(self, rows: usize) -> usize {
        rows.div_ceil(BLOCKS).next_multiple_of(self.groups())
    }

    /// Launch configuration of the backward pass for `rows` rows.
    pub fn backward_launch(self, rows: usize) -> LaunchConfig {
        let blocks = int(rows.div_ceil(self.rows_of_block(rows))).unsigned_abs();
        let sums = 4 * int(self.groups() * self.columns).unsigned_abs();
        let shared = if self.groups() == 1 { THREADS / 8 } else { sums };
        LaunchConfig { shared, ..LaunchConfig::linear(blocks, THREADS) }
    }
}

impl Training {
    /// LayerNorm of the rows of `x`, which are as long as `weight` and `bias`.
    ///
    /// # Errors
    /// The kernel does not compile, or the driver fails.
    ///
    /// # Panics
    /// If lengths do not match, or there are more than [`NormProgram::MOST_COLUMNS`] columns.
    pub fn norm(
        &self,
        x: &CudaView<'_, f32>,
        [weight, bias]: [&CudaView<'_, f32>; 2],
        epsilon: f32,
    ) -> Result<CudaSlice<f32>, CudaError> {
        let (rows, columns) = shape(x.len(), weight.len());
        let mut out = self.allocate(x.len())?;
        let mut call = Call::new(self);
        let params = Params {
            x: call.read("norm", x, rows * columns),
            weight: call.read("norm: weight", weight, columns),
            bias: call.read("norm: bias", bias, columns),
            out: call.write(&mut out),
            rows: int(rows),
            columns: int(columns),
            epsilon,
            ..Params::default()
        };
        let compiled = NormProgram { columns };
        // SAFETY: `Params` is the kernel's parameter. Matrices have `rows * columns` values, weight and
        // bias `columns`.
        unsafe { self.launch(&compiled.program("norm_forward"), compiled.forward_launch(rows), &params)? };
        drop(call);
        Ok(out)
    }

    /// The gradient of `x` given the gradient of its LayerNorm, and the gradients of weight and bias, `[2,
    /// columns]`.
    ///
    /// # Errors
    /// The kernel does not compile, or the driver fails.
    ///
    /// # Panics
    /// As [`Training::norm`]; or if `grad` has another length.
    pub fn norm_gradient(
        &self,
        x: &CudaView<'_, f32>,
        weight: &CudaView<'_, f32>,
        epsilon: f32,
        grad: &CudaView<'_, f32>,
    ) -> Result<(CudaSlice<f32>, CudaSlice<f32>), CudaError> {
        let (rows, columns) = shape(x.len(), weight.len());
        let compiled = NormProgram { columns };
        let config = compiled.backward_launch(rows);
        let mut out = self.allocate(x.len())?;
        let mut partial = self.allocate(config.grid[0] as usize * 2 * columns)?;
        let mut call = Call::new(self);
        let params = Params {
            x: call.read("norm_gradient", x, rows * columns),
            weight: call.read("norm_gradient: weight", weight, columns),
            grad: call.read("norm_gradient: gradient", grad, rows * columns),
            out: call.write(&mut out),
            partial: call.write(&mut partial),
            rows: int(rows),
            columns: int(columns),
            rows_of_block: int(compiled.rows_of_block(rows)),
            epsilon,
            ..Params::default()
        };
        // SAFETY: as in `norm`; `partial` has two rows for each block.
        unsafe { self.launch(&compiled.program("norm_backward"), config, &params)? };
        drop(call);
        Ok((out, self.column_sums(&partial.as_view(), 2 * columns)?))
    }
}

/// Number of rows and columns.
fn shape(len: usize, columns: usize) -> (usize, usize) {
    assert!((1..=NormProgram::MOST_COLUMNS).contains(&columns), "norm: {columns} columns");
    assert!(len > 0 && len.is_multiple_of(columns), "norm: {len} values in rows of {columns}");
    (len / columns, columns)
}
