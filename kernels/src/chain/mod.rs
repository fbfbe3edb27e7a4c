//! Ops in turn over groups of rows of a residual stream. A thread takes a group through all of them, so that what lies
//! between two ops, and the group's rows of the stream, stay in its second-level cache.
//!
//! ```text
//! for each group of rows:  stream[rows] = ... last(... second(first(stream[rows])))
//! ```
//! This is for ops that need no rows but those of their group: norms and products by row, attention by window. The results
//! are those of the ops one after the other, bit for bit.

mod link;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub use link::Link;
use link::{Between, Group, RowIn};

use crate::pool::{Parts, Pool, Scratch};
use crate::types::RowMap;

/// Ops in turn over groups of rows of a residual stream.
pub struct Chain {
    /// Each with what it leaves for the next one; `None` is added to the stream.
    links: Vec<(Link, Option<Between>)>,
    map: Arc<RowMap>,
    /// Columns of the stream.
    columns: usize,
    /// Rows that stay together.
    unit: usize,
    /// Units of a group at most.
    most: usize,
}

impl Chain {
    /// The ops `links` over rows of a stream of `columns` columns in the order of `map`, in groups of about `rows` rows. A
    /// norm reads the stream, every other op what the op before it wrote; products that store
    /// [`Store::Residual`](crate::Store::Residual) add to the stream.
    ///
    /// # Panics
    /// If an op cannot read what the op before it leaves, the last one does not add to the stream, or the windows of an
    /// attention are not the rows of `map` or of two sizes.
    pub fn new(links: Vec<Link>, map: Arc<RowMap>, columns: usize, rows: usize) -> Chain {
        let (mut unit, mut left) = (1, None);
        let mut connected = Vec::with_capacity(links.len());
        for link in links {
            let wanted = link.unit(map.rows().len());
            assert!(
                unit == 1 || wanted == 1 || wanted == unit,
                "Chain: windows of {unit} and {wanted} tokens"
            );
            unit = unit.max(wanted);
            left = link.connect(left, columns);
            connected.push((link, left));
        }
        assert!(left.is_none(), "Chain: nothing reads what the last op leaves");
        Chain { links: connected, map, columns, unit, most: (rows / unit).max(1) }
    }

    /// Rows that stay together: those of a window, or one.
    pub fn unit(&self) -> usize {
        self.unit
    }

    /// Units in `images` images.
    pub fn units(&self, images: usize) -> usize {
        images * self.map.rows().len() / self.unit
    }

    /// Runs the ops over `stream`, f32 `[images * map.tokens(), columns]`.
    ///
    /// # Panics
    /// If `stream` has another length.
    pub fn run(&self, pool: &mut Pool, images: usize, stream: &mut [f32]) {
        self.groups(pool, images, stream, None);
    }

    /// As [`Chain::run`]; gives the part of the time that each op took, by the time that threads were in it.
    ///
    /// # Panics
    /// As [`Chain::run`].
    pub fn run_timed(&self, pool: &mut Pool, images: usize, stream: &mut [f32]) -> Vec<Duration> {
        let nanos: Vec<AtomicU64> = self.links.iter().map(|_| AtomicU64::new(0)).collect();
        let start = Instant::now();
        self.groups(pool, images, stream, Some(&nanos));
        let elapsed = start.elapsed();
        let nanos: Vec<f64> = nanos.into_iter().map(|n| n.into_inner() as f64).collect();
        let all = nanos.iter().sum::<f64>().max(1.0);
        nanos.iter().map(|n| elapsed.mul_f64(n / all)).collect()
    }

    fn groups(&self, pool: &mut Pool, images: usize, stream: &mut [f32], nanos: Option<&[AtomicU64]>) {
        let tokens = images * self.map.tokens();
        assert_eq!(stream.len(), tokens * self.columns, "Chain: stream is not [{tokens}, {}]", self.columns);
        let units = self.units(images);
        let groups = units.div_ceil(self.most).next_multiple_of(pool.threads()).min(units);
        let (stream, map) = (Parts::new(stream), &*self.map);
        pool.run(groups, &|group, scratch| {
            let rows = units * group / groups * self.unit..units * (group + 1) / groups * self.unit;
            self.group(&Group { rows, stream, map }, scratch, nanos);
        });
    }

    /// Takes one group through all ops. What an op leaves is in one half of the memory, what the next one leaves in the
    /// other.
    fn group(&self, group: &Group<'_>, scratch: &mut Scratch, nanos: Option<&[AtomicU64]>) {
        let Scratch { op, between } = scratch;
        let half = self.links.iter().flat_map(|(_, left)| left).map(|left| left.bytes(self.most * self.unit));
        let half = half.max().unwrap_or(0).next_multiple_of(64);
        between.reserve(2 * half);
        let (mut read, mut write) = between.as_f32_mut().split_at_mut(half / 4);
        let (mut before, rows) = (None::<Between>, group.rows.len());
        for (i, (link, left)) in self.links.iter().enumerate() {
            let start = nanos.map(|_| Instant::now());
            let input = before.map_or(RowIn::Stream, |before| before.rows(rows, read));
            link.run(group, input, left.map(|left| left.rows_mut(rows, write)), op);
            std::mem::swap(&mut read, &mut write);
            before = *left;
            if let (Some(nanos), Some(start)) = (nanos, start) {
                nanos[i].fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
            }
        }
    }
}
