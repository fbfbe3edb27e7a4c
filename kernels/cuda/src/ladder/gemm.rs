//! Matrix products in f32, without tensor cores.

use super::{blocks, expect, int};
use crate::params::ladder_gemm::Params;
use crate::{CudaError, Device, DeviceSlice, Kernel, LaunchConfig, Program, Stream, launch};

/// Side of the tile of [`FloatRung::Shared`].
const TILE: usize = 32;
/// Rows, columns and depth of a tile of the register-tiled rungs.
const BLOCK: (usize, usize, usize) = (128, 128, 8);
/// Number of floats that pad a row of a tile in shared memory.
const PADDING: usize = 4;
/// Tile rows per group for [`FloatRung::Grouped`].
const GROUP: i64 = 8;

/// A method to multiply f32 matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FloatRung {
    /// One thread per output, operands from global memory.
    Naive,
    /// One thread per output, operands through shared memory.
    Shared,
    /// 8 x 8 outputs in the registers of each thread, two stages of shared memory.
    Tiled,
    /// As `Tiled`, with an order of blocks that shares operands in the L2 cache.
    Grouped,
}

impl FloatRung {
    /// All rungs, the simplest first.
    pub const ALL: [FloatRung; 4] =
        [FloatRung::Naive, FloatRung::Shared, FloatRung::Tiled, FloatRung::Grouped];

    /// The program to compile.
    pub fn program(self) -> Program {
        let plain = |entry, tile: usize| {
            let program = Program::new("ladder_gemm.cu", entry).define("TILE", tile as i64);
            program.define("THREADS", (tile * tile) as i64)
        };
        match self {
            FloatRung::Naive => plain("gemm_naive", 16),
            FloatRung::Shared => plain("gemm_shared", TILE),
            FloatRung::Tiled => FloatRung::tiled(1),
            FloatRung::Grouped => FloatRung::tiled(GROUP),
        }
    }

    fn tiled(group: i64) -> Program {
        let (bm, bn, bk) = BLOCK;
        Program::new("ladder_tiled.cu", "gemm_tiled")
            .define("BM", bm as i64)
            .define("BN", bn as i64)
            .define("BK", bk as i64)
            .define("GROUP", group)
            .define("THREADS", (bm / 8 * bn / 8) as i64)
    }

    /// Launch configuration for `m` by `n` outputs.
    ///
    /// # Panics
    /// If 2^31 blocks or more are needed.
    pub fn launch(self, m: usize, n: usize) -> LaunchConfig {
        let tiles = |rows: usize, columns: usize| blocks(m.div_ceil(rows) * n.div_ceil(columns));
        match self {
            FloatRung::Naive => LaunchConfig::linear(blocks((m * n).div_ceil(256)), 256),
            FloatRung::Shared => {
                let shared = 2 * TILE * (TILE + 1) * 4;
                let config = LaunchConfig::linear(tiles(TILE, TILE), (TILE * TILE) as u32);
                LaunchConfig { shared: shared as u32, ..config }
            }
            FloatRung::Tiled | FloatRung::Grouped => {
                let (bm, bn, bk) = BLOCK;
                let shared = 2 * bk * (bm + bn + 2 * PADDING) * 4;
                let config = LaunchConfig::linear(tiles(bm, bn), (bm / 8 * bn / 8) as u32);
                LaunchConfig { shared: shared as u32, ..config }
            }
        }
    }
}

/// A rung, compiled.
pub struct FloatGemm {
    kernel: Kernel,
    rung: FloatRung,
}

impl FloatGemm {
    /// Compiles `rung`.
    ///
    /// # Errors
    /// NVRTC is missing, the source does not compile, or the driver fails.
    pub fn new(device: &Device, rung: FloatRung) -> Result<FloatGemm, CudaError> {
        Ok(FloatGemm { kernel: device.kernel(&rung.program())?, rung })
    }

    /// `out[m, n] = a[m, k] * w[n, k]^T` with contiguous f32 matrices; `sizes` are m, n and k.
    ///
    /// # Errors
    /// The driver fails.
    ///
    /// # Panics
    /// If a slice is too short, or a size is 2^31 or more.
    pub fn run(
        &self,
        stream: &Stream,
        (m, n, k): (usize, usize, usize),
        a: &DeviceSlice,
        w: &DeviceSlice,
        out: &DeviceSlice,
    ) -> Result<(), CudaError> {
        expect("ladder: a", a, &[m, k, 4]);
        expect("ladder: w", w, &[n, k, 4]);
        expect("ladder: the output", out, &[m, n, 4]);
        [a, w, out].into_iter().for_each(|slice| stream.hold(slice));
        let params = Params { a: a.ptr(), w: w.ptr(), out: out.ptr(), m: int(m), n: int(n), k: int(k) };
        // SAFETY: `Params` is the kernels' parameter. The lengths were checked above, the kernels read
        // and write no row or column beyond m, n and k, and all slices are held.
        unsafe { launch(&self.kernel, self.rung.launch(m, n), stream, &params) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_cover_the_outputs() {
        for (m, n) in [(1, 1), (33, 65), (128, 128), (129, 257), (4096, 4096)] {
            let blocks = FloatRung::ALL.map(|rung| rung.launch(m, n).grid[0] as usize);
            assert_eq!(blocks[0], (m * n).div_ceil(256));
            assert_eq!(blocks[1], m.div_ceil(32) * n.div_ceil(32));
            assert_eq!(blocks[2..], [m.div_ceil(128) * n.div_ceil(128); 2]);
        }
    }

    #[test]
    fn threads_are_those_compiled_for() {
        for rung in FloatRung::ALL {
            let config = rung.launch(100, 100);
            let defined = rung.program().defines.iter().find(|(name, _)| *name == "THREADS").map(|d| d.1);
            assert_eq!(defined, Some(i64::from(config.threads)), "{rung:?}");
            assert!(config.shared <= 48 << 10, "{rung:?}");
        }
    }
}
