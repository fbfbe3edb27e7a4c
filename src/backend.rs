//! The choice of the hardware that runs a model, and the options of an engine.

use swinq_cuda::Device;
use swinq_int8_runtime::cuda::{ResidualType, residual_type};
use swinq_int8_runtime::{Backend, CpuOptions, CudaOptions, RuntimeError, usable_gpu};
use swinq_kernels::Cpu;
use swinq_model::QuantizedModel;
use swinq_model::quantized::F16Residual;

use crate::Error;

/// The hardware that runs a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendChoice {
    /// The GPU if one can be used, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU. If none can be used, the result is an error with the reason.
    Cuda,
}

/// How a model is run.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// The hardware that runs the model.
    pub backend: BackendChoice,
    /// Threads of the CPU engine; 0 is one per core.
    pub threads: usize,
    /// Threads of the CPU engine that work on one image; 0 is as many as make it faster.
    pub image_threads: usize,
    /// Number of images of the largest batch that is expected. Larger batches are split. Memory grows with
    /// this number. A thread of the CPU engine runs at most [`CPU_BATCH`] images at a time, because more gain
    /// nothing there.
    pub max_batch: usize,
    /// The most bytes of memory for the tensors of images of one size in the CPU engine; 0 is a quarter of
    /// the machine's memory, or of its control group's.
    pub max_memory: usize,
    /// The most pixels, height times width, of an image; 0 stands for as many as half of the free memory
    /// holds. Images of the network's own size, and smaller ones, are always accepted.
    pub max_pixels: usize,
    /// Instruction set of the CPU engine; `None` is the fastest, or the one that the environment variable
    /// `SWINQ_ISA` names.
    pub cpu: Option<Cpu>,
    /// Settings of the GPU engine. Its `max_batch` and `max_pixels` are ignored; the fields above replace
    /// them.
    pub cuda: CudaOptions,
}

/// The largest number of images that a thread of the CPU engine runs at a time.
pub const CPU_BATCH: usize = 2;

/// Images per batch where none are stated.
pub const DEFAULT_BATCH: usize = 8;

impl Default for EngineOptions {
    /// The GPU if one can be used, else the CPU with a thread per core and its fastest instruction set;
    /// batches of 8.
    fn default() -> EngineOptions {
        EngineOptions {
            backend: BackendChoice::Auto,
            threads: 0,
            image_threads: 0,
            max_batch: DEFAULT_BATCH,
            max_memory: 0,
            max_pixels: 0,
            cpu: None,
            cuda: CudaOptions::default(),
        }
    }
}

impl EngineOptions {
    /// The CPU engine with `threads` threads (0: one per core).
    pub fn cpu(threads: usize) -> EngineOptions {
        EngineOptions { backend: BackendChoice::Cpu, threads, ..EngineOptions::default() }
    }

    /// The same options with [`BackendChoice::Auto`] replaced by the backend that it selects on this machine.
    ///
    /// # Errors
    /// [`Error::Runtime`] for [`BackendChoice::Cuda`] if no GPU can be used.
    pub fn resolved(self) -> Result<EngineOptions, Error> {
        let backend = match self.backend {
            BackendChoice::Cpu => BackendChoice::Cpu,
            BackendChoice::Auto if usable_gpu(self.cuda.device).is_err() => BackendChoice::Cpu,
            BackendChoice::Auto => BackendChoice::Cuda,
            BackendChoice::Cuda => {
                usable_gpu(self.cuda.device).map_err(RuntimeError::from)?;
                BackendChoice::Cuda
            }
        };
        Ok(EngineOptions { backend, ..self })
    }

    /// The same options with the type of the residual stream that an engine of `model` has on a GPU. The
    /// options must be [resolved](EngineOptions::resolved).
    ///
    /// # Errors
    /// [`Error::Runtime`] if an f16 residual is asked for and does not hold the model's.
    pub fn for_model(mut self, model: &QuantizedModel) -> Result<EngineOptions, Error> {
        if self.backend == BackendChoice::Cuda {
            self.cuda.residual =
                Some(residual_type(self.cuda.residual, model.f16_residual(), &model.config)?);
        }
        Ok(self)
    }

    /// A remark if an engine of `model` has an f32 residual stream on a GPU though nothing was asked for. The
    /// options must be [resolved](EngineOptions::resolved).
    pub fn residual_remark(&self, model: &QuantizedModel) -> Option<String> {
        let (fit, config) = (model.f16_residual(), &model.config);
        let chosen = self.backend == BackendChoice::Cuda && self.cuda.residual.is_none();
        let in_f32 = chosen && matches!(residual_type(None, fit, config), Ok(ResidualType::F32));
        let reason = match fit {
            F16Residual::TooLarge { .. } => fit.to_string(),
            _ => format!("f16 needs a multiple of 8 channels, and the network has {}", config.embed_dim),
        };
        in_f32.then(|| format!("the GPU keeps the residual stream in f32: {reason}"))
    }

    /// Number of threads of the CPU engine. If the option is 0, it is the number of cores.
    pub fn thread_count(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
            threads => threads,
        }
    }

    /// One line that describes the hardware. The options must be [resolved](EngineOptions::resolved).
    ///
    /// # Errors
    /// An error if the processor does not have the instruction set, or if the GPU does not answer.
    pub fn describe(&self) -> Result<String, Error> {
        if self.backend != BackendChoice::Cuda {
            let cpu = self.cpu_options()?.cpu;
            let threads = self.thread_count();
            return Ok(format!("kernels {cpu}, {threads} thread{}", if threads == 1 { "" } else { "s" }));
        }
        let device = Device::open(self.cuda.device).map_err(RuntimeError::from)?;
        Ok(format!("{} ({}), {} multiprocessors", device.name(), device.arch(), device.multiprocessors()))
    }

    /// The settings of the CPU engine.
    pub(crate) fn cpu_options(&self) -> Result<CpuOptions, Error> {
        let cpu = match self.cpu {
            Some(cpu) => cpu,
            None => Cpu::detect().map_err(RuntimeError::from)?,
        };
        let (threads, max_batch) = (self.threads, self.max_batch.min(CPU_BATCH));
        Ok(CpuOptions {
            threads,
            image_threads: self.image_threads,
            max_batch,
            max_memory: self.max_memory,
            max_pixels: self.max_pixels,
            cpu,
        })
    }

    /// The backend that the options select on this machine.
    ///
    /// # Errors
    /// [`Error::Runtime`] if the backend cannot be used, or if the numbers of threads or images are beyond
    /// the limits of an engine.
    pub fn backend(&self) -> Result<Backend, Error> {
        let options = self.clone().resolved()?;
        let backend = match options.backend {
            BackendChoice::Cuda => Backend::Cuda(CudaOptions {
                max_batch: options.max_batch,
                max_pixels: options.max_pixels,
                ..options.cuda
            }),
            _ => Backend::Cpu(options.cpu_options()?),
        };
        backend.check()?;
        Ok(backend)
    }
}
