//! The loss of a batch by the kinds of the network's outputs, and its gradients with respect to them.

use candle_core::{Tensor, TensorId};
use swinq_float::ops::taped::{relative_errors, squared_difference};
use swinq_model::Batch;

use super::{Student, TeacherOutput};
use crate::error::QatError;
use crate::job::LossKeys;
use crate::loss::{LossParts, Targets, loss};
use crate::mixing::Partners;

/// Gradients of results of a forward pass.
pub(super) type Seeds = Vec<(TensorId, Tensor)>;

impl Student {
    /// The loss of the batch whose forward pass gave `outputs`, and the gradients of the outputs and of the
    /// blocks.
    pub(super) fn losses(
        &mut self,
        keys: &LossKeys,
        outputs: &[Tensor],
        (batch, partners): (&Batch, Option<&Partners>),
        teacher_output: Option<&TeacherOutput>,
        factors: (f64, f64),
    ) -> Result<(LossParts, Seeds), QatError> {
        let taught = teacher_output.map(|teacher_output| teacher_output.outputs.as_slice());
        let (mut parts, mut seeds) = match self.config.is_backbone() {
            true => self.loss_of_maps(keys, outputs, batch.len(), taught, factors)?,
            false => self.loss_of_logits(keys, &outputs[0], (batch, partners), taught, factors)?,
        };
        if let Some(teacher_output) = teacher_output {
            seeds.extend(self.loss_of_blocks(keys, teacher_output, &mut parts, factors)?);
        }
        Ok((parts, seeds))
    }

    /// Cross-entropy of the logits, and their divergence from the teacher's.
    fn loss_of_logits(
        &self,
        keys: &LossKeys,
        logits: &Tensor,
        (batch, partners): (&Batch, Option<&Partners>),
        taught: Option<&[Tensor]>,
        (share, loss_scale): (f64, f64),
    ) -> Result<(LossParts, Seeds), QatError> {
        let host = |logits: &Tensor| logits.flatten_all()?.to_vec1::<f32>();
        let teacher = taught.map(|taught| host(&taught[0])).transpose()?;
        let targets = Targets { labels: &batch.labels, partners, teacher: teacher.as_deref() };
        let (parts, mut gradient) = loss(keys, &host(logits)?, self.config.num_classes, &targets, share);
        gradient.iter_mut().for_each(|g| *g = (f64::from(*g) * loss_scale) as f32);
        let gradient = Tensor::from_vec(gradient, logits.shape(), logits.device())?;
        Ok((parts, vec![(logits.id(), gradient)]))
    }

    /// The relative errors of the feature maps of `images` images.
    fn loss_of_maps(
        &self,
        keys: &LossKeys,
        maps: &[Tensor],
        images: usize,
        taught: Option<&[Tensor]>,
        (share, loss_scale): (f64, f64),
    ) -> Result<(LossParts, Seeds), QatError> {
        let (mut parts, mut seeds) = (LossParts::default(), Vec::new());
        let Some(taught) = taught.filter(|_| keys.outputs > 0.0) else { return Ok((parts, seeds)) };
        let weights = keys.weights_of(&self.config);
        for ((map, target), weight) in maps.iter().zip(taught).zip(weights).filter(|(_, w)| *w > 0.0) {
            let part = weight * share / images as f64;
            let factor = keys.outputs * part * loss_scale;
            let (errors, gradient) = relative_errors(self.compute, map, target, images, factor)?;
            parts.outputs += part * errors.iter().sum::<f64>();
            seeds.push((map.id(), gradient));
        }
        parts.total = keys.outputs * parts.outputs;
        Ok((parts, seeds))
    }

    /// Adds the squared differences of the blocks' outputs to `parts`, if the forward pass collected them.
    fn loss_of_blocks(
        &mut self,
        keys: &LossKeys,
        teacher_output: &TeacherOutput,
        parts: &mut LossParts,
        (share, loss_scale): (f64, f64),
    ) -> Result<Seeds, QatError> {
        let Some(features) = self.sites.features.take() else { return Ok(Vec::new()) };
        let mut seeds = Vec::new();
        let part = share / features.len() as f64;
        for (block, x) in features {
            let (difference, gradient) = squared_difference(&x, &teacher_output.features[&block])?;
            parts.features += part * f64::from(difference);
            seeds.push((x.id(), (gradient * (keys.features * part * loss_scale))?));
        }
        parts.total += keys.features * parts.features;
        Ok(seeds)
    }
}
