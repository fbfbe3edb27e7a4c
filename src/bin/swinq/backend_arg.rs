//! Makes engines from the backend arguments.

use std::time::Instant;

use anyhow::Context;
use swinq::int8_runtime::cuda::StreamType;
use swinq::{BackendChoice, Candidate, CudaOptions, EngineOptions, Model, usable_gpu};

use crate::args::{Backend, BackendArgs, Residual, Usage};
use crate::out::detail;

/// The options of the engines that `args` request: one engine, or on a GPU one engine for each value of
/// `--gemm`. Batches have up to `max_batch` images.
pub fn engines(args: &BackendArgs, threads: usize, max_batch: usize) -> anyhow::Result<Vec<EngineOptions>> {
    let backend = match args.backend {
        Backend::Cpu => BackendChoice::Cpu,
        Backend::Auto => BackendChoice::Auto,
        Backend::Cuda => usable_gpu(args.device).context("--backend cuda").map(|_| BackendChoice::Cuda)?,
    };
    let residual = match args.residual {
        Residual::F16 => StreamType::F16,
        Residual::F32 => StreamType::F32,
    };
    let (device, autotune, nvtx) = (args.device, args.autotune, args.nvtx);
    let options = |&gemm| {
        let cuda = CudaOptions { device, max_batch, residual, gemm, autotune, nvtx };
        EngineOptions { backend, threads, max_batch, cuda, ..EngineOptions::default() }.resolved()
    };
    let mut all = args.gemm.iter().map(options).collect::<Result<Vec<_>, _>>()?;
    if all[0].backend == BackendChoice::Cpu {
        all.truncate(1);
        if args.nvtx {
            let text = "--nvtx needs a GPU, but the CPU runs the models; see `swinq doctor`";
            return Err(Usage(text.to_owned()).into());
        }
    }
    detail!("engine: {}", all[0].describe()?);
    Ok(all)
}

/// The first of [`engines`].
pub fn engine(args: &BackendArgs, threads: usize, max_batch: usize) -> anyhow::Result<EngineOptions> {
    Ok(engines(args, threads, max_batch)?.swap_remove(0))
}

/// Adds to an error of a GPU engine that `--backend cpu` runs every model.
pub fn with_remedy<T>(result: Result<T, swinq::Error>, options: &EngineOptions) -> anyhow::Result<T> {
    match options.backend {
        BackendChoice::Cuda => result.context("on the GPU (`--backend cpu` runs every model)"),
        _ => Ok(result?),
    }
}

/// Makes a candidate for evaluation: `model`, which is called `name`, on an engine.
pub fn candidate(name: &str, model: &Model, options: &EngineOptions) -> anyhow::Result<Candidate> {
    let start = Instant::now();
    let candidate = with_remedy(Candidate::engine(name, model, options), options)?;
    detail!("prepared {}: {:.3} s", candidate.result.label(), start.elapsed().as_secs_f64());
    Ok(candidate)
}
