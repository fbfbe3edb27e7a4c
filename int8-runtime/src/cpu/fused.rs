//! Selects the launches that run as one fused block: the launches of a block of the network, or of half a
//! block.

use std::ops::Range;
use std::sync::Arc;

use swinq_kernels::{Cpu, FusedBlock};
use swinq_numerics::{PAD, RowMap};
use swinq_plan::TensorId;

use super::launch::{Kernel, Launch};

/// Consecutive launches, which run one by one or as one fused block.
pub(super) struct Segment {
    pub(super) launches: Range<usize>,
    fused: Option<FusedBlock>,
    /// Minimum rows per thread for the fused block to run, because every thread reads all weights.
    min_rows: usize,
}

impl Segment {
    /// One launch that is not part of a fused block.
    fn single(launch: usize) -> Segment {
        Segment { launches: launch..launch + 1, fused: None, min_rows: 0 }
    }

    /// The launches `range` of `launches`, prepared as one fused block over rows in the order of `map`.
    fn fused_block(launches: &[Arc<Launch>], range: Range<usize>, map: &Arc<RowMap>, cpu: Cpu) -> Segment {
        let ops = launches[range.clone()].iter().map(|launch| launch.block_op()).collect();
        let columns = launches[range.start].output.spec.columns;
        let fused = FusedBlock::new(ops, Arc::clone(map), columns, cpu.fused_block_rows());
        Segment { launches: range, fused: Some(fused), min_rows: cpu.min_rows_per_thread() }
    }

    /// The fused block that runs instead of the launches over `images` images, if it is faster: it must keep
    /// all `threads` threads busy, and each thread must have enough rows, because it reads all weights.
    pub(super) fn fused(&self, images: usize, threads: usize) -> Option<&FusedBlock> {
        let block = self.fused.as_ref()?;
        let units = block.units(images);
        let most = units.div_ceil(threads);
        let busy = 8 * most * threads <= 9 * units;
        (busy && most * block.unit_rows() >= self.min_rows).then_some(block)
    }

    /// The largest batch, of at most `images` images, that runs launch by launch.
    pub(super) fn most_unfused(&self, images: usize, threads: usize) -> usize {
        (1..=images).rev().find(|&images| self.fused(images, threads).is_none()).unwrap_or(0)
    }

    /// The tensors between the launches. A fused block does not keep them in the arena.
    pub(super) fn inner(&self, launches: &[Arc<Launch>]) -> impl Iterator<Item = TensorId> {
        let launches = &launches[self.launches.clone()];
        let inner = launches.iter().filter(|launch| self.fused.is_some() && !launch.output.residual);
        inner.map(|launch| launch.output.tensor)
    }
}

/// Divides `launches`, for `cpu`, into segments: one for each block or half of a block, and one for each
/// launch outside of blocks.
pub(super) fn segments(launches: &[Arc<Launch>], cpu: Cpu) -> Vec<Segment> {
    let mut segments = Vec::new();
    let mut next = 0;
    for (range, map) in blocks(launches) {
        segments.extend((next..range.start).map(Segment::single));
        next = range.end;
        segments.push(Segment::fused_block(launches, range, map, cpu));
    }
    segments.extend((next..launches.len()).map(Segment::single));
    segments
}

/// The blocks among `launches`, or their halves, each with the order of its rows.
fn blocks(launches: &[Arc<Launch>]) -> Vec<(Range<usize>, &Arc<RowMap>)> {
    let mut found: Vec<(Range<usize>, &Arc<RowMap>)> = Vec::new();
    for half in halves(launches) {
        let attends = launches[half.clone()].iter().any(|l| matches!(l.kernel, Kernel::Attention(_)));
        match found.last_mut() {
            // The MLP takes rows in any order, so it continues in the order of the attention before it. If
            // that order has padding, the MLP is a separate block, because in that order it would compute
            // rows of padding that nothing reads.
            Some((block, map)) if !attends && block.end == half.start && !map.rows().contains(&PAD) => {
                block.end = half.end;
            }
            _ => {
                let map = launches[half.start].map().expect("a half begins with a gather of rows");
                found.push((half, map));
            }
        }
    }
    found
}

/// The halves of blocks. Each half begins with a launch that gathers rows of the stream, and ends with the
/// next launch that adds to the stream.
fn halves(launches: &[Arc<Launch>]) -> impl Iterator<Item = Range<usize>> {
    let gathers = |i: &usize| matches!(launches[*i].kernel, Kernel::Norm(..) | Kernel::Quantize(..));
    (0..launches.len()).filter(gathers).map(|first| {
        let last = (first..launches.len()).find(|&i| launches[i].output.residual);
        first..last.expect("a gather of rows begins a half of a block") + 1
    })
}
