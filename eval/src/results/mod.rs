//! The JSON of `eval` and `bench`, schema version 1 (`docs/report-schema.json`). Figures that were not
//! measured are absent, never zero.

mod check;
mod decibel;
mod file;
mod images;
mod model;
mod named;
mod origin;
mod profile;
mod program;
mod ranges;
pub mod sensitivity;
mod training;
pub mod tune;
mod tuning_words;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};
use swinq_model::Transform;

use crate::environment::{Environment, Load};
use crate::error::EvalError;

pub use images::{ClassResult, Disagreement, Flips, Guess, ImageResult, OutputResult};
pub use model::{ModelResult, Precision, SiteResult, SizeResult, Stats};
pub use origin::{CalibrationSet, Origin};
pub use profile::{LaunchResult, Profile};
pub use program::{
    GainEnvironment, GainMetric, GainTimes, PROGRAM_GAIN, ProgramGain, ProgramTimes, read_program_gain,
};
pub use ranges::{RangeFile, RangeHistogram};
pub use training::{StepPoint, TrainingRun, ValidationPoint, read_training};

/// Version of the JSON schema that this crate reads and writes.
pub const SCHEMA: u32 = 1;

/// The results of a run of `eval` or `bench`. The first model is the baseline of the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// Schema version, [`SCHEMA`].
    pub schema: u32,
    /// Models in the order given.
    pub models: Vec<ModelResult>,
    /// The machine and software of the run.
    pub environment: Environment,
    /// The data set; absent for random inputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<DataInfo>,
    /// Peak memory of the process, which held all models, the images and the buffers of decoding, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
    /// The load of the machine while latency was measured, by batch size.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub load: BTreeMap<usize, Load>,
    /// A training that made one of the models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training: Option<TrainingRun>,
    /// A whole program around one of the models, in INT8 and in float.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<ProgramGain>,
    /// The commands that made the results, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
    /// Remarks for the reader, such as why a figure is missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// The data set on which the models were evaluated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DataInfo {
    /// Its path, as the user gave it.
    pub path: String,
    /// `train` or `val`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<String>,
    /// Number of images in the data set's full list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<usize>,
    /// Number of images drawn with `seed`; absent if all images were used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Seed with which the images were drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// SHA-256 of the list of images used, hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Number of corrupt images that were skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<usize>,
    /// Preprocessing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transform: Option<Transform>,
    /// The sizes that images got before a backbone: `keep`, `512x640` or `short:800,long:1333`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sizing: Option<String>,
    /// Class names by class index, if they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class_names: Option<Vec<String>>,
}

impl Results {
    /// Results without models, of schema [`SCHEMA`].
    pub fn new(environment: Environment) -> Results {
        Results {
            schema: SCHEMA,
            models: Vec::new(),
            environment,
            data: None,
            peak_memory_bytes: None,
            load: BTreeMap::new(),
            training: None,
            program: None,
            commands: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// The batch size at which models are compared: the one for which most models have a latency; of several,
    /// the smallest.
    pub fn reference_batch(&self) -> Option<usize> {
        let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
        for batch in self.models.iter().flat_map(|model| model.latency_ms.keys()) {
            *counts.entry(*batch).or_default() += 1;
        }
        counts
            .into_iter()
            .max_by_key(|&(batch, count)| (count, std::cmp::Reverse(batch)))
            .map(|(batch, _)| batch)
    }

    /// Names of the outputs of backbones, in the order of the first model that was compared.
    pub(crate) fn outputs(&self) -> Vec<String> {
        let compared = self.models.iter().find(|model| !model.outputs.is_empty());
        compared.map_or(Vec::new(), |model| model.outputs.iter().map(|output| output.name.clone()).collect())
    }

    /// The sizes of images for which backbones were timed, in the order of the first model that was.
    pub(crate) fn timed_sizes(&self) -> Vec<[usize; 2]> {
        let timed = self.models.iter().find(|model| !model.sizes.is_empty());
        timed.map_or(Vec::new(), |model| model.sizes.iter().map(|of_size| of_size.size).collect())
    }

    /// The size of the images to which the times of backbones belong that state none.
    pub(crate) fn timed_size(&self) -> Option<[usize; 2]> {
        self.timed_sizes().first().copied()
    }

    /// The batch sizes for which at least one model has a latency, in ascending order.
    pub(crate) fn batch_sizes(&self) -> Vec<usize> {
        let all: BTreeSet<usize> =
            self.models.iter().flat_map(|model| model.latency_ms.keys().copied()).collect();
        all.into_iter().collect()
    }
}

/// Reads the JSON of `eval` or `bench`. Unknown keys are ignored.
///
/// # Errors
/// [`EvalError::Io`], [`EvalError::File`] if the text is not such JSON, [`EvalError::Results`] of
/// [`Results::check`].
pub fn read_results(path: &Path) -> Result<Results, EvalError> {
    let results: Results = file::read(path, "swinq eval --json` or `swinq bench --json", SCHEMA)?;
    results.check()?;
    Ok(results)
}

/// `results` as the text that [`write_results`] writes.
///
/// # Errors
/// [`EvalError::Results`] of [`Results::check`].
pub fn results_json(results: &Results) -> Result<String, EvalError> {
    results.check()?;
    file::text(results)
}

/// Writes `results` as indented JSON. The file is replaced atomically.
///
/// # Errors
/// [`EvalError::Results`] of [`Results::check`], or an error if `path` cannot be written.
pub fn write_results(path: &Path, results: &Results) -> Result<(), EvalError> {
    results.check()?;
    file::write(path, results)
}
