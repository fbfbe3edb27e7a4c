//! Iterations on a GPU without the host ([`DeviceStep`]).

use std::time::Instant;

use candle_core::Tensor;
use swinq_cuda::library::{self, Library};
use swinq_cuda::nccl::UniqueId;
use swinq_cuda::training::{Controls, Outcome};
use swinq_model::{Batch, BatchSource};

use super::{IterationReport, Trainer};
use crate::device_step::{DeviceStep, Moments, Pass, PassInputs};
use crate::error::QatError;
use crate::job::Precision;
use crate::loss::LossParts;
use crate::mixing::Partners;
use crate::ranks::ProcessGroup;
use crate::schedule::Group;

/// A batch of this process.
struct Loaded {
    number: u64,
    batch: Batch,
    partners: Option<Partners>,
    /// Whether its pixels are where the GPU copies them from.
    staged: bool,
}

/// The state of iterations on a GPU.
#[derive(Default)]
pub(super) struct OnDevice {
    moments: Option<Moments>,
    step: Option<DeviceStep>,
    /// Whether iterations run this way, once that is decided.
    decided: Option<bool>,
    /// Why the host takes part in iterations, if it does.
    reason: Option<String>,
    /// The batch after the current one, which is read while the GPU computes.
    ahead: Option<(u64, Result<Loaded, QatError>)>,
}

impl OnDevice {
    /// For an optimizer whose tensors lie in `pieces`, if it is on a GPU.
    pub fn new(pieces: Option<([Tensor; 2], Option<Tensor>)>) -> OnDevice {
        let moments = pieces.map(|([first, second], average)| Moments { first, second, average });
        OnDevice { moments, ..OnDevice::default() }
    }

    pub fn launches(&self) -> Option<String> {
        self.reason.clone().or_else(|| self.step.as_ref()?.launches())
    }

    /// Ends the exchange with other processes after an error.
    pub fn abort(&mut self) {
        self.step.iter_mut().for_each(DeviceStep::abort);
    }
}

impl Trainer {
    /// Whether iterations run without the host: on a GPU, without the feature loss, which the host computes,
    /// and on several processes with NCCL on all of them.
    pub(super) fn iterates_on_device(&mut self) -> Result<bool, QatError> {
        if let Some(decided) = self.on_device.decided {
            return Ok(decided);
        }
        let mut able = self.student.compute().is_cuda();
        if able {
            self.on_device.reason = self.needs_host()?;
            able = self.on_device.reason.is_none();
        }
        if able {
            self.prepare()?;
        }
        self.on_device.decided = Some(able);
        Ok(able)
    }

    /// Why the host takes part in iterations on a GPU; `None` if it does not.
    fn needs_host(&mut self) -> Result<Option<String>, QatError> {
        if self.job.loss.features > 0.0 {
            return Ok(Some("iterations wait for the host: it computes `loss.features`".to_owned()));
        }
        let mut without_nccl = [if library::present(Library::Nccl) { 0.0 } else { 1.0 }];
        if self.group.size() > 1 {
            self.group.sum(&mut without_nccl)?;
            if without_nccl[0] > 0.0 {
                let (count, all) = (without_nccl[0], self.group.size());
                return Ok(Some(format!(
                    "iterations wait for the host, which adds gradients over TCP: {count} of {all} processes have no NCCL"
                )));
            }
        }
        Ok(None)
    }

    fn prepare(&mut self) -> Result<(), QatError> {
        let moments = self.on_device.moments.take().expect("the student is on a GPU");
        let mut step = DeviceStep::new(&self.student, &self.job, self.drop_path.as_ref(), moments)?;
        if self.group.size() > 1 {
            // NCCL waits without end for a process that failed before it.
            self.group.sum(&mut [0.0])?;
            let make = || -> Result<Vec<u8>, QatError> {
                Ok(UniqueId::new().map_err(swinq_float::ops::taped::cuda::failed)?.bytes().to_vec())
            };
            let bytes = self.group.share(make)?;
            let bytes = bytes
                .try_into()
                .map_err(|_| QatError::Data("the id of a communicator has 128 bytes".into()))?;
            let info = self.group.info();
            step.join(UniqueId::from_bytes(bytes), info.rank, info.size)?;
        }
        self.on_device.step = Some(step);
        Ok(())
    }

    pub(super) fn iterate_on_device(
        &mut self,
        source: &mut dyn BatchSource,
    ) -> Result<IterationReport, QatError> {
        let mut step = self.on_device.step.take().expect("prepared before");
        let report = self.iteration(&mut step, source);
        if report.is_err() {
            // The others do not take part in its exchanges any more.
            step.abort();
        }
        self.on_device.step = Some(step);
        report
    }

    fn iteration(
        &mut self,
        step: &mut DeviceStep,
        source: &mut dyn BatchSource,
    ) -> Result<IterationReport, QatError> {
        let (mut images, mut labelled) = (0, 0);
        for part in 0..self.job.accumulate {
            let loaded = self.loaded(source, part)?;
            let last = part + 1 == self.job.accumulate;
            let pass = Pass { first: part == 0, last, labelled: !loaded.batch.labels.is_empty() };
            step.control(&self.controls(loaded.partners.as_ref()))?;
            images += loaded.batch.len();
            labelled += loaded.batch.labels.len();
            self.pass(step, &loaded, pass)?;
            if !last {
                self.read_ahead(step, source, part);
            }
        }
        let mut everyone = [images as f64];
        self.group.sum(&mut everyone)?;
        if everyone[0] == 0.0 {
            let report = self.report(LossParts::default(), 0.0);
            self.progress.iteration += 1;
            return Ok(report);
        }
        let group = &mut self.group;
        step.settle(&self.student, &mut |found| Ok(group.sum(found)?))?;
        step.update(&self.student, &self.job)?;
        self.read_ahead(step, source, self.job.accumulate - 1);
        let began = Instant::now();
        let group = &mut self.group;
        let outcome = step.outcome(&mut || Ok(group.check(began.elapsed())?))?;
        self.conclude(step, &outcome, labelled, source)
    }

    /// The pass over a batch: as a graph if all processes that exchange gradients in it can, because NCCL's
    /// sums must be in graphs on all of them or on none.
    fn pass(&mut self, step: &mut DeviceStep, loaded: &Loaded, pass: Pass) -> Result<(), QatError> {
        let (group, count) = (&mut self.group, loaded.batch.len());
        let share = 1.0 / (self.job.accumulate * group.size()) as f64;
        let together = pass.last && group.size() > 1;
        if count == 0 {
            // All of its images were skipped as corrupt.
            all(group, together, [false, false])?;
            return step.nothing(&self.student, pass);
        }
        let drop_path = self.drop_path.as_ref().map(|drop_path| drop_path.at(loaded.number));
        if !loaded.staged {
            step.stage(&loaded.batch)?;
        }
        step.load(&loaded.batch, loaded.partners.as_ref(), drop_path.as_ref())?;
        let (student, teacher) = (&mut self.student, self.teacher.as_ref());
        let mut work =
            PassInputs { student, teacher, drop_path: drop_path.as_ref(), job: &self.job, count, share };
        let (able, known) = (step.may_record(count), step.is_recorded(pass));
        let [mut as_graph, all_known] = all(group, together, [able, known])?;
        if as_graph && !all_known {
            // Images of one process may have a size that is recorded, and those of another may not.
            let recorded = known || step.record(&mut work, pass)?;
            [as_graph] = all(group, together, [recorded])?;
            if recorded && !as_graph {
                step.stop_recording("another process cannot record them".to_owned());
            }
        }
        let done = if as_graph {
            step.launch(pass)
        } else if together && step.is_cold() {
            group.while_alive(|| step.run(&mut work, pass))
        } else {
            step.run(&mut work, pass)
        };
        done.map_err(|error| match self.student.parameter_not_finite() {
            Ok(Some(found)) => self.diverged(found),
            _ => error,
        })
    }

    /// Batch `part` of this iteration.
    fn loaded(&mut self, source: &mut dyn BatchSource, part: usize) -> Result<Loaded, QatError> {
        let number = self.number(part);
        match self.on_device.ahead.take() {
            Some((ahead, loaded)) if ahead == number => loaded,
            _ => self.load(source, number),
        }
    }

    fn load(&self, source: &mut dyn BatchSource, number: u64) -> Result<Loaded, QatError> {
        let (batch, partners) = self.next_batch(source, number)?;
        Ok(Loaded { number, batch, partners, staged: false })
    }

    /// Reads the batch after `part`, while the GPU computes. An error is that of the iteration that needs the
    /// batch.
    fn read_ahead(&mut self, step: &mut DeviceStep, source: &mut dyn BatchSource, part: usize) {
        let iteration = self.progress.iteration;
        let number = match part + 1 < self.job.accumulate {
            true => self.number(part + 1),
            false if iteration + 1 < self.schedule.iterations => self.number_in(iteration + 1, 0),
            false => return,
        };
        let mut loaded = self.load(source, number);
        if let Ok(loaded) = &mut loaded {
            loaded.staged = step.stage(&loaded.batch).is_ok();
        }
        self.on_device.ahead = Some((number, loaded));
    }

    fn controls(&self, partners: Option<&Partners>) -> Controls {
        let iteration = self.progress.iteration;
        let [first, second] = self.optimizer.corrections(self.optimizer.updates + 1);
        let lr = [Group::Weights, Group::Scales].map(|group| self.schedule.lr(group, iteration));
        Controls {
            loss_scale: self.progress.loss_scale,
            partner_share: partners.map_or(1.0, |partners| partners.share),
            // The loss of this process is its share of that of all.
            most_loss: self.progress.most_loss() / self.group.size() as f64,
            rates: lr.map(|lr| lr / first),
            keep: 1.0 - lr[0] * self.job.optimizer.weight_decay,
            unbias: 1.0 / second,
        }
    }

    fn report(&self, loss: LossParts, grad_norm: f64) -> IterationReport {
        let lr =
            [Group::Weights, Group::Scales].map(|group| self.schedule.lr(group, self.progress.iteration));
        IterationReport { loss, grad_norm, lr, skipped: false }
    }

    /// Records the result of an iteration, or finds out why the parameters were not updated.
    fn conclude(
        &mut self,
        step: &DeviceStep,
        outcome: &Outcome,
        labelled: usize,
        source: &mut dyn BatchSource,
    ) -> Result<IterationReport, QatError> {
        let Outcome { labels, kl, outputs, total, correct, norm, updated, unusable } = *outcome;
        let correct = correct as usize;
        let mut loss = LossParts { labels, kl, outputs, total, correct, labelled, ..LossParts::default() };
        if !updated && unusable {
            let found = self.student.parameter_not_finite()?;
            return Err(self.diverged(found.unwrap_or_else(|| "a parameter is not finite".to_owned())));
        }
        if !updated && !total.is_finite() {
            return Err(self.bad_loss(total, source)?);
        }
        if !updated && norm.is_finite() {
            let usual = self.progress.usual_loss.unwrap_or_default();
            let total = total * self.group.size() as f64;
            return Err(self.diverged(format!("the loss explodes: {total:.4} after {usual:.4}")));
        }
        loss.add_up(&mut self.group)?;
        let mut report = self.report(loss, norm);
        if !updated {
            if self.job.precision == Precision::F16 && self.progress.loss_scale > 1.0 {
                self.progress.record_overflow();
                report.skipped = true;
                return Ok(report);
            }
            self.student.update_scales()?;
            return Err(self.bad_gradient(&step.gradients(&self.student)?, source)?);
        }
        self.optimizer.begin();
        self.progress.record_update(loss.total, self.optimizer.updates, self.job.precision);
        Ok(report)
    }

    /// The error of a loss that is not finite.
    fn bad_loss(&mut self, total: f64, source: &mut dyn BatchSource) -> Result<QatError, QatError> {
        self.student.update_scales().map_err(|error| self.diverged(error.to_string()))?;
        let mut found = None;
        for part in 0..self.job.accumulate {
            let number = self.number(part);
            let (batch, _) = self.next_batch(source, number)?;
            if batch.is_empty() {
                continue; // All of its images were skipped as corrupt.
            }
            let drop_path = self.drop_path.as_ref().map(|drop_path| drop_path.at(number));
            found = self.student.first_not_finite(&batch, drop_path)?;
            if found.is_some() {
                break;
            }
        }
        if found.is_none()
            && self.student.config().is_backbone()
            && let Err(error) = self.local_gradients(source, &mut |_, _| Ok(()))
        {
            // It names the image whose map is zero everywhere.
            return Ok(error);
        }
        let found = found.unwrap_or_else(|| "the outputs are finite, but the loss is not".to_owned());
        Ok(self.diverged(format!("the loss is {total}: {found}")))
    }
}

/// The answers of all processes, if they decide `together`; otherwise those of this one.
fn all<const N: usize>(
    group: &mut ProcessGroup,
    together: bool,
    says: [bool; N],
) -> Result<[bool; N], QatError> {
    if !together {
        return Ok(says);
    }
    let mut against = says.map(|yes| if yes { 0.0 } else { 1.0 });
    group.sum(&mut against)?;
    Ok(against.map(|against| against == 0.0))
}
