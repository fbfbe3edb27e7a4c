//! One step of a training after the other.

use std::collections::BTreeMap;

use candle_core::{DType, Device, Tensor};
use swinq_float::tape::{Gradients, Passes};
use swinq_model::quantized::FloatModel;
use swinq_model::{Batch, BatchSource, QuantizedModel};

use crate::adamw::{AdamW, Update, norm, set};
use crate::drop_path::DropPath;
use crate::error::QatError;
use crate::export;
use crate::job::{Job, Precision};
use crate::loss::LossParts;
use crate::scales::{LIMIT, sites_with_scales};
use crate::schedule::{Group, Schedule};
use crate::snapshot::{Progress, State};
use crate::student::{Student, Teacher, decays, is_scale};

/// The first and the greatest factor of the loss in half precision, and the steps without overflow that double it.
const LOSS_SCALE: f64 = 65536.0;
const DOUBLING: u64 = 2000;
/// A loss is taken to explode when it is this many times its moving average, and this much beyond it.
const EXPLOSION: (f64, f64) = (10.0, 5.0);
/// Decay of that average, and the steps before it is trusted.
const USUAL: f64 = 0.98;
const TRUSTED: u64 = 20;
/// The same before that.
const EARLY_EXPLOSION: (f64, f64) = (1000.0, 1000.0);

/// What a training starts from.
pub struct Start<'a> {
    /// The job.
    pub job: &'a Job,
    /// The float model whose weights are trained.
    pub float: &'a FloatModel,
    /// The calibrated checkpoint, for a quantized training.
    pub quantized: Option<&'a QuantizedModel>,
    /// The teacher, where the loss needs one.
    pub teacher: Option<&'a FloatModel>,
    /// DropPath's highest rate.
    pub drop_path: f64,
    /// Where the tensors are.
    pub device: Device,
}

/// What a step did.
#[derive(Clone, Copy, Debug)]
pub struct StepReport {
    /// The loss.
    pub loss: LossParts,
    /// Length of the gradient before clipping.
    pub grad_norm: f64,
    /// Learning rates of weights and of steps.
    pub lr: [f64; 2],
    /// Whether half precision overflowed, so that nothing was updated.
    pub skipped: bool,
}

/// A training under way.
pub struct Trainer {
    job: Job,
    start: FloatModel,
    template: Option<QuantizedModel>,
    student: Student,
    teacher: Option<Teacher>,
    optimizer: AdamW,
    average: Option<BTreeMap<String, Tensor>>,
    drop_path: Option<DropPath>,
    schedule: Schedule,
    progress: Progress,
}

impl Trainer {
    /// A training before its first step.
    ///
    /// # Errors
    /// Models that do not fit each other or the job, weights or ranges that cannot be quantized.
    pub fn new(start: &Start<'_>, schedule: Schedule) -> Result<Trainer, QatError> {
        let Start { job, float, .. } = start;
        let policy = match start.quantized {
            Some(model) => job.quantization.resolve(&job.name, &sites_with_scales(model))?,
            None => Vec::new(),
        };
        let half = match job.precision {
            Precision::F32 => None,
            Precision::Bf16 => Some(DType::BF16),
            Precision::F16 => Some(DType::F16),
        };
        let quantized = start.quantized.map(|model| (model, policy.as_slice()));
        let student = Student::new(float, quantized, &start.device, half)?;
        let features = job.loss.features > 0.0;
        let teacher =
            start.teacher.map(|model| Teacher::new(model, features, &start.device, half)).transpose()?;
        let average = (job.optimizer.ema > 0.0).then(|| copies(student.parameters())).transpose()?;
        let loss_scale = if job.precision == Precision::F16 { LOSS_SCALE } else { 1.0 };
        Ok(Trainer {
            job: (*job).clone(),
            start: (*float).clone(),
            template: start.quantized.cloned(),
            teacher,
            optimizer: AdamW::new(&job.optimizer, student.parameters())?,
            average,
            drop_path: DropPath::new(&float.config, start.drop_path, job.seed),
            schedule,
            progress: Progress { step: 0, updates: 0, usual_loss: None, loss_scale, steady_steps: 0 },
            student,
        })
    }

    /// Chooses who computes the passes from now on: own kernels, unless another choice is to be compared with them.
    pub fn set_passes(&mut self, passes: Passes) {
        self.student.set_passes(passes);
        self.teacher.iter().for_each(|teacher| teacher.set_passes(passes));
        self.optimizer.passes = passes;
    }

    /// Steps done.
    pub fn step_count(&self) -> u64 {
        self.progress.step
    }

    /// The state that a checkpoint holds.
    pub fn state(&mut self) -> (&mut Progress, State<'_>) {
        let state = State {
            parameters: self.student.parameters(),
            optimizer: &mut self.optimizer,
            average: self.average.as_ref(),
        };
        (&mut self.progress, state)
    }

    /// One step of the optimizer on the next images of `source`.
    ///
    /// # Errors
    /// [`QatError::Diverged`] where a loss or a gradient is not finite, or the loss explodes; the parameters are then
    /// those before the step. Unreadable images; a device that fails.
    pub fn step(&mut self, source: &mut dyn BatchSource) -> Result<StepReport, QatError> {
        if let Some(found) = self.student.parameter_not_finite()? {
            return Err(self.diverged(found));
        }
        self.student.update_scales().map_err(|error| self.diverged(error.to_string()))?;
        let accumulate = self.job.accumulate as u64;
        let mut sums: BTreeMap<String, Tensor> = BTreeMap::new();
        let mut parts = LossParts::default();
        for part in 0..accumulate {
            let number = self.progress.step * accumulate + part;
            let batch = next_batch(source, number)?;
            if batch.is_empty() {
                continue; // Its images were all left out as corrupt.
            }
            let (loss, gradients) = self.batch(&batch, number)?;
            parts.add(&loss);
            self.collect(&gradients, &mut sums)?;
        }
        self.apply(parts, &sums, source)
    }

    /// Forward and backward of one batch.
    fn batch(&mut self, batch: &Batch, number: u64) -> Result<(LossParts, Gradients), QatError> {
        let lesson = self.teacher.as_ref().map(|teacher| teacher.teach(batch)).transpose()?;
        let features = self.job.loss.features > 0.0;
        let drop_path = self.drop_path.as_ref().map(|drop_path| drop_path.at(number));
        let logits = self.student.forward(batch, drop_path.clone(), features)?;
        let factors = (1.0 / self.job.accumulate as f64, self.progress.loss_scale);
        let (loss, gradients) =
            self.student.backward(&self.job.loss, &logits, batch, lesson.as_ref(), factors)?;
        if !loss.total.is_finite() {
            let found = self.student.first_not_finite(batch, drop_path)?;
            let found = found.unwrap_or_else(|| "its logits are finite, the loss is not".to_owned());
            return Err(self.diverged(format!("the loss is {}: {found}", loss.total)));
        }
        let (factor, beyond) = if self.progress.step >= TRUSTED { EXPLOSION } else { EARLY_EXPLOSION };
        if let Some(usual) = self.progress.usual_loss
            && loss.total * self.job.accumulate as f64 > factor * usual + beyond
        {
            return Err(self.diverged(format!("the loss explodes: {:.4} after {usual:.4}", loss.total)));
        }
        Ok((loss, gradients))
    }

    fn collect(&self, gradients: &Gradients, sums: &mut BTreeMap<String, Tensor>) -> Result<(), QatError> {
        for (name, parameter) in self.student.parameters() {
            let Some(gradient) = gradients.get(parameter) else { continue };
            let sum = match sums.remove(name) {
                Some(sum) => (sum + gradient)?,
                None => gradient.clone(),
            };
            sums.insert(name.clone(), sum);
        }
        Ok(())
    }

    fn apply(
        &mut self,
        loss: LossParts,
        gradients: &BTreeMap<String, Tensor>,
        source: &mut dyn BatchSource,
    ) -> Result<StepReport, QatError> {
        let scale = self.progress.loss_scale;
        let length = norm(gradients.values())? / scale;
        let step = self.progress.step;
        let lr = [Group::Weights, Group::Scales].map(|group| self.schedule.lr(group, step));
        let mut report = StepReport { loss, grad_norm: length, lr, skipped: false };
        if gradients.is_empty() {
            self.progress.step += 1;
            return Ok(report);
        }
        if !length.is_finite() {
            if self.job.precision == Precision::F16 && scale > 1.0 {
                (self.progress.loss_scale, self.progress.steady_steps) = (scale / 2.0, 0);
                self.progress.step += 1;
                report.skipped = true;
                return Ok(report);
            }
            return Err(self.bad_gradient(gradients, source)?);
        }
        let clip = self.job.optimizer.clip_norm;
        let shorter = if clip > 0.0 && length > clip { clip / length } else { 1.0 };
        self.optimizer.begin();
        for (name, gradient) in gradients {
            let parameter = &self.student.parameters()[name];
            let decay = if decays(name, parameter) { self.job.optimizer.weight_decay } else { 0.0 };
            let update = Update { lr: lr[usize::from(is_scale(name))], decay, gradient: shorter / scale };
            self.optimizer.update(name, parameter, gradient, update)?;
            if is_scale(name) {
                set(parameter, &parameter.clamp(1.0 / LIMIT, LIMIT)?)?;
            }
        }
        self.update_average()?;
        self.note(loss.total);
        Ok(report)
    }

    /// Moves on by a step whose loss was `loss`.
    fn note(&mut self, loss: f64) {
        let progress = &mut self.progress;
        progress.step += 1;
        progress.updates = self.optimizer.steps;
        progress.usual_loss =
            Some(progress.usual_loss.map_or(loss, |usual| USUAL * usual + (1.0 - USUAL) * loss));
        if self.job.precision == Precision::F16 {
            progress.steady_steps += 1;
            if progress.steady_steps == DOUBLING {
                progress.loss_scale = (2.0 * progress.loss_scale).min(LOSS_SCALE);
                progress.steady_steps = 0;
            }
        }
    }

    fn update_average(&mut self) -> Result<(), QatError> {
        let Some(average) = &self.average else { return Ok(()) };
        let decay = self.job.optimizer.ema;
        for (name, parameter) in self.student.parameters() {
            let average = &average[name];
            set(average, &((average * decay)? + (parameter * (1.0 - decay))?)?)?;
        }
        Ok(())
    }

    fn bad_gradient(
        &mut self,
        gradients: &BTreeMap<String, Tensor>,
        source: &mut dyn BatchSource,
    ) -> Result<QatError, QatError> {
        let number = self.progress.step * self.job.accumulate as u64;
        let batch = next_batch(source, number)?;
        let forward = match batch.is_empty() {
            true => None,
            false => self.student.first_not_finite(&batch, None)?,
        };
        let mut problem = "a gradient is not finite".to_owned();
        for (name, gradient) in gradients {
            if let Some((index, value)) = crate::audit::not_finite(gradient)? {
                problem = format!("the gradient of {name} has {value} at flat index {index}");
                break;
            }
        }
        Ok(self.diverged(forward.map_or(problem.clone(), |found| format!("{problem}; forward, {found}"))))
    }

    fn diverged(&self, problem: String) -> QatError {
        let remedy =
            "lower optimizer.lr or lengthen schedule.warmup_steps, and check the images and the checkpoint";
        QatError::Diverged { step: self.progress.step + 1, problem, remedy: remedy.to_owned() }
    }

    /// The values that are validated and written: the moving average, or the parameters.
    fn values(&self) -> &BTreeMap<String, Tensor> {
        self.average.as_ref().unwrap_or_else(|| self.student.parameters())
    }

    /// The trained model as the engine runs it: quantized, or with every site off in a float training.
    ///
    /// # Errors
    /// Weights or ranges that cannot be quantized.
    pub fn model(&self) -> Result<QuantizedModel, QatError> {
        match &self.template {
            Some(template) => export::quantized(template, &self.start, self.student.scales(), self.values()),
            None => Ok(QuantizedModel::from_float(&self.float()?)?),
        }
    }

    /// The trained weights in float.
    ///
    /// # Errors
    /// Those of candle.
    pub fn float(&self) -> Result<FloatModel, QatError> {
        export::float(&self.start, self.values())
    }
}

/// Batch `number` of the run.
fn next_batch(source: &mut dyn BatchSource, number: u64) -> Result<Batch, QatError> {
    let batches = source.batches().max(1) as u64;
    source.batch(number / batches, (number % batches) as usize).map_err(QatError::Data)
}

fn copies(tensors: &BTreeMap<String, Tensor>) -> Result<BTreeMap<String, Tensor>, QatError> {
    tensors.iter().map(|(name, tensor)| Ok((name.clone(), tensor.copy()?))).collect()
}
