//! From the backend arguments to an engine.

use anyhow::Context;
use swinq_eval::Precision;
use swinq_int8_runtime::cuda::{CudaOptions, StreamType};
use swinq_int8_runtime::{Backend as Engines, CpuOptions, Engine, usable_gpu};
use swinq_kernels::cuda::Device;
use swinq_model::{Batch, BoxError, Classifier, Logits, QuantizedModel};

use crate::args::{Backend, BackendArgs, Residual, Usage};

/// What will run models.
#[derive(Clone, Copy, Debug)]
pub struct Target(pub Engines);

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
            let options = CpuOptions::detect()?;
            let max_batch = max_batch.min(options.max_batch);
            return Ok(vec![Target(Engines::Cpu(CpuOptions { threads, max_batch, ..options }))]);
        }
        let residual = match args.residual {
            Residual::F16 => StreamType::F16,
            Residual::F32 => StreamType::F32,
        };
        let (device, autotune, nvtx) = (args.device, args.autotune, args.nvtx);
        let options = |gemm| CudaOptions { device, max_batch, residual, gemm, autotune, nvtx };
        let target = |&gemm| Target(Engines::Cuda(options(gemm)));
        Ok(args.gemm.iter().map(target).collect())
    }

    /// The first of [`Target::all`].
    pub fn one(args: &BackendArgs, threads: usize, max_batch: usize) -> anyhow::Result<Target> {
        Ok(Target::all(args, threads, max_batch)?[0])
    }

    /// Name of the backend in results.
    pub fn name(&self) -> String {
        self.0.name()
    }

    /// In what arithmetic `model` runs there.
    pub fn precision(&self, model: &QuantizedModel) -> Precision {
        match self.0 {
            _ if model.is_quantized() => Precision::Int8,
            Engines::Cpu(_) => Precision::Fp32,
            Engines::Cuda(_) => Precision::Fp16,
        }
    }

    /// An engine for `model`.
    pub fn engine(&self, model: &QuantizedModel) -> anyhow::Result<Runnable> {
        let engine = Engine::new(model, self.0);
        let engine = match self.0 {
            Engines::Cpu(_) => engine?,
            Engines::Cuda(_) => engine.context("on the GPU (`--backend cpu` runs every model)")?,
        };
        Ok(Runnable::Engine(Box::new(engine)))
    }

    /// What it runs on, in a line.
    pub fn describe(&self) -> anyhow::Result<String> {
        Ok(match self.0 {
            Engines::Cpu(options) => {
                let threads = swinq_kernels::Pool::new(options.threads).threads();
                format!("kernels {}, {threads} threads", options.cpu)
            }
            Engines::Cuda(options) => {
                let device = Device::open(options.device)?;
                format!("{} ({}), {} multiprocessors", device.name(), device.arch(), device.multiprocessors())
            }
        })
    }
}

/// Whatever runs a model.
pub enum Runnable {
    /// An engine.
    Engine(Box<Engine>),
    /// Something else, such as a simulation.
    Other(Box<dyn Classifier>),
}

impl Runnable {
    fn classifier(&self) -> &dyn Classifier {
        match self {
            Runnable::Engine(engine) => engine.as_ref(),
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
            Runnable::Engine(engine) => Ok(Engine::infer(engine, batch)?),
            Runnable::Other(other) => other.infer(batch),
        }
    }
}
