//! Checks of images and of their scores.

use swinq_model::Size;
use swinq_numerics::Images;
use swinq_plan::{Grids, Output};

use super::{BackendRunner, Engine};
use crate::cuda;
use crate::error::RuntimeError;
use crate::memory::available_memory;
use crate::packed::Lowered;

impl Engine {
    /// Refuses an image of `size` that the network, or on a GPU the backend, cannot process. It does not ask
    /// for the image's memory.
    ///
    /// # Errors
    /// [`RuntimeError::Model`] with the reason.
    pub fn check_size(&self, size: Size) -> Result<(), RuntimeError> {
        let grids = Grids::new(self.config(), size)?;
        match &self.runner {
            BackendRunner::Cpu(_) => Ok(()),
            BackendRunner::Cuda(_) => Ok(cuda::check_position(self.config(), &grids)?),
        }
    }

    /// Refuses an image of `size` that the network cannot process, or that needs more memory than allowed
    /// ([`CpuOptions::max_pixels`](crate::CpuOptions), or half of the memory that is free now).
    ///
    /// # Errors
    /// [`RuntimeError::Model`] with the reason; [`RuntimeError::ImageTooLarge`]; the errors of the GPU.
    pub fn check_image(&self, size: Size) -> Result<(), RuntimeError> {
        self.check_size(size)?;
        match &self.runner {
            BackendRunner::Cpu(runner) => self.check_room(runner, size),
            BackendRunner::Cuda(pool) => self.on_gpu(pool, size, |_| Ok(())),
        }
    }

    /// The output `name`.
    ///
    /// # Errors
    /// [`RuntimeError::Output`] with the names of all outputs, if it is none of them.
    pub fn output(&self, name: &str) -> Result<&Output, RuntimeError> {
        self.outputs().iter().find(|output| output.name == name).ok_or_else(|| self.no_output(name))
    }

    pub(super) fn no_output(&self, name: &str) -> RuntimeError {
        let names: Vec<&str> = self.outputs().iter().map(|output| &output.name[..]).collect();
        RuntimeError::Output { name: name.to_owned(), names: names.join(", ") }
    }

    pub(super) fn check_pixels(&self, pixels: &[u8], images: usize, size: Size) -> Result<(), RuntimeError> {
        if size.image_bytes(self.channels(), images) == Some(pixels.len()) {
            return Ok(());
        }
        Err(RuntimeError::PixelCount { values: pixels.len(), images, size, channels: self.channels() })
    }

    /// The number of images of `size` that have so many values.
    pub(super) fn count(&self, values: usize, size: Size) -> Result<usize, RuntimeError> {
        let channels = self.channels();
        match size.image_bytes(channels, 1).filter(|&image| image > 0 && values.is_multiple_of(image)) {
            Some(image) => Ok(values / image),
            None => Err(RuntimeError::PixelCount { values, images: 1, size, channels }),
        }
    }

    /// Refuses `images`, `count` of them, if a value is not finite.
    pub(super) fn check_input(&self, images: Images<'_>, count: usize) -> Result<(), RuntimeError> {
        let Some((index, value)) = images.pixels.first_not_finite() else { return Ok(()) };
        let each = images.pixels.len() / count;
        let (row, column, channel) = images.layout.place(index % each, images.size, self.channels());
        Err(RuntimeError::InputNotFinite { image: index / each, row, column, channel, value })
    }

    /// Refuses an image that needs more memory than allowed, before any is asked for. `held` is what the
    /// runner holds.
    pub(super) fn check_memory(&self, size: Size, held: usize) -> Result<(), RuntimeError> {
        if size.area() <= self.input_size().area() {
            return Ok(());
        }
        let grids = Grids::new(self.config(), size)?;
        let needed = match &self.packed.lowered {
            Lowered::Cpu(lowered) => lowered.image_bytes(&grids),
            Lowered::Cuda(lowered) => lowered.image_bytes(&grids),
        };
        let allowed = match self.backend.max_pixels() {
            0 => self.free_memory(held)?,
            most => (needed as u128 * most as u128 / size.area() as u128).try_into().unwrap_or(usize::MAX),
        };
        if needed <= allowed {
            return Ok(());
        }
        Err(RuntimeError::ImageTooLarge { size, needed, allowed })
    }

    /// Half of the free memory, or what the runner holds if that is more, because an image that fits into
    /// that takes no more.
    fn free_memory(&self, held: usize) -> Result<usize, RuntimeError> {
        let free = match &self.packed.lowered {
            Lowered::Cuda(lowered) => lowered.device().memory()?.0,
            Lowered::Cpu(_) => available_memory().unwrap_or(usize::MAX),
        };
        Ok((free / 2).max(held))
    }

    pub(super) fn check_images(&self, images: usize) -> Result<(), RuntimeError> {
        let max_batch = self.max_batch();
        if (1..=max_batch).contains(&images) {
            return Ok(());
        }
        Err(RuntimeError::Images { images, max_batch })
    }

    /// The number and the pixels of the first images of `pixels`, images of `size`, at most `max_batch`
    /// images.
    pub(super) fn first_batch<'a>(
        &self,
        pixels: &'a [u8],
        size: Size,
    ) -> Result<(usize, &'a [u8]), RuntimeError> {
        let image_bytes = self.bytes_of(size);
        let images = pixels.len() / image_bytes.max(1);
        self.check_pixels(pixels, images.max(1), size)?;
        let images = images.min(self.max_batch());
        Ok((images, &pixels[..images * image_bytes]))
    }
}
