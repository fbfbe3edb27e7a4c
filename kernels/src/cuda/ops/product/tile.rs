//! How a product is cut into blocks: pure functions of its shape.

use std::fmt;

use crate::cuda::LaunchConfig;

/// A way to cut a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tile {
    /// Rows and columns of a block.
    pub block: (u16, u16),
    /// Rows and columns of a warp; columns are a multiple of 32.
    pub warp: (u16, u16),
    /// Bytes of k in a stage.
    pub depth: u16,
    /// Stages in shared memory.
    pub stages: u16,
}

/// Blocks and warps worth trying.
const SHAPES: [((u16, u16), (u16, u16)); 16] = [
    ((128, 128), (64, 64)),
    ((128, 128), (64, 32)),
    ((256, 128), (64, 64)),
    ((128, 256), (64, 64)),
    ((128, 96), (32, 96)),
    ((128, 96), (64, 32)),
    ((256, 96), (64, 96)),
    ((128, 192), (64, 64)),
    ((128, 64), (32, 64)),
    ((64, 128), (32, 64)),
    ((64, 96), (32, 96)),
    ((64, 96), (32, 32)),
    ((64, 64), (32, 32)),
    ((32, 64), (16, 32)),
    ((64, 32), (16, 32)),
    ((32, 32), (16, 32)),
];

impl Tile {
    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        let warps = (self.block.0 / self.warp.0) * (self.block.1 / self.warp.1);
        32 * u32::from(warps)
    }

    /// Bytes of shared memory of a block, the table of GELU included.
    pub fn shared(&self) -> u32 {
        let rows = u32::from(self.block.0) + u32::from(self.block.1);
        u32::from(self.stages) * rows * (u32::from(self.depth) + 16) + 384
    }

    /// Blocks along n.
    pub fn columns_of_blocks(&self, n: usize) -> usize {
        n.div_ceil(self.block.1.into())
    }

    /// How `m` by `n` outputs are launched.
    pub fn launch(&self, m: usize, n: usize) -> LaunchConfig {
        let blocks = m.div_ceil(self.block.0.into()) * self.columns_of_blocks(n);
        LaunchConfig {
            shared: self.shared(),
            pdl: true,
            ..LaunchConfig::linear(blocks as u32, self.threads())
        }
    }

    /// Registers of a thread that sums take.
    fn sums(&self) -> u32 {
        u32::from(self.warp.0) * u32::from(self.warp.1) / 32
    }

    /// Depths worth trying for `k_bytes` bytes of k.
    fn depths(k_bytes: usize) -> &'static [u16] {
        match k_bytes {
            0..=64 => &[64],
            65..=96 => &[96],
            97..=127 => &[64],
            _ if k_bytes.is_multiple_of(128) => &[128, 64],
            _ if k_bytes.is_multiple_of(96) => &[96, 64],
            _ => &[64],
        }
    }

    /// The outputs that a product of this shape computes and throws away, as a multiple of those it keeps.
    fn waste(&self, m: usize, n: usize) -> f64 {
        let padded = m.next_multiple_of(self.block.0.into()) * n.next_multiple_of(self.block.1.into());
        padded as f64 / (m * n) as f64
    }

    /// Every tile worth trying for `m` by `n` outputs of `k_bytes` bytes of k, on a device with `shared` bytes of shared
    /// memory for a block and this many multiprocessors; the most promising first.
    pub fn candidates(m: usize, n: usize, k_bytes: usize, shared: u32, multiprocessors: u32) -> Vec<Tile> {
        let mut tiles = Vec::new();
        for (block, warp) in SHAPES {
            for &depth in Tile::depths(k_bytes) {
                let steps = k_bytes.div_ceil(depth.into());
                for stages in [2, 3, 4, 5] {
                    let tile = Tile { block, warp, depth, stages };
                    // A stage that is never filled takes room for nothing.
                    let idle = stages > 2 && usize::from(stages) > steps + 1;
                    if !idle && tile.shared() <= shared {
                        tiles.push(tile);
                    }
                }
            }
        }
        let cost = |tile: &Tile| tile.cost(m, n, k_bytes, shared, multiprocessors);
        tiles.sort_by(|a, b| cost(a).total_cmp(&cost(b)).then(a.cmp(b)));
        tiles
    }

    /// A rough time, to order candidates by: waves of blocks, each as long as its loads, its products and a start.
    fn cost(&self, m: usize, n: usize, k_bytes: usize, shared: u32, multiprocessors: u32) -> f64 {
        let (rows, columns) = (f64::from(self.block.0), f64::from(self.block.1));
        let by_shared = (shared / self.shared()).max(1);
        let registers = (self.sums() + 96).min(255) * self.threads();
        let resident = by_shared.min(65536 / registers).min(2048 / self.threads()).max(1);
        let blocks = (m.div_ceil(self.block.0.into()) * self.columns_of_blocks(n)) as f64;
        let waves = (blocks / f64::from(resident * multiprocessors)).ceil();
        let together = (blocks / f64::from(multiprocessors)).ceil().min(f64::from(resident));
        let products = rows * columns * k_bytes as f64 / 2560.0;
        let loads = (rows + columns) * k_bytes as f64 / 48.0;
        // Small warp tiles read shared memory more often for the same products.
        let reuse = 1.0 + 12.0 / f64::from(self.warp.0) + 12.0 / f64::from(self.warp.1);
        let hidden = if self.stages >= 3 { 1.0 } else { 1.15 };
        let steps = k_bytes.div_ceil(self.depth.into()) as f64;
        let wave = (products * reuse).max(loads) * together * hidden + 1200.0 + 90.0 * steps;
        waves * wave * self.waste(m, n).sqrt()
    }
}

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tile { block, warp, depth, stages } = self;
        write!(f, "{}x{} warps {}x{} k {depth} stages {stages}", block.0, block.1, warp.0, warp.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARED: u32 = 232_448;

    #[test]
    fn candidates_fit_and_cover() {
        for (m, n, k) in
            [(1, 10, 64), (49, 768, 3072), (196, 1152, 384), (401_408, 288, 96), (100_352, 192, 768)]
        {
            let tiles = Tile::candidates(m, n, k, SHARED, 132);
            assert!(tiles.len() >= 8, "{m} x {n} x {k}: {} candidates", tiles.len());
            for tile in tiles {
                let config = tile.launch(m, n);
                assert!(tile.shared() <= SHARED && (32..=1024).contains(&config.threads), "{tile:?}");
                assert!(tile.block.0.is_multiple_of(tile.warp.0) && tile.block.1.is_multiple_of(tile.warp.1));
                let (rows, columns) = (usize::from(tile.block.0), usize::from(tile.block.1));
                let columns_of_blocks = tile.columns_of_blocks(n);
                let rows_of_blocks = config.grid[0] as usize / columns_of_blocks;
                assert!(rows_of_blocks * rows >= m && (rows_of_blocks - 1) * rows < m, "{tile:?} {m}");
                assert!(columns_of_blocks * columns >= n, "{tile:?} {n}");
            }
        }
    }

    #[test]
    fn small_products_get_many_blocks_and_large_ones_large_blocks() {
        let small = Tile::candidates(49, 768, 3072, SHARED, 132)[0];
        assert!(small.launch(49, 768).grid[0] >= 24, "{small:?}");
        let large = Tile::candidates(25_088, 1536, 384, SHARED, 132)[0];
        assert!(large.block.0 >= 128 && large.block.1 >= 128, "{large:?}");
    }
}
