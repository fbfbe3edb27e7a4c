//! Softmax of rows.

use super::{blocks, expect, int};
use crate::cuda::{CudaError, Device, DeviceSlice, Kernel, LaunchConfig, Params, Program, Stream, launch};

/// Threads of a block.
const THREADS: u32 = 256;

/// A method to compute the softmax of f32 rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SoftmaxRung {
    /// One block per row, three passes; result in f32.
    Naive,
    /// One warp per row, maximum and sum in one pass; result in f32.
    Online,
    /// The codes of the INT8 attention ([`attention_row_u8`](crate::reference::attention_row_u8)), one warp
    /// per row; result in u8, and the sum of each row's codes in u32.
    Codes,
}

impl SoftmaxRung {
    /// All rungs, the simplest first.
    pub const ALL: [SoftmaxRung; 3] = [SoftmaxRung::Naive, SoftmaxRung::Online, SoftmaxRung::Codes];

    /// The program to compile.
    pub fn program(self) -> Program {
        let entry = match self {
            SoftmaxRung::Naive => "softmax_naive",
            SoftmaxRung::Online => "softmax_online",
            SoftmaxRung::Codes => "softmax_codes",
        };
        Program::new("ladder_softmax.cu", entry).define("THREADS", THREADS.into())
    }

    /// Launch configuration for `rows` rows.
    ///
    /// # Panics
    /// If 2^31 blocks or more are needed.
    pub fn launch(self, rows: usize) -> LaunchConfig {
        let warps = THREADS / 32;
        match self {
            SoftmaxRung::Naive => {
                LaunchConfig { shared: 2 * warps * 4, ..LaunchConfig::linear(blocks(rows), THREADS) }
            }
            _ => LaunchConfig::linear(blocks(rows.div_ceil(warps as usize)), THREADS),
        }
    }

    /// Bytes per element of the output.
    pub fn element_bytes(self) -> usize {
        if self == SoftmaxRung::Codes { 1 } else { 4 }
    }
}

/// `Params` of ladder_softmax.cu.
#[repr(C)]
#[derive(Clone, Copy)]
struct SoftmaxParams {
    x: u64,
    out: u64,
    sums: u64,
    rows: i32,
    columns: i32,
}

// SAFETY: `repr(C)`, with the fields of `Params` in ladder_softmax.cu in the same order.
unsafe impl Params for SoftmaxParams {}

/// A rung, compiled.
pub struct Softmax {
    kernel: Kernel,
    rung: SoftmaxRung,
}

impl Softmax {
    /// Compiles `rung`.
    ///
    /// # Errors
    /// NVRTC is missing, the source does not compile, or the driver fails.
    pub fn new(device: &Device, rung: SoftmaxRung) -> Result<Softmax, CudaError> {
        Ok(Softmax { kernel: device.kernel(&rung.program())?, rung })
    }

    /// Writes the softmax of the rows of `x`, f32 `[rows, columns]`, to `out`, which has the same shape and
    /// is contiguous. [`SoftmaxRung::Codes`] also writes the sums of the codes to `sums`, `[rows]`; other
    /// rungs do not use `sums`.
    ///
    /// # Errors
    /// The driver fails.
    ///
    /// # Panics
    /// If a slice is too short, or a size is 2^31 or more.
    pub fn run(
        &self,
        on: &Stream,
        (rows, columns): (usize, usize),
        x: &DeviceSlice,
        out: &DeviceSlice,
        sums: &DeviceSlice,
    ) -> Result<(), CudaError> {
        expect("ladder: x", x, rows * columns * 4);
        expect("ladder: the output", out, rows * columns * self.rung.element_bytes());
        if self.rung == SoftmaxRung::Codes {
            expect("ladder: the sums", sums, rows * 4);
        }
        [x, out, sums].into_iter().for_each(|slice| on.hold(slice));
        let (rows_int, columns) = (int(rows), int(columns));
        let params = SoftmaxParams { x: x.ptr(), out: out.ptr(), sums: sums.ptr(), rows: rows_int, columns };
        // SAFETY: `SoftmaxParams` is the kernels' parameter. The lengths were checked above, the kernels
        // access no row or column beyond them, and all slices are held.
        unsafe { launch(&self.kernel, self.rung.launch(rows), on, &params) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_cover_the_rows() {
        for rows in [1, 7, 8, 9, 1000] {
            assert_eq!(SoftmaxRung::Naive.launch(rows).grid, [rows as u32, 1, 1]);
            assert_eq!(SoftmaxRung::Online.launch(rows).grid, [rows.div_ceil(8) as u32, 1, 1]);
            assert_eq!(SoftmaxRung::Codes.launch(rows).threads, THREADS);
        }
    }
}
