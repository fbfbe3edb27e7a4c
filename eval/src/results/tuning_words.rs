//! The results of `tune` in words, which the command, reports and Python share.

use super::Stats;
use super::tune::{SearchEnd, Tuning, Verdict};
use crate::environment::disturbed;
use crate::text::{self, counted, thousands};

/// A predicted and a measured latency with a larger ratio differ.
const FAR: f64 = 1.5;
/// A larger spread of the latency hides the savings of most changes.
const WIDE: f64 = 0.1;

impl Tuning {
    /// Warnings that belong beside the table of candidates: predicted and measured latencies that differ by
    /// more than 1.5x, and other processes that disturbed the measurements. Empty if the times can be relied
    /// on.
    pub fn warnings(&self) -> Vec<String> {
        self.differing_times().into_iter().chain(self.disturbance()).collect()
    }

    /// The model whose predicted and measured latencies differ most, if by more than [`FAR`].
    fn differing_times(&self) -> Option<String> {
        let chosen = self.candidates.get(self.chosen);
        let measured = |stats: Option<&Stats>| stats.map(|stats| stats.median);
        let all = [
            ("float", self.float_ms, measured(Some(&self.float_latency_ms))),
            ("the chosen recipe", chosen?.predicted_ms, measured(chosen?.latency_ms.as_ref())),
        ];
        let times = all.into_iter().filter_map(|(name, predicted, ms)| Some((name, predicted, ms?)));
        let ratio = |predicted: f64, ms: f64| (predicted / ms).max(ms / predicted);
        let (name, predicted, ms) = times
            .max_by(|a, b| ratio(a.1, a.2).total_cmp(&ratio(b.1, b.2)))
            .filter(|t| ratio(t.1, t.2) > FAR)?;
        Some(format!(
            "Predicted and measured latency differ by {:.1}x: {name} has {predicted:.3} and {ms:.3} ms. Compare predicted \
             times with predicted ones, and measured with measured.",
            ratio(predicted, ms)
        ))
    }

    /// The warning that other processes worked while launches were timed, or while the chosen model was.
    fn disturbance(&self) -> Option<String> {
        let cores = self.environment.cores.unwrap_or(1);
        let busy = [&self.launch_load, &self.latency_load].map(|load| load.disturbance(cores));
        let what = match busy {
            [None, None] => return None,
            [Some(_), None] => "launches were",
            [None, Some(_)] => "the chosen model was",
            [Some(_), Some(_)] => "launches and the chosen model were",
        };
        let worst = busy.into_iter().flatten().fold(0.0, f64::max);
        Some(disturbed(worst, cores, what))
    }

    /// Why the search ended, as a sentence.
    pub fn ending(&self) -> String {
        let tried = counted(self.candidates.len(), "recipe");
        match self.end {
            SearchEnd::Reached => self.reached(&tried),
            SearchEnd::DropImpossible => format!(
                "The search ended after {tried}: none keeps the limit on the search images, and no further change removes noise; \
                 the chosen recipe is the closest."
            ),
            SearchEnd::SpeedupImpossible => format!(
                "The search ended after {tried}: none within the limit reaches the speed-up; the chosen recipe is the best within \
                 the limit."
            ),
            SearchEnd::OutOfTime => format!(
                "The budget{} ended the search after {tried}; the chosen recipe is the best that was found.",
                self.goal
                    .budget_minutes
                    .map_or(String::new(), |minutes| format!(" of {}", text::minutes(minutes)))
            ),
        }
    }

    /// Why a search ended that had time left. Changes whose predicted saving is below the spread are not
    /// tried.
    fn reached(&self, tried: &str) -> String {
        let spread = self.spread_percent();
        let what = match self.candidates.len() {
            1 => format!(
                "The search ended at its first recipe, and nothing else was tried: no change promises to save more than the spread of \
                 the latency ({spread})."
            ),
            _ => format!(
                "The search ended after {tried}: no further change that was tried keeps the limit and saves more than the spread of \
                 the latency ({spread})."
            ),
        };
        let quiet = " Times that spread so far hide what a change saves: run it again while nothing else uses the processor.";
        what + if self.cost.spread > WIDE { quiet } else { "" }
    }

    /// The spread of the latency in percent, as in `1.3 %`.
    pub fn spread_percent(&self) -> String {
        format!("{:.1} %", 100.0 * self.cost.spread)
    }

    /// The remark of how many images would decide where the verification does not conclude; `None` if it
    /// does, or if none would.
    pub fn deciding_images(&self) -> Option<String> {
        let Verdict::NotConcluded { images_needed: Some(needed) } = self.verification.as_ref()?.verdict
        else {
            return None;
        };
        let number = thousands(needed);
        let total = self.data.as_ref().and_then(|data| data.total);
        // One half of the images verifies.
        Some(match total.filter(|total| needed > total / 2) {
            None => format!("about {number} verification images would decide (--images {})", 2 * needed),
            Some(total) => format!(
                "about {number} verification images would decide, which is more than this data set has: {}, one half of which verifies",
                thousands(total)
            ),
        })
    }
}
