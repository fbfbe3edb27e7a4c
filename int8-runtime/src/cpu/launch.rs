//! One launch: a prepared kernel over all rows of a batch.

use std::sync::Arc;

use swinq_kernels::attention::{AttentionIn, WindowAttention};
use swinq_kernels::layer_norm::{LayerNorm, MergeNorm, PooledNorm, ResidualNorm};
use swinq_kernels::linear::{LinearF32, LinearI8};
use swinq_kernels::patches::{Patches, add_table};
use swinq_kernels::{AlignedBuf, BlockOp, NormalizeHeads, Pool, QuantizeRows};
use swinq_numerics::RowMap;
use swinq_plan::Element;

use super::place::{Arena, Place};

/// A prepared kernel.
pub(super) enum Kernel {
    Patches(Patches),
    LinearI8(Arc<LinearI8>, Arc<RowMap>),
    LinearF32(Arc<LinearF32>, Arc<RowMap>),
    Norm(Arc<LayerNorm>, Arc<RowMap>),
    Quantize(Arc<QuantizeRows>, Arc<RowMap>),
    ResidualNorm(Arc<ResidualNorm>, Arc<RowMap>),
    NormInPlace(LayerNorm),
    AddTable(Vec<f32>),
    NormalizeHeads(Arc<NormalizeHeads>),
    Attention(Arc<WindowAttention>),
    Merge(MergeNorm),
    MergeRows(QuantizeRows, Arc<RowMap>),
    Pool(PooledNorm),
}

/// One launch: a kernel, its input and its output.
pub(super) struct Launch {
    pub(super) name: String,
    pub(super) macs: u64,
    /// Bytes of weights and tables, read once.
    pub(super) weight_bytes: usize,
    /// `None`: the launch reads the caller's pixels.
    pub(super) input: Option<Place>,
    pub(super) output: Place,
    pub(super) kernel: Kernel,
}

impl Launch {
    /// Runs the launch over `images` images. `pixels` is read by the first launch only.
    pub(super) fn run(&self, pool: &mut Pool, images: usize, pixels: &[u8], arena: &mut Arena) {
        let Some(input) = &self.input else {
            let Kernel::Patches(op) = &self.kernel else {
                unreachable!("only the patch gather reads pixels")
            };
            return op.run(pool, images, pixels, self.output.row_out(images, arena.buffer_mut(&self.output)));
        };
        if input.tensor == self.output.tensor {
            return self.run_in_place(pool, images, arena.buffer_mut(input));
        }
        let (read, write) = arena.pair(input, &self.output);
        self.run_between(pool, images, input, read, write);
    }

    /// The f32 values of the tensor that the launch reads.
    ///
    /// # Panics
    /// If it reads the caller's pixels.
    pub(super) fn stream_mut<'a>(&self, images: usize, arena: &'a mut Arena) -> &'a mut [f32] {
        let input = self.input.as_ref().expect("the launch reads a tensor");
        &mut arena.buffer_mut(input).as_f32_mut()[..input.values(images)]
    }

    /// Bytes that a run over `images` images must move, with those between rows of codes; `pixels` is the bytes of the
    /// images, for the launch that reads them.
    pub(super) fn bytes(&self, images: usize, pixels: usize) -> u64 {
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
        let (output, rows) = (&self.output, images * input.spec.rows);
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
            Kernel::Quantize(op, map) => {
                op.run(pool, images, input.f32(images, read), map, output.row_out(images, write))
            }
            Kernel::ResidualNorm(op, map) => {
                let stream = &mut write.as_f32_mut()[..output.values(images)];
                op.run(pool, images, input.f32(images, read), map, stream)
            }
            Kernel::NormalizeHeads(op) => {
                op.run(pool, rows, input.f32(images, read), output.row_out(images, write))
            }
            Kernel::MergeRows(op, map) => {
                op.run(pool, images, input.f32(images, read), map, output.row_out(images, write))
            }
            Kernel::Attention(op) => {
                let qkv = match input.spec.element {
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

    /// The map of the rows that the launch gathers or scatters.
    pub(super) fn map(&self) -> Option<&Arc<RowMap>> {
        match &self.kernel {
            Kernel::LinearI8(_, map) | Kernel::LinearF32(_, map) => Some(map),
            Kernel::Norm(_, map) | Kernel::Quantize(_, map) | Kernel::ResidualNorm(_, map) => Some(map),
            _ => None,
        }
    }

    /// A line for listings: the launch, its op, the elements that it reads and writes, and `detail`.
    pub(super) fn describe(&self, detail: &str) -> String {
        let op = match &self.kernel {
            Kernel::Patches(_) => "patches",
            Kernel::LinearI8(..) => "linear INT8",
            Kernel::LinearF32(..) => "linear f32",
            Kernel::Norm(..) | Kernel::NormInPlace(_) | Kernel::ResidualNorm(..) => "norm",
            Kernel::Quantize(..) => "quantize",
            Kernel::AddTable(_) => "add table",
            Kernel::NormalizeHeads(_) => "normalize q, k",
            Kernel::MergeRows(..) => "merge",
            Kernel::Attention(_) => "attention",
            Kernel::Merge(_) => "merge + norm",
            Kernel::Pool(_) => "norm + mean",
        };
        let reads = self.input.map_or(Element::Pixel, |input| input.spec.element).name();
        let writes = self.output.spec.element.name();
        let line = format!("  {:<34} {op:<18} {reads:>5} -> {writes:<5} {detail}", self.name);
        line.trim_end().to_owned()
    }

    /// The launch as an op of a fused block.
    ///
    /// # Panics
    /// If the launch cannot be part of a fused block.
    pub(super) fn block_op(&self) -> BlockOp {
        match &self.kernel {
            Kernel::LinearI8(op, _) => BlockOp::LinearI8(Arc::clone(op)),
            Kernel::LinearF32(op, _) => BlockOp::LinearF32(Arc::clone(op)),
            Kernel::Norm(op, _) => BlockOp::Norm(Arc::clone(op)),
            Kernel::Quantize(op, _) => BlockOp::Quantize(Arc::clone(op)),
            Kernel::ResidualNorm(op, _) => BlockOp::ResidualNorm(Arc::clone(op)),
            Kernel::NormalizeHeads(op) => BlockOp::NormalizeHeads(Arc::clone(op)),
            Kernel::Attention(op) => BlockOp::Attention(Arc::clone(op)),
            _ => panic!("{} is no part of a block", self.name),
        }
    }
}
