//! Shows the progress of a training run on the terminal, and interrupts the run.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};
use swinq::eval::{Accuracy, near_chance};
use swinq::model::quantized::Score;
use swinq::model::{BoxError, QuantizedModel};
use swinq::qat::job::ScheduleLength;
use swinq::qat::log::IterationRecord;
use swinq::qat::{Hooks, IterationReport, Validation};
use swinq::train::Validator;

use crate::interrupt;
use crate::out::{self, Level, caution, note, say};

/// Hooks of a training run: they show progress, validate on the engine, and react to Ctrl-C.
pub struct TrainHooks {
    /// Runs the model on the validation images.
    pub validator: Validator,
    bar: Option<ProgressBar>,
    length: ScheduleLength,
    /// Whether a warning about the accuracy was shown.
    warned: bool,
}

impl TrainHooks {
    /// The hooks for a run of this `length`.
    pub fn new(validator: Validator, length: &ScheduleLength) -> TrainHooks {
        let shown = out::prints(Level::Normal) && std::io::stderr().is_terminal();
        let bar = shown.then(|| {
            let template = "[{bar:24}] {pos}/{len} iterations, {msg}, ETA {eta}";
            let style = ProgressStyle::with_template(template).expect("the template is well formed");
            ProgressBar::new(length.iterations()).with_style(style.progress_chars("=> "))
        });
        TrainHooks { validator, bar, length: *length, warned: false }
    }

    /// Removes the bar.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Share of the time that the training may wait for images before its line says so.
const NOTABLE_WAIT: f64 = 0.05;

/// Loss, accuracy and speed since the previous record.
fn line(record: &IterationRecord) -> String {
    let top1 = record.top1.map(|top1| format!(", top-1 {:.1} %", 100.0 * top1)).unwrap_or_default();
    let loader =
        record.loader_images_per_second.map(|rate| format!(" (loader {rate:.0})")).unwrap_or_default();
    let wait = record.loader_wait.filter(|&wait| wait > NOTABLE_WAIT);
    let wait = wait.map(|wait| format!(", {:.0} % waiting for images", 100.0 * wait)).unwrap_or_default();
    // Relative errors of outputs are small, whatever their weight.
    let loss = match record.outputs {
        Some(error) => format!("loss {:.4} (outputs {error:.3e})", record.loss),
        None => format!("loss {:.4}", record.loss),
    };
    format!("{loss}{top1}, {:.0} images/s{loader}{wait}", record.images_per_second)
}

impl Hooks for TrainHooks {
    fn validate(&mut self, model: &QuantizedModel, end: bool) -> Result<Option<Validation>, BoxError> {
        let found = self.validator.validate(model, end, &interrupt::requested)?;
        // A float training may start with a new head, which guesses.
        let remark =
            found.as_ref().filter(|_| !self.warned && (end || model.is_quantized())).and_then(|found| {
                let Score::Top1(top1) = found.score else { return None };
                let correct = (top1 * found.images as f64).round() as usize;
                let accuracy =
                    Accuracy { images: found.images as usize, top1_correct: correct, top5_correct: correct };
                near_chance(&accuracy, model.config.num_classes)
            });
        if let Some(remark) = remark {
            self.warned = true;
            self.warn(&format!("validation: {remark}"));
        }
        Ok(found)
    }

    fn progress(&mut self, done: u64, _: &IterationReport, record: Option<&IterationRecord>) {
        let Some(bar) = &self.bar else {
            if let Some(record) = record {
                let left = (self.length.iterations() - done) * self.length.images_per_iteration();
                let eta = left as f64 / record.images_per_second;
                note!(
                    "qat: {done}/{} iterations, {}, ETA {eta:.0} s",
                    self.length.iterations(),
                    line(record)
                );
            }
            return;
        };
        if bar.position() + 1 != done {
            // A resumed run: iterations of the earlier run must not count for the speed.
            bar.set_position(done - 1);
            bar.reset_eta();
        }
        bar.set_position(done);
        if let Some(record) = record {
            bar.set_message(line(record));
        }
    }

    fn say(&mut self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| say!("{text}")),
            None => say!("{text}"),
        }
    }

    fn warn(&mut self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| caution!("{text}")),
            None => caution!("{text}"),
        }
    }

    fn stop(&self) -> bool {
        interrupt::requested()
    }
}
