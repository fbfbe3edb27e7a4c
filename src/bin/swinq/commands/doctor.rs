//! `swinq doctor`.

use swinq::FloatDevice;
use swinq::kernels::Cpu;
use swinq::kernels::cuda::ops::head::DeviceLinearF32;
use swinq::kernels::cuda::{CudaError, Device, Library, Lt, cache, compile, library};

use crate::float_device::REBUILD;
use crate::out::say;

/// Runs the command.
pub fn run() -> anyhow::Result<()> {
    let environment = swinq::eval::Environment::detect(None, 0, Default::default());
    say!("swinq      {}", env!("CARGO_PKG_VERSION"));
    say!("system     {} {}", std::env::consts::OS, std::env::consts::ARCH);
    say!("processor  {}", environment.cpu.as_deref().unwrap_or("unknown"));
    say!("cores      {}", std::thread::available_parallelism().map_or(1, |n| n.get()));
    let available: Vec<String> = Cpu::available().iter().map(ToString::to_string).collect();
    say!("kernels    {}", available.join(", "));
    match Cpu::detect() {
        Ok(cpu) => say!("in use     {} (set SWINQ_ISA to choose another)", cpu),
        Err(error) => say!("in use     none: {error}"),
    }
    let jpeg = if swinq::data::jpeg_has_simd() { "vector code" } else { "C (faster if built with nasm)" };
    say!("JPEG       {jpeg}");
    say!("\nGPU");
    libraries();
    devices();
    cache();
    in_use();
    float_forward();
    Ok(())
}

/// Prints the version of each CUDA library. If one is missing, prints the package that contains it.
fn libraries() {
    let two = |version: Option<(u32, u32)>| version.map(|(major, minor)| format!("{major}.{minor}"));
    let driver =
        library::driver_version().map(|(major, minor)| format!("for CUDA {major}.{minor} and older"));
    let lt = library::cublaslt_version().map(|(major, minor, patch)| format!("{major}.{minor}.{patch}"));
    let nvtx = library::present(Library::Nvtx).then(|| "found".to_owned());
    for (name, which, found) in [
        ("driver", Library::Driver, driver),
        ("NVRTC", Library::Nvrtc, two(library::nvrtc_version())),
        ("cuBLASLt", Library::CublasLt, lt),
        ("NVTX", Library::Nvtx, nvtx),
    ] {
        match found {
            Some(found) => say!("  {name:<15} {found}"),
            None if library::present(which) => say!("  {name:<15} {} does not say its version", which.file()),
            None => say!("  {name:<15} {}", missing(which)),
        }
    }
}

/// The message for a missing library: its purpose, and the package that contains it.
fn missing(which: Library) -> String {
    let purpose = match which {
        Library::CublasLt => "; not needed by --gemm own and auto",
        Library::Nvtx => "; only --nvtx needs it",
        _ => "",
    };
    format!("{} is not found ({}){purpose}", which.file(), which.package())
}

/// Prints every GPU, and whether it gives the right results.
fn devices() {
    let count = match Device::count() {
        Ok(count) => count,
        Err(CudaError::MissingLibrary { .. }) => return compiles("sm_80"),
        Err(error) => return say!("  GPUs            none: {error}"),
    };
    if count == 0 {
        say!("  GPUs            the driver reports none (CUDA_VISIBLE_DEVICES may hide them)");
        return compiles("sm_80");
    }
    for ordinal in 0..count {
        match Device::open(ordinal) {
            Ok(device) => describe(ordinal, &device),
            Err(error) => say!("  GPU {ordinal:<11} {error}"),
        }
    }
}

/// Prints whether a kernel compiles for `arch`, on a machine without a GPU that could load it.
fn compiles(arch: &str) {
    if library::present(Library::Nvrtc) {
        match compile(&DeviceLinearF32::program(false), arch) {
            Ok(_) => say!("  kernels         a test kernel compiles for {arch}"),
            Err(error) => say!("  kernels         {error}"),
        }
    }
}

fn describe(ordinal: usize, device: &Device) {
    let (arch, units) = (device.arch(), device.multiprocessors());
    say!("  GPU {ordinal:<11} {} ({arch}), {units} multiprocessors", device.name());
    let gib = |bytes: usize| bytes as f64 / f64::from(1 << 30);
    match device.memory() {
        Ok((free, total)) => say!("    memory        {:.1} of {:.1} GiB free", gib(free), gib(total)),
        Err(error) => say!("    memory        {error}"),
    }
    // The cache is not used, so the program is compiled here and then loaded.
    let program = DeviceLinearF32::program(false);
    match compile(&program, &arch.target()).and_then(|_| device.kernel(&program)) {
        Ok(_) => say!("    kernels       a test kernel compiles and loads"),
        Err(error) => say!("    kernels       {error}"),
    }
    match Lt::new(device).and_then(|lt| lt.verify()) {
        Ok(()) => say!("    cuBLASLt      multiplies INT8 exactly (a known product, every algorithm)"),
        Err(error) => say!("    cuBLASLt      {error}"),
    }
}

/// Prints the folder of compiled kernels and measurements.
fn cache() {
    match cache::cache_dir() {
        Some(dir) => {
            let count = std::fs::read_dir(&dir).map_or(0, |entries| entries.flatten().count());
            say!("  kernel cache    {}, {count} files (set SWINQ_CACHE to choose another)", dir.display());
        }
        None => {
            say!("  kernel cache    none: each process compiles the kernels again; set SWINQ_CACHE or HOME")
        }
    }
}

/// Prints the backend that `--backend auto` selects.
fn in_use() {
    match swinq::usable_gpu(0) {
        Ok(device) => {
            say!("  --backend auto  uses GPU 0, {} (set --device to choose another)", device.name())
        }
        Err(CudaError::MissingLibrary { library, .. }) => {
            say!("  --backend auto  uses the CPU: {library} is missing");
        }
        Err(error) => say!("  --backend auto  uses the CPU: {error}"),
    }
}

/// Prints whether the float forward of this build can run on GPUs.
fn float_forward() {
    match FloatDevice::HAS_CUDA {
        true => {
            say!("  float forward   runs on GPUs too: calibrate --device cuda, eval --simulate-device cuda")
        }
        false => {
            say!(
                "  float forward   runs on the CPU only: this build does not contain candle's CUDA ({REBUILD})"
            )
        }
    }
}
