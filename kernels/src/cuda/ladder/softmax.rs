//! Softmax of rows.

use super::{blocks, expect, int};
use crate::cuda::{CudaError, Device, DeviceSlice, Kernel, LaunchConfig, Params, Program, Stream, launch};

/// Threads of a block.
const THREADS: u32 = 256;

/// A way to compute the softmax of rows of f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SoftmaxRung {
    /// A block for each row, three passes: f32.
    Naive,
    /// A warp for each row, largest and sum in one pass: f32.
    Online,
    /// The codes of our INT8 attention ([`attention_row_u8`](crate::reference::attention_row_u8)), a warp for each row:
    /// u8, and the sum of each row's codes as u32.
    Codes,
}

impl SoftmaxRung {
    /// Every one, the plainest first.
    pub const ALL: [SoftmaxRung; 3] = [SoftmaxRung::Naive, SoftmaxRung::Online, SoftmaxRung::Codes];

    /// What is compiled.
    pub fn program(self) -> Program {
        let entry = match self {
            SoftmaxRung::Naive => "softmax_naive",
            SoftmaxRung::Online => "softmax_online",
            SoftmaxRung::Codes => "softmax_codes",
        };
        Program::new("ladder_softmax.cu", entry).define("THREADS", THREADS.into())
    }

    /// How `rows` rows are launched.
    ///
    /// # Panics
    /// For 2^31 blocks or more.
    pub fn launch(self, rows: usize) -> LaunchConfig {
        let warps = THREADS / 32;
        match self {
            SoftmaxRung::Naive => {
                LaunchConfig { shared: 2 * warps * 4, ..LaunchConfig::linear(blocks(rows), THREADS) }
            }
            _ => LaunchConfig::linear(blocks(rows.div_ceil(warps as usize)), THREADS),
        }
    }

    /// Bytes of an element of the output.
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

// SAFETY: the fields of `Params` in ladder_softmax.cu, in their order.
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

    /// The softmax of the rows of `x`, f32 `[rows, columns]`, in `out` of the same shape without gaps; for
    /// [`SoftmaxRung::Codes`] the sums of the codes go to `sums`, `[rows]`, which no other rung touches.
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
        // SAFETY: `SoftmaxParams` is the kernels' parameter; the lengths were checked above, the kernels touch no row
        // or column beyond them, and all slices are held.
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
