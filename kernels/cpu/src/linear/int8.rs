//! Linears on INT8 codes.

use std::ops::Range;

use swinq_numerics::code_stride;
use swinq_numerics::reference::MAX_INT8_K;
use swinq_numerics::sizes::check_len;

use super::dest::Dest;
use super::epilogue::Epilogue;
use super::pack::compensation;
use super::split::{Split, row_blocks};
use super::{Block, LinearOut, LinearSpec, Store};
use crate::buffer::{Aligned, AlignedBuf};
use crate::cpu::Cpu;
use crate::pool::Pool;
use crate::weights::Weights;

/// A linear of INT8 codes and an INT8 weight, accumulated exactly in INT32.
pub struct LinearI8 {
    cpu: Cpu,
    k: usize,
    weight: Weights,
    /// The initial accumulator of each column, padded to full panels.
    initial: Aligned<i32>,
    epilogue: Epilogue,
}

impl LinearI8 {
    /// Packs the weight `codes` `[n, k]`; `multiplier[c]` is the input's scale times the scale of weight row
    /// c.
    ///
    /// # Panics
    /// If a vector's length does not match n and k, or k exceeds [`MAX_INT8_K`].
    pub fn new(cpu: Cpu, spec: LinearSpec<'_>, codes: &[i8], multiplier: &[f32]) -> LinearI8 {
        LinearI8::with_zero_points(cpu, spec, codes, multiplier, &[])
    }

    /// As [`LinearI8::new`], for an input whose code `q` in column k stands for `q - zero_points[k]`. The
    /// zero points are subtracted in INT32: accumulators start from
    /// [`-correction_i8`](swinq_numerics::reference::correction_i8). No zero points stand for zeros.
    ///
    /// # Panics
    /// As [`LinearI8::new`]; and if there are zero points, but not k of them.
    pub fn with_zero_points(
        cpu: Cpu,
        spec: LinearSpec<'_>,
        codes: &[i8],
        multiplier: &[f32],
        zero_points: &[i8],
    ) -> LinearI8 {
        let (n, k) = (spec.n, spec.k);
        assert!(
            zero_points.is_empty() || zero_points.len() == k,
            "{} zero points for {k} inputs",
            zero_points.len()
        );
        check_len("LinearI8", "weight", codes.len(), &[n, k]);
        assert!(k <= MAX_INT8_K, "k = {k}: INT8 products take at most {MAX_INT8_K} inputs");
        let kernel = cpu.kernel();
        let (packed, padded) = (kernel.layout.pack_i8(n, k, codes), kernel.layout.padded(n));
        // The largest magnitude of a code minus its zero point.
        let largest = if zero_points.is_empty() { 128 } else { 255 };
        let epilogue = Epilogue::new(&spec, multiplier, padded, 128.0 * largest as f64 * k as f64);
        let added = if kernel.unsigned_input { 128 } else { 0 };
        let initial = compensation(k, codes, padded, added, zero_points).into();
        LinearI8 { cpu, k, weight: packed, initial, epilogue }
    }

    /// Runs the linear on `rows` rows of codes (`u8 = code + 128`, `[rows, code_stride(k)]`) and stores the
    /// result in `out`.
    ///
    /// # Panics
    /// If a size is wrong, or `out` does not match the op's [`Store`](super::Store).
    pub fn run(&self, pool: &mut Pool, rows: usize, input: &[u8], out: LinearOut<'_>) {
        let stride = code_stride(self.k);
        check_len("LinearI8", "input", input.len(), &[rows, stride]);
        let n = self.epilogue.n;
        let dest = Dest::new(out, &self.epilogue.store, rows, n);
        let panels = self.cpu.kernel().layout.panels(n);
        let split = Split::new(rows, panels, stride, self.cpu.kernel().tile_rows, pool.threads());
        pool.run(split.tasks(), &|task, scratch| {
            let (rows, panels) = split.block(task);
            self.block(input, rows, panels, &dest, &mut scratch.op);
        });
    }

    /// The destination `out` of `rows` rows, for [`LinearI8::run_on_this_thread`].
    ///
    /// # Panics
    /// As [`LinearI8::run`].
    pub(crate) fn dest<'a>(&self, rows: usize, out: LinearOut<'a>) -> Dest<'a> {
        Dest::new(out, &self.epilogue.store, rows, self.epilogue.n)
    }

    /// As [`LinearI8::run`], on the caller's thread.
    pub(crate) fn run_on_this_thread(
        &self,
        rows: usize,
        input: &[u8],
        dest: &Dest<'_>,
        scratch: &mut AlignedBuf,
    ) {
        let panels = 0..self.cpu.kernel().layout.panels(self.epilogue.n);
        for rows in row_blocks(rows, self.cpu.kernel().tile_rows) {
            self.block(input, rows, panels.clone(), dest, scratch);
        }
    }

    /// Multiplies rows `rows` of the input with the panels `panels` and stores the results.
    fn block(
        &self,
        input: &[u8],
        rows: Range<usize>,
        panels: Range<usize>,
        dest: &Dest<'_>,
        scratch: &mut AlignedBuf,
    ) {
        let (kernel, k) = (self.cpu.kernel(), self.k);
        let (weight, panel_len) = (self.weight.as_i8(), kernel.layout.panel_len(k));
        let block = Block { input, stride: code_stride(k), k, weight, panel_len, rows, panels };
        // SAFETY: a `Cpu` exists only for kernels that this processor can run.
        unsafe { (kernel.block)(&block, &self.initial, &self.epilogue, dest, scratch) }
    }

    /// Inputs, columns, and how results are stored.
    pub(crate) fn shape(&self) -> (usize, usize, &Store) {
        (self.k, self.epilogue.n, &self.epilogue.store)
    }
}
