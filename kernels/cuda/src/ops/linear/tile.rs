//! Tiles of linear layers: pure functions of the layer's shape.

use std::fmt;

use crate::LaunchConfig;

/// The kind of matrix instruction, and how warps share the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Instruction {
    /// `mma.sync`: by one warp, operands in registers.
    Mma,
    /// `wgmma`: by four warps (a warpgroup), operands in shared memory; sm_90a only.
    Wgmma,
    /// `wgmma` by all warpgroups except one, which copies.
    Cooperative,
    /// As `Cooperative`, but each tile belongs to one warpgroup: while one finishes its tile, the next
    /// multiplies. Weights stay in shared memory.
    PingPong,
}

impl Instruction {
    /// All kinds.
    pub const ALL: [Instruction; 4] =
        [Instruction::Mma, Instruction::Wgmma, Instruction::Cooperative, Instruction::PingPong];

    /// Whether one warpgroup copies and the others multiply.
    pub fn has_roles(self) -> bool {
        matches!(self, Instruction::Cooperative | Instruction::PingPong)
    }
}

/// How the matrix product of a linear layer is divided into blocks, warps and stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tile {
    /// The matrix instruction.
    pub instruction: Instruction,
    /// Rows and columns of a block. The rows are those of all tiles that the block processes at the same
    /// time.
    pub block: (u16, u16),
    /// Rows and columns of a warp, or of a warpgroup; the number of columns is a multiple of 32.
    pub warp: (u16, u16),
    /// Bytes of k in a stage.
    pub depth: u16,
    /// Number of stages in shared memory.
    pub stages: u16,
    /// Number of k stages whose weights a block loads once and keeps for all its tiles: all of k, or 0.
    pub resident: u16,
}

/// Properties of a GPU that affect the choice of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Maximum bytes of shared memory of a block.
    pub shared: u32,
    /// Number of multiprocessors.
    pub multiprocessors: u32,
    /// Whether it has `wgmma` (sm_90).
    pub wgmma: bool,
}

/// Shapes of blocks and warpgroups to try with `wgmma`.
const GROUP_SHAPES: [((u16, u16), (u16, u16)); 18] = [
    ((64, 32), (64, 32)),
    ((64, 64), (64, 64)),
    ((64, 96), (64, 96)),
    ((64, 128), (64, 128)),
    ((64, 192), (64, 192)),
    ((64, 256), (64, 256)),
    ((128, 64), (64, 64)),
    ((128, 96), (64, 96)),
    ((128, 128), (64, 128)),
    ((128, 192), (64, 192)),
    ((128, 256), (64, 256)),
    ((128, 64), (128, 64)),
    ((128, 96), (128, 96)),
    ((128, 128), (128, 128)),
    ((256, 64), (128, 64)),
    ((256, 96), (128, 96)),
    ((256, 128), (128, 128)),
    ((192, 96), (64, 96)),
];

/// Shapes of blocks and warpgroups to try if one warpgroup copies. For each of them only the largest number
/// of stages that fits is tried.
const COOPERATIVE_SHAPES: [((u16, u16), (u16, u16)); 12] = [
    ((64, 32), (64, 32)),
    ((64, 64), (64, 64)),
    ((64, 96), (64, 96)),
    ((64, 128), (64, 128)),
    ((64, 192), (64, 192)),
    ((128, 96), (64, 96)),
    ((128, 128), (64, 128)),
    ((128, 192), (64, 192)),
    ((128, 256), (64, 256)),
    ((192, 128), (64, 128)),
    ((192, 192), (64, 192)),
    ((256, 96), (128, 96)),
];
const PING_PONG_SHAPES: [((u16, u16), (u16, u16)); 6] = [
    ((128, 128), (64, 128)),
    ((128, 192), (64, 192)),
    ((192, 128), (64, 128)),
    ((192, 192), (64, 192)),
    ((256, 96), (128, 96)),
    ((256, 128), (128, 128)),
];
const ROLE_STAGES: [u16; 7] = [10, 8, 7, 6, 5, 4, 3];

/// Shapes of blocks and warps to try with `mma`.
const SHAPES: [((u16, u16), (u16, u16)); 16] = [
    ((128, 128), (64, 64)),
    ((128, 128), (64, 32)),
    ((256, 128), (64, 64)),
    ((128, 256), (64, 64)),
    ((128, 96), (32, 96)),
    ((128, 96), (64, 32)),
    ((256, 96), (32, 96)),
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
    /// The tile as numbers: index of the instruction in [`Instruction::ALL`], block, warp, depth, stages,
    /// resident stages.
    pub fn numbers(&self) -> (usize, [u16; 7]) {
        let Tile { instruction, block, warp, depth, stages, resident } = *self;
        let position = Instruction::ALL.iter().position(|&i| i == instruction).expect("one of all");
        (position, [block.0, block.1, warp.0, warp.1, depth, stages, resident])
    }

    /// The tile for [`Tile::numbers`]; `None` if there is no such instruction.
    pub fn from_numbers((instruction, sizes): (usize, [u16; 7])) -> Option<Tile> {
        let [rows, columns, warp_rows, warp_columns, depth, stages, resident] = sizes;
        let (block, warp) = ((rows, columns), (warp_rows, warp_columns));
        Some(Tile { instruction: *Instruction::ALL.get(instruction)?, block, warp, depth, stages, resident })
    }

    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        let warps = (self.block.0 / self.warp.0) * (self.block.1 / self.warp.1);
        match self.instruction {
            Instruction::Mma => 32 * u32::from(warps),
            Instruction::Wgmma => 128 * u32::from(warps),
            Instruction::Cooperative | Instruction::PingPong => 128 * (u32::from(warps) + 1),
        }
    }

    /// Number of warpgroups that multiply.
    pub fn groups(&self) -> u16 {
        self.block.0 / self.warp.0
    }

    /// Rows of a tile.
    pub(super) fn rows(&self) -> usize {
        if self.instruction == Instruction::PingPong { self.warp.0.into() } else { self.block.0.into() }
    }

    /// Registers of a thread that multiplies and of a thread that copies. `None` if both have the same
    /// number: with fewer than three warpgroups, 65,536 registers are enough.
    pub fn registers(&self) -> Option<(u16, u16)> {
        match self.groups() {
            _ if !self.instruction.has_roles() => None,
            1 => None,
            2 => Some((232, 40)),
            _ => Some((160, 32)),
        }
    }

    /// Bytes of shared memory of a block, including the table of GELU.
    pub fn shared(&self) -> u32 {
        let (rows, columns) = (u32::from(self.block.0), u32::from(self.block.1));
        let (stages, resident, depth) =
            (u32::from(self.stages), u32::from(self.resident), u32::from(self.depth));
        if self.instruction.has_roles() {
            // As for `Wgmma` below, plus barriers: two per stage, one per warpgroup, one for weights that
            // stay.
            let stage = (self.rows() as u32 + if resident > 0 { 0 } else { columns }) * depth;
            let barriers = 8 * (2 * stages + u32::from(self.groups()) + 1);
            return stages * stage + resident * columns * depth + 12 * columns + 384 + barriers + 1024;
        }
        match (self.instruction, resident) {
            (Instruction::Mma, _) => stages * (rows + columns) * (depth + 16) + 384,
            // Swizzled rows have no padding and begin at a multiple of 1024 bytes; scale, bias and reciprocal
            // of the columns follow.
            (Instruction::Wgmma, 0) => stages * (rows + columns) * depth + 12 * columns + 384 + 1024,
            (_, _) => (stages * rows + resident * columns) * depth + 12 * columns + 384 + 1024,
        }
    }

    /// Number of blocks along n.
    pub fn columns_of_blocks(&self, n: usize) -> usize {
        n.div_ceil(self.block.1.into())
    }

    /// Number of tiles for `m` by `n` outputs.
    pub fn count(&self, m: usize, n: usize) -> usize {
        m.div_ceil(self.rows()) * self.columns_of_blocks(n)
    }

    /// Launch configuration for `m` by `n` outputs on a device that runs `capacity` blocks at the same time.
    /// With `wgmma` a block loops over tiles of the same columns. The grid is therefore a multiple of the
    /// number of tiles along n, or has one block for each tile.
    pub fn launch(&self, m: usize, n: usize, capacity: usize) -> LaunchConfig {
        let (count, columns) = (self.count(m, n), self.columns_of_blocks(n));
        let blocks = match self.instruction {
            Instruction::Mma => count,
            _ if capacity < columns => count,
            _ => count.min(capacity / columns * columns),
        };
        LaunchConfig {
            shared: self.shared(),
            pdl: true,
            ..LaunchConfig::linear(blocks as u32, self.threads())
        }
    }

    /// Registers per thread that hold sums.
    fn sums(&self) -> u32 {
        let lanes = if self.instruction == Instruction::Mma { 32 } else { 128 };
        u32::from(self.warp.0) * u32::from(self.warp.1) / lanes
    }

    /// Depths to try for `k_bytes` bytes of k.
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

    /// Computed outputs, including discarded ones, as a multiple of the outputs that are kept.
    fn waste(&self, m: usize, n: usize) -> f64 {
        let padded = m.next_multiple_of(self.block.0.into()) * n.next_multiple_of(self.block.1.into());
        padded as f64 / (m * n) as f64
    }

    /// All tiles to try for `m` by `n` outputs and `k_bytes` bytes of k on `gpu`, the most promising first.
    pub fn candidates(m: usize, n: usize, k_bytes: usize, gpu: Gpu) -> Vec<Tile> {
        let mut tiles = Tile::with_mma(k_bytes);
        if gpu.wgmma {
            tiles.extend(Tile::with_wgmma(k_bytes));
            tiles.extend(Tile::with_roles(k_bytes, gpu.shared));
        }
        tiles.retain(|tile| tile.shared() <= gpu.shared && tile.threads() <= 1024);
        let cost = |tile: Tile| (tile.cost(m, n, k_bytes, gpu), tile);
        let mut tiles: Vec<(f64, Tile)> = tiles.into_iter().map(cost).collect();
        tiles.sort_by(|(a, first), (b, second)| a.total_cmp(b).then(first.cmp(second)));
        tiles.into_iter().map(|(_, tile)| tile).collect()
    }

    /// Selects `count` of `candidates`, which are sorted by the cost model. Different shapes come first,
    /// because the cost model predicts the best number of stages better than the best shape.
    pub fn promising(candidates: Vec<Tile>, count: usize) -> Vec<Tile> {
        let shape = |t: &Tile| (t.instruction, t.block, t.warp, t.resident > 0);
        let (mut first, mut others): (Vec<Tile>, Vec<Tile>) = (Vec::new(), Vec::new());
        for tile in candidates {
            let known = first.iter().any(|t| shape(t) == shape(&tile));
            if known { others.push(tile) } else { first.push(tile) }
        }
        let different = count * 3 / 4;
        let rest = first.split_off(different.min(first.len()));
        first.into_iter().chain(others).chain(rest).take(count).collect()
    }

    fn with_mma(k_bytes: usize) -> Vec<Tile> {
        let mut tiles = Vec::new();
        for (block, warp) in SHAPES {
            for &depth in Tile::depths(k_bytes) {
                let steps = k_bytes.div_ceil(depth.into());
                for stages in [2, 3, 4, 5] {
                    // A stage that is never filled wastes shared memory.
                    let idle = stages > 2 && usize::from(stages) > steps + 1;
                    if !idle {
                        tiles.push(Tile {
                            instruction: Instruction::Mma,
                            block,
                            warp,
                            depth,
                            stages,
                            resident: 0,
                        });
                    }
                }
            }
        }
        tiles
    }

    fn with_wgmma(k_bytes: usize) -> Vec<Tile> {
        let steps = k_bytes.div_ceil(128) as u16;
        let mut tiles = Vec::new();
        for (block, warp) in GROUP_SHAPES {
            for stages in [3, 4, 6] {
                for resident in [0, steps] {
                    let tile =
                        Tile { instruction: Instruction::Wgmma, block, warp, depth: 128, stages, resident };
                    // Weights must leave about half of a multiprocessor's shared memory for the stages.
                    if u32::from(resident) * 128 * u32::from(block.1) <= 100 << 10 {
                        tiles.push(tile);
                    }
                }
            }
        }
        tiles
    }

    fn with_roles(k_bytes: usize, shared: u32) -> Vec<Tile> {
        let steps = k_bytes.div_ceil(128) as u16;
        let cooperative = COOPERATIVE_SHAPES.map(|shape| (Instruction::Cooperative, shape));
        let ping_pong = PING_PONG_SHAPES.map(|shape| (Instruction::PingPong, shape));
        let mut tiles = Vec::new();
        for (instruction, (block, warp)) in cooperative.into_iter().chain(ping_pong) {
            for resident in [0, steps] {
                let stay = resident > 0 || instruction == Instruction::Cooperative;
                let small = u32::from(resident) * 128 * u32::from(block.1) <= 144 << 10;
                let of = |stages| Tile { instruction, block, warp, depth: 128, stages, resident };
                // With 10 stages, the largest ping-pong tiles need more registers than there are.
                let limit = if instruction == Instruction::PingPong { 8 } else { 10 };
                let stages = ROLE_STAGES.into_iter().filter(|&stages| stages <= limit);
                let most = stages.map(of).find(|tile| tile.shared() <= shared);
                tiles.extend(most.filter(|_| stay && small));
            }
        }
        tiles
    }

    /// A rough estimate of the time, to sort candidates: waves of blocks, where a wave takes the time of its
    /// loads, its products and its start.
    fn cost(&self, m: usize, n: usize, k_bytes: usize, gpu: Gpu) -> f64 {
        let Gpu { shared, multiprocessors, .. } = gpu;
        let (rows, columns) = (f64::from(self.block.0), f64::from(self.block.1));
        let by_shared = (shared / self.shared()).max(1);
        let registers =
            if self.registers().is_some() { 65536 } else { (self.sums() + 96).min(255) * self.threads() };
        let resident = by_shared.min(65536 / registers).min(2048 / self.threads()).max(1);
        let blocks = (m.div_ceil(self.block.0.into()) * self.columns_of_blocks(n)) as f64;
        let waves = (blocks / f64::from(resident * multiprocessors)).ceil();
        let together = (blocks / f64::from(multiprocessors)).ceil().min(f64::from(resident));
        let rate = if self.instruction == Instruction::Mma { 2048.0 } else { 3600.0 };
        let products = rows * columns * k_bytes as f64 / rate;
        let loaded = if self.resident > 0 { rows } else { rows + columns };
        let loads = loaded * k_bytes as f64 / 48.0;
        // Smaller warp tiles read shared memory more often for the same products.
        let reuse = match self.instruction {
            Instruction::Mma => 1.0 + 12.0 / f64::from(self.warp.0) + 12.0 / f64::from(self.warp.1),
            _ => 1.0 + 12.0 / columns,
        };
        let epilogue = rows * columns * 8.0 / 128.0;
        let hidden = if self.stages >= 3 { 1.0 } else { 1.15 };
        let steps = k_bytes.div_ceil(self.depth.into()) as f64;
        // A block that loops over tiles starts once, and its next operands are copied while it finishes a
        // tile.
        let start = if self.instruction != Instruction::Mma && waves > 1.0 { 300.0 } else { 1200.0 };
        let streamed = (products * reuse).max(loads) * hidden;
        let wave = match self.instruction {
            Instruction::Mma | Instruction::Wgmma => (streamed + epilogue) * together + start + 90.0 * steps,
            Instruction::Cooperative => 0.75 * streamed + epilogue + start + 20.0 * steps,
            Instruction::PingPong => (0.75 * streamed).max(epilogue) + start + 20.0 * steps,
        };
        waves * wave * self.waste(m, n).sqrt()
    }
}

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tile { instruction, block, warp, depth, stages, resident } = self;
        let of = match instruction {
            Instruction::Mma => "mma",
            Instruction::Wgmma => "wgmma",
            Instruction::Cooperative => "wgmma, cooperative,",
            Instruction::PingPong => "wgmma, ping-pong,",
        };
        write!(f, "{of} {}x{} of {}x{} k {depth} stages {stages}", block.0, block.1, warp.0, warp.1)?;
        if *resident > 0 { f.write_str(", weights stay") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: Gpu = Gpu { shared: 232_448, multiprocessors: 132, wgmma: true };

    #[test]
    fn candidates_fit_and_cover() {
        for (m, n, k) in
            [(1, 10, 64), (49, 768, 3072), (196, 1152, 384), (401_408, 288, 96), (100_352, 192, 768)]
        {
            let tiles = Tile::candidates(m, n, k, GPU);
            assert!(tiles.len() >= 8, "{m} x {n} x {k}: {} candidates", tiles.len());
            for tile in tiles {
                let config = tile.launch(m, n, usize::MAX / 2);
                assert!(tile.shared() <= GPU.shared && (32..=1024).contains(&config.threads), "{tile:?}");
                assert!(tile.block.0.is_multiple_of(tile.warp.0) && tile.block.1.is_multiple_of(tile.warp.1));
                let (rows, columns) = (usize::from(tile.block.0), usize::from(tile.block.1));
                let columns_of_blocks = tile.columns_of_blocks(n);
                let rows_of_blocks = config.grid[0] as usize / columns_of_blocks;
                assert!(rows_of_blocks * rows >= m && (rows_of_blocks - 1) * tile.rows() < m, "{tile:?} {m}");
                assert!(columns_of_blocks * columns >= n, "{tile:?} {n}");
            }
        }
    }

    #[test]
    fn small_products_get_many_blocks_and_large_ones_large_blocks() {
        let small = Tile::candidates(49, 768, 3072, GPU)[0];
        assert!(small.launch(49, 768, 132).grid[0] >= 24, "{small:?}");
        let large = Tile::candidates(25_088, 1536, 384, GPU)[0];
        assert!(large.block.0 >= 128 && large.block.1 >= 128, "{large:?}");
    }
}
