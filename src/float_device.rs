//! Where the float forward runs: `cpu`, or `cuda` in a build that has candle's CUDA.

use std::fmt;
use std::str::FromStr;

use anyhow::Context;
use candle_core::Device;

use crate::args::Usage;

/// Whether this build has candle's CUDA.
pub const HAS_CUDA: bool = cfg!(feature = "cuda");

/// How to have a build with candle's CUDA.
pub const REBUILD: &str = "`cargo build --release --features cuda`, which takes the CUDA toolkit";

/// A device of the float forward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FloatDevice {
    /// The processor.
    #[default]
    Cpu,
    /// A GPU, by its ordinal.
    Cuda(usize),
}

impl FromStr for FloatDevice {
    type Err = String;

    fn from_str(text: &str) -> Result<FloatDevice, String> {
        match text.split_once(':').map_or((text, None), |(kind, ordinal)| (kind, Some(ordinal))) {
            ("cpu", None) => Ok(FloatDevice::Cpu),
            ("cuda", None) => Ok(FloatDevice::Cuda(0)),
            ("cuda", Some(ordinal)) if ordinal.parse::<usize>().is_ok() => {
                Ok(FloatDevice::Cuda(ordinal.parse().expect("just parsed")))
            }
            _ => Err("must be cpu, cuda or cuda:N with the number of a GPU".to_owned()),
        }
    }
}

impl fmt::Display for FloatDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FloatDevice::Cpu => f.write_str("cpu"),
            FloatDevice::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

impl FloatDevice {
    /// The device, opened; `option` names what asked for it.
    ///
    /// # Errors
    /// [`Usage`] in a build without CUDA; a GPU that is not there or cannot be used.
    pub fn open(self, option: &str) -> anyhow::Result<Device> {
        let FloatDevice::Cuda(ordinal) = self else { return Ok(Device::Cpu) };
        if !HAS_CUDA {
            let text = format!(
                "{option} {self}: this build of swinq runs the float forward on the CPU only; rebuild it with \
                 {REBUILD}"
            );
            return Err(Usage(text).into());
        }
        let context = || format!("{option} {self} (`swinq doctor` lists the GPUs)");
        // Ours says more about what is missing.
        swinq_kernels::cuda::Device::open(ordinal).with_context(context)?;
        Device::new_cuda(ordinal).with_context(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_names() {
        for (text, device) in
            [("cpu", FloatDevice::Cpu), ("cuda:0", FloatDevice::Cuda(0)), ("cuda:3", FloatDevice::Cuda(3))]
        {
            assert_eq!((text.parse(), device.to_string()), (Ok(device), text.to_owned()));
        }
        assert_eq!("cuda".parse(), Ok(FloatDevice::Cuda(0)));
        for text in ["", "CPU", "gpu", "cuda:", "cuda:-1", "cuda:x", "cpu:0", "0", "cuda:0:1"] {
            text.parse::<FloatDevice>().unwrap_err();
        }
    }
}
