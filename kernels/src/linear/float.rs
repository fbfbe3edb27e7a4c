//! Products in f32.

use super::dest::Dest;
use super::epilogue::Epilogue;
use super::pack::Layout;
use super::split::{Split, row_blocks};
use super::{Block, LinearOut, LinearSpec, Store, scalar, tile_rows};
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};
use crate::buffer::AlignedBuf;
use crate::isa::Cpu;
#[cfg(target_arch = "x86_64")]
use crate::isa::Isa;
use crate::pool::Pool;

/// A product in f32.
pub struct LinearF32 {
    cpu: Cpu,
    k: usize,
    layout: Layout,
    weight: AlignedBuf,
    epilogue: Epilogue,
}

impl LinearF32 {
    /// Packs `weight` `[n, k]`.
    ///
    /// # Panics
    /// When a vector's length does not suit n and k.
    pub fn new(cpu: Cpu, spec: LinearSpec<'_>, weight: &[f32]) -> LinearF32 {
        let (n, k) = (spec.n, spec.k);
        assert_eq!(weight.len(), n * k, "weight: want f32 [{n}, {k}], have {} values", weight.len());
        let layout = layout(cpu);
        let epilogue = Epilogue::new(&spec, &vec![1.0; n], layout.panels(n) * layout.columns, f64::INFINITY);
        LinearF32 { cpu, k, layout, weight: layout.pack_f32(n, k, weight), epilogue }
    }

    /// The product of `rows` rows `[rows, k]`, stored in `out`.
    ///
    /// # Panics
    /// When a size is wrong, or `out` does not suit the op's [`Store`](super::Store).
    pub fn run(&self, pool: &mut Pool, rows: usize, input: &[f32], out: LinearOut<'_>) {
        let (n, k) = (self.epilogue.n, self.k);
        assert_eq!(input.len(), rows * k, "input: want f32 [{rows}, {k}], have {} values", input.len());
        let dest = Dest::new(out, &self.epilogue.store, rows, n);
        let split = Split::new(rows, self.layout.panels(n), 4 * k, tile_rows(self.cpu), pool.threads());
        pool.run(split.tasks(), &|task, _| {
            let (rows, panels) = split.block(task);
            let (weight, panel_len) = (self.weight.as_f32(), self.layout.panel_len(k));
            self.block(&Block { input, stride: k, weight, panel_len, rows, panels }, &dest);
        });
    }

    /// As [`LinearI8::dest`](super::LinearI8::dest).
    pub(crate) fn dest<'a>(&self, rows: usize, out: LinearOut<'a>) -> Dest<'a> {
        Dest::new(out, &self.epilogue.store, rows, self.epilogue.n)
    }

    /// As [`LinearI8::run_on_this_thread`](super::LinearI8::run_on_this_thread).
    pub(crate) fn run_on_this_thread(&self, rows: usize, input: &[f32], dest: &Dest<'_>) {
        let (k, panels) = (self.k, 0..self.layout.panels(self.epilogue.n));
        let (weight, panel_len) = (self.weight.as_f32(), self.layout.panel_len(k));
        for rows in row_blocks(rows, tile_rows(self.cpu)) {
            let block = Block { input, stride: k, weight, panel_len, rows, panels: panels.clone() };
            self.block(&block, dest);
        }
    }

    fn block(&self, block: &Block<'_, f32, f32>, dest: &Dest<'_>) {
        match self.cpu.isa() {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the token proves the features.
            Isa::Avx512Vnni => unsafe { avx512::block_f32(block, &self.epilogue, dest) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the token proves the features.
            Isa::Avx2 | Isa::AvxVnni => unsafe { avx2::block_f32(block, &self.epilogue, dest) },
            _ => scalar::block_f32(block, &self.epilogue, dest),
        }
    }

    /// As [`LinearI8::shape`](super::LinearI8::shape).
    pub(crate) fn shape(&self) -> (usize, usize, &Store) {
        (self.k, self.epilogue.n, &self.epilogue.store)
    }
}

fn layout(cpu: Cpu) -> Layout {
    match cpu.isa() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni => avx512::F32,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::AvxVnni => avx2::F32,
        _ => scalar::F32,
    }
}
