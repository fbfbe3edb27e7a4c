//! The pixels of a batch as the rows of the patch embedding.

use cudarc::driver::{CudaSlice, CudaView};

use super::{Call, THREADS, Training, loop_launch, uint};
use crate::params::train_images::Params;
use crate::{CudaError, LaunchConfig, Program};

/// The images of a batch, and the patches into which they are divided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Patches {
    /// Number of images.
    pub images: usize,
    /// Height and width of an image, in pixels.
    pub size: [usize; 2],
    /// Number of channels.
    pub channels: usize,
    /// Pixels of an edge of a patch.
    pub patch: usize,
    /// Rows and columns of patches. Pixels beyond them are cut off, and missing ones are zero.
    pub grid: [usize; 2],
}

impl Patches {
    /// Number of bytes of the images.
    pub fn bytes(self) -> usize {
        self.images * self.size[0] * self.size[1] * self.channels
    }

    /// Number of values of a patch.
    pub fn values(self) -> usize {
        self.channels * self.patch * self.patch
    }

    /// Number of results.
    pub fn count(self) -> usize {
        self.images * self.grid[0] * self.grid[1] * self.values()
    }
}

/// The program of patches.
pub fn patches_program() -> Program {
    Program::new("train_images.cu", "patches").define("THREADS", THREADS.into())
}

/// Launch configuration for `count` results.
pub fn patches_launch(count: usize) -> LaunchConfig {
    loop_launch(count)
}

impl Training {
    /// The normalised patches of `pixels` `[images, height, width, channels]`:
    /// `[images * rows * columns, channels * patch^2]`, a row channel by channel. `table` `[channels, 256]`
    /// has the value of each byte.
    ///
    /// # Errors
    /// The kernel does not compile, or the driver fails.
    ///
    /// # Panics
    /// If lengths do not match, or there is no patch.
    pub fn patches(
        &self,
        pixels: &CudaView<'_, u8>,
        table: &CudaView<'_, f32>,
        of: Patches,
    ) -> Result<CudaSlice<f32>, CudaError> {
        let Patches { size: [height, width], channels, patch, grid: [rows, columns], .. } = of;
        let count = of.count();
        assert!(count > 0, "{of:?} have no values");
        let mut out = self.allocate(count)?;
        let mut call = Call::new(self);
        let params = Params {
            pixels: call.read("patches", pixels, of.bytes()),
            table: call.read("patches: table", table, channels * 256),
            out: call.write(&mut out),
            height: uint(height),
            width: uint(width),
            channels: uint(channels),
            patch: uint(patch),
            rows: uint(rows),
            columns: uint(columns),
            count: uint(count),
        };
        // SAFETY: `Params` is the kernel's parameter. It writes `count` values, and reads a value of the
        // table and a pixel of the images for each that lies in an image.
        unsafe { self.launch(&patches_program(), patches_launch(count), &params)? };
        drop(call);
        Ok(out)
    }
}
