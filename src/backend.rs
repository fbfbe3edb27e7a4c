//! From the backend arguments to an engine.

use anyhow::Context;
use swinq_eval::Precision;
use swinq_int8_runtime::cuda::{CudaEngine, CudaOptions, Gemm, StreamType};
use swinq_int8_runtime::{Engine, EngineOptions};
use swinq_kernels::cuda::{CudaError, Device, Library, library};
use swinq_model::{Batch, BoxError, Classifier, Logits, QuantizedModel};

use crate::args::{Backend, BackendArgs, Residual, Usage};

/// GPU `ordinal`, which `--backend auto` uses if this is no error. (cuBLASLt may be missing: our kernels do without.)
pub fn usable_gpu(ordinal: usize) -> Result<Device, CudaError> {
    let device = Device::open(ordinal)?;
    library::require(Library::Nvrtc)?;
    Ok(device)
}

/// What will run models.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    /// The CPU engine.
    Cpu(EngineOptions),
    /// The CUDA engine.
    Cuda(CudaOptions),
}

impl Target {
    /// The backends that `args` ask for: one, or on a GPU one for each `--gemm`. Batches have up to `max_batch` images.
    pub fn all(args: &BackendArgs, threads: usize, max_batch: usize) -> anyhow::Result<Vec<Target>> {
        let cuda = match args.backend {
            Backend::Cpu => false,
            Backend::Auto => usable_gpu(args.device).is_ok(),
            Backend::Cuda => usable_gpu(args.device).context("--backend cuda").map(|_| true)?,
        };
        if !cuda {
            if args.nvtx {
                let text = "--nvtx marks launches on a GPU, and the CPU runs the models here (`swinq doctor` says why)";
                return Err(Usage(text.to_owned()).into());
            }
            let options = EngineOptions::detect()?;
            let max_batch = max_batch.min(options.max_batch);
            return Ok(vec![Target::Cpu(EngineOptions { threads, max_batch, ..options })]);
        }
        let residual = match args.residual {
            Residual::F16 => StreamType::F16,
            Residual::F32 => StreamType::F32,
        };
        let (device, autotune, nvtx) = (args.device, args.autotune, args.nvtx);
        let target = |&gemm| Target::Cuda(CudaOptions { device, max_batch, residual, gemm, autotune, nvtx });
        Ok(args.gemm.iter().map(target).collect())
    }

    /// The first of [`Target::all`].
    pub fn one(args: &BackendArgs, threads: usize, max_batch: usize) -> anyhow::Result<Target> {
        Ok(Target::all(args, threads, max_batch)?[0])
    }

    /// Name of the backend in results.
    pub fn name(&self) -> String {
        match self {
            Target::Cpu(_) => "cpu".to_owned(),
            Target::Cuda(CudaOptions { gemm: Gemm::Auto, residual: StreamType::F16, .. }) => {
                "cuda".to_owned()
            }
            Target::Cuda(CudaOptions { gemm, residual: StreamType::F16, .. }) => format!("cuda {gemm}"),
            Target::Cuda(CudaOptions { gemm, .. }) => format!("cuda {gemm}, f32 residual"),
        }
    }

    /// In what arithmetic `model` runs there.
    pub fn precision(&self, model: &QuantizedModel) -> Precision {
        match self {
            _ if model.is_quantized() => Precision::Int8,
            Target::Cpu(_) => Precision::Fp32,
            Target::Cuda(_) => Precision::Fp16,
        }
    }

    /// An engine for `model`.
    pub fn engine(&self, model: &QuantizedModel) -> anyhow::Result<Runnable> {
        Ok(match self {
            Target::Cpu(options) => Runnable::Cpu(Box::new(Engine::new(model, *options)?)),
            Target::Cuda(options) => {
                let hint = "on the GPU (`--backend cpu` runs every model)";
                Runnable::Cuda(Box::new(CudaEngine::new(model, *options).context(hint)?))
            }
        })
    }

    /// What it runs on, in a line.
    pub fn describe(&self) -> anyhow::Result<String> {
        Ok(match self {
            Target::Cpu(options) => {
                let threads = swinq_kernels::Pool::new(options.threads).threads();
                format!("kernels {}, {threads} threads", options.cpu)
            }
            Target::Cuda(options) => {
                let device = Device::open(options.device)?;
                format!("{} ({}), {} multiprocessors", device.name(), device.arch(), device.multiprocessors())
            }
        })
    }
}

/// Whatever runs a model.
pub enum Runnable {
    /// The CPU engine.
    Cpu(Box<Engine>),
    /// The CUDA engine.
    Cuda(Box<CudaEngine>),
    /// Something else, such as a simulation.
    Other(Box<dyn Classifier>),
}

impl Runnable {
    fn classifier(&self) -> &dyn Classifier {
        match self {
            Runnable::Cpu(engine) => engine.as_ref(),
            Runnable::Cuda(engine) => engine.as_ref(),
            Runnable::Other(other) => other.as_ref(),
        }
    }
}

impl Classifier for Runnable {
    fn classes(&self) -> usize {
        self.classifier().classes()
    }

    fn input_size(&self) -> usize {
        self.classifier().input_size()
    }

    fn infer(&mut self, batch: &Batch) -> Result<Logits, BoxError> {
        match self {
            Runnable::Cpu(engine) => engine.infer(batch),
            Runnable::Cuda(engine) => engine.infer(batch),
            Runnable::Other(other) => other.infer(batch),
        }
    }
}
