//! The choice of what runs a model.

use swinq_int8_runtime::{Backend, CpuOptions, CudaOptions, RuntimeError, usable_gpu};
use swinq_kernels::Cpu;
use swinq_kernels::cuda::Device;

use crate::Error;

/// What runs a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendChoice {
    /// The GPU if one can be used, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU; an error, with the reason, where none can be used.
    Cuda,
}

/// How a model is run.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// What runs the model.
    pub backend: BackendChoice,
    /// Threads of the CPU engine; 0 is one per core.
    pub threads: usize,
    /// Images of the largest batch that is expected; larger ones are split. Memory grows with it. The CPU engine runs
    /// at most [`CPU_BATCH`] images at a time, because more gain nothing there.
    pub max_batch: usize,
    /// Instruction set of the CPU engine; `None` is the fastest, or the one that the environment variable `SWINQ_ISA`
    /// names.
    pub cpu: Option<Cpu>,
    /// Settings of the GPU engine. Its `max_batch` is not used: the field above is.
    pub cuda: CudaOptions,
}

/// Most images that the CPU engine runs at a time.
pub const CPU_BATCH: usize = 8;

impl Default for EngineOptions {
    /// The GPU if one can be used, else the CPU with a thread per core and its fastest instruction set; batches of 8.
    fn default() -> EngineOptions {
        EngineOptions {
            backend: BackendChoice::Auto,
            threads: 0,
            max_batch: CPU_BATCH,
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

    /// The same options with [`BackendChoice::Auto`] replaced by what it means on this machine.
    ///
    /// # Errors
    /// [`Error::Runtime`] for [`BackendChoice::Cuda`] where no GPU can be used.
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

    /// Threads of the CPU engine, counted where they are one per core.
    pub fn thread_count(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
            threads => threads,
        }
    }

    /// The hardware that runs models, in a line, once the options are [resolved](EngineOptions::resolved).
    ///
    /// # Errors
    /// The instruction set cannot be had, or the GPU does not answer.
    pub fn describe(&self) -> Result<String, Error> {
        if self.backend != BackendChoice::Cuda {
            let cpu = self.cpu_options()?.cpu;
            return Ok(format!("kernels {cpu}, {} threads", self.thread_count()));
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
        Ok(CpuOptions { threads: self.threads, max_batch: self.max_batch.min(CPU_BATCH), cpu })
    }

    /// The backend that the options mean on this machine.
    ///
    /// # Errors
    /// [`Error::Runtime`] where the backend cannot be used, and for threads or batches that no engine may have.
    pub fn backend(&self) -> Result<Backend, Error> {
        let options = self.clone().resolved()?;
        let backend = match options.backend {
            BackendChoice::Cuda => {
                Backend::Cuda(CudaOptions { max_batch: options.max_batch, ..options.cuda })
            }
            _ => Backend::Cpu(options.cpu_options()?),
        };
        backend.check()?;
        Ok(backend)
    }
}
