//! One launch: a prepared kernel over all rows of a batch.

use std::sync::Arc;

use swinq_kernels::attention::{AttentionIn, WindowAttention};
use swinq_kernels::layer_norm::{LayerNorm, MergeNorm, PooledNorm, ResidualNorm};
use swinq_kernels::linear::{LinearF32, LinearI8};
use swinq_kernels::patches::{Patches, add_table};
use swinq_kernels::{AlignedBuf, BlockOp, Pool, QkNorm, QuantizeRows};
use swinq_numerics::Images as Input;
use swinq_plan::{Element, Order};

use super::place::{Arena, Images, Place};
use super::positions::PositionTable;

/// A prepared kernel, with the order of the rows that it gathers or scatters.
pub(super) enum Kernel {
    Patches(Patches),
    LinearI8(Arc<LinearI8>, Order),
    LinearF32(Arc<LinearF32>, Order),
    Norm(Arc<LayerNorm>, Order),
    Quantize(Arc<QuantizeRows>, Order),
    ResidualNorm(Arc<ResidualNorm>, Order),
    NormInPlace(LayerNorm),
    AddTable(PositionTable),
    QkNorm(Arc<QkNorm>),
    Attention(Arc<WindowAttention>, Order),
    /// With the stage that ends with the merge.
    Merge(MergeNorm, usize),
    /// With the stage that ends with the merge.
    MergeRows(QuantizeRows, usize),
    Pool(PooledNorm),
}

/// One launch: a kernel, its input and its output.
pub(super) struct Launch {
    pub(super) name: String,
    pub(super) macs_per_row: u64,
    /// Bytes of weights and tables, read once.
    pub(super) weight_bytes: usize,
    /// `None`: the launch reads the caller's images.
    pub(super) input: Option<Place>,
    pub(super) output: Place,
    pub(super) kernel: Kernel,
}

impl Launch {
    /// Runs the launch over `images`. The first launch alone reads `caller`, the caller's images, and returns
    /// whether all of their values are finite; the others return true.
    pub(super) fn run(
        &self,
        pool: &mut Pool,
        images: Images<'_>,
        caller: Input<'_>,
        arena: &mut Arena<'_>,
    ) -> bool {
        let Some(input) = &self.input else {
            let Kernel::Patches(op) = &self.kernel else {
                unreachable!("only the patch gather reads the images")
            };
            let out = self.output.row_out(images, arena.buffer_mut(&self.output));
            return op.run(pool, images.count, caller, out);
        };
        if input.tensor == self.output.tensor {
            self.run_in_place(pool, images, arena.buffer_mut(input));
            return true;
        }
        let (read, write) = arena.pair(input, &self.output);
        self.run_between(pool, images, input, read, write);
        true
    }

    /// The f32 values of the tensor that the launch reads.
    ///
    /// # Panics
    /// If it reads the caller's images.
    pub(super) fn residual_mut<'a>(&self, images: Images<'_>, arena: &'a mut Arena<'_>) -> &'a mut [f32] {
        let input = self.input.as_ref().expect("the launch reads a tensor");
        &mut arena.buffer_mut(input).as_f32_mut()[..input.values(images)]
    }

    /// Multiply-accumulates of a run over `images`.
    pub(super) fn macs(&self, images: Images<'_>) -> u64 {
        self.macs_per_row * self.input.map_or(0, |input| input.rows(images)) as u64
    }

    /// Bytes that a run over `images` must move, with those between rows of codes; `pixels` is the bytes of
    /// the images, for the launch that reads them.
    pub(super) fn bytes(&self, images: Images<'_>, pixels: usize) -> u64 {
        let read = self.input.map_or(pixels, |input| input.bytes(images));
        let written = self.output.bytes(images) * if self.output.residual { 2 } else { 1 };
        (self.weight_bytes + read + written) as u64
    }

    fn run_in_place(&self, pool: &mut Pool, images: Images<'_>, residual: &mut AlignedBuf) {
        let values = &mut residual.as_f32_mut()[..self.output.values(images)];
        match &self.kernel {
            Kernel::NormInPlace(op) => op.run_in_place(pool, values),
            Kernel::AddTable(table) => add_table(pool, values, &table.of(images.geometry.grid(0).size)),
            _ => unreachable!("{} does not work in place", self.name),
        }
    }

    fn run_between(
        &self,
        pool: &mut Pool,
        images: Images<'_>,
        input: &Place,
        read: &AlignedBuf,
        write: &mut AlignedBuf,
    ) {
        let (output, rows, Images { count, geometry }) = (&self.output, input.rows(images), images);
        match &self.kernel {
            Kernel::LinearI8(op, order) => {
                let out = output.linear_out(images, write, geometry.map(*order));
                op.run(pool, rows, input.codes(images, read), out)
            }
            Kernel::LinearF32(op, order) => {
                let out = output.linear_out(images, write, geometry.map(*order));
                op.run(pool, rows, input.f32(images, read), out)
            }
            Kernel::Norm(op, order) => {
                let map = geometry.map(*order);
                op.run(pool, count, input.f32(images, read), map, output.row_out(images, write))
            }
            Kernel::Quantize(op, order) => {
                let map = geometry.map(*order);
                op.run(pool, count, input.f32(images, read), map, output.row_out(images, write))
            }
            Kernel::ResidualNorm(op, order) => {
                let residual = &mut write.as_f32_mut()[..output.values(images)];
                op.run(pool, count, input.f32(images, read), geometry.map(*order), residual)
            }
            Kernel::QkNorm(op) => op.run(pool, rows, input.f32(images, read), output.row_out(images, write)),
            Kernel::MergeRows(op, stage) => {
                let map = geometry.merge(*stage);
                op.run(pool, count, input.f32(images, read), map, output.row_out(images, write))
            }
            Kernel::Attention(op, order) => {
                let qkv = match input.spec.element {
                    Element::Code => AttentionIn::Codes(input.codes(images, read)),
                    Element::F32 | Element::Pixel => AttentionIn::F32(input.f32(images, read)),
                };
                op.run(pool, count, geometry.masks(*order), qkv, output.row_out(images, write))
            }
            Kernel::Merge(op, stage) => {
                let map = geometry.merge(*stage);
                op.run(pool, count, input.f32(images, read), map, output.row_out(images, write))
            }
            Kernel::Pool(op) => {
                let tokens = geometry.rows(input.spec.rows);
                op.run(pool, count, tokens, input.f32(images, read), output.row_out(images, write))
            }
            Kernel::Patches(_) | Kernel::NormInPlace(_) | Kernel::AddTable(_) => {
                unreachable!("{} reads no other tensor", self.name)
            }
        }
    }

    /// The order of the rows that the launch gathers or scatters.
    pub(super) fn order(&self) -> Option<Order> {
        match &self.kernel {
            Kernel::LinearI8(_, order) | Kernel::LinearF32(_, order) => Some(*order),
            Kernel::Norm(_, order) | Kernel::Quantize(_, order) | Kernel::ResidualNorm(_, order) => {
                Some(*order)
            }
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
            Kernel::QkNorm(_) => "normalize q, k",
            Kernel::MergeRows(..) => "merge",
            Kernel::Attention(..) => "attention",
            Kernel::Merge(..) => "merge + norm",
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
            Kernel::QkNorm(op) => BlockOp::QkNorm(Arc::clone(op)),
            Kernel::Attention(op, _) => BlockOp::Attention(Arc::clone(op)),
            _ => panic!("{} is no part of a block", self.name),
        }
    }
}
