//! Whole trainings of a tiny network: iterations, resuming, damaged checkpoints, divergence.

mod backbones;
mod divergence;
mod iterations;
mod resuming;
mod snapshots;
mod validations;

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::common::{Images, OfSizes, calibrated, random, shifted, values};
use candle_core::Device;
use swinq_float::ops::Compute;
use swinq_model::quantized::{FloatModel, Score};
use swinq_model::{BoxError, QuantizedModel, Size, SwinConfig};
use swinq_qat::job::{Identity, Job, ScheduleLength};
use swinq_qat::log::IterationRecord;
use swinq_qat::schedule::Schedule;
use swinq_qat::{Begin, Hooks, IterationReport, Outcome, QatError, Start, Trainer, Validation, run};
use swinq_testing::files;

/// A job with every kind of state: learned scales everywhere, accumulation, DropPath, mixed images, a moving
/// average, a warmup.
pub(crate) const FULL: &str = "quantization: {activation_scales: learned, weight_scales: learned}\naccumulate: 2\n\
                        drop_path: 0.3\noptimizer: {lr: 1e-3, lr_scales: 1e-2, ema: 0.9}\nschedule: {warmup_steps: 2}\n\
                        mixing: {mixup: 0.8, cutmix: 1, probability: 0.7}\n";

/// Batches of an epoch.
const BATCHES: usize = 3;

/// A job and its models.
pub(crate) struct Setup {
    pub(crate) job: Job,
    pub(crate) float: FloatModel,
    pub(crate) quantized: Option<QuantizedModel>,
    /// The sizes of the images, in turn by batch.
    pub(crate) sizes: Vec<Size>,
    pub(crate) folder: tempfile::TempDir,
}

impl Setup {
    /// A job of `iterations` with batches of four images. `keys` are further lines of the job; `recipe` is
    /// the recipe of the calibrated checkpoint, `None` for a float training.
    pub(crate) fn new(recipe: Option<&str>, iterations: u64, keys: &str) -> Setup {
        Setup::of(SwinConfig { depths: vec![2, 1], ..shifted() }, recipe, iterations, keys)
    }

    /// [`Setup::new`] for a network of `config`.
    pub(crate) fn of(config: SwinConfig, recipe: Option<&str>, iterations: u64, keys: &str) -> Setup {
        let float = random(config, 5);
        let sizes = vec![float.config.image_size];
        let folder = tempfile::tempdir().unwrap();
        let model = if recipe.is_some() { "model: q\n" } else { "quant: off\n" };
        let output = folder.path().display();
        let text = format!(
            "{model}float: f\ndata: {{path: d}}\noutput: {output}\nsteps: {iterations}\nbatch_size: 4\n{keys}"
        );
        let job = Job::from_yaml("test", &text, &[]).unwrap();
        let quantized = recipe.map(|recipe| calibrated(&float, recipe, &mut Images::of(&float.config, 4, 1)));
        Setup { job, float, quantized, sizes, folder }
    }

    pub(crate) fn trainer(&self) -> Trainer {
        let start = Start {
            job: &self.job,
            float: &self.float,
            quantized: self.quantized.as_ref(),
            teacher: self.job.teacher_path().map(|_| &self.float),
            drop_path: self.job.drop_path.unwrap_or(0.0),
            device: Device::Cpu,
            compute: Compute::host().unwrap(),
        };
        Trainer::new(&start, Schedule::of(&self.job, self.length().iterations()).unwrap()).unwrap()
    }

    pub(crate) fn length(&self) -> ScheduleLength {
        self.job.schedule_length(BATCHES * self.job.batch_size)
    }

    /// Three batches per epoch, so that iterations of two batches cross its end.
    pub(crate) fn images(&self) -> OfSizes {
        let images = Images::of(&self.float.config, self.job.batch_size, BATCHES);
        OfSizes { images, sizes: self.sizes.clone() }
    }

    pub(crate) fn identity(&self) -> Identity {
        self.job.identity(&[("float", "0123".to_owned())])
    }

    pub(crate) fn run(
        &self,
        trainer: &mut Trainer,
        watch: &mut Watch,
        begin: Begin,
    ) -> Result<Outcome, QatError> {
        run(&self.job, &self.identity(), trainer, &self.length(), &mut self.images(), watch, begin)
    }

    /// Trains to the end and returns the last checkpoint and the exported model.
    pub(crate) fn finish(&self, begin: Begin) -> Finished {
        let (mut trainer, mut watch) = (self.trainer(), Watch::default());
        let outcome = self.run(&mut trainer, &mut watch, begin).unwrap();
        assert!(matches!(outcome, Outcome::Finished(_)));
        Finished {
            checkpoint: std::fs::read(self.checkpoint(self.length().iterations())).unwrap(),
            model: exported(&trainer),
            said: watch.said,
        }
    }

    /// Trains until `iteration` is done.
    pub(crate) fn stop_at(&self, iteration: u64, begin: Begin) -> PathBuf {
        let mut watch = Watch { stop_at: Some(iteration), ..Watch::default() };
        match self.run(&mut self.trainer(), &mut watch, begin).unwrap() {
            Outcome::Stopped(path) => path,
            Outcome::Finished(_) => panic!("iteration {iteration} did not stop the training"),
        }
    }

    pub(crate) fn checkpoints(&self) -> PathBuf {
        swinq_qat::run::checkpoints(self.folder.path())
    }

    pub(crate) fn checkpoint(&self, iteration: u64) -> PathBuf {
        self.checkpoints().join(format!("step-{iteration:09}.safetensors"))
    }
}

/// The results of a training.
pub(crate) struct Finished {
    pub(crate) checkpoint: Vec<u8>,
    pub(crate) model: Vec<u8>,
    pub(crate) said: Vec<String>,
}

impl Finished {
    #[track_caller]
    pub(crate) fn equals(&self, other: &Finished, what: &str) {
        assert!(self.model == other.model, "{what}: the models differ");
        assert!(self.checkpoint == other.checkpoint, "{what}: the checkpoints differ");
    }
}

/// The bytes of the exported model's file.
pub(crate) fn exported(trainer: &Trainer) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    trainer.model().unwrap().save(&path).unwrap();
    std::fs::read(path).unwrap()
}

/// The values of every parameter, by name.
pub(crate) fn parameters(trainer: &mut Trainer) -> BTreeMap<String, Vec<f32>> {
    let (_, state) = trainer.state();
    state.parameters.iter().map(|(name, tensor)| (name.clone(), values(tensor))).collect()
}

/// Hooks that record their calls and stop the training on demand.
#[derive(Default)]
pub(crate) struct Watch {
    pub(crate) stop_at: Option<u64>,
    pub(crate) done: u64,
    pub(crate) losses: Vec<f64>,
    pub(crate) said: Vec<String>,
    pub(crate) validated: Vec<bool>,
    /// The accuracies that the validations give, in their order; then 0.
    pub(crate) accuracies: Vec<f64>,
    /// The number of iterations after which a validation is stopped.
    pub(crate) stop_in_validation: Option<u64>,
}

impl Hooks for Watch {
    fn validate(&mut self, model: &QuantizedModel, end: bool) -> Result<Option<Validation>, BoxError> {
        model.validate()?;
        self.validated.push(end);
        if self.stop_in_validation == Some(self.done) {
            return Ok(None);
        }
        let value = self.accuracies.get(self.validated.len() - 1).copied().unwrap_or_default();
        let score = if model.config.is_backbone() { Score::Sqnr(value) } else { Score::Top1(value) };
        Ok(Some(Validation::new((1, score), (1, score))))
    }

    fn progress(&mut self, done: u64, report: &IterationReport, _: Option<&IterationRecord>) {
        self.done = done;
        self.losses.push(report.loss.total);
    }

    fn say(&mut self, text: &str) {
        self.said.push(text.to_owned());
    }

    fn warn(&mut self, text: &str) {
        self.said.push(format!("warning: {text}"));
    }

    fn stop(&self) -> bool {
        self.stop_at == Some(self.done)
    }
}
