//! How a product is divided over threads.

use std::ops::Range;

/// Tasks per thread, so that a thread that is held up is helped out.
const TASKS_PER_THREAD: usize = 4;

/// Rows of a task at most: its inputs and outputs stay in the second-level cache while the weights pass.
pub(super) const MAX_ROWS: usize = 256;

/// Bytes of the inputs of a task at most (one row tile may exceed it).
const MAX_BYTES: usize = 512 << 10;

/// Rows of each thread from which on rows are divided over the threads, though then every thread reads all weights: a panel of
/// weights that is read from afar serves so many rows that it comes in time, and fewer rows stay in the first-level cache.
const ROWS_PER_THREAD: usize = 98;

/// A product's row tiles and panels of columns, divided into a grid of tasks.
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
    /// Rows are divided first, as far as the caches ask for it or every thread gets [`ROWS_PER_THREAD`], and then equally over
    /// the threads; if they need not be, panels are, so that each weight is read by as few tasks as can be; then rows again,
    /// when there are too few panels.
    pub(super) fn new(rows: usize, panels: usize, row_bytes: usize, tile: usize, threads: usize) -> Split {
        let wanted = if threads == 1 { 1 } else { threads * TASKS_PER_THREAD };
        let tiles = rows.div_ceil(tile);
        let chunk = (MAX_BYTES / row_bytes.max(1)).clamp(tile, MAX_ROWS.max(tile)) / tile;
        let row_parts = tiles.div_ceil(chunk);
        if row_parts >= threads {
            let row_parts = row_parts.max(wanted).next_multiple_of(threads).min(tiles);
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

    /// Rows and panels of a task. Those of all tasks cover the product and are disjoint.
    pub(super) fn block(&self, task: usize) -> (Range<usize>, Range<usize>) {
        let part = |len, parts, index| share(len, parts, index)..share(len, parts, index + 1);
        let tiles = part(self.rows.div_ceil(self.tile), self.row_parts, task / self.panel_parts);
        (
            self.rows.min(tiles.start * self.tile)..self.rows.min(tiles.end * self.tile),
            part(self.panels, self.panel_parts, task % self.panel_parts),
        )
    }
}

/// Where share `index` of `parts` nearly equal shares of `len` starts.
pub(super) fn share(len: usize, parts: usize, index: usize) -> usize {
    len * index / parts
}

/// Blocks of `rows` rows for one thread: whole tiles of `tile` rows, of at most [`MAX_ROWS`] unless one tile has more.
pub(super) fn row_blocks(rows: usize, tile: usize) -> impl Iterator<Item = Range<usize>> {
    let each = (MAX_ROWS / tile).max(1) * tile;
    (0..rows).step_by(each).map(move |from| from..rows.min(from + each))
}

/// Row tiles of `rows`: as few as hold at most `tile` rows each, nearly equal.
pub(super) fn row_tiles(rows: Range<usize>, tile: usize) -> impl Iterator<Item = Range<usize>> {
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
