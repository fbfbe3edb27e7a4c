//! The processors that run the rungs.

use std::cell::OnceCell;
use std::fmt::Arguments;
use std::rc::Rc;

use serde_json::Value;
use swinq_cuda::ladder::Timer;
use swinq_cuda::{CudaError, Device, Lt, library};
use swinq_eval::Environment;
use swinq_kernels::{Cpu, Pool};

use crate::args::{Backend, CommonArgs};
use crate::clock::Clock;
use crate::roofline::Roofline;
use crate::{Host, LadderError};

/// The GPU that runs the GPU rungs.
pub struct Gpu {
    /// The device.
    pub device: Device,
    /// Stream and timer of the device.
    pub timer: Timer,
    /// The limits of the device.
    pub roofline: Roofline,
    lt: OnceCell<Rc<Lt>>,
}

/// The CPU, and a GPU if there is one.
pub struct Machine {
    /// The instruction set of the CPU rungs.
    pub cpu: Cpu,
    /// The threads of the CPU rungs.
    pub pool: Pool,
    /// The GPU.
    pub gpu: Option<Gpu>,
    /// Why there is no GPU.
    pub no_gpu: Option<String>,
    /// Times the rungs.
    pub clock: Clock,
    print: fn(Arguments<'_>),
}

impl Machine {
    /// Opens the processors that `args` ask for.
    pub fn open(args: &CommonArgs, host: Host) -> Result<Machine, LadderError> {
        let (gpu, no_gpu) = match args.backend {
            Backend::Cpu => (None, Some("--backend cpu".to_owned())),
            Backend::Cuda => (Some(Gpu::open(args.device).map_err(LadderError::NoGpu)?), None),
            Backend::Auto => match Gpu::open(args.device) {
                Ok(gpu) => (Some(gpu), None),
                Err(error) => (None, Some(error.to_string())),
            },
        };
        let cpu = Cpu::detect()?;
        let clock = Clock { seconds: (!args.check).then_some(args.seconds), stop: host.stop };
        Ok(Machine { cpu, pool: Pool::new(args.threads), gpu, no_gpu, clock, print: host.print })
    }

    /// Prints a line, or several lines with newlines between them.
    pub fn print(&self, text: Arguments<'_>) {
        (self.print)(text);
    }

    /// A description for people, one line per processor.
    pub fn describe(&self) -> String {
        let cpu = format!("CPU: kernels {}, {} threads", self.cpu, self.pool.threads());
        match (&self.gpu, &self.no_gpu) {
            (Some(gpu), _) => format!("{cpu}\nGPU: {}", gpu.describe()),
            (None, reason) => {
                format!("{cpu}\nno GPU rungs: {}", reason.as_deref().unwrap_or("there is no GPU"))
            }
        }
    }

    /// A description for the JSON results.
    pub fn environment(&self) -> Value {
        let mut environment =
            Environment::detect(Some(self.cpu.name()), self.pool.threads(), Default::default());
        if let Some(gpu) = &self.gpu {
            environment.gpu = Some(swinq_eval::Gpu {
                name: gpu.device.name().to_owned(),
                arch: Some(gpu.device.arch().to_string()),
                driver: library::driver_version().map(|(major, minor)| format!("CUDA {major}.{minor}")),
                memory_bytes: gpu.device.memory().ok().map(|(_, total)| total as u64),
            });
            let dotted = |(major, minor, patch)| format!("{major}.{minor}.{patch}");
            let version = library::cublaslt_version().map(dotted);
            environment.libraries.extend(version.map(|version| ("cublaslt".to_owned(), version)));
        }
        serde_json::to_value(&environment).unwrap_or(Value::Null)
    }
}

impl Gpu {
    fn open(ordinal: usize) -> Result<Gpu, CudaError> {
        let device = Device::open(ordinal)?;
        let (timer, roofline) = (Timer::new(&device)?, Roofline::of(&device));
        Ok(Gpu { device, timer, roofline, lt: OnceCell::new() })
    }

    /// The cuBLASLt handle of the device, created on first use.
    pub fn lt(&self) -> Result<Rc<Lt>, CudaError> {
        if let Some(lt) = self.lt.get() {
            return Ok(Rc::clone(lt));
        }
        let lt = Rc::new(Lt::new(&self.device)?);
        Ok(Rc::clone(self.lt.get_or_init(|| lt)))
    }

    fn describe(&self) -> String {
        let device = &self.device;
        let (name, arch, count) = (device.name(), device.arch(), device.multiprocessors());
        let bandwidth = self.roofline.bytes_per_second / 1e9;
        format!("{name} ({arch}), {count} multiprocessors, {bandwidth:.0} GB/s; times with a cold L2 cache")
    }
}
