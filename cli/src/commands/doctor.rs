//! `swinq doctor`.

use swinq::doctor::{Diagnosis, Finding, diagnose};

use crate::args::DoctorArgs;
use crate::float_device::REBUILD;
use crate::out::{counted, raw, say};

/// Runs the command.
pub fn run(args: &DoctorArgs) -> anyhow::Result<()> {
    let found = diagnose();
    if args.json {
        raw(format!("{}\n", serde_json::to_string_pretty(&found)?).as_bytes());
    } else {
        machine(&found);
        say!("\nGPU");
        gpus(&found);
        use_of_gpus(&found);
    }
    Ok(())
}

fn machine(found: &Diagnosis) {
    say!("swinq      {}", found.swinq);
    say!("system     {} {}", found.os, found.arch);
    say!("processor  {}", found.cpu.as_deref().unwrap_or("unknown"));
    say!("cores      {}", found.cores);
    say!("kernels    {}", found.kernels.join(", "));
    for (name, reason) in &found.absent {
        say!("  without  {name}: {reason}");
    }
    match &found.in_use {
        Finding::Found(isa) => say!("in use     {isa} (set SWINQ_ISA to choose another)"),
        Finding::Problem(problem) => say!("in use     none: {problem}"),
    }
    let jpeg = if found.jpeg_simd { "vector code" } else { "C (faster if built with nasm)" };
    say!("JPEG       {jpeg}");
}

/// Prints the libraries and every GPU, and whether it gives the right results.
fn gpus(found: &Diagnosis) {
    let names = ["driver", "NVRTC", "cuBLASLt", "NCCL", "NVTX"];
    for (name, library) in names.map(|name| (name, &found.libraries[name])) {
        say!("  {name:<15} {library}");
    }
    if let Some(problem) = &found.no_gpu {
        say!("  GPUs            {problem}");
    }
    if let Some(compiles) = &found.compiles {
        say!("  kernels         {compiles}");
    }
    for (ordinal, gpu) in found.gpus.iter().enumerate() {
        say!("  GPU {ordinal:<11} {}", gpu.device);
        for (name, finding) in
            [("memory", &gpu.memory), ("kernels", &gpu.kernels), ("cuBLASLt", &gpu.cublaslt)]
        {
            if let Some(finding) = finding {
                say!("    {name:<13} {finding}");
            }
        }
    }
}

/// Prints the cache, the backend that `--backend auto` selects, and where the float forward of this build
/// runs.
fn use_of_gpus(found: &Diagnosis) {
    match &found.cache {
        Some((dir, count)) => {
            say!(
                "  kernel cache    {}, {} (set SWINQ_CACHE to choose another)",
                dir.display(),
                counted(*count, "file")
            );
        }
        None => {
            say!("  kernel cache    none: each process compiles the kernels again; set SWINQ_CACHE")
        }
    }
    match &found.auto {
        Finding::Found(name) => {
            say!("  --backend auto  uses GPU 0, {name} (set --devices to choose another)")
        }
        Finding::Problem(problem) => say!("  --backend auto  uses the CPU: {problem}"),
    }
    let forward = match found.float_on_gpu {
        true => "runs on GPUs too: calibrate --device cuda, eval --simulate-device cuda".to_owned(),
        false => format!("runs on the CPU only: this build does not contain candle's CUDA ({REBUILD})"),
    };
    say!("  float forward   {forward}");
}
