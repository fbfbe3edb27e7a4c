//! A whole training: from the first step or a checkpoint to the trained model.

use std::path::{Path, PathBuf};
use std::time::Instant;

use swinq_model::batch::BoxError;
use swinq_model::{BatchSource, QuantizedModel};

use crate::error::QatError;
use crate::job::{Course, Identity, Job};
use crate::log::{Log, Record, StepRecord, ValidationRecord};
use crate::loss::LossParts;
use crate::snapshot;
use crate::trainer::{StepReport, Trainer};

/// What a validation found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Validation {
    /// Images.
    pub images: u64,
    /// Share classified right, 0 to 1.
    pub top1: f64,
    /// Share with the right class among the first five.
    pub top5: Option<f64>,
    /// Share on which the teacher's first class is this model's.
    pub agreement: Option<f64>,
    /// Mean squared difference from the teacher's logits.
    pub logit_mse: Option<f64>,
}

/// What a training needs of its caller.
pub trait Hooks {
    /// Runs the model as it will be used, on the engine: on all validation images at the `end`, else on as many as the
    /// job says.
    ///
    /// # Errors
    /// Whatever the engine or the images met.
    fn validate(&mut self, model: &QuantizedModel, end: bool) -> Result<Validation, BoxError>;

    /// A step is done.
    fn progress(&mut self, done: u64, report: &StepReport, record: Option<&StepRecord>);

    /// Something to tell the user: a validation, a checkpoint, a warning.
    fn say(&mut self, text: &str);

    /// Whether to stop now, with a checkpoint.
    fn stop(&self) -> bool;
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// All steps are done; the last validation.
    Finished(Validation),
    /// Stopped on request, with this checkpoint.
    Stopped(PathBuf),
}

/// The folder of a job's checkpoints.
pub fn checkpoints(output: &Path) -> PathBuf {
    output.join("checkpoints")
}

/// Trains until the end of `course`, or until the hooks stop it. With `resume` it goes on from the latest checkpoint, if
/// there is one.
///
/// # Errors
/// Without `resume`: an output folder that has checkpoints. Whatever the steps, the files or the hooks met; the last
/// checkpoint stays.
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
        let problem = "has the checkpoints of a training; go on with --resume, or give another output folder";
        return Err(QatError::file(&folder, problem));
    }
    if resume {
        take_up(&folder, identity, trainer, hooks)?;
    }
    let log = Log::resume(&job.output, job.log.tensorboard, trainer.step_count())?;
    let mut run = Run { job, identity, trainer, course, hooks, log, folder, saved: None };
    run.saved = (run.trainer.step_count() > 0).then(|| run.trainer.step_count());
    run.steps(source)
}

fn take_up(
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
            hooks.say(&format!("goes on after step {}", found.step));
            *progress = found;
        }
        None => hooks.say("no checkpoint to resume; the training begins"),
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
    /// The step of the latest checkpoint.
    saved: Option<u64>,
}

/// The steps since the last record.
struct Since {
    clock: Instant,
    steps: u64,
    loss: LossParts,
}

impl Run<'_> {
    fn steps(&mut self, source: &mut dyn BatchSource) -> Result<Outcome, QatError> {
        let began = Instant::now();
        let mut since = Since { clock: began, steps: 0, loss: LossParts::default() };
        let mut last = None;
        while self.trainer.step_count() < self.course.steps() {
            let report = self.step(source)?;
            let done = self.trainer.step_count();
            since.steps += 1;
            since.loss.add(&report.loss);
            let record = (done.is_multiple_of(self.job.log.every) || done == self.course.steps())
                .then(|| self.record(done, &report, &mut since, began));
            if let Some(record) = &record {
                self.log.write(&Record::Step(record.clone()))?;
            }
            self.hooks.progress(done, &report, record.as_ref());
            let end = done == self.course.steps();
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
        // A run that was complete when it was taken up is validated all the same.
        let validation = match last {
            Some(validation) => validation,
            None => self.validate(true)?,
        };
        Ok(Outcome::Finished(validation))
    }

    /// One step; where it diverges, the error names the checkpoint that remains.
    fn step(&mut self, source: &mut dyn BatchSource) -> Result<StepReport, QatError> {
        self.trainer.step(source).map_err(|error| match error {
            QatError::Diverged { step, problem, remedy } => {
                let kept = match self.saved {
                    Some(saved) => {
                        format!("the checkpoint after step {saved} is in {}", self.folder.display())
                    }
                    None => "no checkpoint was written before".to_owned(),
                };
                QatError::Diverged { step, problem, remedy: format!("{kept}; {remedy}") }
            }
            other => other,
        })
    }

    fn record(&self, done: u64, report: &StepReport, since: &mut Since, began: Instant) -> StepRecord {
        let (loss, keys) = (&since.loss, &self.job.loss);
        let steps = since.steps as f64;
        let images = since.steps * self.course.images_per_step();
        let mean = |used: bool, sum: f64| used.then_some(sum / steps);
        let labelled = loss.labelled > 0;
        let record = StepRecord {
            step: done,
            epoch: self.course.epoch(done),
            loss: loss.total / steps,
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
        *since = Since { clock: Instant::now(), steps: 0, loss: LossParts::default() };
        record
    }

    fn save(&mut self) -> Result<PathBuf, QatError> {
        let (progress, state) = self.trainer.state();
        let path = snapshot::save(&self.folder, self.identity, progress, &state, self.job.checkpoint.keep)?;
        self.saved = Some(progress.step);
        Ok(path)
    }

    fn validate(&mut self, end: bool) -> Result<Validation, QatError> {
        let clock = Instant::now();
        let model = self.trainer.model()?;
        let found = self.hooks.validate(&model, end).map_err(QatError::Validation)?;
        let step = self.trainer.step_count();
        let record = ValidationRecord {
            step,
            epoch: self.course.epoch(step),
            images: found.images,
            top1: found.top1,
            top5: found.top5,
            agreement: found.agreement,
            logit_mse: found.logit_mse,
            seconds: clock.elapsed().as_secs_f64(),
        };
        self.log.write(&Record::Validation(record))?;
        self.hooks.say(&describe(step, &found));
        Ok(found)
    }
}

fn describe(step: u64, found: &Validation) -> String {
    let mut text = format!("step {step}: top-1 {:.2} % of {} images", 100.0 * found.top1, found.images);
    if let Some(agreement) = found.agreement {
        text += &format!(", agreement with the teacher {:.2} %", 100.0 * agreement);
    }
    if let Some(mse) = found.logit_mse {
        text += &format!(", squared difference of logits {mse:.5}");
    }
    text
}
