//! Flags of the device that the host reads without waiting for the device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Call, int};
use crate::params::report::Params;
use crate::{CudaError, Device, DeviceSlice, Kernel, LaunchConfig, PinnedBuf, Program, Stream, launch};

/// Threads of the only block.
const THREADS: u32 = 256;

/// A word in page-locked memory of the host, and the launch that writes the first flag that is set into it.
pub struct DeviceReport {
    kernel: Kernel,
    word: Arc<PinnedBuf>,
}

impl DeviceReport {
    /// Allocates the word.
    ///
    /// # Errors
    /// The kernel does not compile, or the host has too little memory.
    pub fn new(device: &Device) -> Result<DeviceReport, CudaError> {
        let word = Arc::new(PinnedBuf::new(device, size_of::<u32>())?);
        Ok(DeviceReport { kernel: device.kernel(&DeviceReport::program())?, word })
    }

    /// The program of the launch.
    pub fn program() -> Program {
        Program::new("report.cu", "report").define("THREADS", THREADS.into())
    }

    /// Its launch configuration.
    pub fn launch() -> LaunchConfig {
        LaunchConfig { shared: 4 * (THREADS + 1), pdl: true, ..LaunchConfig::linear(1, THREADS) }
    }

    /// Puts a launch on `stream` that tells the host the first of `flags`, u32s, that is set, and resets
    /// them.
    ///
    /// # Errors
    /// The driver fails.
    pub fn run(&self, stream: &Stream, flags: &DeviceSlice) -> Result<(), CudaError> {
        stream.keep(&self.word)?;
        let word = self.word.address() as u64;
        let params = Params {
            flags: Call(stream).word("report: the flags", flags),
            word,
            count: int(flags.bytes() / 4),
        };
        // SAFETY: `Params` is the kernel's parameter. It writes the flags, which are held, and the word,
        // which the stream keeps, and which the device can access: page-locked memory has one address for
        // both.
        unsafe { launch(&self.kernel, DeviceReport::launch(), stream, &params) }
    }

    /// Takes the index of a flag that a launch has told. Launches that are not done yet may tell another one
    /// later.
    pub fn take(&self) -> Option<usize> {
        // SAFETY: the word is initialised and aligned, and lives as long as `self`. The host accesses it only
        // here, by atomic operations; a device writes whole words.
        let word = unsafe { AtomicU32::from_ptr(self.word.address().cast()) };
        // Most calls find nothing and only read.
        match word.load(Ordering::Acquire) {
            0 => None,
            _ => word.swap(0, Ordering::AcqRel).checked_sub(1).map(|index| index as usize),
        }
    }
}
