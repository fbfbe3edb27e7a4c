//! Divides a linear into tasks for threads.

use std::ops::Range;

use swinq_numerics::sizes::elements;

/// Tasks per thread; more than one, so that other threads can take over the tasks of a slow thread.
const TASKS_PER_THREAD: usize = 4;

/// The most rows of a task: its inputs and outputs stay in the second-level cache while all its weights are
/// read.
pub(super) const MAX_ROWS: usize = 256;

/// The most bytes of input of a task (one row tile may exceed it).
const MAX_BYTES: usize = 512 << 10;

/// Minimum rows per thread before work is split by rows; every thread then reads all weights. With this many
/// rows, multiplying one panel takes long enough to prefetch the next one, and each thread keeps fewer rows
/// in its first-level cache.
const ROWS_PER_THREAD: usize = 98;

/// A linear's row tiles and panels of columns, divided into a grid of tasks.
pub(super) struct Split {
    rows: usize,
    tile: usize,
    panels: usize,
    row_parts: usize,
    panel_parts: usize,
}

impl Split {
    /// Tasks for `threads` threads; a row has `row_bytes` bytes, and a row tile `tile` rows.
    ///
    /// Rows are split first if the caches require it or if every thread gets [`ROWS_PER_THREAD`]. Otherwise
    /// panels are split, so that as few tasks as possible read each weight. If there are too few panels for
    /// all threads, rows are split too.
    pub(super) fn new(rows: usize, panels: usize, row_bytes: usize, tile: usize, threads: usize) -> Split {
        let wanted = if threads == 1 { 1 } else { threads * TASKS_PER_THREAD };
        let tiles = rows.div_ceil(tile);
        let chunk = (MAX_BYTES / row_bytes.max(1)).clamp(tile, MAX_ROWS.max(tile)) / tile;
        let row_parts = tiles.div_ceil(chunk);
        if row_parts >= threads {
            let row_parts = row_parts.max(wanted).next_multiple_of(threads).min(tiles);
            elements("linear", "row tiles and their parts", &[tiles, row_parts]);
            return Split { rows, tile, panels, row_parts, panel_parts: 1.min(panels) };
        }
        let row_parts = if rows >= threads * ROWS_PER_THREAD { threads } else { row_parts };
        let panel_parts = wanted.div_ceil(row_parts.max(1)).min(panels);
        let row_parts = row_parts.max(wanted.div_ceil(panel_parts.max(1)).min(tiles));
        Split { rows, tile, panels, row_parts, panel_parts }
    }

    pub(super) fn tasks(&self) -> usize {
        self.row_parts * self.panel_parts
    }

    /// Rows and panels of a task. All tasks together cover the linear, and they are disjoint.
    pub(super) fn block(&self, task: usize) -> (Range<usize>, Range<usize>) {
        let part = |len, parts, index| share(len, parts, index)..share(len, parts, index + 1);
        let tiles = part(self.rows.div_ceil(self.tile), self.row_parts, task / self.panel_parts);
        (
            self.rows.min(tiles.start * self.tile)..self.rows.min(tiles.end * self.tile),
            part(self.panels, self.panel_parts, task % self.panel_parts),
        )
    }
}

/// The start of share `index` of `parts` nearly equal shares of `len`.
pub(super) fn share(len: usize, parts: usize, index: usize) -> usize {
    len * index / parts
}

/// Splits `rows` rows into blocks for one thread: full tiles of `tile` rows, at most [`MAX_ROWS`] unless one
/// tile has more.
pub(super) fn row_blocks(rows: usize, tile: usize) -> impl Iterator<Item = Range<usize>> {
    let each = (MAX_ROWS / tile).max(1) * tile;
    (0..rows).step_by(each).map(move |from| from..rows.min(from + each))
}

/// Splits `rows` into as few nearly equal tiles of at most `tile` rows as possible.
pub(super) fn row_tiles(rows: Range<usize>, tile: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    let parts = rows.len().div_ceil(tile);
    (0..parts)
        .map(move |i| rows.start + share(rows.len(), parts, i)..rows.start + share(rows.len(), parts, i + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_cover_the_product_once() {
        for rows in [0, 1, 13, 14, 15, 49, 196, 257, 784, 3136] {
            for (panels, row_bytes) in [(1, 96), (2, 4), (3, 12288), (31, 768), (96, 0)] {
                for threads in [1, 2, 3] {
                    let split = Split::new(rows, panels, row_bytes, 14, threads);
                    let mut seen = vec![0; rows * panels];
                    for task in 0..split.tasks() {
                        let (r, p) = split.block(task);
                        assert!(!r.is_empty() && !p.is_empty(), "{rows} {panels} {threads}: empty task");
                        let tiles: Vec<_> = row_tiles(r.clone(), 14).flatten().collect();
                        assert_eq!(tiles, r.clone().collect::<Vec<_>>());
                        assert!(row_tiles(r.clone(), 14).all(|t| (1..=14).contains(&t.len())));
                        r.for_each(|r| p.clone().for_each(|p| seen[r * panels + p] += 1));
                    }
                    assert!(seen.iter().all(|&s| s == 1), "{rows} {panels} {threads}");
                }
            }
        }
    }
}
