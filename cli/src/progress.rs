//! Progress of long work: a bar with rate and ETA on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use swinq::Phase;

use crate::out::{self, Level, counted, note};

/// Progress over a known number of images or other units.
pub struct Progress {
    bar: Option<ProgressBar>,
    label: String,
    unit: &'static str,
    total: usize,
    /// Units that were done before, which take no time.
    known: usize,
    start: Instant,
    printed: Instant,
}

/// Time between two plain lines.
const LINE_EVERY: Duration = Duration::from_secs(5);

impl Progress {
    /// Starts at 0 of `total` images.
    pub fn new(label: &str, total: usize) -> Progress {
        Progress::counting(label, "images", total)
    }

    /// Starts at 0 of `total` units of this name.
    pub fn counting(label: &str, unit: &'static str, total: usize) -> Progress {
        let shown = out::prints(Level::Normal) && std::io::stderr().is_terminal();
        let bar = shown.then(|| {
            let template =
                format!("{{prefix}} [{{bar:32}}] {{pos}}/{{len}} {unit}, {{per_sec}}, ETA {{eta}}");
            let style = ProgressStyle::with_template(&template).expect("the template is well formed");
            ProgressBar::new(total as u64)
                .with_style(style.progress_chars("=> "))
                .with_prefix(swinq::model::printable_name(label).into_owned())
        });
        let now = Instant::now();
        Progress { bar, label: label.to_owned(), unit, total, known: 0, start: now, printed: now }
    }

    /// The same with so many units done before.
    fn after(mut self, known: usize) -> Progress {
        self.known = known;
        self
    }

    /// Shows that `done` units are done.
    pub fn set(&mut self, done: usize) {
        let made = done.saturating_sub(self.known);
        if let Some(bar) = &self.bar {
            bar.set_position(done as u64);
            if made == 0 {
                bar.reset_eta();
            }
            return;
        }
        if self.printed.elapsed() >= LINE_EVERY && made > 0 {
            self.printed = Instant::now();
            let (rate, eta) = rate_and_rest(self.known, done, self.total, self.start.elapsed());
            let Progress { label, unit, total, .. } = self;
            note!("{label}: {done}/{total} {unit}, {rate:.1} {unit}/s, ETA {eta:.0} s");
        }
    }

    /// Removes the bar and prints one line: the number of units, the time and the speed.
    pub fn finish(self, done: usize) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let seconds = self.start.elapsed().as_secs_f64();
        let Progress { label, unit, known, .. } = &self;
        let made = done.saturating_sub(*known);
        let number = counted(made, unit.trim_end_matches('s'));
        note!("{label}: {number} in {seconds:.1} s, {:.1} {unit}/s", made as f64 / seconds);
    }
}

/// Units in a second, and the seconds until the end, where `done` of `total` units are done, `known` of them
/// before the time `elapsed` began.
fn rate_and_rest(known: usize, done: usize, total: usize, elapsed: Duration) -> (f64, f64) {
    let rate = done.saturating_sub(known) as f64 / elapsed.as_secs_f64();
    (rate, total.saturating_sub(done) as f64 / rate)
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Progress of a command with several stages: the current one, and how much of it is done. Each stage ends
/// with a line that says how long it took.
#[derive(Default)]
pub struct Stages {
    current: Option<(&'static str, Progress, usize)>,
    /// Units of the next stage that are done already.
    known: usize,
}

impl Stages {
    /// Shows that `done` of `total` units of the stage `label` are done. Another label than before begins a
    /// stage.
    pub fn set(&mut self, label: &'static str, unit: &'static str, done: usize, total: usize) {
        if self.current.as_ref().is_none_or(|(current, ..)| *current != label) {
            self.finish();
            let progress = Progress::counting(label, unit, total).after(std::mem::take(&mut self.known));
            self.current = Some((label, progress, 0));
        }
        if let Some((_, progress, seen)) = &mut self.current {
            *seen = done;
            progress.set(done);
        }
    }

    /// So many units of the next stage are done already. They count for neither its speed nor its end.
    pub fn set_known(&mut self, known: usize) {
        self.known = known;
    }

    /// Shows a step of a calibration.
    pub fn calibration(&mut self, step: swinq::Progress) {
        let (label, unit) = match step.phase {
            Phase::Observe => ("calibrate", "images"),
            Phase::Refine => ("refine", "layers"),
            Phase::Reconstruct => ("reconstruct", "layers"),
        };
        self.set(label, unit, step.done, step.total);
    }

    /// Shows a step of the merging of a calibration.
    pub fn merging(&mut self, step: swinq::Progress) {
        match step.phase {
            Phase::Observe => self.set("merge", "images", step.done, step.total),
            Phase::Refine | Phase::Reconstruct => self.calibration(step),
        }
    }

    /// Ends the current stage, if there is one.
    pub fn finish(&mut self) {
        if let Some((_, progress, done)) = self.current.take() {
            progress.finish(done);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_that_were_done_before_count_for_no_speed() {
        let ten_seconds = Duration::from_secs(10);
        assert_eq!(rate_and_rest(0, 20, 100, ten_seconds), (2.0, 40.0));
        assert_eq!(rate_and_rest(60, 80, 100, ten_seconds), (2.0, 10.0));
    }
}
