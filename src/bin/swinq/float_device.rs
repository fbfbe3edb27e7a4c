//! Whether the float forward can run where an option says.

use anyhow::Context;
use swinq::FloatDevice;

use crate::args::Usage;

/// How to have a build with candle's CUDA.
pub const REBUILD: &str = "`cargo build --release --features cuda`, which takes the CUDA toolkit";

/// Refuses a `device` that cannot be used, before any work; `option` names what asked for it.
///
/// # Errors
/// [`Usage`] in a build without CUDA; a GPU that is not there or cannot be used.
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
