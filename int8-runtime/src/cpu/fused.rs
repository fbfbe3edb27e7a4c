//! Selects the launches that run as one fused block: the launches of a block of the network, or of half a
//! block.

use std::ops::Range;
use std::sync::Arc;

use swinq_kernels::{Cpu, FusedBlock, FusedRows};
use swinq_plan::{Geometry, Order, TensorId};

use super::launch::{Kernel, Launch};
use super::place::Images;

/// Consecutive launches, which run one by one or as one fused block.
pub(super) struct Part {
    pub(super) launches: Range<usize>,
    /// The fused block, with the order of its rows.
    fused: Option<(FusedBlock, Order)>,
    /// Minimum rows per thread for the fused block to run, because every thread reads all weights.
    min_rows: usize,
}

/// A fused block and the rows of an image.
pub(super) struct Fused<'a> {
    pub(super) block: &'a FusedBlock,
    pub(super) rows: FusedRows<'a>,
}

impl Part {
    /// One launch that is not part of a fused block.
    fn single(launch: usize) -> Part {
        Part { launches: launch..launch + 1, fused: None, min_rows: 0 }
    }

    /// The launches `range` of `launches`, prepared as one fused block over rows in `order`.
    fn fused_block(launches: &[Arc<Launch>], range: Range<usize>, order: Order, cpu: Cpu) -> Part {
        let ops = launches[range.clone()].iter().map(|launch| launch.block_op()).collect();
        let columns = launches[range.start].output.spec.columns;
        let fused = FusedBlock::new(ops, columns, cpu.fused_block_rows());
        Part { launches: range, fused: Some((fused, order)), min_rows: cpu.min_rows_per_thread() }
    }

    /// The fused block that runs instead of the launches over `images`, if it is faster: it must keep
    /// all `threads` threads busy, and each thread must have enough rows, because it reads all weights.
    pub(super) fn fused<'a>(&'a self, images: Images<'a>, threads: usize) -> Option<Fused<'a>> {
        let (block, order) = self.fused.as_ref()?;
        let (map, masks) = (images.geometry.map(*order), images.geometry.masks(*order));
        let units = block.units(images.count, map.rows().len());
        let most = units.div_ceil(threads);
        let busy = 8 * most * threads <= 9 * units;
        let rows = FusedRows { map, masks };
        (busy && most * block.unit_rows() >= self.min_rows).then_some(Fused { block, rows })
    }

    /// The largest batch, of at most `images`, that runs launch by launch on one thread.
    fn most_unfused(&self, images: Images<'_>) -> usize {
        let unfused = |&count: &usize| self.fused(Images { count, ..images }, 1).is_none();
        (1..=images.count).rev().find(unfused).unwrap_or(0)
    }

    /// The tensors between the launches. A fused block does not keep them in the arena.
    fn inner(&self, launches: &[Arc<Launch>]) -> impl Iterator<Item = TensorId> {
        let launches = &launches[self.launches.clone()];
        let inner = launches.iter().filter(|launch| self.fused.is_some() && !launch.output.residual);
        inner.map(|launch| launch.output.tensor)
    }
}

/// A launch outside of blocks, or the launches of a block.
pub(super) enum Segment {
    /// A launch outside of blocks.
    Single(Part),
    /// A block. The MLP takes rows in any order, so it continues in the order of the attention before it. If that order has
    /// padding, the halves run apart, because in that order the MLP would compute rows of padding that nothing reads.
    Block {
        /// The stage.
        stage: usize,
        /// Attention and MLP.
        whole: Part,
        /// Attention, and the MLP in the order of the tokens.
        halves: [Part; 2],
    },
}

impl Segment {
    /// The parts that run, one after the other, for images of `geometry`.
    pub(super) fn parts(&self, geometry: &Geometry) -> &[Part] {
        match self {
            Segment::Single(part) => std::slice::from_ref(part),
            Segment::Block { stage, whole, halves } => {
                if geometry.grid(*stage).is_padded() {
                    halves
                } else {
                    std::slice::from_ref(whole)
                }
            }
        }
    }
}

/// The parts of all segments for images of `geometry`.
pub(super) fn parts<'a>(segments: &'a [Segment], geometry: &'a Geometry) -> impl Iterator<Item = &'a Part> {
    segments.iter().flat_map(|segment| segment.parts(geometry))
}

/// For each tensor the largest number of `images` for which it needs memory, if one thread runs all of them, or up to `threads`
/// threads run one of them: tensors inside a fused block need it only for images that run launch by launch.
pub(super) fn most_images(
    segments: &[Segment],
    launches: &[Arc<Launch>],
    tensors: usize,
    images: Images<'_>,
    threads: usize,
) -> Vec<usize> {
    let mut most = vec![images.count; tensors];
    for part in parts(segments, images.geometry) {
        let one = Images { count: 1, ..images };
        let shared = (2..=threads).any(|threads| part.fused(one, threads).is_none());
        let unfused = part.most_unfused(images).max(usize::from(shared));
        part.inner(launches).for_each(|tensor| most[tensor.0] = unfused);
    }
    most
}

/// Divides `launches`, for `cpu`, into segments.
pub(super) fn segments(launches: &[Arc<Launch>], cpu: Cpu) -> Vec<Segment> {
    let mut segments = Vec::new();
    let mut next = 0;
    let halves: Vec<Range<usize>> = halves(launches).collect();
    let mut halves = halves.into_iter().peekable();
    while let Some(first) = halves.next() {
        segments.extend((next..first.start).map(|launch| Segment::Single(Part::single(launch))));
        let order =
            |half: &Range<usize>| launches[half.start].order().expect("a half begins with a gather of rows");
        let fused = |range: Range<usize>, order| Part::fused_block(launches, range, order, cpu);
        next = first.end;
        let follows = |second: &Range<usize>| second.start == first.end;
        let attends = matches!(order(&first), Order::Windows { .. });
        let second = if attends { halves.next_if(follows) } else { None };
        match (order(&first), second) {
            (windows @ Order::Windows { stage, .. }, Some(second)) => {
                next = second.end;
                let tokens = order(&second);
                segments.push(Segment::Block {
                    stage,
                    whole: fused(first.start..second.end, windows),
                    halves: [fused(first, windows), fused(second, tokens)],
                });
            }
            (alone, _) => segments.push(Segment::Single(fused(first, alone))),
        }
    }
    segments.extend((next..launches.len()).map(|launch| Segment::Single(Part::single(launch))));
    segments
}

/// The halves of blocks. Each half begins with a launch that gathers rows of the stream, and ends with the
/// next launch that adds to the stream. The norm of a feature map gathers rows, too, but nothing is added before the next gather.
fn halves(launches: &[Arc<Launch>]) -> impl Iterator<Item = Range<usize>> {
    let gathers = |i: &usize| matches!(launches[*i].kernel, Kernel::Norm(..) | Kernel::Quantize(..));
    (0..launches.len()).filter(gathers).filter_map(move |first| {
        let mut rest = first + 1..launches.len();
        let last = rest.find(|i| launches[*i].output.residual || gathers(i))?;
        launches[last].output.residual.then_some(first..last + 1)
    })
}
