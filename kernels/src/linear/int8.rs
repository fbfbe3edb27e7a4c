//! Products of INT8 codes.

use super::dest::Dest;
use super::epilogue::Epilogue;
#[cfg(target_arch = "aarch64")]
use super::neon;
use super::pack::Layout;
#[cfg(target_arch = "x86_64")]
use super::pack::compensation;
use super::split::{Split, row_blocks};
use super::{Block, LinearOut, LinearSpec, Store, scalar, tile_rows};
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512, avxvnni};
use crate::buffer::AlignedBuf;
use crate::isa::{Cpu, Isa};
use crate::pool::Pool;
use crate::types::code_stride;

/// The largest k of an INT8 product: 255 * 128 * k fits an i32.
pub const MAX_INT8_K: usize = 65_793;

/// A product of INT8 codes with an INT8 weight, accumulated exactly in INT32.
pub struct LinearI8 {
    cpu: Cpu,
    k: usize,
    layout: Layout,
    weight: AlignedBuf,
    /// The initial accumulator of each column, where the kernel multiplies `code + 128`.
    #[cfg(target_arch = "x86_64")]
    start: Vec<i32>,
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
        let layout = layout(cpu);
        let padded = layout.panels(n) * layout.columns;
        #[cfg_attr(not(target_arch = "x86_64"), allow(unused_mut))]
        let mut epilogue = Epilogue::new(&spec, multiplier, padded, 128.0 * 128.0 * k as f64);
        #[cfg(target_arch = "x86_64")]
        let mut start = compensation(k, codes, padded);
        #[cfg(target_arch = "x86_64")]
        if cpu.isa() == Isa::Avx512Vnni {
            let reach =
                |c: usize| codes[c * k..][..k].iter().map(|w| 128 * i64::from(w.unsigned_abs())).sum();
            epilogue.quick = avx512::quick::Plan::new(&epilogue, reach).map(Box::new);
            if let Some(plan) = &epilogue.quick {
                start.iter_mut().zip(plan.offset()).for_each(|(start, offset)| *start += offset);
            }
        }
        LinearI8 {
            cpu,
            k,
            layout,
            weight: layout.pack_i8(n, k, codes),
            #[cfg(target_arch = "x86_64")]
            start,
            epilogue,
        }
    }

    /// The product of `rows` rows of codes (`u8 = code + 128`, `[rows, code_stride(k)]`), stored in `out`.
    ///
    /// # Panics
    /// When a size is wrong, or `out` does not suit the op's [`Store`](super::Store).
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
        pool.run(split.tasks(), &|task, scratch| {
            let (rows, panels) = split.block(task);
            let (weight, panel_len) = (self.weight.as_i8(), self.layout.panel_len(self.k));
            let block = Block { input, stride, weight, panel_len, rows, panels };
            self.block(&block, &dest, &mut scratch.op);
        });
    }

    /// Where [`LinearI8::run_on_this_thread`] puts `rows` rows.
    ///
    /// # Panics
    /// As [`LinearI8::run`].
    pub(crate) fn dest<'a>(&self, rows: usize, out: LinearOut<'a>) -> Dest<'a> {
        Dest::new(out, &self.epilogue.store, rows, self.epilogue.n)
    }

    /// The product of `rows` rows `input`, as [`LinearI8::run`] has them, on the caller's thread.
    pub(crate) fn run_on_this_thread(
        &self,
        rows: usize,
        input: &[u8],
        dest: &Dest<'_>,
        scratch: &mut AlignedBuf,
    ) {
        let (stride, panels) = (code_stride(self.k), 0..self.layout.panels(self.epilogue.n));
        let (weight, panel_len) = (self.weight.as_i8(), self.layout.panel_len(self.k));
        for rows in row_blocks(rows, tile_rows(self.cpu)) {
            let block = Block { input, stride, weight, panel_len, rows, panels: panels.clone() };
            self.block(&block, dest, scratch);
        }
    }

    fn block(&self, block: &Block<'_, u8, i8>, dest: &Dest<'_>, scratch: &mut AlignedBuf) {
        match self.cpu.isa() {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the token proves the features.
            Isa::Avx512Vnni => unsafe { avx512::block_i8(block, &self.start, &self.epilogue, dest) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the token proves the features.
            Isa::AvxVnni => unsafe { avxvnni::block_i8(block, &self.start, &self.epilogue, dest) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the token proves the features.
            Isa::Avx2 => unsafe { avx2::block_i8(block, &self.epilogue, dest, scratch) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: the token proves the features.
            Isa::NeonDotprod => unsafe { neon::block_i8(block, &self.epilogue, dest) },
            _ => scalar::block_i8(block, self.k, &self.epilogue, dest, scratch),
        }
    }

    /// Inputs and columns, and what is done with the results.
    pub(crate) fn shape(&self) -> (usize, usize, &Store) {
        (self.k, self.epilogue.n, &self.epilogue.store)
    }
}

fn layout(cpu: Cpu) -> Layout {
    match cpu.isa() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni => avx512::INT8,
        #[cfg(target_arch = "x86_64")]
        Isa::AvxVnni => avxvnni::INT8,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => avx2::INT8,
        #[cfg(target_arch = "aarch64")]
        Isa::NeonDotprod => neon::INT8,
        _ => scalar::INT8,
    }
}
