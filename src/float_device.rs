//! The device of the float forward: the processor or, in a build with candle's CUDA, a GPU.

use std::fmt;
use std::str::FromStr;

use candle_core::Device;

use crate::Error;

/// A device of the float forward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FloatDevice {
    /// The processor.
    #[default]
    Cpu,
    /// A GPU, by its ordinal. Only a build with the feature `cuda` can use one.
    Cuda(usize),
}

impl FromStr for FloatDevice {
    type Err = String;

    fn from_str(text: &str) -> Result<FloatDevice, String> {
        let problem = "must be cpu, cuda or cuda:N with the number of a GPU";
        match text.split_once(':').map_or((text, None), |(kind, ordinal)| (kind, Some(ordinal))) {
            ("cpu", None) => Ok(FloatDevice::Cpu),
            ("cuda", None) => Ok(FloatDevice::Cuda(0)),
            ("cuda", Some(ordinal)) => ordinal.parse().map(FloatDevice::Cuda).map_err(|_| problem.to_owned()),
            _ => Err(problem.to_owned()),
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
    /// Whether this build can run the float forward on a GPU.
    pub const HAS_CUDA: bool = cfg!(feature = "cuda");

    /// The device, opened.
    ///
    /// # Errors
    /// [`Error::Device`] for a GPU in a build without the feature `cuda`, and for a GPU that does not exist
    /// or cannot be used.
    pub fn open(self) -> Result<Device, Error> {
        let FloatDevice::Cuda(ordinal) = self else { return Ok(Device::Cpu) };
        let error = |source| Error::Device { device: self, source };
        if !FloatDevice::HAS_CUDA {
            let problem = "this build of swinq runs the float forward on the CPU only (feature `cuda`)";
            return Err(error(problem.into()));
        }
        // The error of our own binding describes a missing library better than candle's error.
        swinq_cuda::Device::open(ordinal).map_err(|source| error(source.into()))?;
        // A stream of its own, because the default stream cannot be recorded in a graph.
        Device::new_cuda_with_stream(ordinal).map_err(|source| error(source.into()))
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
