//! The run of the float model over the images of a calibration.

use std::ops::{ControlFlow, Range};

use candle_core::{Device, Tensor};
use rayon::prelude::*;
use sha2::{Digest, Sha256};
use swinq_float::{FloatError, Swin, threads};
use swinq_model::quantized::FloatModel;
use swinq_model::{Batch, BatchSource, Size, SwinConfig};
use swinq_system::machine::permitted_memory;

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

/// Forwards that run at the same time: on the CPU one on each thread, as many as a quarter of the memory
/// holds.
fn forwards_at_a_time(config: &SwinConfig, size: Size, device: &Device) -> usize {
    /// The values that a forward and a sampler hold for each value of the first stage's residual stream, at
    /// the input of its `mlp.fc2`: the residual, the hidden values, which are four times as wide, a copy of
    /// them, and memory that was freed last.
    const VALUES: usize = 12;
    if !device.is_cpu() {
        return 1;
    }
    let residual = config.grid_size(0, size).area() * config.embed_dim;
    let bytes = (IMAGES_PER_FORWARD * VALUES * residual * size_of::<f32>()) as u64;
    let most = permitted_memory().map_or(usize::MAX, |memory| (memory / 4 / bytes.max(1)) as usize);
    threads().min(most).max(1)
}

/// A run of the float model over the images.
pub(crate) struct Run {
    /// The observations and the samples.
    pub sampler: Sampler,
    /// The same of threads other than the first, until the last batch.
    others: Vec<Sampler>,
    /// The hash of the pixels so far.
    pub hash: Sha256,
    /// Positions of the images, in the order of reading.
    pub ids: Vec<usize>,
    /// The images, if they are needed later.
    pub kept: Option<Vec<Batch>>,
}

impl Run {
    /// A run without images yet, which keeps them if `kept` is true.
    pub fn new(sampler: Sampler, kept: bool) -> Run {
        Run { sampler, others: Vec::new(), hash: Sha256::new(), ids: Vec::new(), kept: kept.then(Vec::new) }
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
        self.others.drain(..).for_each(|other| self.sampler.merge(other));
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
        let parts = divided(batch.len(), forwards_at_a_time(swin.config(), batch.size, images.device()));
        // The operations of a single part run on all threads.
        let single = parts.len() == 1;
        while self.others.len() + 1 < parts.len() {
            self.others.push(self.sampler.anew());
        }
        let samplers = std::iter::once(&mut self.sampler).chain(&mut self.others).zip(parts);
        let sample = |(sampler, part): (&mut Sampler, _)| of_images(swin, &images, &batch.ids, part, sampler);
        let done: Vec<Result<(), CalibError>> = match single {
            true => samplers.map(sample).collect(),
            false => samplers.collect::<Vec<_>>().into_par_iter().map(sample).collect(),
        };
        done.into_iter().collect::<Result<(), CalibError>>()?;
        self.hash.update(&batch.pixels);
        self.ids.extend(&batch.ids);
        if let Some(kept) = &mut self.kept {
            kept.push(batch.clone());
        }
        Ok(())
    }
}

/// `count` images in up to `parts` parts of neighbours, which differ by one image at most.
fn divided(count: usize, parts: usize) -> Vec<Range<usize>> {
    let parts = parts.min(count);
    (0..parts).map(|part| part * count / parts..(part + 1) * count / parts).collect()
}

/// Runs the images `part` of `images`, which `ids` names, through `sampler`.
fn of_images(
    swin: &Swin,
    images: &Tensor,
    ids: &[usize],
    part: Range<usize>,
    sampler: &mut Sampler,
) -> Result<(), CalibError> {
    // The histograms do not depend on the number of images per forward.
    let per_forward = images_per_forward(images.device());
    for first in part.clone().step_by(per_forward) {
        let last = part.end.min(first + per_forward);
        let images = images.narrow(0, first, last - first).map_err(FloatError::from)?;
        sampler.next_images(&ids[first..last]);
        swin.outputs(&images, sampler)?;
    }
    Ok(())
}
