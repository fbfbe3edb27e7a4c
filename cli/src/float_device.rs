//! Checks that the float forward can run on the device that an option names.

use anyhow::Context;
use swinq::FloatDevice;

use crate::args::Usage;

/// How to make a build with candle's CUDA.
pub const REBUILD: &str = "`cargo build --release --features cuda`, which needs the CUDA toolkit";

/// Refuses a `device` that cannot be used, before any work. `option` is the option that names the device.
///
/// # Errors
/// [`Usage`] for a GPU in a build without CUDA; an error for a GPU that does not exist or cannot be used.
pub fn check(device: FloatDevice, option: &str) -> anyhow::Result<()> {
    if device != FloatDevice::Cpu && !FloatDevice::HAS_CUDA {
        let text = format!(
            "{option} {device}: this build of swinq runs the float forward on the CPU only; rebuild it with {REBUILD}"
        );
        return Err(Usage(text).into());
    }
    device.open().with_context(|| format!("{option} {device} (`swinq doctor` lists the GPUs)"))?;
    Ok(())
}
