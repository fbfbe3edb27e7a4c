//! A whole training: from the first iteration, or from a checkpoint, to the trained model.

use std::path::{Path, PathBuf};
use std::time::Instant;

use swinq_model::batch::BoxError;
use swinq_model::{BatchSource, QuantizedModel};

use crate::error::QatError;
use crate::job::{Course, Identity, Job};
use crate::log::{IterationRecord, Log, Record, ValidationRecord};
use crate::loss::LossParts;
use crate::snapshot;
use crate::trainer::{IterationReport, Trainer};

/// The result of a validation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Validation {
    /// Number of images.
    pub images: u64,
    /// Fraction classified correctly, 0 to 1.
    pub top1: f64,
    /// Fraction with the correct class among the five highest scores.
    pub top5: Option<f64>,
    /// Fraction on which this model and the teacher predict the same class.
    pub agreement: Option<f64>,
    /// Mean squared difference to the teacher's logits.
    pub logit_mse: Option<f64>,
}

/// The callbacks that a training needs.
pub trait Hooks {
    /// Validates the model on the engine, which will run it after the training: on all validation images at
    /// the `end` of the run, else on the number of images that the job sets.
    ///
    /// # Errors
    /// An error of the engine or of the images.
    fn validate(&mut self, model: &QuantizedModel, end: bool) -> Result<Validation, BoxError>;

    /// Called after each iteration; `done` iterations are complete.
    fn progress(&mut self, done: u64, report: &IterationReport, record: Option<&IterationRecord>);

    /// Shows a message to the user: a validation, a checkpoint, a warning.
    fn say(&mut self, text: &str);

    /// Whether to write a checkpoint and stop now.
    fn stop(&self) -> bool;
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// All iterations are done; the result of the last validation.
    Finished(Validation),
    /// Stopped on request; the checkpoint to resume from.
    Stopped(PathBuf),
}

/// The folder of a job's checkpoints.
pub fn checkpoints(output: &Path) -> PathBuf {
    output.join("checkpoints")
}

/// Trains until the end of `course`, or until the hooks stop it. With `resume` the training continues from
/// the latest checkpoint, if there is one.
///
/// # Errors
/// An output folder that has checkpoints, without `resume`; an error of an iteration, of a file or of a hook.
/// The latest checkpoint is kept.
pub fn run(
    job: &Job,
    identity: &Identity,
    trainer: &mut Trainer,
    course: &Course,
    source: &mut dyn BatchSource,
    hooks: &mut dyn Hooks,
    resume: bool,
) -> Result<Outcome, QatError> {
    let folder = checkpoints(&job.output);
    std::fs::create_dir_all(&folder).map_err(|e| QatError::file(&folder, e.to_string()))?;
    if !resume && snapshot::exists(&folder)? {
        let problem =
            "has the checkpoints of a training; continue it with --resume, or choose another output folder";
        return Err(QatError::file(&folder, problem));
    }
    if resume {
        resume_latest(&folder, identity, trainer, hooks)?;
    }
    let log = Log::resume(&job.output, job.log.tensorboard, trainer.iterations_done())?;
    let mut run = Run { job, identity, trainer, course, hooks, log, folder, saved: None };
    run.saved = (run.trainer.iterations_done() > 0).then(|| run.trainer.iterations_done());
    run.iterations(source)
}

fn resume_latest(
    folder: &Path,
    identity: &Identity,
    trainer: &mut Trainer,
    hooks: &mut dyn Hooks,
) -> Result<(), QatError> {
    let (progress, mut state) = trainer.state();
    let found =
        snapshot::resume(folder, identity, &mut state, &mut |text| hooks.say(&format!("warning: {text}")))?;
    match found {
        Some(found) => {
            hooks.say(&format!("continues after iteration {}", found.iteration));
            *progress = found;
        }
        None => hooks.say("no checkpoint to resume; the training starts from the beginning"),
    }
    Ok(())
}

struct Run<'a> {
    job: &'a Job,
    identity: &'a Identity,
    trainer: &'a mut Trainer,
    course: &'a Course,
    hooks: &'a mut dyn Hooks,
    log: Log,
    folder: PathBuf,
    /// The iteration of the latest checkpoint.
    saved: Option<u64>,
}

/// Time, iterations and losses since the last record.
struct SinceRecord {
    clock: Instant,
    iterations: u64,
    loss: LossParts,
}

impl Run<'_> {
    fn iterations(&mut self, source: &mut dyn BatchSource) -> Result<Outcome, QatError> {
        let began = Instant::now();
        let mut since = SinceRecord { clock: began, iterations: 0, loss: LossParts::default() };
        let mut last = None;
        while self.trainer.iterations_done() < self.course.iterations() {
            let report = self.iterate(source)?;
            let done = self.trainer.iterations_done();
            since.iterations += 1;
            since.loss.add(&report.loss);
            let record = (done.is_multiple_of(self.job.log.every) || done == self.course.iterations())
                .then(|| self.record(done, &report, &mut since, began));
            if let Some(record) = &record {
                self.log.write(&Record::Iteration(record.clone()))?;
            }
            self.hooks.progress(done, &report, record.as_ref());
            let end = done == self.course.iterations();
            let every = self.job.checkpoint.every;
            if end || (every > 0 && done.is_multiple_of(every)) {
                self.save()?;
            }
            if self.hooks.stop() && !end {
                return Ok(Outcome::Stopped(self.save()?));
            }
            if self.job.validate.due(done, self.course) {
                let clock = Instant::now();
                last = Some(self.validate(end)?);
                since.clock += clock.elapsed();
            }
        }
        // A run that was already complete when it was resumed is validated again.
        let validation = match last {
            Some(validation) => validation,
            None => self.validate(true)?,
        };
        Ok(Outcome::Finished(validation))
    }

    /// One iteration. If it diverges, the error names the checkpoint that remains.
    fn iterate(&mut self, source: &mut dyn BatchSource) -> Result<IterationReport, QatError> {
        self.trainer.iterate(source).map_err(|error| match error {
            QatError::Diverged { iteration, problem, remedy } => {
                let kept = match self.saved {
                    Some(saved) => {
                        format!("the checkpoint after iteration {saved} is in {}", self.folder.display())
                    }
                    None => "no checkpoint was written before it".to_owned(),
                };
                QatError::Diverged { iteration, problem, remedy: format!("{kept}; {remedy}") }
            }
            other => other,
        })
    }

    fn record(
        &self,
        done: u64,
        report: &IterationReport,
        since: &mut SinceRecord,
        began: Instant,
    ) -> IterationRecord {
        let (loss, keys) = (&since.loss, &self.job.loss);
        let iterations = since.iterations as f64;
        let images = since.iterations * self.course.images_per_iteration();
        let mean = |used: bool, sum: f64| used.then_some(sum / iterations);
        let labelled = loss.labelled > 0;
        let record = IterationRecord {
            iteration: done,
            epoch: self.course.epoch(done),
            loss: loss.total / iterations,
            labels: mean(keys.labels > 0.0, loss.labels),
            kl: mean(keys.kl > 0.0, loss.kl),
            features: mean(keys.features > 0.0, loss.features),
            lr: report.lr[0],
            lr_scales: report.lr[1],
            grad_norm: report.grad_norm,
            top1: labelled.then(|| loss.top1()),
            images_per_second: images as f64 / since.clock.elapsed().as_secs_f64(),
            seconds: began.elapsed().as_secs_f64(),
        };
        *since = SinceRecord { clock: Instant::now(), iterations: 0, loss: LossParts::default() };
        record
    }

    fn save(&mut self) -> Result<PathBuf, QatError> {
        let (progress, state) = self.trainer.state();
        let path = snapshot::save(&self.folder, self.identity, progress, &state, self.job.checkpoint.keep)?;
        self.saved = Some(progress.iteration);
        Ok(path)
    }

    fn validate(&mut self, end: bool) -> Result<Validation, QatError> {
        let clock = Instant::now();
        let model = self.trainer.model()?;
        let found = self.hooks.validate(&model, end).map_err(QatError::Validation)?;
        let iteration = self.trainer.iterations_done();
        let record = ValidationRecord {
            iteration,
            epoch: self.course.epoch(iteration),
            images: found.images,
            top1: found.top1,
            top5: found.top5,
            agreement: found.agreement,
            logit_mse: found.logit_mse,
            seconds: clock.elapsed().as_secs_f64(),
        };
        self.log.write(&Record::Validation(record))?;
        self.hooks.say(&describe(iteration, &found));
        Ok(found)
    }
}

fn describe(iteration: u64, found: &Validation) -> String {
    let mut text =
        format!("iteration {iteration}: top-1 {:.2} % of {} images", 100.0 * found.top1, found.images);
    if let Some(agreement) = found.agreement {
        text += &format!(", agreement with the teacher {:.2} %", 100.0 * agreement);
    }
    if let Some(mse) = found.logit_mse {
        text += &format!(", squared difference of logits {mse:.5}");
    }
    text
}
