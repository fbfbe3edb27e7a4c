//! The JSON of `swinq.torch.measure_gain`: a whole program with its Swins in INT8 and in float, on the same
//! batches.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{file, named};
use crate::error::EvalError;

/// Version of the JSON of `measure_gain` that this crate reads.
pub const PROGRAM_GAIN: u32 = 1;

/// The code that writes the file, for messages.
const WRITER: &str = "swinq.torch.measure_gain(...).save";

/// A program in INT8 beside its float original.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProgramGain {
    /// Version of the file, [`PROGRAM_GAIN`].
    pub program_gain: u32,
    /// The class of the program, and those of its Swins.
    #[serde(default)]
    pub program: String,
    /// Times of a call.
    pub times: GainTimes,
    /// The ratio of signal to noise in dB of each output of floating point, over all batches; infinite for
    /// equal ones.
    #[serde(with = "named::decibels")]
    pub outputs: Vec<(String, f64)>,
    /// The share of equal values of each other output, 0 to 1.
    #[serde(with = "named")]
    pub equal: Vec<(String, f64)>,
    /// The outputs that could not be compared, with the reasons.
    #[serde(with = "named")]
    pub incomparable: Vec<(String, String)>,
    /// The metric of the user's; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<GainMetric>,
    /// Number of batches.
    pub batches: usize,
    /// Where the program ran.
    pub environment: GainEnvironment,
}

/// Times of a program in float and in INT8.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GainTimes {
    /// With the float originals of its Swins.
    pub float: ProgramTimes,
    /// With its Swins in INT8.
    pub int8: ProgramTimes,
}

/// Medians over the batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProgramTimes {
    /// Milliseconds of a call.
    pub program_ms: f64,
    /// Milliseconds of all calls of its Swins in it.
    pub swin_ms: f64,
    /// The Swins' part of the time, 0 to 1.
    pub share: f64,
}

/// Values of a metric of the user's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GainMetric {
    /// Its name.
    pub name: String,
    /// Its value with the float originals.
    pub float: f64,
    /// Its value with Swins in INT8.
    pub int8: f64,
}

/// Where a program ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GainEnvironment {
    /// The devices of the model, as PyTorch names them.
    pub device: String,
    /// PyTorch's threads.
    pub torch_threads: usize,
    /// PyTorch's version.
    pub torch: String,
    /// The mean number of cores that other processes kept busy, if they were so many that the times are
    /// disturbed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_cores: Option<f64>,
}

/// Reads the JSON of `measure_gain`. Unknown keys are ignored.
///
/// # Errors
/// [`EvalError::Io`], or [`EvalError::File`] if the text is not such JSON of version [`PROGRAM_GAIN`] with
/// possible figures.
pub fn read_program_gain(path: &Path) -> Result<ProgramGain, EvalError> {
    let gain: ProgramGain = file::read_versioned(path, WRITER, ("program_gain", PROGRAM_GAIN))?;
    gain.check("program").map_err(|error| EvalError::file(path, error))?;
    Ok(gain)
}
