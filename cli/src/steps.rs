//! Progress of `sensitivity` and `tune`: calibration, then measurements.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use swinq::TuneProgress;

use crate::interrupt;
use crate::out::{caution, counted, note};
use crate::progress::Stages;

/// Shows the steps of a command as they are reported.
pub struct Steps {
    cache: String,
    stages: Stages,
    /// Whether a search has tried a recipe, so that a calibration that follows is that of the chosen one.
    tried: bool,
}

impl Steps {
    /// Steps of a command that keeps finished measurements in the file `cache`.
    pub fn new(cache: &Path) -> Steps {
        Steps { cache: cache.display().to_string(), stages: Stages::default(), tried: false }
    }

    /// Shows a report of `sensitivity`. `Break` if the user has asked to stop.
    pub fn show(&mut self, progress: swinq::SensitivityProgress<'_>) -> ControlFlow<()> {
        match progress {
            swinq::SensitivityProgress::Calibrate(step) => self.stages.calibration(step),
            swinq::SensitivityProgress::Measure(done, all) => {
                self.stages.set("measure", "measurements", done, all)
            }
            swinq::SensitivityProgress::Evaluate(done, all) => {
                self.stages.set("evaluate", "models", done, all)
            }
            swinq::SensitivityProgress::Cache(found) => self.found(found),
            swinq::SensitivityProgress::Cost(cost) => {
                self.finish();
                note!("{}", cost_in_words(&cost));
                self.stages.set_known(cost.known);
            }
            swinq::SensitivityProgress::Stopped(_) => self.finish(),
        }
        interrupt::check()
    }

    /// Shows a report of `tune`. `Break` if the user has asked to stop.
    pub fn show_tune(&mut self, progress: TuneProgress<'_>) -> ControlFlow<()> {
        match progress {
            TuneProgress::Calibrate(step) => {
                if std::mem::take(&mut self.tried) {
                    self.finish();
                    note!("the chosen recipe is calibrated from the start, as `swinq calibrate` does it");
                }
                self.stages.calibration(step)
            }
            TuneProgress::Cache(found) => self.found(found),
            TuneProgress::DisturbedTable => note!(
                "the table of latencies was measured while other processes used the machine, and is measured again"
            ),
            TuneProgress::Float(done, all) => self.stages.set("float model", "images", done, all),
            TuneProgress::Latencies(done, all) => self.stages.set("time launches", "models", done, all),
            TuneProgress::Probe => {}
            TuneProgress::Trial { number, speedup, sqnr_db, difference, changes, value: _ } => {
                self.finish();
                self.tried = true;
                let change = changes_in_words(changes);
                let points = difference.map_or(String::new(), |difference| {
                    format!(", top-1 {:+.2} points", 100.0 * difference.difference)
                });
                note!("trial {number}: {speedup:.2}x, {sqnr_db:.1} dB{points}; {change}");
            }
            TuneProgress::Verify(done, all) => self.stages.set("verify", "images", done, all),
        }
        interrupt::check()
    }

    /// Prints the contents of the file of finished measurements.
    fn found(&mut self, found: swinq::CacheContents) {
        self.finish();
        let cache = &self.cache;
        if found.replaced {
            note!("{cache} belongs to another run and is replaced");
        }
        if found.damaged > 0 {
            let lines = counted(found.damaged, "damaged line");
            caution!("{cache}: {lines}; their measurements are made again");
        }
        if found.kept > 0 {
            let verb = if found.kept == 1 { "is" } else { "are" };
            note!("{} {verb} taken from {cache}", counted(found.kept, "finished measurement"));
        }
    }

    /// Ends the current bar with a line.
    pub fn finish(&mut self) {
        self.stages.finish();
    }
}

/// The cost of a measurement of sensitivity, and how to make it smaller.
fn cost_in_words(cost: &swinq::Cost) -> String {
    let known = if cost.known > 0 { format!(" ({} finished)", cost.known) } else { String::new() };
    format!(
        "{}{known} on {}, about {}; fewer --images, --parts layers or blocks, or --only PATTERN take less",
        counted(cost.measurements, "measurement"),
        counted(cost.images, "image"),
        about(cost.time)
    )
}

/// A time to one or two digits: in seconds up to a minute and a half, else in minutes.
fn about(time: Duration) -> String {
    match time.as_secs_f64() {
        seconds if seconds < 90.0 => format!("{:.0} s", seconds.max(1.0)),
        seconds => format!("{:.0} minutes", (seconds / 60.0).max(2.0)),
    }
}

/// The changes of a recipe in words: the only one, or their number and the last.
fn changes_in_words(changes: &[String]) -> String {
    match changes {
        [] => "the start recipe".to_owned(),
        [one] => one.clone(),
        [.., last] => format!("{}, such as {last}", counted(changes.len(), "change")),
    }
}

/// The path `output` with `suffix` appended: a file that belongs to the output.
pub fn beside(output: &Path, suffix: &str) -> PathBuf {
    let mut name = output.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// The error of a stopped command says that nothing finished is lost.
pub fn stopped(error: swinq::Error, cache: &Path) -> anyhow::Error {
    match error {
        swinq::Error::Interrupted => {
            let cache = cache.display();
            anyhow::anyhow!("stopped; finished measurements are in {cache}, and the same command continues")
        }
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_says_how_many_and_how_long() {
        let cost = |measurements, known, images, seconds| {
            let time = Duration::from_secs(seconds);
            cost_in_words(&swinq::Cost { measurements, known, images, time })
        };
        assert!(cost(451, 0, 64, 1490).starts_with("451 measurements on 64 images, about 25 minutes; "));
        assert!(cost(451, 188, 1, 0).starts_with("451 measurements (188 finished) on 1 image, about 1 s; "));
        assert_eq!([89, 90, 140].map(|s| about(Duration::from_secs(s))), ["89 s", "2 minutes", "2 minutes"]);
    }

    #[test]
    fn one_change_is_no_example_of_several() {
        let changes = ["patch_embed.proj: INT8".to_owned(), "head: INT8".to_owned()];
        assert_eq!(changes_in_words(&[]), "the start recipe");
        assert_eq!(changes_in_words(&changes[..1]), "patch_embed.proj: INT8");
        assert_eq!(changes_in_words(&changes), "2 changes, such as head: INT8");
    }
}
