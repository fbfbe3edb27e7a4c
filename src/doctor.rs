//! The capabilities of this machine: processor features, CUDA libraries and GPUs, and which of them are used.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::PathBuf;

use serde::Serialize;
use swinq_cuda::ops::head::DeviceLinearF32;
use swinq_cuda::{CudaError, Device, Library, Lt, cache, compile, library, nccl};
use swinq_kernels::Cpu;

use crate::FloatDevice;

/// Version of the JSON's fields.
const SCHEMA: u32 = 1;

/// The result of a test: a value, or the reason why there is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// What was found.
    Found(String),
    /// Why it cannot be used.
    Problem(String),
}

impl Finding {
    fn of<T, E: Display>(result: Result<T, E>, text: impl FnOnce(T) -> String) -> Finding {
        match result {
            Ok(found) => Finding::Found(text(found)),
            Err(error) => Finding::Problem(error.to_string()),
        }
    }
}

impl Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Finding::Found(text) | Finding::Problem(text) => f.write_str(text),
        }
    }
}

/// The capabilities of this machine.
#[derive(Clone, Debug, Serialize)]
pub struct Diagnosis {
    /// Version of these fields.
    pub schema: u32,
    /// Version of swinq.
    pub swinq: &'static str,
    /// Operating system.
    pub os: &'static str,
    /// Processor architecture.
    pub arch: &'static str,
    /// Processor model, if the system reports it.
    pub cpu: Option<String>,
    /// Logical cores that this process may use.
    pub cores: usize,
    /// Instruction sets that the engine can use here.
    pub kernels: Vec<String>,
    /// The other instruction sets of the engine for this architecture, and why each cannot be used here.
    pub absent: BTreeMap<&'static str, String>,
    /// The instruction set in use.
    pub in_use: Finding,
    /// Whether JPEG files are decoded with vector code.
    pub jpeg_simd: bool,
    /// The CUDA libraries: version, or the package that contains a missing one.
    pub libraries: BTreeMap<&'static str, Finding>,
    /// The GPUs by ordinal.
    pub gpus: Vec<Gpu>,
    /// Why there is no GPU, if there is none.
    pub no_gpu: Option<String>,
    /// Whether a test kernel compiles; absent if a GPU tests it, or without NVRTC.
    pub compiles: Option<Finding>,
    /// Folder of compiled kernels and measurements, and its number of files.
    pub cache: Option<(PathBuf, usize)>,
    /// The choice of `auto`: the name of the first GPU, or why the CPU is used.
    pub auto: Finding,
    /// Whether the float forward of this build can run on GPUs.
    pub float_on_gpu: bool,
}

/// A GPU.
#[derive(Clone, Debug, Serialize)]
pub struct Gpu {
    /// Name, architecture and number of multiprocessors.
    pub device: Finding,
    /// Free and total memory.
    pub memory: Option<Finding>,
    /// Whether a test kernel compiles and loads.
    pub kernels: Option<Finding>,
    /// Whether cuBLASLt multiplies a known product exactly.
    pub cublaslt: Option<Finding>,
}

/// Tests this machine. It compiles a kernel, which takes up to a second.
pub fn diagnose() -> Diagnosis {
    let (gpus, no_gpu) = gpus();
    let compiles = gpus.is_empty().then(|| compiles("sm_80")).flatten();
    Diagnosis {
        schema: SCHEMA,
        swinq: env!("CARGO_PKG_VERSION"),
        os: std::env::consts::OS,
        arch: std::env::consts::ARCH,
        cpu: swinq_eval::Environment::detect(None, 0, BTreeMap::new()).cpu,
        cores: std::thread::available_parallelism().map_or(1, |n| n.get()),
        kernels: Cpu::available().iter().map(ToString::to_string).collect(),
        absent: Cpu::absent().into_iter().collect(),
        in_use: Finding::of(Cpu::detect(), |cpu| cpu.to_string()),
        jpeg_simd: swinq_data::jpeg_has_simd(),
        libraries: libraries(),
        gpus,
        no_gpu,
        compiles,
        cache: cache::cache_dir().map(|dir| {
            let files = std::fs::read_dir(&dir).map_or(0, |entries| entries.flatten().count());
            (dir, files)
        }),
        auto: match crate::usable_gpu(0) {
            Ok(device) => Finding::Found(device.name().to_owned()),
            Err(CudaError::MissingLibrary { library, .. }) => {
                Finding::Problem(format!("{library} is missing"))
            }
            Err(error) => Finding::Problem(error.to_string()),
        },
        float_on_gpu: FloatDevice::HAS_CUDA,
    }
}

/// The version of each CUDA library. If one is missing, the package that contains it.
fn libraries() -> BTreeMap<&'static str, Finding> {
    let two = |version: Option<(u32, u32)>| version.map(|(major, minor)| format!("{major}.{minor}"));
    let driver =
        library::driver_version().map(|(major, minor)| format!("for CUDA {major}.{minor} and older"));
    let lt = library::cublaslt_version().map(|(major, minor, patch)| format!("{major}.{minor}.{patch}"));
    let nccl = nccl::version().map(|(major, minor, patch)| format!("{major}.{minor}.{patch}"));
    let nvtx = library::present(Library::Nvtx).then(|| "found".to_owned());
    let all = [
        ("driver", Library::Driver, driver),
        ("NVRTC", Library::Nvrtc, two(library::nvrtc_version())),
        ("cuBLASLt", Library::CublasLt, lt),
        ("NCCL", Library::Nccl, nccl),
        ("NVTX", Library::Nvtx, nvtx),
    ];
    let finding = |which: Library, found: Option<String>| match found {
        Some(found) => Finding::Found(found),
        None if library::present(which) => {
            Finding::Found(format!("{} does not say its version", which.file()))
        }
        None => Finding::Problem(missing(which)),
    };
    all.into_iter().map(|(name, which, found)| (name, finding(which, found))).collect()
}

/// The message for a missing library: its purpose, and the package that contains it.
fn missing(which: Library) -> String {
    let purpose = match which {
        Library::CublasLt => "; not needed by --gemm own and auto",
        Library::Nccl => "; only qat on several GPUs needs it",
        Library::Nvtx => "; only --nvtx needs it",
        _ => "",
    };
    format!("{} is not found ({}){purpose}", which.file(), which.package())
}

/// Every GPU, or why there is none. Without a driver there is neither: the missing library says why.
fn gpus() -> (Vec<Gpu>, Option<String>) {
    match Device::count() {
        Ok(0) => {
            let problem = "the driver reports none (CUDA_VISIBLE_DEVICES may hide them)";
            (Vec::new(), Some(problem.to_owned()))
        }
        Ok(count) => ((0..count).map(gpu).collect(), None),
        Err(CudaError::MissingLibrary { .. }) => (Vec::new(), None),
        Err(error) => (Vec::new(), Some(format!("none: {error}"))),
    }
}

fn gpu(ordinal: usize) -> Gpu {
    let device = match Device::open(ordinal) {
        Ok(device) => device,
        Err(error) => {
            let device = Finding::Problem(error.to_string());
            return Gpu { device, memory: None, kernels: None, cublaslt: None };
        }
    };
    let gib = |bytes: usize| bytes as f64 / f64::from(1 << 30);
    let (arch, units) = (device.arch(), device.multiprocessors());
    // The cache is not used, so the program is compiled here and then loaded.
    let program = DeviceLinearF32::program(false);
    let loaded = compile(&program, &arch.target()).and_then(|_| device.kernel(&program));
    let memory = |(free, total)| format!("{:.1} of {:.1} GiB free", gib(free), gib(total));
    let exact = |()| "multiplies INT8 exactly (a known product, every algorithm)".to_owned();
    Gpu {
        memory: Some(Finding::of(device.memory(), memory)),
        kernels: Some(Finding::of(loaded, |_| "a test kernel compiles and loads".to_owned())),
        cublaslt: Some(Finding::of(Lt::new(&device).and_then(|lt| lt.verify()), exact)),
        device: Finding::Found(format!("{} ({arch}), {units} multiprocessors", device.name())),
    }
}

/// Whether a kernel compiles for `arch`, on a machine without a GPU that could load it.
fn compiles(arch: &str) -> Option<Finding> {
    library::present(Library::Nvrtc).then(|| {
        let compiled = compile(&DeviceLinearF32::program(false), arch);
        Finding::of(compiled, |_| format!("a test kernel compiles for {arch}"))
    })
}
