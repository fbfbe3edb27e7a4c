//! The engine: a model that is ready to run.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use swinq_cuda::Device;
use swinq_kernels::Simulation;
use swinq_model::{Batch, BoxError, Classifier, Logits, QuantizedModel, SwinConfig, Transform};
use swinq_plan::Outline;

use crate::backend::Backend;
use crate::cpu::{self, CpuOptions};
use crate::cuda;
use crate::error::RuntimeError;
use crate::packed::{Lowered, PackedModel};
use crate::profile::LaunchProfile;
use crate::trace::Traced;

/// A model that is ready to run: shared packed weights, and an arena and threads that belong to this engine.
///
/// An engine may be called from many threads; the calls take turns. For calls that run at the same time, make
/// an engine for each thread on the same weights: with [`Engine::another`], or with `Model::engine` of the crate `swinq`,
/// which also chooses the backend.
pub struct Engine {
    packed: Arc<PackedModel>,
    backend: Backend,
    threads: usize,
    runner: Mutex<Runner>,
}

/// The part that runs the launches.
enum Runner {
    Cpu(cpu::Runner),
    Cuda(Box<cuda::Runner>),
}

impl Engine {
    /// Loads a quantized checkpoint.
    ///
    /// # Errors
    /// The file cannot be read, or an error of [`Engine::new`].
    pub fn load(path: &Path, backend: Backend) -> Result<Engine, RuntimeError> {
        backend.check()?;
        Engine::new(&QuantizedModel::load(path)?, backend)
    }

    /// Prepares `model`: plans it, packs its weights, places its buffers. The engine keeps nothing of
    /// `model`.
    ///
    /// # Errors
    /// The errors of [`PackedModel::new`] and [`Engine::from_packed`].
    pub fn new(model: &QuantizedModel, backend: Backend) -> Result<Engine, RuntimeError> {
        backend.check()?;
        Engine::from_packed(&Arc::new(PackedModel::new(model, backend)?), backend)
    }

    /// An engine on weights that are already packed, with its own arena and threads.
    ///
    /// # Errors
    /// The options of `backend` are out of bounds, `packed` was made for another backend, the system refuses
    /// memory or threads, or the GPU fails.
    pub fn from_packed(packed: &Arc<PackedModel>, backend: Backend) -> Result<Engine, RuntimeError> {
        backend.check()?;
        packed.check_suits(&backend)?;
        let (runner, threads) = match (&packed.lowered, &backend) {
            (Lowered::Cpu(lowered), Backend::Cpu(options)) => {
                let runner = cpu::Runner::new(lowered, options)?;
                let threads = runner.threads();
                (Runner::Cpu(runner), threads)
            }
            (Lowered::Cuda(lowered), Backend::Cuda(options)) => {
                let SwinConfig { image_size, num_classes, .. } = *packed.config();
                let runner = cuda::Runner::new(lowered, *options, image_size, num_classes)?;
                (Runner::Cuda(Box::new(runner)), 1)
            }
            _ => unreachable!("`check_suits` compares the backends"),
        };
        Ok(Engine { packed: Arc::clone(packed), backend, threads, runner: Mutex::new(runner) })
    }

    /// A second engine on the same weights, with its own arena and threads.
    ///
    /// # Errors
    /// The system refuses memory or threads, or the GPU fails.
    pub fn another(&self) -> Result<Engine, RuntimeError> {
        Engine::from_packed(&self.packed, self.backend)
    }

    /// The packed weights, from which more engines can be made.
    pub fn packed(&self) -> &Arc<PackedModel> {
        &self.packed
    }

    /// The architecture of the model.
    pub fn config(&self) -> &SwinConfig {
        self.packed.config()
    }

    /// The preprocessing of images.
    pub fn transform(&self) -> &Transform {
        self.packed.transform()
    }

    /// Class names by class index; `None` if they are not known.
    pub fn labels(&self) -> Option<&[String]> {
        self.packed.labels()
    }

    /// The network as a list of ops.
    pub fn plan(&self) -> &Outline {
        &self.packed.plan
    }

    /// The backend that runs the model, with its options.
    pub fn backend(&self) -> &Backend {
        &self.backend
    }

    /// The GPU in use; `None` on the CPU.
    pub fn device(&self) -> Option<&Device> {
        match &self.packed.lowered {
            Lowered::Cpu(_) => None,
            Lowered::Cuda(packed) => Some(packed.device()),
        }
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        self.config().num_classes
    }

    /// Side of the input in pixels.
    pub fn input_size(&self) -> usize {
        self.config().image_size
    }

    /// The most images that run at a time; larger batches are split.
    pub fn max_batch(&self) -> usize {
        self.backend.max_batch()
    }

    /// Threads in use, the caller's included; 1 on a GPU.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Scores of the images of `batch`.
    ///
    /// # Errors
    /// Images of another size, pixels that are not the batch's images, or an error of [`Engine::infer_into`].
    pub fn infer(&self, batch: &Batch) -> Result<Logits, RuntimeError> {
        let (size, classes) = (self.input_size(), self.classes());
        if batch.size != size {
            return Err(RuntimeError::ImageSize { got: batch.size, expected: size });
        }
        self.check_pixels(&batch.pixels, batch.len())?;
        let mut values = vec![0.0; batch.len() * classes];
        self.infer_into(&batch.pixels, &mut values)?;
        Ok(Logits { values, classes })
    }

    /// Scores of `logits.len() / classes` images: `pixels` is u8 `[images, size, size, 3]`, `logits` is f32
    /// `[images, classes]`. On a CPU it allocates nothing once every batch size has been seen. On a GPU, the
    /// parts of a batch that is split overlap: while one part is computed, another is copied (except with
    /// [`CudaOptions::nvtx`]).
    ///
    /// [`CudaOptions::nvtx`]: crate::CudaOptions::nvtx
    ///
    /// # Errors
    /// `pixels` holds another number of images, a score is not finite, or the GPU fails.
    pub fn infer_into(&self, pixels: &[u8], logits: &mut [f32]) -> Result<(), RuntimeError> {
        self.infer_in_batches(self.max_batch(), pixels, logits)
    }

    /// As [`Engine::infer_into`], in batches of `each` images; the last may be smaller.
    ///
    /// # Errors
    /// The errors of [`Engine::infer_into`], and an `each` that is not in `1..=max_batch`.
    pub fn infer_in_batches(
        &self,
        each: usize,
        pixels: &[u8],
        logits: &mut [f32],
    ) -> Result<(), RuntimeError> {
        self.check_images(each)?;
        let classes = self.classes();
        let images = logits.len() / classes;
        if images * classes != logits.len() {
            return Err(RuntimeError::LogitCount { values: logits.len(), classes });
        }
        self.check_pixels(pixels, images)?;
        if images == 0 {
            return Ok(());
        }
        match &mut *self.lock() {
            Runner::Cpu(runner) => {
                let image_bytes = self.image_bytes();
                let parts = pixels.chunks(each * image_bytes).zip(logits.chunks_mut(each * classes));
                parts.for_each(|(pixels, logits)| runner.infer(pixels.len() / image_bytes, pixels, logits));
            }
            Runner::Cuda(runner) => runner.infer((images, each), pixels, logits)?,
        }
        check_finite(logits, classes)
    }

    /// Prepares for batches of `images` images. On a GPU this chooses kernels and records the graph of the
    /// batch size; without it, the first inference of the size does so. On a CPU, or if the size is already
    /// prepared, it does nothing.
    ///
    /// # Errors
    /// `images` is not in `1..=max_batch`, a kernel does not compile, or the driver fails.
    pub fn prepare(&self, images: usize) -> Result<(), RuntimeError> {
        self.check_images(images)?;
        match &mut *self.lock() {
            Runner::Cpu(_) => Ok(()),
            Runner::Cuda(runner) => runner.prepare(images),
        }
    }

    /// The time of each launch in a forward of the first (at most `max_batch`) images of `pixels`: on a CPU
    /// the median of `runs` forwards (at least one); on a GPU the median of a fixed number of launches.
    ///
    /// # Errors
    /// `pixels` is not one or more whole images, or the GPU fails.
    pub fn profile(&self, pixels: &[u8], runs: usize) -> Result<Vec<LaunchProfile>, RuntimeError> {
        let (images, pixels) = self.first_batch(pixels)?;
        match &mut *self.lock() {
            Runner::Cpu(runner) => {
                let runs = u32::try_from(runs.max(1)).unwrap_or(u32::MAX);
                Ok(runner.profile(images, pixels, runs))
            }
            Runner::Cuda(runner) => runner.profile(images, pixels),
        }
    }

    /// How `threads` threads would divide an inference of `images` images on this kind of CPU, from the times of the tasks
    /// on one thread. 0 threads are as many as this engine has. `None` for an engine on a GPU.
    ///
    /// # Errors
    /// The numbers are out of bounds, or the system refuses memory.
    pub fn simulate(&self, threads: usize, images: usize) -> Result<Option<Simulation>, RuntimeError> {
        let (Lowered::Cpu(lowered), Backend::Cpu(options)) = (&self.packed.lowered, &self.backend) else {
            return Ok(None);
        };
        Backend::Cpu(CpuOptions { threads, max_batch: images, ..*options }).check()?;
        let bytes = images * self.image_bytes();
        let pixels: Vec<u8> = (0..bytes).map(|i| (i * 151) as u8).collect();
        let threads = if threads == 0 { self.threads } else { threads };
        lowered.simulate(threads, images, &pixels).map(Some)
    }

    /// Runs the launches one by one over the first (at most `max_batch`) images of `pixels`, and collects the
    /// result of each launch.
    ///
    /// # Errors
    /// `pixels` is not one or more whole images, the system refuses memory, or the GPU fails.
    pub fn trace(&self, pixels: &[u8]) -> Result<Vec<Traced>, RuntimeError> {
        let (images, pixels) = self.first_batch(pixels)?;
        match &mut *self.lock() {
            Runner::Cpu(runner) => runner.trace(images, pixels),
            Runner::Cuda(runner) => runner.trace(images, pixels),
        }
    }

    /// Describes the launches for batches of `images` images: a line for each launch, with the kernel chosen
    /// for it.
    ///
    /// # Errors
    /// The errors of [`Engine::prepare`].
    pub fn launches(&self, images: usize) -> Result<Vec<String>, RuntimeError> {
        self.check_images(images)?;
        match &mut *self.lock() {
            Runner::Cpu(runner) => Ok(runner.launches(images)),
            Runner::Cuda(runner) => runner.launches(images),
        }
    }

    /// On a GPU, the time of each of `runs` forwards of `images` images, without copies: the images are
    /// already on the GPU. `None` on the CPU, which makes no copies.
    ///
    /// # Errors
    /// The errors of [`Engine::prepare`].
    pub fn compute_times(&self, images: usize, runs: usize) -> Result<Option<Vec<Duration>>, RuntimeError> {
        self.check_images(images)?;
        match &mut *self.lock() {
            Runner::Cpu(_) => Ok(None),
            Runner::Cuda(runner) => runner.compute_times(images, runs).map(Some),
        }
    }

    /// Locks the runner for one call. A panic in an earlier call does no harm: every tensor is written before
    /// it is read, so a later call reads nothing that the earlier call left.
    fn lock(&self) -> MutexGuard<'_, Runner> {
        self.runner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn image_bytes(&self) -> usize {
        3 * self.input_size().pow(2)
    }

    fn check_pixels(&self, pixels: &[u8], images: usize) -> Result<(), RuntimeError> {
        if images.checked_mul(self.image_bytes()) == Some(pixels.len()) {
            return Ok(());
        }
        Err(RuntimeError::PixelCount { bytes: pixels.len(), images, size: self.input_size() })
    }

    fn check_images(&self, images: usize) -> Result<(), RuntimeError> {
        let max_batch = self.max_batch();
        if (1..=max_batch).contains(&images) {
            return Ok(());
        }
        Err(RuntimeError::Images { images, max_batch })
    }

    /// The number and the pixels of the first images of `pixels`, at most `max_batch` images.
    fn first_batch<'a>(&self, pixels: &'a [u8]) -> Result<(usize, &'a [u8]), RuntimeError> {
        let image_bytes = self.image_bytes();
        let images = pixels.len() / image_bytes;
        self.check_pixels(pixels, images.max(1))?;
        let images = images.min(self.max_batch());
        Ok((images, &pixels[..images * image_bytes]))
    }
}

fn check_finite(logits: &[f32], classes: usize) -> Result<(), RuntimeError> {
    match logits.iter().position(|v| !v.is_finite()) {
        None => Ok(()),
        Some(at) => {
            Err(RuntimeError::NotFinite { image: at / classes, class: at % classes, value: logits[at] })
        }
    }
}

impl Classifier for Engine {
    fn classes(&self) -> usize {
        Engine::classes(self)
    }

    fn input_size(&self) -> usize {
        Engine::input_size(self)
    }

    fn infer(&self, batch: &Batch) -> Result<Logits, BoxError> {
        Ok(Engine::infer(self, batch)?)
    }
}
