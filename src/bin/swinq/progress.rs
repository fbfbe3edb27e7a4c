//! Progress of long work: a bar with rate and ETA on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Progress over a known number of images.
pub struct Progress {
    bar: Option<ProgressBar>,
    label: String,
    total: usize,
    start: Instant,
    printed: Instant,
}

/// Time between two plain lines.
const LINE_EVERY: Duration = Duration::from_secs(5);

impl Progress {
    /// Starts at 0 of `total` images.
    pub fn new(label: &str, total: usize) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let template = "{prefix} [{bar:32}] {pos}/{len} images, {per_sec}, ETA {eta}";
            let style = ProgressStyle::with_template(template).expect("the template is well formed");
            ProgressBar::new(total as u64)
                .with_style(style.progress_chars("=> "))
                .with_prefix(label.to_owned())
        });
        let now = Instant::now();
        Progress { bar, label: label.to_owned(), total, start: now, printed: now }
    }

    /// Shows that `done` images are done.
    pub fn set(&mut self, done: usize) {
        if let Some(bar) = &self.bar {
            return bar.set_position(done as u64);
        }
        if self.printed.elapsed() >= LINE_EVERY && done > 0 {
            self.printed = Instant::now();
            let rate = done as f64 / self.start.elapsed().as_secs_f64();
            let eta = (self.total.saturating_sub(done)) as f64 / rate;
            eprintln!("{}: {done}/{} images, {rate:.1} images/s, ETA {eta:.0} s", self.label, self.total);
        }
    }

    /// Removes the bar and prints one line: the number of images, the time and the speed.
    pub fn finish(self, done: usize) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let seconds = self.start.elapsed().as_secs_f64();
        eprintln!("{}: {done} images in {seconds:.1} s, {:.1} images/s", self.label, done as f64 / seconds);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
