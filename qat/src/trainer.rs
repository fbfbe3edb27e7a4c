//! The iterations of a training.

use std::collections::BTreeMap;

#[cfg(feature = "cuda")]
mod device;

use candle_core::{Device, Tensor};
use swinq_float::ops::{Compute, ComputeType, Ops};
use swinq_float::tape::Gradients;
use swinq_model::quantized::FloatModel;
use swinq_model::{Batch, BatchSource, QuantizedModel};

use crate::adamw::{AdamW, Moments, Update, norm, set};
use crate::drop_path::DropPath;
use crate::error::QatError;
use crate::export;
use crate::job::{Job, Precision};
use crate::loss::LossParts;
use crate::mixing::{Mixing, Partners};
use crate::progress::Progress;
use crate::ranks::{Filler, Layout, ProcessGroup};
use crate::scales::{LIMIT, sites_with_scales};
use crate::schedule::{Group, Schedule};
use crate::snapshot::State;
use crate::student::{Complete, Student, Teacher, decays, is_scale};

/// The inputs of a training.
pub struct Start<'a> {
    /// The job.
    pub job: &'a Job,
    /// The float model whose weights are trained.
    pub float: &'a FloatModel,
    /// The calibrated checkpoint, for a quantized training.
    pub quantized: Option<&'a QuantizedModel>,
    /// The teacher, if the loss needs one.
    pub teacher: Option<&'a FloatModel>,
    /// Highest rate of DropPath.
    pub drop_path: f64,
    /// The device that holds the tensors.
    pub device: Device,
    /// The implementation of the operations on this device; [`Compute::for_training`] returns the fastest.
    pub compute: Compute,
}

/// The result of an iteration.
#[derive(Clone, Copy, Debug)]
pub struct IterationReport {
    /// The loss.
    pub loss: LossParts,
    /// Norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Learning rates of weights and of scales.
    pub lr: [f64; 2],
    /// Whether the update was skipped because half precision overflowed.
    pub skipped: bool,
}

/// A training: the student, its optimizer and its progress.
pub struct Trainer {
    job: Job,
    start: FloatModel,
    template: Option<QuantizedModel>,
    student: Student,
    teacher: Option<Teacher>,
    optimizer: AdamW,
    average: Option<BTreeMap<String, Tensor>>,
    drop_path: Option<DropPath>,
    mixing: Option<Mixing>,
    schedule: Schedule,
    progress: Progress,
    /// The processes that train together; this one alone by default.
    group: ProcessGroup,
    /// Iterations without the host, once the first one has begun.
    #[cfg(feature = "cuda")]
    on_device: device::OnDevice,
}

/// The gradients of an iteration by parameter, and its loss.
type Local = (LossParts, BTreeMap<String, Tensor>);

impl Trainer {
    /// A training before its first iteration.
    ///
    /// # Errors
    /// Models that do not fit each other or the job, weights or ranges that cannot be quantized.
    pub fn new(start: &Start<'_>, schedule: Schedule) -> Result<Trainer, QatError> {
        let Start { job, float, .. } = start;
        job.check_network(&float.config)?;
        let policy = match start.quantized {
            Some(model) => job.quantization.resolve(&job.name, &sites_with_scales(model))?,
            None => Vec::new(),
        };
        let compute_type = match job.precision {
            Precision::F32 => ComputeType::F32,
            Precision::Tf32 => ComputeType::Tf32,
            Precision::Bf16 => ComputeType::Bf16,
            Precision::F16 => ComputeType::F16,
        };
        let ops = Ops { compute_type, ..start.compute.into() };
        let quantized = start.quantized.map(|model| (model, policy.as_slice()));
        let mut student = Student::new(float, quantized, &start.device, &ops)?;
        student.set_recompute(job.recompute);
        let features = job.loss.features > 0.0;
        let teacher =
            start.teacher.map(|model| Teacher::new(model, features, &start.device, &ops)).transpose()?;
        let memory = Memory::new(&student, job.optimizer.ema > 0.0)?;
        Ok(Trainer {
            job: (*job).clone(),
            start: (*float).clone(),
            template: start.quantized.cloned(),
            teacher,
            optimizer: AdamW::new(&job.optimizer, memory.moments, start.compute),
            average: memory.average,
            drop_path: DropPath::new(&float.config, start.drop_path, job.seed),
            mixing: Mixing::new(&job.mixing, job.seed),
            schedule,
            progress: Progress::new(job.precision),
            student,
            group: ProcessGroup::default(),
            #[cfg(feature = "cuda")]
            on_device: device::OnDevice::new(memory.pieces),
        })
    }

    /// Makes this training one of those of `group`, which exchange their gradients in every iteration.
    pub fn join(&mut self, group: ProcessGroup) {
        self.group = group;
    }

    /// The processes that train together.
    pub fn group(&mut self) -> &mut ProcessGroup {
        &mut self.group
    }

    /// Ends the training of all processes after an error, for `reason`.
    pub fn end(&mut self, reason: &str) {
        self.group.end(reason);
        #[cfg(feature = "cuda")]
        self.on_device.abort();
    }

    /// Number of processes that train together.
    pub fn processes(&self) -> usize {
        self.group.size()
    }

    /// Number of iterations done.
    pub fn iterations_done(&self) -> u64 {
        self.progress.iteration
    }

    /// The progress of the training.
    pub fn progress(&self) -> &Progress {
        &self.progress
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

    /// One iteration: forward and backward passes on the next images of `source`, and one update by the
    /// optimizer.
    ///
    /// # Errors
    /// [`QatError::Diverged`] if a loss or a gradient is not finite or the loss explodes; the parameters are
    /// then unchanged. Unreadable images, or a device that fails.
    pub fn iterate(&mut self, source: &mut dyn BatchSource) -> Result<IterationReport, QatError> {
        #[cfg(feature = "cuda")]
        if self.iterates_on_device()? {
            return self.iterate_on_device(source);
        }
        if let Some(found) = self.student.parameter_not_finite()? {
            return Err(self.diverged(found));
        }
        self.student.update_scales().map_err(|error| self.diverged(error.to_string()))?;
        let (parts, gradients) = match self.group.size() {
            1 => self.local_gradients(source, &mut |_, _| Ok(()))?,
            _ => self.shared_gradients(source)?,
        };
        self.apply(parts, &gradients, source)
    }

    /// How the iterations are put on the GPU; `None` on the CPU, and before that is decided.
    pub fn launches(&self) -> Option<String> {
        #[cfg(feature = "cuda")]
        return self.on_device.launches();
        #[cfg(not(feature = "cuda"))]
        None
    }

    /// The number of this process's batch `part` of the iteration, in the whole run of all processes.
    fn number(&self, part: usize) -> u64 {
        self.number_in(self.progress.iteration, part)
    }

    /// [`Trainer::number`], of another iteration.
    fn number_in(&self, iteration: u64, part: usize) -> u64 {
        let info = self.group.info();
        (iteration * info.size as u64 + info.rank as u64) * self.job.accumulate as u64 + part as u64
    }

    /// Loss and gradients of this process's batches. `complete` receives each gradient as soon as no later
    /// operation of the last batch adds to it.
    fn local_gradients(
        &mut self,
        source: &mut dyn BatchSource,
        complete: &mut Complete<'_>,
    ) -> Result<Local, QatError> {
        let mut sums: BTreeMap<String, Tensor> = BTreeMap::new();
        let mut parts = LossParts::default();
        for part in 0..self.job.accumulate {
            let number = self.number(part);
            let (batch, partners) = self.next_batch(source, number)?;
            if batch.is_empty() {
                continue; // All of its images were skipped as corrupt.
            }
            let last = part + 1 == self.job.accumulate;
            let mut with_sums = |name: &str, gradient: &Tensor| match sums.get(name) {
                _ if !last => Ok(()),
                Some(sum) => complete(name, &(sum + gradient)?),
                None => complete(name, gradient),
            };
            let (loss, gradients) = self.batch((&batch, partners.as_ref()), number, &mut with_sums)?;
            parts.add(&loss);
            self.collect(&gradients, &mut sums)?;
        }
        // The loss of this process is its share of that of all.
        let total = parts.total * self.group.size() as f64;
        if let Some(usual) = self.progress.exploded_from(total) {
            return Err(self.diverged(format!("the loss explodes: {total:.4} after {usual:.4}")));
        }
        Ok((parts, sums))
    }

    /// Loss and gradients of all processes' batches. A thread adds the first buckets of gradients while the
    /// backward pass computes the others.
    fn shared_gradients(&mut self, source: &mut dyn BatchSource) -> Result<Local, QatError> {
        let layout = Layout::new(self.student.parameters());
        let mut group = std::mem::take(&mut self.group);
        self.group = ProcessGroup::at(group.info().clone());
        let (local, exchanged) = std::thread::scope(|scope| {
            let (sender, receiver) = std::sync::mpsc::channel();
            let exchange = scope.spawn(|| group.sum_buckets(receiver, layout.len()));
            let local = self.fill_buckets(source, Filler::new(&layout, sender));
            (local, exchange.join().expect("the exchange does not panic"))
        });
        self.group = group;
        let mut parts = local?;
        let buckets = exchanged?;
        parts.add_up(&mut self.group)?;
        let device = self.student.device();
        Ok((parts, layout.gradients(&buckets, device)?))
    }

    /// Puts the gradients of this process's batches into buckets, and returns the loss.
    fn fill_buckets(
        &mut self,
        source: &mut dyn BatchSource,
        mut filler: Filler<'_>,
    ) -> Result<LossParts, QatError> {
        let (parts, gradients) =
            self.local_gradients(source, &mut |name, gradient| filler.put(name, gradient))?;
        // What no operation of the last batch used; all of it, if that batch was left out.
        for (name, gradient) in gradients {
            filler.put_if_missing(&name, &gradient)?;
        }
        filler.finish();
        Ok(parts)
    }

    /// Forward and backward pass of one batch.
    fn batch(
        &mut self,
        (batch, partners): (&Batch, Option<&Partners>),
        number: u64,
        complete: &mut Complete<'_>,
    ) -> Result<(LossParts, Gradients), QatError> {
        let teacher_output = self.teacher.as_ref().map(|teacher| teacher.forward(batch)).transpose()?;
        let features = self.job.loss.features > 0.0;
        let drop_path = self.drop_path.as_ref().map(|drop_path| drop_path.at(number));
        let outputs = self.student.forward(batch, drop_path.clone(), features)?;
        let batches = (self.job.accumulate * self.group.size()) as f64;
        let factors = (1.0 / batches, self.progress.loss_scale);
        let (loss, gradients) = self.student.backward_with(
            &self.job.loss,
            &outputs,
            (batch, partners),
            teacher_output.as_ref(),
            factors,
            complete,
        )?;
        if !loss.total.is_finite() {
            let found = self.student.first_not_finite(batch, drop_path)?;
            let found = found.unwrap_or_else(|| "the outputs are finite, but the loss is not".to_owned());
            return Err(self.diverged(format!("the loss is {}: {found}", loss.total)));
        }
        Ok((loss, gradients))
    }

    /// Batch `number` of the run, mixed if the job asks for it.
    fn next_batch(
        &self,
        source: &mut dyn BatchSource,
        number: u64,
    ) -> Result<(Batch, Option<Partners>), QatError> {
        let batches = source.batches().max(1) as u64;
        let mut batch =
            source.batch(number / batches, (number % batches) as usize).map_err(QatError::Data)?;
        let partners = self.mixing.as_ref().and_then(|mixing| mixing.mix(&mut batch, number));
        Ok((batch, partners))
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
    ) -> Result<IterationReport, QatError> {
        let scale = self.progress.loss_scale;
        let length = norm(gradients.values())? / scale;
        let iteration = self.progress.iteration;
        let lr = [Group::Weights, Group::Scales].map(|group| self.schedule.lr(group, iteration));
        let mut report = IterationReport { loss, grad_norm: length, lr, skipped: false };
        if gradients.is_empty() {
            self.progress.iteration += 1;
            return Ok(report);
        }
        if !length.is_finite() {
            if self.job.precision == Precision::F16 && scale > 1.0 {
                self.progress.record_overflow();
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
        self.progress.record_update(loss.total, self.optimizer.updates, self.job.precision);
        Ok(report)
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
        let (batch, _) = self.next_batch(source, self.number(0))?;
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
        Ok(self.diverged(
            forward.map_or(problem.clone(), |found| format!("{problem}; in the forward pass, {found}")),
        ))
    }

    fn diverged(&self, problem: String) -> QatError {
        let remedy =
            "lower optimizer.lr or lengthen schedule.warmup_steps, and check the images and the checkpoint";
        QatError::Diverged { iteration: self.progress.iteration + 1, problem, remedy: remedy.to_owned() }
    }

    /// The parameters to validate and export: the moving average, if there is one.
    fn values(&self) -> &BTreeMap<String, Tensor> {
        self.average.as_ref().unwrap_or_else(|| self.student.parameters())
    }

    /// The trained model for the engine: quantized, or with every site off after a float training.
    ///
    /// # Errors
    /// Weights or ranges that cannot be quantized.
    pub fn model(&self) -> Result<QuantizedModel, QatError> {
        match &self.template {
            Some(template) => {
                export::quantized_student(template, &self.start, self.student.scales(), self.values())
            }
            None => Ok(QuantizedModel::from_float(self.float()?)?),
        }
    }

    /// The trained weights in float.
    ///
    /// # Errors
    /// Errors of candle.
    pub fn float(&self) -> Result<FloatModel, QatError> {
        export::float(&self.start, self.values())
    }
}

/// The tensors that an optimizer keeps for the parameters.
struct Memory {
    moments: BTreeMap<String, Moments>,
    /// The moving average of the parameters.
    average: Option<BTreeMap<String, Tensor>>,
    /// On a GPU, the pieces of memory in which they lie: first moments, second moments, average.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only CUDA updates them together"))]
    pieces: Option<([Tensor; 2], Option<Tensor>)>,
}

impl Memory {
    fn new(student: &Student, average: bool) -> Result<Memory, QatError> {
        let parameters = student.parameters();
        let Some((flat, values)) = student.flat() else {
            let average = average.then(|| copies(parameters)).transpose()?;
            return Ok(Memory { moments: Moments::zeros(parameters)?, average, pieces: None });
        };
        let pieces = [flat.zeros(values.device())?, flat.zeros(values.device())?];
        let [mut first, mut second] = [flat.views(&pieces[0])?, flat.views(&pieces[1])?];
        let moments = parameters.keys().map(|name| {
            let of = |views: &mut BTreeMap<String, Tensor>| {
                views.remove(name).expect("every parameter has a place")
            };
            (name.clone(), Moments { first: of(&mut first), second: of(&mut second) })
        });
        let moments = moments.collect();
        let copy = average.then(|| values.copy()).transpose()?;
        let average = copy.as_ref().map(|copy| flat.views(copy)).transpose()?;
        Ok(Memory { moments, average, pieces: Some((pieces, copy)) })
    }
}

fn copies(tensors: &BTreeMap<String, Tensor>) -> Result<BTreeMap<String, Tensor>, QatError> {
    tensors.iter().map(|(name, tensor)| Ok((name.clone(), tensor.copy()?))).collect()
}
