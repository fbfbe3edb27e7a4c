//! The JSON of `tune`: the recipes that were tried, the front of accuracy against latency, and the verdict on
//! the recipe that was chosen. Schema version 1.

use std::path::Path;

use serde::{Deserialize, Serialize};
use swinq_model::Recipe;

use super::file;
use super::sensitivity::{Effect, Subject};
use super::{DataInfo, Stats};
use crate::environment::{Environment, Load};
use crate::error::EvalError;
use crate::interval::Interval;

/// Version of the JSON of `tune` that this crate reads and writes.
pub const TUNE_SCHEMA: u32 = 1;

/// The results of a run of `tune`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tuning {
    /// Schema version, [`TUNE_SCHEMA`].
    pub schema: u32,
    /// The float model.
    pub model: Subject,
    /// Name of the recipe from which the search started.
    pub start_recipe: String,
    /// What was asked for.
    pub goal: Goal,
    /// Whose latency was predicted and measured.
    pub cost: CostModel,
    /// Numbers of images.
    pub images: TuneImages,
    /// Predicted latency of the float model in milliseconds.
    pub float_ms: f64,
    /// Measured latency of the float model.
    pub float_latency_ms: Stats,
    /// Every recipe that was tried, in the order of trial. The first is the start recipe.
    pub candidates: Vec<TuneCandidate>,
    /// Indices of the candidates on the front of SQNR against predicted latency, from the fastest.
    pub front: Vec<usize>,
    /// Index of the candidate that was chosen.
    pub chosen: usize,
    /// Whether the chosen candidate keeps the goal's drop on the search images, with a margin of one standard
    /// error, or the goal's SQNR.
    pub kept: bool,
    /// The result for the chosen candidate on images that the search did not see; absent where a metric of
    /// the user's decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verification: Option<Verification>,
    /// Why the search ended.
    pub end: SearchEnd,
    /// The load of the machine while launches were timed; without values if the table had them all.
    #[serde(default)]
    pub launch_load: Load,
    /// The load of the machine while the latencies of float, the start and the chosen recipe were measured.
    #[serde(default)]
    pub latency_load: Load,
    /// The machine and software of the run.
    pub environment: Environment,
    /// The images of search and verification.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<DataInfo>,
}

/// What the user asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Goal {
    /// The metric of the user's that decides, if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<MetricGoal>,
    /// The largest drop of top-1 accuracy, in percentage points; absent for a backbone, and where a metric of
    /// the user's decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_drop: Option<f64>,
    /// The least SQNR in dB of every output of a backbone that counts; absent for a classifier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_sqnr_db: Option<f64>,
    /// The least speedup over the float model on the same engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_speedup: Option<f64>,
    /// Minutes that the search may take, with the timing of launches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_minutes: Option<f64>,
}

/// The goal for a metric of the user's, such as the box AP of a detector that contains the model. A greater
/// value is better.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricGoal {
    /// The metric's name.
    pub name: String,
    /// The value of the user's float model.
    pub float: f64,
    /// The largest drop below that value, in the metric's unit.
    pub max_drop: f64,
}

/// The engine whose latency is the cost of a candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CostModel {
    /// Name of the backend.
    pub backend: String,
    /// The hardware, in words.
    pub hardware: String,
    /// Images per inference.
    pub batch_size: usize,
    /// Height and width of the images before a backbone; absent for a classifier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_size: Option<[usize; 2]>,
    /// SHA-256 of the table of latencies that the search used, hexadecimal.
    pub table_sha256: String,
    /// The spread of a latency as a fraction of it: a change had to save a greater share. 0 in older
    /// results, which had no such rule.
    #[serde(default)]
    pub spread: f64,
}

/// Numbers of images of a run of `tune`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TuneImages {
    /// Images of the calibration.
    pub calibration: usize,
    /// Images on which candidates were compared.
    pub search: usize,
    /// Images on which the chosen candidate was verified.
    pub verification: usize,
}

/// One recipe that was tried.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TuneCandidate {
    /// The recipe.
    pub recipe: Recipe,
    /// The differences from the start recipe, one phrase each, such as `layers.0.blocks.0.mlp.fc2: float`.
    /// Empty for the start recipe.
    pub changes: Vec<String>,
    /// Predicted latency in milliseconds: the sum of the table's times of the candidate's launches.
    pub predicted_ms: f64,
    /// Measured latency; absent if the candidate was not measured as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<Stats>,
    /// The float model's predicted latency divided by this one's.
    pub speedup: f64,
    /// Fraction of the multiply-accumulates of linear layers that run in INT8.
    pub int8_share: f64,
    /// Distance from the float model on the search images.
    pub effect: Effect,
    /// Top-1 accuracy minus the float model's on the search images; absent for a backbone, and for images
    /// without labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top1_difference: Option<Interval>,
    /// The value of the user's metric; absent if the goal has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
}

/// The chosen candidate on the verification images.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verification {
    /// Number of images.
    pub images: usize,
    /// Number of images that the float model classifies correctly; absent for a backbone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub float_correct: Option<usize>,
    /// Distance from the float model.
    pub effect: Effect,
    /// Top-1 accuracy minus the float model's, with the paired 95 % interval; absent for a backbone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top1_difference: Option<Interval>,
    /// Whether the goal holds.
    pub verdict: Verdict,
}

/// Whether the drop of top-1 accuracy is at most the goal's, with 95 % confidence; of a backbone, whether
/// every output that counts has the goal's SQNR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The whole interval is within the goal.
    Holds,
    /// The whole interval is beyond the goal.
    Fails,
    /// The goal lies within the interval.
    NotConcluded {
        /// About how many images would decide if the models' answers differ as often as here; absent if the
        /// drop seen equals the goal, so that no number would.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        images_needed: Option<usize>,
    },
}

impl Goal {
    /// The limit in words: `a drop of at most 0.2 points of top-1`,
    /// `an SQNR of at least 30 dB at every output`, or `a drop of AP of at most 0.5 from 46.2`.
    pub fn limit(&self) -> String {
        if let Some(MetricGoal { name, float, max_drop }) = &self.metric {
            return format!("a drop of {name} of at most {max_drop} from {float}");
        }
        match (self.max_drop, self.min_sqnr_db) {
            (_, Some(db)) => format!("an SQNR of at least {db} dB at every output"),
            (Some(points), None) => format!("a drop of at most {points} points of top-1"),
            (None, None) => "no limit".to_owned(),
        }
    }
}

impl Verdict {
    /// The verdict on the lowest SQNR of an output of a backbone in dB.
    pub fn of_sqnr(db: f64, least: f64) -> Verdict {
        if db >= least { Verdict::Holds } else { Verdict::Fails }
    }

    /// The verdict on a difference of top-1 accuracies that was measured on `images` images; `max_drop` is in
    /// percentage points. The number of images that would decide follows from the interval's width, which
    /// shrinks with the square root of the number.
    pub fn of(difference: &Interval, images: usize, max_drop: f64) -> Verdict {
        let Interval { difference, low, high } = *difference;
        let limit = -max_drop / 100.0;
        if low >= limit {
            return Verdict::Holds;
        }
        if high < limit {
            return Verdict::Fails;
        }
        let margin = difference - limit;
        let width = if margin > 0.0 { difference - low } else { high - difference };
        let needed = images as f64 * (width / margin).powi(2);
        Verdict::NotConcluded { images_needed: needed.is_finite().then(|| needed.ceil() as usize) }
    }
}

/// Why the search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SearchEnd {
    /// A candidate reached the goal on the search images, and no change that was tried saves more than the
    /// spread of the latency.
    Reached,
    /// No candidate reached the largest drop, or the least SQNR, on the search images; the chosen one is the
    /// closest.
    DropImpossible,
    /// No candidate within the largest drop, or with the least SQNR, reaches the least speedup; the chosen
    /// one is the best within the drop.
    SpeedupImpossible,
    /// The time was used up; the chosen candidate is the best so far.
    OutOfTime,
}

/// Reads the JSON of `tune`.
///
/// # Errors
/// [`EvalError::Io`], or [`EvalError::File`] if the text is not such JSON of version [`TUNE_SCHEMA`].
pub fn read_tuning(path: &Path) -> Result<Tuning, EvalError> {
    file::read(path, "swinq tune", TUNE_SCHEMA)
}

/// Writes `results` as indented JSON. The file is replaced atomically.
///
/// # Errors
/// An error if `path` cannot be written.
pub fn write_tuning(path: &Path, results: &Tuning) -> Result<(), EvalError> {
    file::write(path, results)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(difference: f64, low: f64, high: f64) -> Verdict {
        Verdict::of(&Interval { difference, low, high }, 1000, 0.2)
    }

    #[test]
    fn the_interval_decides() {
        assert_eq!(verdict(0.001, -0.001, 0.003), Verdict::Holds);
        assert_eq!(verdict(-0.01, -0.015, -0.005), Verdict::Fails);
        // The lower limit is 8 thousandths below the difference, the goal 2: 16 times the images decide.
        assert_eq!(verdict(0.0, -0.008, 0.008), Verdict::NotConcluded { images_needed: Some(16_000) });
        // The difference is 2 thousandths beyond the goal, the upper limit 4 above it.
        assert_eq!(verdict(-0.004, -0.008, 0.0), Verdict::NotConcluded { images_needed: Some(4_000) });
        assert_eq!(verdict(-0.002, -0.008, 0.004), Verdict::NotConcluded { images_needed: None });
    }
}
