//! A whole training: from the first iteration, or from a checkpoint, to the trained model.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use swinq_model::atomic::write_atomic;
use swinq_model::batch::BoxError;
use swinq_model::quantized::{Chosen, Score};
use swinq_model::{BatchSource, LoaderWork, QuantizedModel};

use crate::error::QatError;
use crate::job::{Identity, Job, ScheduleLength};
use crate::log::{IterationRecord, Log, Record, ValidationRecord};
use crate::loss::LossParts;
use crate::progress::Best;
use crate::record::record;
use crate::snapshot::{self, Progress};
use crate::trainer::{IterationReport, Trainer};

/// Name of the file of the best validated model, in the job's output folder.
pub const BEST: &str = "best.safetensors";

/// Name of the file of the job with every key set, in the job's output folder. It is written before the first
/// iteration, and continues the training.
pub const JOB: &str = "job.yaml";

/// The result of a validation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Validation {
    /// Number of images.
    pub images: u64,
    /// The score on them: the fraction classified correctly, or the mean SQNR of a backbone's outputs.
    pub score: Score,
    /// Of a classifier, the fraction with the correct class among the five highest scores.
    pub top5: Option<f64>,
    /// Of a classifier, the fraction on which this model and the teacher predict the same class.
    pub agreement: Option<f64>,
    /// Of a classifier, the mean squared difference to the teacher's logits.
    pub logit_mse: Option<f64>,
    /// Of a backbone, each output and its SQNR against the teacher's over all images, in dB.
    pub outputs: Vec<(String, f64)>,
    /// Number of the images of the validations before the end of the run, by which models are compared.
    pub compared_images: u64,
    /// The score on those images.
    pub compared: Score,
}

impl Validation {
    /// A validation with these scores, on `images` images and on the first `compared_images` of them.
    pub fn new((images, score): (u64, Score), (compared_images, compared): (u64, Score)) -> Validation {
        let (top5, agreement, logit_mse, outputs) = (None, None, None, Vec::new());
        Validation { images, score, top5, agreement, logit_mse, outputs, compared_images, compared }
    }
}

/// The callbacks that a training needs.
pub trait Hooks {
    /// Validates the model on the engine, which will run it after the training: on all validation images at
    /// the `end` of the run, else on the number of images that the job sets. `None` if the user has asked to
    /// stop.
    ///
    /// # Errors
    /// An error of the engine or of the images.
    fn validate(&mut self, model: &QuantizedModel, end: bool) -> Result<Option<Validation>, BoxError>;

    /// Called after each iteration; `done` iterations are complete.
    fn progress(&mut self, done: u64, report: &IterationReport, record: Option<&IterationRecord>);

    /// Shows a message to the user: a validation, a checkpoint.
    fn say(&mut self, text: &str);

    /// Shows a warning to the user.
    fn warn(&mut self, text: &str);

    /// Whether to write a checkpoint and stop now.
    fn stop(&self) -> bool;
}

/// How a run begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// At the first iteration, in a folder without checkpoints.
    New,
    /// After the latest intact checkpoint, or at the first iteration if there is no checkpoint.
    Resume,
    /// At the first iteration. Checkpoints in the folder are removed.
    Restart,
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

/// Trains until the end of `length`, or until the hooks stop it, on this process or as one of several
/// ([`Trainer::join`]). Of several, rank 0 alone reads and writes files and validates; the hooks of any rank
/// may stop all of them.
///
/// The model is validated before the first iteration, when the job asks for it, and at the end. The model
/// with the highest score so far is kept in the file [`BEST`]. A validation is recorded before the checkpoint
/// of its iteration is written, so that no validation is lost if the process is killed in between.
///
/// # Errors
/// [`Begin::New`] in a folder that has checkpoints; [`Begin::Resume`] if all of them are damaged; an error of
/// an iteration, of a file or of a hook. The latest checkpoint is kept.
pub fn run(
    job: &Job,
    identity: &Identity,
    trainer: &mut Trainer,
    length: &ScheduleLength,
    source: &mut dyn BatchSource,
    hooks: &mut dyn Hooks,
    begin: Begin,
) -> Result<Outcome, QatError> {
    let folder = checkpoints(&job.output);
    let outcome = start(job, identity, trainer, hooks, begin, &folder).and_then(|log| {
        let saved = (trainer.iterations_done() > 0).then(|| trainer.iterations_done());
        Run { job, identity, trainer, length, hooks, log, folder, saved }.whole(source)
    });
    if let Err(error) = &outcome {
        trainer.end(&error.to_string());
    }
    outcome
}

/// Brings the training to its latest checkpoint, or to its start, on all processes. Returns the log, on rank
/// 0.
fn start(
    job: &Job,
    identity: &Identity,
    trainer: &mut Trainer,
    hooks: &mut dyn Hooks,
    begin: Begin,
    folder: &Path,
) -> Result<Option<Log>, QatError> {
    if trainer.group().size() == 1 {
        return begin_files(job, identity, trainer, hooks, begin, folder).map(Some);
    }
    let mut group = std::mem::take(trainer.group());
    let mut log = None;
    let shared = group.share(|| -> Result<Vec<u8>, QatError> {
        log = Some(begin_files(job, identity, trainer, hooks, begin, folder)?);
        let (progress, state) = trainer.state();
        snapshot::encode(identity, progress, &state)
    });
    let first = group.is_first();
    trainer.join(group);
    let shared = shared?;
    if !first {
        let (progress, mut state) = trainer.state();
        *progress = snapshot::decode(&shared, &mut state)?;
    }
    Ok(log)
}

/// Prepares the output folder, and restores the latest checkpoint if the run resumes.
fn begin_files(
    job: &Job,
    identity: &Identity,
    trainer: &mut Trainer,
    hooks: &mut dyn Hooks,
    begin: Begin,
    folder: &Path,
) -> Result<Log, QatError> {
    std::fs::create_dir_all(folder).map_err(|e| QatError::file(folder, e.to_string()))?;
    match begin {
        Begin::New if snapshot::exists(folder)? => {
            let problem = "has the checkpoints of a training; continue it with --resume, remove them and start anew with \
                           --restart, or choose another output folder";
            return Err(QatError::file(folder, problem));
        }
        Begin::New => {}
        Begin::Resume => resume_latest(folder, identity, trainer, hooks)?,
        Begin::Restart => snapshot::remove(folder)?,
    }
    let path = job.output.join(JOB);
    write_atomic(&path, |out| out.write_all(job.to_string().as_bytes()))
        .map_err(|e| QatError::file(&path, e.to_string()))?;
    Ok(Log::resume(&job.output, job.log.tensorboard, trainer.iterations_done())?)
}

fn resume_latest(
    folder: &Path,
    identity: &Identity,
    trainer: &mut Trainer,
    hooks: &mut dyn Hooks,
) -> Result<(), QatError> {
    let (progress, mut state) = trainer.state();
    let mut damaged = 0;
    let found = snapshot::resume(folder, identity, &mut state, &mut |text| {
        damaged += 1;
        hooks.warn(text);
    })?;
    match found {
        Some(found) => {
            hooks.say(&format!("continues after iteration {}", found.iteration));
            *progress = found;
        }
        None if damaged > 0 => {
            let problem = "has no intact checkpoint to resume; copy one from a backup, or start anew with --restart, which \
                           removes the damaged ones";
            return Err(QatError::file(folder, problem));
        }
        None => hooks.say("no checkpoint to resume; the training starts from the beginning"),
    }
    Ok(())
}

struct Run<'a> {
    job: &'a Job,
    identity: &'a Identity,
    trainer: &'a mut Trainer,
    length: &'a ScheduleLength,
    hooks: &'a mut dyn Hooks,
    /// The log, on rank 0.
    log: Option<Log>,
    folder: PathBuf,
    /// The iteration of the latest checkpoint.
    saved: Option<u64>,
}

/// Time, iterations and losses since the last record, and the loader's work before it.
struct SinceRecord {
    clock: Instant,
    iterations: u64,
    loss: LossParts,
    work: LoaderWork,
}

impl SinceRecord {
    fn new(work: LoaderWork) -> SinceRecord {
        SinceRecord { clock: Instant::now(), iterations: 0, loss: LossParts::default(), work }
    }
}

impl Run<'_> {
    /// The validation that is due before the next iteration, the iterations, and the last validation.
    fn whole(&mut self, source: &mut dyn BatchSource) -> Result<Outcome, QatError> {
        let (done, all) = (self.trainer.iterations_done(), self.length.iterations());
        let due = done == 0 || self.job.validate.due(done, self.length);
        if done < all && due && self.progress().validated != Some(done) && self.validate(false)?.is_none() {
            return Ok(Outcome::Stopped(self.save()?));
        }
        if done < all {
            return self.iterations(source);
        }
        // A run that was already complete when it was resumed is validated again.
        let before = self.progress().clone();
        let Some(validation) = self.validate(true)? else { return Ok(Outcome::Stopped(self.save()?)) };
        self.on_first(|run| if *run.progress() == before { Ok(()) } else { run.save_here().map(drop) })?;
        Ok(Outcome::Finished(validation))
    }

    fn iterations(&mut self, source: &mut dyn BatchSource) -> Result<Outcome, QatError> {
        let began = Instant::now();
        let mut since = SinceRecord::new(source.work().unwrap_or_default());
        let mut launches = None;
        loop {
            let report = self.iterate(source)?;
            let done = self.trainer.iterations_done();
            let now = self.trainer.launches();
            if now != launches {
                now.iter().for_each(|text| self.hooks.say(text));
                launches = now;
            }
            since.iterations += 1;
            since.loss.add(&report.loss);
            let record = (done.is_multiple_of(self.job.log.every) || done == self.length.iterations())
                .then(|| self.record(done, &report, &mut since, source.work(), began));
            if let (Some(record), Some(log)) = (&record, &mut self.log) {
                log.write(&Record::Iteration(record.clone()))?;
            }
            self.hooks.progress(done, &report, record.as_ref());
            let end = done == self.length.iterations();
            let mut validation = None;
            if self.job.validate.due(done, self.length) {
                let clock = Instant::now();
                validation = self.validate(end)?;
                if validation.is_none() {
                    return Ok(Outcome::Stopped(self.save()?));
                }
                since.clock += clock.elapsed();
            }
            let every = self.job.checkpoint.every;
            if end || (every > 0 && done.is_multiple_of(every)) {
                self.save()?;
            }
            match validation.filter(|_| end) {
                Some(validation) => return Ok(Outcome::Finished(validation)),
                None if self.must_stop()? => return Ok(Outcome::Stopped(self.save()?)),
                None => {}
            }
        }
    }

    fn progress(&self) -> &Progress {
        self.trainer.progress()
    }

    /// Whether the hooks of any process ask to stop.
    fn must_stop(&mut self) -> Result<bool, QatError> {
        let mut stops = [if self.hooks.stop() { 1.0 } else { 0.0 }];
        self.trainer.group().sum(&mut stops)?;
        Ok(stops[0] > 0.0)
    }

    /// Runs `work` on rank 0, whose result every rank returns.
    fn on_first<T: Serialize + DeserializeOwned>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, QatError>,
    ) -> Result<T, QatError> {
        let mut group = std::mem::take(self.trainer.group());
        let result = group.first(|| work(self));
        self.trainer.join(group);
        result
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
        work: Option<LoaderWork>,
        began: Instant,
    ) -> IterationRecord {
        let (loss, keys) = (&since.loss, &self.job.loss);
        let iterations = since.iterations as f64;
        let images = since.iterations * self.length.images_per_iteration();
        let mean = |used: bool, sum: f64| used.then_some(sum / iterations);
        let labelled = loss.labelled > 0;
        let seconds = since.clock.elapsed().as_secs_f64();
        let loaded = work.map(|work| work.since(&since.work));
        let record = IterationRecord {
            iteration: done,
            epoch: self.length.epoch(done),
            loss: loss.total / iterations,
            labels: mean(keys.labels > 0.0, loss.labels),
            kl: mean(keys.kl > 0.0, loss.kl),
            outputs: mean(keys.outputs > 0.0, loss.outputs),
            features: mean(keys.features > 0.0, loss.features),
            lr: report.lr[0],
            lr_scales: report.lr[1],
            grad_norm: report.grad_norm,
            top1: labelled.then(|| loss.top1()),
            images_per_second: images as f64 / seconds,
            loader_images_per_second: loaded
                .and_then(|loaded| loaded.images_per_second())
                .map(|rate| rate * self.trainer.processes() as f64),
            loader_wait: loaded.map(|loaded| (loaded.waited.as_secs_f64() / seconds).min(1.0)),
            seconds: began.elapsed().as_secs_f64(),
        };
        *since = SinceRecord::new(work.unwrap_or_default());
        record
    }

    fn save(&mut self) -> Result<PathBuf, QatError> {
        let path = self.on_first(Run::save_here)?;
        self.saved = Some(self.trainer.iterations_done());
        Ok(path)
    }

    /// [`Run::save`] on this process.
    fn save_here(&mut self) -> Result<PathBuf, QatError> {
        let (progress, state) = self.trainer.state();
        snapshot::save(&self.folder, self.identity, progress, &state, self.job.checkpoint.keep)
    }

    /// Validates the model, records the result, and keeps the model if it is the best. `None` if the user has
    /// asked to stop.
    fn validate(&mut self, end: bool) -> Result<Option<Validation>, QatError> {
        let iteration = self.trainer.iterations_done();
        let found = self.on_first(|run| run.validate_here(iteration, end))?;
        if let Some(found) = &found {
            let (progress, _) = self.trainer.state();
            progress.validated = Some(iteration);
            if iteration == 0 {
                progress.record_start(found.compared);
            }
        }
        Ok(found)
    }

    /// [`Run::validate`] on this process.
    fn validate_here(&mut self, iteration: u64, end: bool) -> Result<Option<Validation>, QatError> {
        let clock = Instant::now();
        let model = self.trainer.model()?;
        let Some(found) = self.hooks.validate(&model, end).map_err(QatError::Validation)? else {
            return Ok(None);
        };
        let record = ValidationRecord {
            iteration,
            epoch: self.length.epoch(iteration),
            images: found.images,
            score: found.score,
            top5: found.top5,
            agreement: found.agreement,
            logit_mse: found.logit_mse,
            outputs: found.outputs.clone(),
            seconds: clock.elapsed().as_secs_f64(),
        };
        // A finished run that is resumed is validated again, but its record is there.
        if let Some(log) = self.log.as_mut().filter(|_| self.trainer.progress().validated != Some(iteration))
        {
            log.write(&Record::Validation(record))?;
        }
        self.hooks.say(&describe(iteration, &found));
        self.keep_best(model, &found)?;
        let start = self.progress().start().filter(|start| end && found.compared.value() < start.value());
        if let Some(start) = start {
            self.hooks.warn(&below_start(start, &found));
        }
        Ok(Some(found))
    }

    /// Writes the model if no earlier one had its score.
    fn keep_best(&mut self, mut model: QuantizedModel, found: &Validation) -> Result<(), QatError> {
        let best = Best { iteration: self.trainer.iterations_done(), score: found.compared };
        if self.progress().best.is_some_and(|known| known.score.value() >= best.score.value()) {
            return Ok(());
        }
        let mut record = record(self.job, self.identity, self.length, self.progress());
        let data = self.job.data.validation_path().display().to_string();
        record.chosen_by = Some(Chosen { data, images: found.compared_images, score: best.score });
        model.provenance.training = Some(record);
        model.save(&self.job.output.join(BEST))?;
        self.trainer.state().0.best = Some(best);
        Ok(())
    }
}

fn below_start(start: Score, found: &Validation) -> String {
    format!(
        "the training made the model worse: {} of {} images, and {start} before the first iteration; {BEST} is the best that \
         was validated; lower optimizer.lr, train longer, or keep the start",
        found.compared, found.compared_images
    )
}

fn describe(iteration: u64, found: &Validation) -> String {
    let mut text = format!("iteration {iteration}: {} of {} images", found.score, found.images);
    if let Some(agreement) = found.agreement {
        text += &format!(", agreement with the teacher {:.2} %", 100.0 * agreement);
    }
    if let Some(mse) = found.logit_mse {
        text += &format!(", squared difference of logits {mse:.5}");
    }
    if !found.outputs.is_empty() {
        let outputs = found.outputs.iter().map(|(name, db)| format!("{name} {db:.2}"));
        text += &format!(" ({})", outputs.collect::<Vec<_>>().join(", "));
    }
    text
}
