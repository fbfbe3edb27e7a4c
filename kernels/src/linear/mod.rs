//! Products with a weight, each with everything that follows it in one pass: bias, GELU, quantization, residual.
//!
//! ```text
//! out[row] = store(gelu(output(input[row] x weight^T) + bias))
//! ```
//! A product is divided over row blocks and panels of columns. A kernel computes one tile of accumulators, a row tile
//! by a panel, in registers; its epilogue turns the tile into stored values while it is in the first-level cache.

mod dest;
mod epilogue;
mod pack;
mod scalar;
mod spec;
mod split;

use std::ops::Range;

pub use spec::{LinearOut, LinearSpec, Store};

use crate::buffer::AlignedBuf;
use crate::isa::{Cpu, Isa};
use crate::pool::Pool;
use crate::types::code_stride;
use dest::Dest;
use epilogue::Epilogue;
use pack::Layout;
use split::Split;

/// The largest k of an INT8 product: 255 * 128 * k fits an i32.
pub const MAX_INT8_K: usize = 65_793;

/// A product of INT8 codes with an INT8 weight, accumulated exactly in INT32.
pub struct LinearI8 {
    cpu: Cpu,
    k: usize,
    layout: Layout,
    /// The weight, in panels; for the scalar reference, as given.
    weight: AlignedBuf,
    epilogue: Epilogue,
}

impl LinearI8 {
    /// Packs the weight `codes` `[n, k]`; `multiplier[c]` is the input's scale times that of weight row c.
    ///
    /// # Panics
    /// When a vector's length does not suit n and k, or k exceeds [`MAX_INT8_K`].
    pub fn new(cpu: Cpu, spec: LinearSpec<'_>, codes: &[i8], multiplier: &[f32]) -> LinearI8 {
        let (n, k) = (spec.n, spec.k);
        assert_eq!(codes.len(), n * k, "weight: want i8 [{n}, {k}], have {} codes", codes.len());
        assert!(k <= MAX_INT8_K, "k = {k}: INT8 products take at most {MAX_INT8_K} inputs");
        let layout = layout_i8(cpu);
        let weight = layout.pack_i8(n, k, codes);
        let epilogue = Epilogue::new(&spec, multiplier, layout.panels(n) * layout.columns);
        LinearI8 { cpu, k, layout, weight, epilogue }
    }

    /// The product of `rows` rows of codes (`u8 = code + 128`, `[rows, code_stride(k)]`), stored in `out`.
    ///
    /// # Panics
    /// When a size is wrong, or `out` does not suit the op's [`Store`].
    pub fn run(&self, pool: &mut Pool, rows: usize, input: &[u8], out: LinearOut<'_>) {
        let stride = code_stride(self.k);
        assert_eq!(
            input.len(),
            rows * stride,
            "input: want u8 [{rows}, {stride}], have {} bytes",
            input.len()
        );
        let n = self.epilogue.n;
        let dest = Dest::new(out, &self.epilogue.store, rows, n);
        let split = Split::new(rows, self.layout.panels(n), stride, tile_rows(self.cpu), pool.threads());
        pool.run(split.tasks(), &|task, _| {
            let (rows, panels) = split.block(task);
            self.block(input, rows, panels, &dest);
        });
    }

    fn block(&self, input: &[u8], rows: Range<usize>, panels: Range<usize>, dest: &Dest<'_>) {
        let columns =
            panels.start * self.layout.columns..(panels.end * self.layout.columns).min(self.epilogue.n);
        scalar::block_i8(&self.epilogue, self.weight.as_i8(), input, self.k, (rows, columns), dest);
    }

    /// Multiply-accumulates per row.
    pub fn macs(&self) -> usize {
        self.epilogue.n * self.k
    }

    /// Bytes of the packed weight.
    pub fn packed_bytes(&self) -> usize {
        self.weight.len()
    }
}

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
        let layout = layout_f32(cpu);
        let weight = layout.pack_f32(n, k, weight);
        let epilogue = Epilogue::new(&spec, &vec![1.0; n], layout.panels(n) * layout.columns);
        LinearF32 { cpu, k, layout, weight, epilogue }
    }

    /// The product of `rows` rows `[rows, k]`, stored in `out`.
    ///
    /// # Panics
    /// When a size is wrong, or `out` does not suit the op's [`Store`].
    pub fn run(&self, pool: &mut Pool, rows: usize, input: &[f32], out: LinearOut<'_>) {
        let (n, k) = (self.epilogue.n, self.k);
        assert_eq!(input.len(), rows * k, "input: want f32 [{rows}, {k}], have {} values", input.len());
        let dest = Dest::new(out, &self.epilogue.store, rows, n);
        let split = Split::new(rows, self.layout.panels(n), 4 * k, tile_rows(self.cpu), pool.threads());
        pool.run(split.tasks(), &|task, _| {
            let (rows, panels) = split.block(task);
            self.block(input, rows, panels, &dest);
        });
    }

    fn block(&self, input: &[f32], rows: Range<usize>, panels: Range<usize>, dest: &Dest<'_>) {
        for panel in panels {
            let columns =
                panel * self.layout.columns..((panel + 1) * self.layout.columns).min(self.epilogue.n);
            let len = self.layout.panel_len(self.k);
            let weight = &self.weight.as_f32()[panel * len..][..len];
            scalar::panel_f32(&self.epilogue, weight, input, self.k, (rows.clone(), columns), dest);
        }
    }

    /// Multiply-accumulates per row.
    pub fn macs(&self) -> usize {
        self.epilogue.n * self.k
    }

    /// Bytes of the packed weight.
    pub fn packed_bytes(&self) -> usize {
        self.weight.len()
    }
}

fn layout_i8(cpu: Cpu) -> Layout {
    match cpu.isa() {
        _ => Layout { columns: 1, group: 1 },
    }
}

fn layout_f32(cpu: Cpu) -> Layout {
    match cpu.isa() {
        _ => Layout { columns: scalar::COLUMNS, group: 1 },
    }
}

fn tile_rows(cpu: Cpu) -> usize {
    match cpu.isa() {
        _ => scalar::ROWS,
    }
}
