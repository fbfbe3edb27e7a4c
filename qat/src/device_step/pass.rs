//! A pass over a batch: forward, loss and backward, kernel by kernel.

use candle_core::{Tensor, TensorId};
use swinq_cuda::training::{LossWeights, Outcome, Targets};
use swinq_float::ops::taped::cuda::{LockedTensor, failed, patches, tensor, write};
use swinq_model::Size;

use super::sink::Sink;
use super::{DeviceStep, Pass, PassInputs};
use crate::error::QatError;
use crate::student::Student;

impl DeviceStep {
    /// The pass over the loaded batch: loss and gradients, which are exchanged in the last pass.
    pub fn run(&mut self, work: &mut PassInputs<'_>, pass: Pass) -> Result<(), QatError> {
        // Graphs read constants from this cache. Without graphs it would only grow.
        let device = self.device.as_cuda_device()?.clone();
        let _cache = self.capture.is_ok().then(|| device.enable_cuda_graph_htod_cache());
        let result = self.passes_of(work, pass);
        work.student.forget();
        if result.is_ok() && work.count == self.images {
            self.warm.insert(self.size);
        }
        result
    }

    fn passes_of(&mut self, work: &mut PassInputs<'_>, pass: Pass) -> Result<(), QatError> {
        let (count, size) = (work.count, self.size);
        work.student.update_scales()?;
        let rows = self.patches(work)?;
        let wanted = work.teacher.map(|teacher| teacher.forward_images(size, &rows)).transpose()?;
        let drop_path = match (work.drop_path, &self.dropped) {
            (Some(drop_path), Some(dropped)) => {
                Some(drop_path.resident(dropped.narrow(1, 0, count)?.contiguous()?))
            }
            _ => None,
        };
        let outputs = work.student.forward_images(size, rows, count, drop_path, false)?;
        let taught = wanted.as_ref().map(|wanted| wanted.outputs.as_slice());
        let seeds = match work.student.config().is_backbone() {
            true => self.loss_of_maps(&outputs, taught.unwrap_or_default(), work, pass)?,
            false => vec![self.loss_of_logits(&outputs[0], taught.map(|taught| &taught[0]), work, pass)?],
        };
        drop(wanted);
        let mut sink =
            Sink::new(work.student, pass, self.communicator.take(), (&self.seen, self.kinds.is_some()));
        let (kernels, gradients) = (&self.kernels, &self.gradients);
        let done = work.student.backward_from(&outputs, seeds, &mut |name, gradient| {
            sink.take(kernels, gradients, name, gradient)
        });
        let ended = done.and_then(|_| Ok(sink.finish(kernels, gradients)?));
        let Sink { communicator, seen, .. } = sink;
        self.communicator = communicator;
        self.seen.extend(seen);
        ended
    }

    /// The patches of the loaded batch.
    fn patches(&self, work: &PassInputs<'_>) -> Result<Tensor, QatError> {
        let (config, Size { height, width }) = (work.student.config(), self.size);
        let bytes = work.count * self.size.area() * config.in_chans;
        let pixels =
            self.pixels.narrow(0, 0, bytes)?.reshape((work.count, height, width, config.in_chans))?;
        Ok(patches(&pixels, &self.table, config.patch_size, config.grid_size(0, self.size))?)
    }

    /// The gradient of the logits, with their id. The loss is stored or added on the device.
    fn loss_of_logits(
        &self,
        logits: &Tensor,
        teacher: Option<&Tensor>,
        work: &PassInputs<'_>,
        pass: Pass,
    ) -> Result<(TensorId, Tensor), QatError> {
        let (count, keys) = (work.count, &work.job.loss);
        let weights = LossWeights {
            labels: keys.labels,
            kl: if teacher.is_some() { keys.kl } else { 0.0 },
            smoothing: keys.smoothing,
            temperature: keys.temperature,
            share: work.share,
            first: pass.first,
        };
        let labels = self.labels.narrow(0, 0, count)?;
        let partners = self.partners.as_ref().map(|partners| partners.narrow(0, 0, count)).transpose()?;
        let (x, labels, controls) =
            (LockedTensor::new(logits)?, LockedTensor::new(&labels)?, LockedTensor::new(&self.controls)?);
        let (x, labels, controls) = (x.view()?, labels.view()?, controls.view()?);
        let optional = (
            teacher.map(LockedTensor::new).transpose()?,
            partners.as_ref().map(LockedTensor::new).transpose()?,
        );
        let teacher = optional.0.as_ref().map(LockedTensor::view).transpose()?;
        let partners = optional.1.as_ref().map(LockedTensor::view).transpose()?;
        let targets = Targets {
            teacher: teacher.as_ref(),
            labels: pass.labelled.then_some(&labels),
            partners: partners.as_ref(),
        };
        let mut gradient = None;
        write(&self.outcome, |mut outcome| {
            let found = self.kernels.loss(&x, count, targets, weights, &controls, &mut outcome);
            let device = self.device.as_cuda_device()?;
            gradient = Some(tensor(found.map_err(failed)?, device, logits.shape()));
            Ok(())
        })?;
        Ok((logits.id(), gradient.expect("set by the call")))
    }

    /// A pass of a process whose batch is empty: it adds nothing.
    pub fn nothing(&mut self, student: &Student, pass: Pass) -> Result<(), QatError> {
        if pass.first {
            let (zeros, kernels) = (self.gradients.zeros_like()?, &self.kernels);
            let held = LockedTensor::new(&zeros)?;
            let zeros = held.view::<f32>()?;
            write(&self.gradients, |to| kernels.copy(&zeros, to).map_err(failed))?;
            let zeros = [0.0; Outcome::LEN];
            write(&self.outcome, |to| kernels.upload(&zeros, to).map_err(failed))?;
        }
        let mut sink = Sink::new(student, pass, self.communicator.take(), (&self.seen, self.kinds.is_some()));
        let ended = sink.finish(&self.kernels, &self.gradients);
        self.communicator = sink.communicator.take();
        Ok(ended?)
    }
}
