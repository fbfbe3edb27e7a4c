//! The run of the float model over the images of a calibration.

use std::ops::ControlFlow;

use candle_core::Device;
use sha2::{Digest, Sha256};
use swinq_float::{FloatError, Swin};
use swinq_model::quantized::FloatModel;
use swinq_model::{Batch, BatchSource};

use crate::calibrate::{Phase, Progress};
use crate::error::CalibError;
use crate::refine::Sampler;

/// Images per forward on the CPU. The number is small so that tensors stay in the cache.
const IMAGES_PER_FORWARD: usize = 2;
/// Images per forward on a GPU: enough to occupy it, few enough for its memory.
const IMAGES_PER_GPU_FORWARD: usize = 16;

/// Images per forward on `device`.
pub(crate) fn images_per_forward(device: &Device) -> usize {
    if device.is_cpu() { IMAGES_PER_FORWARD } else { IMAGES_PER_GPU_FORWARD }
}

/// A run of the float model over the images.
pub(crate) struct Run {
    /// What was observed and sampled.
    pub sampler: Sampler,
    /// The hash of the pixels so far.
    pub hash: Sha256,
    /// Positions of the images, in the order in which they were read.
    pub ids: Vec<usize>,
    /// The images, if they are needed later.
    pub kept: Option<Vec<Batch>>,
}

impl Run {
    /// A run without images yet, which keeps them if `kept` is true.
    pub fn new(sampler: Sampler, kept: bool) -> Run {
        Run { sampler, hash: Sha256::new(), ids: Vec::new(), kept: kept.then(Vec::new) }
    }

    /// Runs `model` on all batches of epoch 0 of `source`.
    pub fn all_batches(
        &mut self,
        model: &FloatModel,
        device: &Device,
        source: &mut dyn BatchSource,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<(), CalibError> {
        let swin = Swin::new(&model.config, &model.tensors, device)?;
        let total = source.images();
        for index in 0..source.batches() {
            let batch = source.batch(0, index).map_err(|source| CalibError::Batch { index, source })?;
            self.one_batch(model, &swin, &batch)?;
            let step = Progress { phase: Phase::Observe, done: self.ids.len(), total };
            if progress(step).is_break() {
                return Err(CalibError::Interrupted { images: self.ids.len() });
            }
        }
        Ok(())
    }

    /// Refuses a run that has read no image.
    pub fn check_images(&self) -> Result<(), CalibError> {
        if self.ids.is_empty() { Err(CalibError::NoImages) } else { Ok(()) }
    }

    fn one_batch(&mut self, model: &FloatModel, swin: &Swin, batch: &Batch) -> Result<(), CalibError> {
        if batch.is_empty() {
            return Ok(());
        }
        let images = swin.images(batch, &model.transform)?;
        // The histograms do not depend on the number of images per forward.
        let per_forward = images_per_forward(images.device());
        for first in (0..batch.len()).step_by(per_forward) {
            let last = batch.len().min(first + per_forward);
            let images = images.narrow(0, first, last - first).map_err(FloatError::from)?;
            self.sampler.next_images(&batch.ids[first..last]);
            swin.outputs(&images, &mut self.sampler)?;
        }
        self.hash.update(&batch.pixels);
        self.ids.extend(&batch.ids);
        if let Some(kept) = &mut self.kept {
            kept.push(batch.clone());
        }
        Ok(())
    }
}
