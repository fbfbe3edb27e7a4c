//! The engine: a model that is ready to run.

mod check;
mod device;
mod measure;
mod output;

use std::path::Path;
use std::sync::Arc;

use swinq_cuda::{Device, KeepContext};
use swinq_model::{Batch, BoxError, Classifier, Logits, QuantizedModel, Size, SwinConfig, Transform};
use swinq_numerics::Images;
use swinq_plan::{Outline, Output, OutputKind};

pub use self::device::{DeviceImages, DeviceOutput};
pub(crate) use self::output::{Finite, OutputBytes, OutputElement, OutputForm};
pub use self::output::{OutputLayout, OutputMut, OutputShape, OutputValues};
use crate::backend::Backend;
use crate::cpu;
use crate::cuda;
use crate::error::RuntimeError;
use crate::packed::{Lowered, PackedModel};

/// A model that is ready to run: shared packed weights, with memory for tensors and threads that belong to
/// this engine.
///
/// An engine may be called from many threads. On a CPU the calls run at the same time and share the engine's
/// threads: each has its part of them. A call waits while others use all threads, at most for a part of a
/// large batch. On a GPU the calls take turns, except those on streams of the caller ([`Engine::run_on`]).
pub struct Engine {
    packed: Arc<PackedModel>,
    backend: Backend,
    threads: usize,
    runner: BackendRunner,
}

/// The most outputs of a network. A configuration has at most 8 stages, and each has one output at most.
pub const MOST_OUTPUTS: usize = 16;

/// The name of the output of a classifier.
pub const LOGITS: &str = "logits";

/// The part that runs the launches.
enum BackendRunner {
    Cpu(Box<cpu::CpuRunner>),
    Cuda(Box<cuda::Pool>),
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
        Engine::with_threads_of(None, packed, backend)
    }

    /// An engine on other weights, for another part of the same program. On a CPU it shares threads and
    /// memory for tensors with this one if both have as many threads: their calls take turns as calls of one
    /// engine do, and each buffer is as large as the larger of both needs it.
    ///
    /// # Errors
    /// Those of [`Engine::from_packed`].
    pub fn beside(&self, packed: &Arc<PackedModel>, backend: Backend) -> Result<Engine, RuntimeError> {
        Engine::with_threads_of(Some(self), packed, backend)
    }

    /// An engine with the threads of `other`, if they are those of `backend`.
    fn with_threads_of(
        other: Option<&Engine>,
        packed: &Arc<PackedModel>,
        backend: Backend,
    ) -> Result<Engine, RuntimeError> {
        backend.check()?;
        let backend = packed.resolved(backend)?;
        packed.check_suits(&backend)?;
        let (runner, threads) = match (&packed.lowered, &backend) {
            (Lowered::Cpu(lowered), Backend::Cpu(options)) => {
                let shared = other.and_then(|other| other.lanes_of(options.threads));
                let runner = cpu::CpuRunner::new(lowered, packed.config(), options, shared)?;
                let threads = runner.threads();
                (BackendRunner::Cpu(Box::new(runner)), threads)
            }
            (Lowered::Cuda(lowered), Backend::Cuda(options)) => {
                (BackendRunner::Cuda(Box::new(cuda::Pool::new(lowered, packed.config(), *options)?)), 1)
            }
            _ => unreachable!("`check_suits` compares the backends"),
        };
        Ok(Engine { packed: Arc::clone(packed), backend, threads, runner })
    }

    /// A second engine on the same weights, with its own arena and threads.
    ///
    /// # Errors
    /// The system refuses memory or threads, or the GPU fails.
    pub fn another(&self) -> Result<Engine, RuntimeError> {
        Engine::from_packed(&self.packed, self.backend)
    }

    /// The groups of threads of an engine on a CPU with so many threads.
    fn lanes_of(&self, threads: usize) -> Option<Arc<cpu::Lanes>> {
        match (&self.runner, &self.backend) {
            (BackendRunner::Cpu(runner), Backend::Cpu(options)) if options.threads == threads => {
                Some(runner.shared_lanes())
            }
            _ => None,
        }
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

    /// Height and width of the images for which the network was built, in pixels.
    pub fn input_size(&self) -> Size {
        self.config().image_size
    }

    /// Channels of an image.
    pub fn channels(&self) -> usize {
        self.config().in_chans
    }

    /// Bytes of an image of [`Engine::input_size`].
    pub fn image_bytes(&self) -> usize {
        self.bytes_of(self.input_size())
    }

    /// The outputs of the network, in the order in which it computes them.
    pub fn outputs(&self) -> &[Output] {
        &self.packed.plan.outputs
    }

    /// The shape of `output` for one image of `size`, which [`Engine::check_size`] accepts.
    pub fn output_shape(&self, output: &Output, size: Size) -> OutputShape {
        let grid = match output.kind {
            OutputKind::Logits => None,
            OutputKind::Stage(stage) => Some(self.config().grid_size(stage, size)),
        };
        OutputShape { grid, columns: self.packed.plan.tensor(output.tensor).columns }
    }

    /// The most images that run at a time; larger batches are split. On a CPU, those of all threads together.
    pub fn max_batch(&self) -> usize {
        self.lanes() * self.backend.max_batch()
    }

    /// Threads in use, the caller's included; 1 on a GPU.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Threads that work on one image of [`Engine::input_size`], the caller's included; 1 on a GPU.
    pub fn image_threads(&self) -> usize {
        match &self.runner {
            BackendRunner::Cpu(runner) => runner.image_threads(),
            BackendRunner::Cuda(_) => 1,
        }
    }

    /// Images of [`Engine::input_size`] that can run side by side, each on a thread of its own: as many as
    /// threads, unless memory is short. 1 on a GPU.
    pub fn lanes(&self) -> usize {
        match &self.runner {
            BackendRunner::Cpu(runner) => runner.lanes(),
            BackendRunner::Cuda(_) => 1,
        }
    }

    /// Scores of the images of `batch`, which may have any size that the network can process.
    ///
    /// # Errors
    /// Another number of channels, pixels that are not the batch's images, or an error of [`Engine::run`].
    pub fn infer(&self, batch: &Batch) -> Result<Logits, RuntimeError> {
        let (expected, classes) = (self.channels(), self.classes());
        if batch.channels != expected {
            return Err(RuntimeError::Channels { got: batch.channels, expected });
        }
        self.check_pixels(&batch.pixels, batch.len(), batch.size)?;
        let mut values = vec![0.0; batch.len() * classes];
        let mut outputs = [OutputMut::new(LOGITS, &mut values)];
        self.run(Images::new(batch.size, &batch.pixels[..]), &mut outputs)?;
        Ok(Logits { values, classes })
    }

    /// Scores of `logits.len() / classes` images of [`Engine::input_size`]: `pixels` is u8
    /// `[images, height, width, channels]`, `logits` is f32 `[images, classes]`. On a CPU it allocates
    /// nothing once every batch size has been seen. On a GPU, the parts of a batch that is split overlap:
    /// while one part is computed, another is copied (except with [`CudaOptions::nvtx`]).
    ///
    /// [`CudaOptions::nvtx`]: crate::CudaOptions::nvtx
    ///
    /// # Errors
    /// `pixels` holds another number of images, a score is not finite, or the GPU fails.
    pub fn infer_into(&self, pixels: &[u8], logits: &mut [f32]) -> Result<(), RuntimeError> {
        self.infer_in_batches(self.max_batch(), pixels, logits)
    }

    /// As [`Engine::infer_into`], in batches of `each` images; the last may be smaller. On a CPU, `each` is
    /// the most images that one thread runs at a time.
    ///
    /// # Errors
    /// The errors of [`Engine::infer_into`], and an `each` that is not in `1..=max_batch`.
    pub fn infer_in_batches(
        &self,
        each: usize,
        pixels: &[u8],
        logits: &mut [f32],
    ) -> Result<(), RuntimeError> {
        let classes = self.classes();
        if classes == 0 {
            return Err(self.no_output(LOGITS));
        }
        if !logits.len().is_multiple_of(classes) {
            return Err(RuntimeError::LogitCount { values: logits.len(), classes });
        }
        let images = Images::new(self.input_size(), pixels);
        self.check_pixels(pixels, logits.len() / classes, images.size)?;
        self.run_in_batches(each, images, &mut [OutputMut::new(LOGITS, logits)])
    }

    /// Computes `outputs` of `images`, which may have any size that the network can process. Pixels of 8 bits
    /// are normalised by [`Engine::transform`], others are normalised already. What depends on the size is
    /// prepared at its first use and kept for the sizes used last, beside the network's own size. Images
    /// larger than the network's own run fewer at a time, so that a batch takes no more memory.
    ///
    /// # Errors
    /// An image that the network cannot process, or that needs more memory than allowed; pixels that are not
    /// whole images, or not finite; an output that the network does not have, is asked for twice, or has
    /// other values than its memory; an output that is not finite; a GPU that fails.
    pub fn run(&self, images: Images<'_>, outputs: &mut [OutputMut<'_>]) -> Result<(), RuntimeError> {
        self.run_in_batches(self.max_batch(), images, outputs)
    }

    fn run_in_batches(
        &self,
        each: usize,
        images: Images<'_>,
        outputs: &mut [OutputMut<'_>],
    ) -> Result<(), RuntimeError> {
        self.check_images(each)?;
        let size = images.size;
        let count = self.count(images.pixels.len(), size)?;
        let mut memory = self.memory_of(outputs, size, count)?;
        if count == 0 {
            return Ok(());
        }
        let (bytes, forms) = (&mut memory.bytes, &memory.forms);
        let finite = match &self.runner {
            BackendRunner::Cpu(runner) => {
                self.check_room(runner, size)?;
                let finite = runner.infer((count, each), images, bytes, forms)?;
                Finite { input: finite, outputs: finite }
            }
            BackendRunner::Cuda(pool) => {
                self.on_gpu(pool, size, |runner| runner.infer((count, each), images, bytes, forms))?
            }
        };
        if !finite.input {
            self.check_input(images, count)?;
        }
        if finite.outputs { Ok(()) } else { memory.check_finite(self.outputs(), count) }
    }

    /// Prepares for batches of `images` images of `size`, or as many of that size as run at a time. On a GPU
    /// this chooses kernels by measurement and records the graph of the batch; without it, the first
    /// inference does so. On a CPU, or if the batch is already prepared, it does nothing.
    ///
    /// # Errors
    /// `images` is not in `1..=max_batch`, the network cannot process the images, or they need more memory
    /// than allowed; a kernel does not compile, or the driver fails.
    pub fn prepare(&self, size: Size, images: usize) -> Result<(), RuntimeError> {
        self.check_images(images)?;
        match &self.runner {
            BackendRunner::Cpu(runner) => self.check_room(runner, size),
            BackendRunner::Cuda(pool) => {
                self.on_gpu(pool, size, |runner| runner.prepare(images, size).map(drop))
            }
        }
    }

    /// Refuses images of `size` that need more memory than allowed, unless they are prepared.
    fn check_room(&self, runner: &cpu::CpuRunner, size: Size) -> Result<(), RuntimeError> {
        if runner.has(size) { Ok(()) } else { self.check_memory(size, runner.held_bytes()) }
    }

    /// Calls `work` with the runner of inference from host memory, unless images of `size` need more memory
    /// than allowed.
    fn on_gpu<T>(
        &self,
        pool: &cuda::Pool,
        size: Size,
        work: impl FnOnce(&mut cuda::CudaRunner) -> Result<T, RuntimeError>,
    ) -> Result<T, RuntimeError> {
        let _context = self.device().map(KeepContext::new).transpose()?;
        pool.check()?;
        self.with_room(&*pool.for_host()?, size, work)
    }

    /// Calls `work` with a runner on a GPU, unless images of `size` need more memory than allowed.
    fn with_room<T>(
        &self,
        shared: &cuda::Shared,
        size: Size,
        work: impl FnOnce(&mut cuda::CudaRunner) -> Result<T, RuntimeError>,
    ) -> Result<T, RuntimeError> {
        let mut runner = shared.lock();
        if !runner.has(size) {
            self.check_memory(size, runner.held_bytes())?;
        }
        work(&mut runner)
    }

    /// Bytes of an image of `size`.
    fn bytes_of(&self, size: Size) -> usize {
        size.area() * self.channels()
    }
}

impl Classifier for Engine {
    fn classes(&self) -> usize {
        Engine::classes(self)
    }

    fn input_size(&self) -> Size {
        Engine::input_size(self)
    }

    fn channels(&self) -> usize {
        Engine::channels(self)
    }

    fn infer(&self, batch: &Batch) -> Result<Logits, BoxError> {
        Ok(Engine::infer(self, batch)?)
    }
}
