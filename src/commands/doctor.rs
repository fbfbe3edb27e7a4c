//! `swinq doctor`.

use std::path::{Path, PathBuf};

use crate::out::say;
use swinq_kernels::Cpu;

/// Libraries that a GPU backend opens at run time, and the package that brings each.
const LIBRARIES: [(&str, &str); 3] = [
    ("libcuda.so.1", "the NVIDIA driver"),
    ("libcublasLt.so", "CUDA's libcublas"),
    ("libnvrtc.so", "CUDA's libnvrtc"),
];

/// Runs the command.
pub fn run() -> anyhow::Result<()> {
    let environment = swinq_eval::Environment::detect(None, 0, Default::default());
    say!("swinq      {}", env!("CARGO_PKG_VERSION"));
    say!("system     {} {}", std::env::consts::OS, std::env::consts::ARCH);
    say!("processor  {}", environment.cpu.as_deref().unwrap_or("unknown"));
    say!("cores      {}", std::thread::available_parallelism().map_or(1, |n| n.get()));
    let available: Vec<String> = Cpu::available().iter().map(|cpu| cpu.isa().to_string()).collect();
    say!("kernels    {}", available.join(", "));
    match Cpu::detect() {
        Ok(cpu) => say!("in use     {} (SWINQ_ISA chooses another)", cpu.isa()),
        Err(error) => say!("in use     none: {error}"),
    }
    say!("\nGPU");
    for (library, package) in LIBRARIES {
        match find_library(library) {
            Some(path) => say!("  {library:<16} {}", path.display()),
            None => say!("  {library:<16} not found (it comes with {package})"),
        }
    }
    say!("  this version runs models on the CPU");
    Ok(())
}

/// The first file whose name begins with `name` where the dynamic loader looks.
fn find_library(name: &str) -> Option<PathBuf> {
    let from_variable = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let folders = from_variable.split(':').filter(|f| !f.is_empty()).map(Path::new);
    let usual = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/cuda/lib64",
    ];
    folders.chain(usual.iter().map(Path::new)).find_map(|folder| {
        let entries = std::fs::read_dir(folder).ok()?;
        let mut found: Vec<PathBuf> = entries
            .filter_map(|e| Some(e.ok()?.path()))
            .filter(|p| p.file_name().is_some_and(|f| f.to_string_lossy().starts_with(name)))
            .collect();
        found.sort();
        found.into_iter().next()
    })
}
