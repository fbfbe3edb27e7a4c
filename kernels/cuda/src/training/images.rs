//! The pixels of a batch as the rows of the patch embedding.

use cudarc::driver::{CudaSlice, CudaView};

use super::{THREADS, Training, uint};
use crate::{CudaError, LaunchConfig, Params, Program};

/// Maximum number of blocks; beyond it, a thread computes several values.
const BLOCKS: u32 = 16_384;

#[repr(C)]
#[derive(Clone, Copy)]
struct PatchesParams {
    pixels: u64,
    table: u64,
    out: u64,
    size: u32,
    patch: u32,
    grid: u32,
    count: u32,
}

// SAFETY: `repr(C)`, with the fields of `Params` in train_images.cu in the same order.
unsafe impl Params for PatchesParams {}

/// The images of a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Patches {
    /// Number of images.
    pub images: usize,
    /// Pixels of an edge of an image.
    pub size: usize,
    /// Pixels of an edge of a patch.
    pub patch: usize,
}

impl Patches {
    /// Number of results.
    pub fn count(self) -> usize {
        let grid = self.size / self.patch;
        self.images * grid * grid * 3 * self.patch * self.patch
    }
}

/// The program of patches.
pub fn patches_program() -> Program {
    Program::new("train_images.cu", "patches").define("THREADS", THREADS.into())
}

/// Launch configuration for `count` results.
pub fn patches_launch(count: usize) -> LaunchConfig {
    LaunchConfig::linear(uint(count).div_ceil(THREADS).min(BLOCKS), THREADS)
}

impl Training {
    /// The normalised patches of `pixels` `[images, size, size, 3]`: `[images * grid^2, 3 * patch^2]`, a row channel by channel.
    /// `table` `[3, 256]` has the value of each byte.
    ///
    /// # Errors
    /// The kernel does not compile, or the driver fails.
    ///
    /// # Panics
    /// If lengths do not match, or the patches do not fill the images.
    pub fn patches(
        &self,
        pixels: &CudaView<'_, u8>,
        table: &CudaView<'_, f32>,
        of: Patches,
    ) -> Result<CudaSlice<f32>, CudaError> {
        let Patches { images, size, patch } = of;
        assert!(
            patch > 0 && size > 0 && size.is_multiple_of(patch),
            "patches of {patch} in images of {size}"
        );
        let count = of.count();
        let mut out = self.allocate(count)?;
        let (from, _pixels) = self.read("patches", pixels, images * size * size * 3);
        let (values, _table) = self.read("patches: table", table, 3 * 256);
        let (to, written) = self.write(&mut out);
        let params = PatchesParams {
            pixels: from,
            table: values,
            out: to,
            size: uint(size),
            patch: uint(patch),
            grid: uint(size / patch),
            count: uint(count),
        };
        // SAFETY: `PatchesParams` is the kernel's parameter. It writes `count` values, and reads a pixel of the images and a
        // value of the table for each.
        unsafe { self.launch(&patches_program(), patches_launch(count), &params)? };
        drop(written);
        Ok(out)
    }
}
