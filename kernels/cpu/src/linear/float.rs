//! Linears in f32.

use std::ops::Range;

use swinq_numerics::sizes::check_len;

use super::dest::Dest;
use super::epilogue::Epilogue;
use super::kernel::{F32Kernel, f32_kernel};
use super::split::{Split, row_blocks};
use super::{Block, LinearOut, LinearSpec, Store};
use crate::buffer::AlignedBuf;
use crate::cpu::Cpu;
use crate::pool::Pool;

/// A linear in f32.
pub struct LinearF32 {
    /// A kernel that the processor can run: [`LinearF32::new`] took it from a [`Cpu`].
    kernel: &'static F32Kernel,
    k: usize,
    weight: AlignedBuf,
    epilogue: Epilogue,
}

impl LinearF32 {
    /// Packs `weight` `[n, k]`.
    ///
    /// # Panics
    /// If a vector's length does not match n and k.
    pub fn new(cpu: Cpu, spec: LinearSpec<'_>, weight: &[f32]) -> LinearF32 {
        let (n, k) = (spec.n, spec.k);
        check_len("LinearF32", "weight", weight.len(), &[n, k]);
        let kernel = f32_kernel(cpu.isa());
        LinearF32::packed(kernel, &spec, kernel.layout.pack_f32(n, k, weight))
    }

    /// As [`LinearF32::new`], with `weight` stored by inputs, `[k, n]`: the product with this matrix, not
    /// with its transpose.
    ///
    /// # Panics
    /// As [`LinearF32::new`].
    pub fn by_inputs(cpu: Cpu, spec: LinearSpec<'_>, weight: &[f32]) -> LinearF32 {
        let (n, k) = (spec.n, spec.k);
        check_len("LinearF32", "weight", weight.len(), &[k, n]);
        let kernel = f32_kernel(cpu.isa());
        LinearF32::packed(kernel, &spec, kernel.layout.pack_f32_inputs(n, k, weight))
    }

    fn packed(kernel: &'static F32Kernel, spec: &LinearSpec<'_>, weight: AlignedBuf) -> LinearF32 {
        let epilogue = Epilogue::new(spec, &vec![1.0; spec.n], kernel.layout.padded(spec.n), f64::INFINITY);
        LinearF32 { kernel, k: spec.k, weight, epilogue }
    }

    /// Runs the linear on `rows` rows `[rows, k]` and stores the result in `out`.
    ///
    /// # Panics
    /// If a size is wrong, or `out` does not match the op's [`Store`](super::Store).
    pub fn run(&self, pool: &mut Pool, rows: usize, input: &[f32], out: LinearOut<'_>) {
        let (n, k) = (self.epilogue.n, self.k);
        check_len("LinearF32", "input", input.len(), &[rows, k]);
        let dest = Dest::new(out, &self.epilogue.store, rows, n);
        let panels = self.kernel.layout.panels(n);
        let split = Split::new(rows, panels, 4 * k, self.kernel.tile_rows, pool.threads());
        pool.run(split.tasks(), &|task, _| {
            let (rows, panels) = split.block(task);
            self.block(input, rows, panels, &dest);
        });
    }

    /// As [`LinearI8::dest`](super::LinearI8::dest).
    pub(crate) fn dest<'a>(&self, rows: usize, out: LinearOut<'a>) -> Dest<'a> {
        Dest::new(out, &self.epilogue.store, rows, self.epilogue.n)
    }

    /// As [`LinearI8::run_on_this_thread`](super::LinearI8::run_on_this_thread).
    pub(crate) fn run_on_this_thread(&self, rows: usize, input: &[f32], dest: &Dest<'_>) {
        let panels = 0..self.kernel.layout.panels(self.epilogue.n);
        for rows in row_blocks(rows, self.kernel.tile_rows) {
            self.block(input, rows, panels.clone(), dest);
        }
    }

    /// Multiplies rows `rows` of the input with the panels `panels` and stores the results.
    fn block(&self, input: &[f32], rows: Range<usize>, panels: Range<usize>, dest: &Dest<'_>) {
        let (kernel, k) = (self.kernel, self.k);
        let (weight, panel_len) = (self.weight.as_f32(), kernel.layout.panel_len(k));
        let block = Block { input, stride: k, k, weight, panel_len, rows, panels };
        // SAFETY: the kernel belongs to the `Isa` of a `Cpu`, which exists only if the processor has the
        // instructions.
        unsafe { (kernel.block)(&block, &self.epilogue, dest) }
    }

    /// As [`LinearI8::shape`](super::LinearI8::shape).
    pub(crate) fn shape(&self) -> (usize, usize, &Store) {
        (self.k, self.epilogue.n, &self.epilogue.store)
    }
}
