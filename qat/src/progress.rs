//! The progress of a training: its iterations, the loss scale of half precision, and the detection of an
//! exploding loss.

use serde::{Deserialize, Serialize};
use swinq_model::quantized::Score;

use crate::job::Precision;

/// Initial and largest factor of the loss in half precision.
const MAX_LOSS_SCALE: f64 = 65536.0;
/// Iterations without overflow after which the factor of the loss is doubled.
const ITERATIONS_BEFORE_DOUBLING: u64 = 2000;
/// `(factor, offset)`: the loss explodes if it exceeds `factor * average + offset`.
const EXPLOSION: (f64, f64) = (10.0, 5.0);
/// [`EXPLOSION`] during the first iterations, when the average is not reliable yet.
const EARLY_EXPLOSION: (f64, f64) = (1000.0, 1000.0);
/// Decay of the loss's moving average.
const LOSS_AVERAGE_DECAY: f64 = 0.98;
/// Iterations until the loss's moving average is reliable.
const LOSS_AVERAGE_WARMUP: u64 = 20;

/// The validation with the highest score so far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Best {
    /// Iterations done before it.
    pub iteration: u64,
    /// Its score.
    #[serde(flatten)]
    pub score: Score,
}

/// The state of a run without its tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// Iterations done.
    #[serde(rename = "step")]
    pub iteration: u64,
    /// Updates of the optimizer; fewer than the iterations if half precision overflowed.
    pub updates: u64,
    /// Moving average of the loss, which detects an explosion; absent before the first iteration.
    pub usual_loss: Option<f64>,
    /// Factor of the loss in the backward pass, for half precision.
    pub loss_scale: f64,
    /// Iterations since that factor last changed.
    #[serde(rename = "steady_steps")]
    pub steady_iterations: u64,
    /// Iterations done before the latest validation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validated: Option<u64>,
    /// Of a classifier, the fraction of the images classified correctly before the first iteration, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    start_top1: Option<f64>,
    /// Of a backbone, the mean SQNR of its outputs before the first iteration, in dB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    start_sqnr_db: Option<f64>,
    /// The best validation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<Best>,
}

impl Progress {
    /// The progress of a training before its first iteration.
    pub(crate) fn new(precision: Precision) -> Progress {
        let loss_scale = if precision == Precision::F16 { MAX_LOSS_SCALE } else { 1.0 };
        Progress {
            iteration: 0,
            updates: 0,
            usual_loss: None,
            loss_scale,
            steady_iterations: 0,
            validated: None,
            start_top1: None,
            start_sqnr_db: None,
            best: None,
        }
    }

    /// The score before the first iteration.
    pub fn start(&self) -> Option<Score> {
        self.start_top1.map(Score::Top1).or(self.start_sqnr_db.map(Score::Sqnr))
    }

    /// Records the score before the first iteration.
    pub(crate) fn record_start(&mut self, score: Score) {
        match score {
            Score::Top1(top1) => self.start_top1 = Some(top1),
            Score::Sqnr(db) => self.start_sqnr_db = Some(db),
        }
    }

    /// The usual loss, if `loss` is so far above it that the training diverges.
    pub(crate) fn exploded_from(&self, loss: f64) -> Option<f64> {
        self.usual_loss.filter(|_| loss > self.most_loss())
    }

    /// The highest loss of a training that does not diverge.
    pub(crate) fn most_loss(&self) -> f64 {
        let (factor, offset) =
            if self.iteration >= LOSS_AVERAGE_WARMUP { EXPLOSION } else { EARLY_EXPLOSION };
        self.usual_loss.map_or(f64::MAX, |usual| factor * usual + offset)
    }

    /// Records an iteration with an update of the optimizer; `updates` is their number and `loss` the
    /// iteration's loss.
    pub(crate) fn record_update(&mut self, loss: f64, updates: u64, precision: Precision) {
        self.iteration += 1;
        self.updates = updates;
        self.usual_loss = Some(
            self.usual_loss
                .map_or(loss, |usual| LOSS_AVERAGE_DECAY * usual + (1.0 - LOSS_AVERAGE_DECAY) * loss),
        );
        if precision == Precision::F16 {
            self.steady_iterations += 1;
            if self.steady_iterations == ITERATIONS_BEFORE_DOUBLING {
                self.loss_scale = (2.0 * self.loss_scale).min(MAX_LOSS_SCALE);
                self.steady_iterations = 0;
            }
        }
    }

    /// Records an iteration whose update is skipped because half precision overflowed, and halves the loss
    /// scale.
    pub(crate) fn record_overflow(&mut self) {
        (self.loss_scale, self.steady_iterations) = (self.loss_scale / 2.0, 0);
        self.iteration += 1;
    }
}
