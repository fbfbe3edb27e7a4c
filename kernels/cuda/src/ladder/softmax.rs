//! Softmax of rows.

use super::{blocks, expect, int};
use crate::params::ladder_softmax::Params;
use crate::{CudaError, Device, DeviceSlice, Kernel, LaunchConfig, Program, Stream, launch};

/// Threads of a block.
const THREADS: u32 = 128;
/// Number of accesses with which one thread should load its values of a row: of single values, or of four.
const GOOD_ACCESSES: [usize; 2] = [8, 1];
/// Maximum number of values of a row that one thread holds in registers.
const MOST_VALUES: usize = 32;

/// A method to compute the softmax of f32 rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SoftmaxRung {
    /// One block per row, three passes; result in f32.
    Naive,
    /// One warp per row, maximum and sum in one pass; result in f32.
    Online,
    /// Several rows per warp, with values in registers; result in f32. Short rows that do not begin at
    /// multiples of 16 bytes pass through shared memory.
    Rows,
    /// The codes of the INT8 attention ([`attention_row_u8`](swinq_numerics::reference::attention_row_u8)),
    /// with values in registers; result in u8, and the sum of each row's codes in u32.
    Codes,
}

/// Threads of a block of `softmax_staged`, and the longest rows for it.
const STAGED_THREADS: u32 = 64;
const STAGED_COLUMNS: usize = 64;

/// Whether rows of `columns` values pass through shared memory: short rows that do not begin at multiples of
/// 16 bytes.
fn staged(columns: usize) -> bool {
    columns <= STAGED_COLUMNS && !columns.is_multiple_of(4)
}

/// Number of threads that share a row of `columns` values in registers; `None` if the row is too long.
fn lanes(columns: usize) -> Option<u32> {
    let (vector, good) = match columns.is_multiple_of(4) {
        true => (4, GOOD_ACCESSES[1]),
        false => (1, GOOD_ACCESSES[0]),
    };
    let accesses = |lanes: u32| columns.div_ceil(lanes as usize * vector);
    let good = [1, 2, 4, 8, 16, 32].into_iter().find(|&lanes| accesses(lanes) <= good);
    good.or_else(|| [32, THREADS].into_iter().find(|&lanes| vector * accesses(lanes) <= MOST_VALUES))
}

impl SoftmaxRung {
    /// All rungs, the simplest first.
    pub const ALL: [SoftmaxRung; 4] =
        [SoftmaxRung::Naive, SoftmaxRung::Online, SoftmaxRung::Rows, SoftmaxRung::Codes];

    /// The program to compile for rows of `columns` values; `None` if such a row does not fit into registers.
    pub fn program(self, columns: usize) -> Option<Program> {
        let threads = self.threads(columns);
        let program = |entry| Program::new("ladder_softmax.cu", entry).define("THREADS", threads.into());
        let in_registers = |entry| {
            let program = program(entry).define("COLUMNS", i64::from(int(columns)));
            Some(program.define("LANES", lanes(columns)?.into()))
        };
        match self {
            SoftmaxRung::Naive => Some(program("softmax_naive")),
            SoftmaxRung::Online => Some(program("softmax_online")),
            SoftmaxRung::Rows if staged(columns) => {
                let program = program("softmax_staged").define("COLUMNS", i64::from(int(columns)));
                // Without a number of blocks the compiler spills a register on sm_75.
                Some(program.define("MIN_BLOCKS", 8))
            }
            SoftmaxRung::Rows => in_registers("softmax_rows"),
            SoftmaxRung::Codes => in_registers("softmax_codes"),
        }
    }

    /// Launch configuration for `rows` rows of `columns` values.
    ///
    /// # Panics
    /// If 2^31 blocks or more are needed.
    pub fn launch(self, rows: usize, columns: usize) -> LaunchConfig {
        if self == SoftmaxRung::Rows && staged(columns) {
            let grid = blocks(rows.div_ceil(STAGED_THREADS as usize));
            let shared = STAGED_THREADS * 4 * columns as u32;
            return LaunchConfig { shared, ..LaunchConfig::linear(grid, STAGED_THREADS) };
        }
        let warps = THREADS / 32;
        let lanes = match self {
            SoftmaxRung::Naive => THREADS,
            SoftmaxRung::Online => 32,
            SoftmaxRung::Rows | SoftmaxRung::Codes => lanes(columns).unwrap_or(THREADS),
        };
        let shared = if lanes == THREADS { 2 * warps * 4 } else { 0 };
        let grid = blocks(rows.div_ceil((THREADS / lanes) as usize));
        LaunchConfig { shared, ..LaunchConfig::linear(grid, THREADS) }
    }

    fn threads(self, columns: usize) -> u32 {
        if self == SoftmaxRung::Rows && staged(columns) { STAGED_THREADS } else { THREADS }
    }

    /// Bytes per element of the output.
    pub fn element_bytes(self) -> usize {
        if self == SoftmaxRung::Codes { 1 } else { 4 }
    }
}

/// A rung, compiled for rows of one length.
pub struct Softmax {
    kernel: Kernel,
    rung: SoftmaxRung,
    columns: usize,
}

impl Softmax {
    /// Compiles `rung` for rows of `columns` values.
    ///
    /// # Errors
    /// [`CudaError::Unsupported`] if such a row does not fit into registers; NVRTC is missing, the source
    /// does not compile, or the driver fails.
    ///
    /// # Panics
    /// If `columns` is 2^31 or more.
    pub fn new(device: &Device, rung: SoftmaxRung, columns: usize) -> Result<Softmax, CudaError> {
        let too_long = || {
            let most = MOST_VALUES * THREADS as usize;
            CudaError::Unsupported(format!(
                "rows of {columns} values do not fit into the registers of a block, which hold {most}"
            ))
        };
        let kernel = device.kernel(&rung.program(columns).ok_or_else(too_long)?)?;
        Ok(Softmax { kernel, rung, columns })
    }

    /// Writes the softmax of the `rows` rows of `x`, f32 `[rows, columns]`, to `out`, which has the same
    /// shape and is contiguous. [`SoftmaxRung::Codes`] also writes the sums of the codes to `sums`, `[rows]`;
    /// other rungs do not use `sums`.
    ///
    /// # Errors
    /// The driver fails.
    ///
    /// # Panics
    /// If a slice is too short, or a size is 2^31 or more.
    pub fn run(
        &self,
        stream: &Stream,
        rows: usize,
        x: &DeviceSlice,
        out: &DeviceSlice,
        sums: &DeviceSlice,
    ) -> Result<(), CudaError> {
        let columns = self.columns;
        expect("ladder: x", x, &[rows, columns, 4]);
        expect("ladder: the output", out, &[rows, columns, self.rung.element_bytes()]);
        if self.rung == SoftmaxRung::Codes {
            expect("ladder: the sums", sums, &[rows, 4]);
        }
        [x, out, sums].into_iter().for_each(|slice| stream.hold(slice));
        let config = self.rung.launch(rows, columns);
        let (rows, columns) = (int(rows), int(columns));
        let params = Params { x: x.ptr(), out: out.ptr(), sums: sums.ptr(), rows, columns };
        // SAFETY: `Params` is the kernels' parameter. The lengths were checked above, the kernels
        // access no row or column beyond them, and all slices are held.
        unsafe { launch(&self.kernel, config, stream, &params) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_cover_the_rows() {
        for rows in [1, 7, 8, 9, 1000] {
            assert_eq!(SoftmaxRung::Naive.launch(rows, 49).grid, [rows as u32, 1, 1]);
            assert_eq!(SoftmaxRung::Online.launch(rows, 49).grid, [rows.div_ceil(4) as u32, 1, 1]);
            assert_eq!(SoftmaxRung::Rows.launch(rows, 49).grid, [rows.div_ceil(64) as u32, 1, 1]);
            assert_eq!(SoftmaxRung::Codes.launch(rows, 4096).grid, [rows as u32, 1, 1]);
        }
    }

    #[test]
    fn threads_that_share_a_row() {
        let found = [1, 8, 32, 49, 64, 257, 1000, 1024, 1028, 4096, 4097].map(lanes);
        assert_eq!(found[..6], [1, 2, 8, 8, 16, 32].map(Some));
        assert_eq!(found[6..10], [32, 32, 128, 128].map(Some));
        assert_eq!(found[10], None);
        assert!(SoftmaxRung::Rows.program(4097).is_none() && SoftmaxRung::Online.program(4097).is_some());
    }
}
