//! Progress of long work: a bar with rate and ETA on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use swinq::Phase;

use crate::out::{self, Level, note};

/// Progress over a known number of images or other units.
pub struct Progress {
    bar: Option<ProgressBar>,
    label: String,
    unit: &'static str,
    total: usize,
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
        Progress { bar, label: label.to_owned(), unit, total, start: now, printed: now }
    }

    /// Shows that `done` units are done.
    pub fn set(&mut self, done: usize) {
        if let Some(bar) = &self.bar {
            return bar.set_position(done as u64);
        }
        if self.printed.elapsed() >= LINE_EVERY && done > 0 {
            self.printed = Instant::now();
            let rate = done as f64 / self.start.elapsed().as_secs_f64();
            let eta = (self.total.saturating_sub(done)) as f64 / rate;
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
        let Progress { label, unit, .. } = &self;
        note!("{label}: {done} {unit} in {seconds:.1} s, {:.1} {unit}/s", done as f64 / seconds);
    }
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
pub struct Stages(Option<(&'static str, Progress, usize)>);

impl Stages {
    /// Shows that `done` of `total` units of the stage `label` are done. Another label than before begins a
    /// stage.
    pub fn set(&mut self, label: &'static str, unit: &'static str, done: usize, total: usize) {
        if self.0.as_ref().is_none_or(|(current, ..)| *current != label) {
            self.finish();
            self.0 = Some((label, Progress::counting(label, unit, total), 0));
        }
        if let Some((_, progress, seen)) = &mut self.0 {
            *seen = done;
            progress.set(done);
        }
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
        if let Some((_, progress, done)) = self.0.take() {
            progress.finish(done);
        }
    }
}
