//! Which launches run as one: a block, or a half of one, group of windows by group of windows.

use std::ops::Range;
use std::sync::Arc;

use swinq_kernels::{Cpu, FusedBlock, PAD, RowMap};

use super::launch::{Kernel, Launch};
use crate::plan::TensorId;

/// Consecutive launches.
pub(super) struct Section {
    pub(super) launches: Range<usize>,
    tiled: Option<Tiled>,
}

/// A way to run the launches of a section as one.
struct Tiled {
    chain: FusedBlock,
    threads: usize,
    cpu: Cpu,
}

impl Tiled {
    fn new(launches: &[Launch], map: &Arc<RowMap>, threads: usize, cpu: Cpu) -> Tiled {
        let links = launches.iter().map(Launch::link).collect();
        let columns = launches[0].output.spec.columns;
        Tiled {
            chain: FusedBlock::new(links, Arc::clone(map), columns, cpu.fused_block_rows()),
            threads,
            cpu,
        }
    }

    /// Whether it is the faster way for `images` images: all threads are busy for most of the time, and each multiplies
    /// enough rows with the weights, all of which it reads.
    fn suits(&self, images: usize) -> bool {
        let units = self.chain.units(images);
        let most = units.div_ceil(self.threads);
        8 * most * self.threads <= 9 * units
            && most * self.chain.unit_rows() >= self.cpu.min_rows_per_thread()
    }
}

impl Section {
    /// What runs instead of the launches over `images` images, if that is one.
    pub(super) fn chain(&self, images: usize) -> Option<&FusedBlock> {
        self.tiled.as_ref().filter(|tiled| tiled.suits(images)).map(|tiled| &tiled.chain)
    }

    /// The most images, of `images` or less, that run launch by launch.
    pub(super) fn most_apart(&self, images: usize) -> usize {
        (1..=images).rev().find(|&images| self.chain(images).is_none()).unwrap_or(0)
    }

    /// What the launches write for each other.
    pub(super) fn inner(&self, launches: &[Launch]) -> impl Iterator<Item = TensorId> {
        let launches = &launches[self.launches.clone()];
        let inner = launches.iter().filter(|launch| self.tiled.is_some() && !launch.output.residual);
        inner.map(|launch| launch.output.tensor)
    }
}

/// All `launches` in sections, for `threads` threads of `cpu`: each block is one, and each launch outside of blocks.
pub(super) fn sections(launches: &[Launch], threads: usize, cpu: Cpu) -> Vec<Section> {
    let mut sections = Vec::new();
    let mut next = 0;
    for (range, map) in blocks(launches) {
        sections.extend((next..range.start).map(|i| Section { launches: i..i + 1, tiled: None }));
        next = range.end;
        let tiled = Some(Tiled::new(&launches[range.clone()], map, threads, cpu));
        sections.push(Section { launches: range, tiled });
    }
    sections.extend((next..launches.len()).map(|i| Section { launches: i..i + 1, tiled: None }));
    sections
}

/// The blocks among `launches`, or their halves, each with the order of its rows.
fn blocks(launches: &[Launch]) -> Vec<(Range<usize>, &Arc<RowMap>)> {
    let mut found: Vec<(Range<usize>, &Arc<RowMap>)> = Vec::new();
    for half in halves(launches) {
        let by_rows =
            !launches[half.clone()].iter().any(|launch| matches!(launch.kernel, Kernel::Attention(_)));
        match found.last_mut() {
            // It takes rows in any order, that of the half before it too; but rows of padding would be multiplied in vain.
            Some((block, map)) if by_rows && block.end == half.start && !map.rows().contains(&PAD) => {
                block.end = half.end;
            }
            _ => {
                let map = launches[half.start].map().expect("a norm has one");
                found.push((half, map));
            }
        }
    }
    found
}

/// From each norm to the product that adds to the stream which the norm read.
fn halves(launches: &[Launch]) -> impl Iterator<Item = Range<usize>> {
    let norms = (0..launches.len()).filter(|&i| matches!(launches[i].kernel, Kernel::Norm(..)));
    norms.map(|first| {
        let last = (first..launches.len()).find(|&i| launches[i].output.residual);
        first..last.expect("a norm begins a half of a block") + 1
    })
}
