//! Makes engines from the backend arguments.

use std::time::Instant;

use anyhow::Context;
use swinq::int8_runtime::cuda::ResidualType;
use swinq::{BackendChoice, Candidate, CudaOptions, Engine, EngineOptions, Model, usable_gpu};

use crate::args::{Backend, BackendArgs, Residual, Threads, Usage};
use crate::out::{detail, note};

/// The options of the engines that `args` request: one engine, or on a GPU one engine for each value of
/// `--gemm`. Batches have up to `max_batch` images.
pub fn engines(args: &BackendArgs, threads: Threads, max_batch: usize) -> anyhow::Result<Vec<EngineOptions>> {
    let device = *args.devices.first().ok_or_else(|| Usage("--devices names no GPU".to_owned()))?;
    if let Some(twice) = (1..args.devices.len()).find(|&i| args.devices[..i].contains(&args.devices[i])) {
        return Err(Usage(format!("--devices names GPU {} twice", args.devices[twice])).into());
    }
    let backend = match args.backend {
        Backend::Cpu => BackendChoice::Cpu,
        Backend::Auto => BackendChoice::Auto,
        Backend::Cuda => usable_gpu(device).context("--backend cuda").map(|_| BackendChoice::Cuda)?,
    };
    let residual = match args.residual {
        Residual::Auto => None,
        Residual::F16 => Some(ResidualType::F16),
        Residual::F32 => Some(ResidualType::F32),
    };
    let (autotune, nvtx) = (args.autotune, args.nvtx);
    let options = |&gemm| {
        let cuda = CudaOptions { device, residual, gemm, autotune, nvtx, ..CudaOptions::default() };
        let Threads { most: threads, of_image: image_threads } = threads;
        EngineOptions { backend, threads, image_threads, max_batch, cuda, ..EngineOptions::default() }
            .resolved()
    };
    let mut all = args.gemm.iter().map(options).collect::<Result<Vec<_>, _>>()?;
    if all[0].backend == BackendChoice::Cpu {
        all.truncate(1);
        let gpu_only = [("--nvtx", args.nvtx), ("--devices", args.devices.len() > 1)];
        if let Some((option, _)) = gpu_only.into_iter().find(|(_, given)| *given) {
            let text = format!("{option} needs a GPU, but the CPU runs the models; see `swinq doctor`");
            return Err(Usage(text).into());
        }
    }
    detail!("engine: {}", all[0].describe()?);
    Ok(all)
}

/// The first of [`engines`], for a command that runs on one GPU.
pub fn engine(args: &BackendArgs, threads: Threads, max_batch: usize) -> anyhow::Result<EngineOptions> {
    one_device(args)?;
    Ok(engines(args, threads, max_batch)?.swap_remove(0))
}

/// An engine of `model`.
pub fn engine_of(model: &Model, options: &EngineOptions) -> anyhow::Result<Engine> {
    say_residual(model, options);
    with_remedy(model.engine(options), options)
}

/// Says that the residual stream is f32 on the GPU, if f16 does not hold it.
fn say_residual(model: &Model, options: &EngineOptions) {
    if let Some(remark) = options.residual_remark(model.as_quantized()) {
        note!("{remark}");
    }
}

/// Adds to an error of a GPU engine that `--backend cpu` runs every model.
fn with_remedy<T>(result: Result<T, swinq::Error>, options: &EngineOptions) -> anyhow::Result<T> {
    match options.backend {
        BackendChoice::Cuda => result.context("on the GPU (`--backend cpu` runs every model)"),
        _ => Ok(result?),
    }
}

/// Refuses several GPUs, for a command that runs on one.
pub fn one_device(args: &BackendArgs) -> anyhow::Result<()> {
    if args.devices.len() > 1 {
        let text = "this command runs on one GPU; `bench` and `eval` take several values of --devices";
        return Err(Usage(text.to_owned()).into());
    }
    Ok(())
}

/// Makes a candidate for evaluation: `model`, which is called `name`, on an engine or on an engine for each
/// of several GPUs.
pub fn candidate(
    name: &str,
    model: &Model,
    options: &EngineOptions,
    devices: &[usize],
) -> anyhow::Result<Candidate> {
    say_residual(model, options);
    let start = Instant::now();
    let candidate = match devices {
        [] | [_] => Candidate::engine(name, model, options),
        _ => Candidate::replicas(name, model, options, devices),
    };
    let candidate = with_remedy(candidate, options)?;
    detail!("prepared {}: {:.3} s", candidate.result.label(), start.elapsed().as_secs_f64());
    Ok(candidate)
}
