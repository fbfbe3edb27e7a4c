//! The CPU backend: each step of the plan is one launch of a prepared kernel.

mod lower;

use std::sync::Arc;

use swinq_kernels::attention::{AttentionIn, WindowAttention};
use swinq_kernels::layer_norm::{LayerNorm, MergeNorm, PooledNorm};
use swinq_kernels::linear::{LinearF32, LinearI8, LinearOut};
use swinq_kernels::patches::{Patches, add_table};
use swinq_kernels::{AlignedBuf, Pool, RowMap, RowOut, code_stride};

use crate::plan::{Element, TensorSpec};
use crate::trace::TracedValues;

/// A prepared kernel.
enum Kernel {
    Patches(Patches),
    LinearI8(LinearI8, Arc<RowMap>),
    LinearF32(LinearF32, Arc<RowMap>),
    Norm(LayerNorm, Arc<RowMap>),
    NormInPlace(LayerNorm),
    AddTable(Vec<f32>),
    Attention(Box<WindowAttention>),
    Merge(MergeNorm),
    Pool(PooledNorm),
}

/// A tensor in the arena.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    slot: usize,
    rows: usize,
    columns: usize,
    element: Element,
    residual: bool,
}

impl Place {
    fn new(spec: &TensorSpec, slot: usize, residual: bool) -> Place {
        Place { slot, rows: spec.rows, columns: spec.columns, element: spec.element, residual }
    }

    fn values(&self, images: usize) -> usize {
        images * self.rows * self.columns
    }

    fn code_bytes(&self, images: usize) -> usize {
        images * self.rows * code_stride(self.columns)
    }

    /// Bytes of the tensor.
    fn bytes(&self, images: usize) -> usize {
        match self.element {
            Element::Code => self.code_bytes(images),
            Element::F32 => 4 * self.values(images),
            Element::Pixel => self.values(images),
        }
    }

    fn f32<'a>(&self, images: usize, arena: &'a AlignedBuf) -> &'a [f32] {
        &arena.as_f32()[..self.values(images)]
    }

    fn codes<'a>(&self, images: usize, arena: &'a AlignedBuf) -> &'a [u8] {
        &arena.as_u8()[..self.code_bytes(images)]
    }

    /// The tensor's values.
    pub(crate) fn traced(&self, images: usize, arena: &[AlignedBuf]) -> TracedValues {
        let slot = &arena[self.slot];
        match self.element {
            Element::Code => TracedValues::cpu_codes(self.codes(images, slot), self.columns),
            Element::F32 | Element::Pixel => TracedValues::Float(self.f32(images, slot).to_vec()),
        }
    }

    fn row_out<'a>(&self, images: usize, arena: &'a mut AlignedBuf) -> RowOut<'a> {
        match self.element {
            Element::Code => RowOut::Codes(&mut arena.as_u8_mut()[..self.code_bytes(images)]),
            Element::F32 | Element::Pixel => RowOut::F32(&mut arena.as_f32_mut()[..self.values(images)]),
        }
    }

    fn linear_out<'a>(&self, images: usize, arena: &'a mut AlignedBuf, map: &'a RowMap) -> LinearOut<'a> {
        if self.residual {
            return LinearOut::Residual { stream: &mut arena.as_f32_mut()[..self.values(images)], map };
        }
        match self.row_out(images, arena) {
            RowOut::F32(out) => LinearOut::F32(out),
            RowOut::Codes(out) => LinearOut::Codes(out),
        }
    }
}

/// One launch: a kernel, where it reads and where it writes.
pub(crate) struct Launch {
    pub(crate) name: String,
    pub(crate) macs: u64,
    /// Bytes of weights and tables, read once.
    weight_bytes: usize,
    /// `None` reads the caller's pixels.
    input: Option<Place>,
    pub(crate) output: Place,
    kernel: Kernel,
}

impl Launch {
    /// Runs the launch over `images` images. `pixels` is read by the first launch only.
    pub(crate) fn run(&self, pool: &mut Pool, images: usize, pixels: &[u8], arena: &mut [AlignedBuf]) {
        let Some(input) = &self.input else {
            let Kernel::Patches(op) = &self.kernel else {
                unreachable!("only the patch gather reads pixels")
            };
            return op.run(pool, images, pixels, self.output.row_out(images, &mut arena[self.output.slot]));
        };
        if input.slot == self.output.slot {
            return self.run_in_place(pool, images, &mut arena[input.slot]);
        }
        let [read, write] =
            arena.get_disjoint_mut([input.slot, self.output.slot]).expect("the layout gave two slots");
        self.run_between(pool, images, input, read, write);
    }

    /// Bytes that a run over `images` images must move, `pixels` among them if it reads those.
    pub(crate) fn bytes(&self, images: usize, pixels: usize) -> u64 {
        let read = self.input.map_or(pixels, |input| input.bytes(images));
        let written = self.output.bytes(images) * if self.output.residual { 2 } else { 1 };
        (self.weight_bytes + read + written) as u64
    }

    fn run_in_place(&self, pool: &mut Pool, images: usize, stream: &mut AlignedBuf) {
        let values = &mut stream.as_f32_mut()[..self.output.values(images)];
        match &self.kernel {
            Kernel::NormInPlace(op) => op.run_in_place(pool, values),
            Kernel::AddTable(table) => add_table(pool, values, table),
            _ => unreachable!("{} does not work in place", self.name),
        }
    }

    fn run_between(
        &self,
        pool: &mut Pool,
        images: usize,
        input: &Place,
        read: &AlignedBuf,
        write: &mut AlignedBuf,
    ) {
        let (output, rows) = (&self.output, images * input.rows);
        match &self.kernel {
            Kernel::LinearI8(op, map) => {
                op.run(pool, rows, input.codes(images, read), output.linear_out(images, write, map))
            }
            Kernel::LinearF32(op, map) => {
                op.run(pool, rows, input.f32(images, read), output.linear_out(images, write, map))
            }
            Kernel::Norm(op, map) => {
                op.run(pool, images, input.f32(images, read), map, output.row_out(images, write))
            }
            Kernel::Attention(op) => {
                let qkv = match input.element {
                    Element::Code => AttentionIn::Codes(input.codes(images, read)),
                    Element::F32 | Element::Pixel => AttentionIn::F32(input.f32(images, read)),
                };
                op.run(pool, images, qkv, output.row_out(images, write))
            }
            Kernel::Merge(op) => op.run(pool, images, input.f32(images, read), output.row_out(images, write)),
            Kernel::Pool(op) => op.run(pool, images, input.f32(images, read), output.row_out(images, write)),
            Kernel::Patches(_) | Kernel::NormInPlace(_) | Kernel::AddTable(_) => {
                unreachable!("{} reads no other tensor", self.name)
            }
        }
    }

    /// The f32 values that the launch wrote.
    pub(crate) fn output_f32<'a>(&self, images: usize, arena: &'a [AlignedBuf]) -> &'a [f32] {
        self.output.f32(images, &arena[self.output.slot])
    }
}

pub(crate) use lower::lower;
