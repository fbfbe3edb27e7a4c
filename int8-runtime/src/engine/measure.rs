//! Measurements of an engine, and what it computes launch by launch.

use std::time::Duration;

use swinq_model::Size;
use swinq_numerics::Images;

use super::{BackendRunner, Engine};
use crate::error::RuntimeError;
use crate::profile::LaunchProfile;
use crate::trace::Traced;

impl Engine {
    /// The time of each launch in a forward of the first (at most `max_batch`) of `pixels`, images of `size`:
    /// on a CPU the median of `runs` forwards (at least one); on a GPU the median of a fixed number of
    /// launches.
    ///
    /// # Errors
    /// `pixels` is not one or more whole images, the network or the engine's memory has no room for the size,
    /// or the GPU fails.
    pub fn profile(
        &self,
        size: Size,
        pixels: &[u8],
        runs: usize,
    ) -> Result<Vec<LaunchProfile>, RuntimeError> {
        let (images, pixels) = self.first_batch(pixels, size)?;
        match &self.runner {
            BackendRunner::Cpu(runner) => {
                let runs = u32::try_from(runs.max(1)).unwrap_or(u32::MAX);
                runner.profile(images, Images::new(size, pixels), runs)
            }
            BackendRunner::Cuda(pool) => {
                self.on_gpu(pool, size, |runner| runner.profile(size, images, pixels))
            }
        }
    }

    /// Runs the launches one by one over the first (at most `max_batch`) of `pixels`, images of
    /// [`Engine::input_size`], and collects the result of each launch.
    ///
    /// # Errors
    /// `pixels` is not one or more whole images, the system refuses memory, or the GPU fails.
    pub fn trace(&self, pixels: &[u8]) -> Result<Vec<Traced>, RuntimeError> {
        let size = self.input_size();
        let (images, pixels) = self.first_batch(pixels, size)?;
        match &self.runner {
            BackendRunner::Cpu(runner) => runner.trace(images, Images::new(size, pixels)),
            BackendRunner::Cuda(pool) => self.on_gpu(pool, size, |runner| runner.trace(images, pixels)),
        }
    }

    /// Describes the launches for batches of `images` images: a line for each launch, with the kernel chosen
    /// for it.
    ///
    /// # Errors
    /// The errors of [`Engine::prepare`].
    pub fn launches(&self, images: usize) -> Result<Vec<String>, RuntimeError> {
        self.check_images(images)?;
        match &self.runner {
            BackendRunner::Cpu(runner) => Ok(runner.launches(images)),
            BackendRunner::Cuda(pool) => {
                self.on_gpu(pool, self.input_size(), |runner| runner.launches(images))
            }
        }
    }

    /// On a GPU, the time of each of `runs` forwards of `images` images of `size`, without copies: the images
    /// are already on the GPU. Feature maps are written in f16, with the channels first. `None` if fewer
    /// images of that size run at a time, and on the CPU, which makes no copies.
    ///
    /// # Errors
    /// The errors of [`Engine::prepare`], and an image that the network cannot process, or that needs more
    /// memory than allowed.
    pub fn compute_times(
        &self,
        size: Size,
        images: usize,
        runs: usize,
    ) -> Result<Option<Vec<Duration>>, RuntimeError> {
        self.check_images(images)?;
        match &self.runner {
            BackendRunner::Cpu(runner) => self.check_room(runner, size).map(|()| None),
            BackendRunner::Cuda(pool) => {
                self.on_gpu(pool, size, |runner| runner.compute_times(images, size, runs))
            }
        }
    }
}
