//! Selects the launches that run as one fused block: the launches of a block of the network, or of one of
//! its branches.

use std::ops::Range;
use std::sync::Arc;

use swinq_kernels::{Cpu, FusedBlock, FusedRows};
use swinq_plan::{Geometry, Order, TensorId};

use super::launch::{Kernel, Launch};
use super::place::Images;

/// Consecutive launches, which run one by one or as one fused block.
pub(super) struct LaunchRange {
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

impl LaunchRange {
    /// One launch that is not part of a fused block.
    fn single(launch: usize) -> LaunchRange {
        LaunchRange { launches: launch..launch + 1, fused: None, min_rows: 0 }
    }

    /// The launches `range` of `launches`, prepared as one fused block over rows in `order`.
    fn fused_block(launches: &[Arc<Launch>], range: Range<usize>, order: Order, cpu: Cpu) -> LaunchRange {
        let ops = launches[range.clone()].iter().map(|launch| launch.block_op()).collect();
        let columns = launches[range.start].output.spec.columns;
        let fused = FusedBlock::new(ops, columns, cpu.fused_block_rows());
        LaunchRange { launches: range, fused: Some((fused, order)), min_rows: cpu.min_rows_per_thread() }
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
pub(super) enum LaunchGroup {
    /// A launch outside of blocks.
    Single(LaunchRange),
    /// A block. The MLP takes rows in any order, so it continues in the order of the attention before it. If
    /// that order has padding, the branches run apart, because in that order the MLP would compute rows of
    /// padding that nothing reads.
    Block {
        /// The stage.
        stage: usize,
        /// Attention and MLP.
        whole: LaunchRange,
        /// Attention, and the MLP in the order of the tokens.
        branches: [LaunchRange; 2],
    },
}

impl LaunchGroup {
    /// The parts that run, one after the other, for images of `geometry`.
    pub(super) fn parts(&self, geometry: &Geometry) -> &[LaunchRange] {
        match self {
            LaunchGroup::Single(part) => std::slice::from_ref(part),
            LaunchGroup::Block { stage, whole, branches } => {
                if geometry.grid(*stage).is_padded() {
                    branches
                } else {
                    std::slice::from_ref(whole)
                }
            }
        }
    }
}

/// The parts of all groups for images of `geometry`.
pub(super) fn parts<'a>(
    groups: &'a [LaunchGroup],
    geometry: &'a Geometry,
) -> impl Iterator<Item = &'a LaunchRange> {
    groups.iter().flat_map(|group| group.parts(geometry))
}

/// For each tensor the largest number of `images` for which it needs memory, if one thread runs all of them,
/// or up to `threads` threads run one of them: tensors inside a fused block need it only for images that run
/// launch by launch.
pub(super) fn most_images(
    groups: &[LaunchGroup],
    launches: &[Arc<Launch>],
    tensors: usize,
    images: Images<'_>,
    threads: usize,
) -> Vec<usize> {
    let mut most = vec![images.count; tensors];
    for part in parts(groups, images.geometry) {
        let one = Images { count: 1, ..images };
        let shared = (2..=threads).any(|threads| part.fused(one, threads).is_none());
        let unfused = part.most_unfused(images).max(usize::from(shared));
        part.inner(launches).for_each(|tensor| most[tensor.0] = unfused);
    }
    most
}

/// Divides `launches`, for `cpu`, into groups.
pub(super) fn groups(launches: &[Arc<Launch>], cpu: Cpu) -> Vec<LaunchGroup> {
    let mut groups = Vec::new();
    let mut next = 0;
    let branches: Vec<Range<usize>> = branches(launches).collect();
    let mut branches = branches.into_iter().peekable();
    while let Some(first) = branches.next() {
        groups.extend((next..first.start).map(|launch| LaunchGroup::Single(LaunchRange::single(launch))));
        let order = |branch: &Range<usize>| {
            launches[branch.start].order().expect("a branch begins with a gather of rows")
        };
        let fused = |range: Range<usize>, order| LaunchRange::fused_block(launches, range, order, cpu);
        next = first.end;
        let follows = |second: &Range<usize>| second.start == first.end;
        let attends = matches!(order(&first), Order::Windows { .. });
        let second = if attends { branches.next_if(follows) } else { None };
        match (order(&first), second) {
            (windows @ Order::Windows { stage, .. }, Some(second)) => {
                next = second.end;
                let tokens = order(&second);
                groups.push(LaunchGroup::Block {
                    stage,
                    whole: fused(first.start..second.end, windows),
                    branches: [fused(first, windows), fused(second, tokens)],
                });
            }
            (alone, _) => groups.push(LaunchGroup::Single(fused(first, alone))),
        }
    }
    groups.extend((next..launches.len()).map(|launch| LaunchGroup::Single(LaunchRange::single(launch))));
    groups
}

/// The branches of blocks. Each begins with a launch that gathers rows of the residual, and ends with the
/// next launch that adds to the residual. The norm of a feature map gathers rows, too, but nothing is added
/// before the next gather.
fn branches(launches: &[Arc<Launch>]) -> impl Iterator<Item = Range<usize>> {
    let gathers = |i: &usize| matches!(launches[*i].kernel, Kernel::Norm(..) | Kernel::Quantize(..));
    (0..launches.len()).filter(gathers).filter_map(move |first| {
        let mut rest = first + 1..launches.len();
        let last = rest.find(|i| launches[*i].output.residual || gathers(i))?;
        launches[last].output.residual.then_some(first..last + 1)
    })
}
