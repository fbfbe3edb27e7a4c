//! A calibration in parts: several processes observe some of the images each, and one makes the model of what
//! they found.
//!
//! Counts of histograms are integers, the ranges of channels are extremes, and the rows that refinement works
//! on belong to one image each. The parts therefore merge exactly, and the merged calibration is that of
//! [`calibrate`](crate::calibrate()) on all images, bit for bit. The hash of the pixels depends on their
//! order, so that a part keeps the pixels.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use candle_core::Device;
use sha2::Digest;
use swinq_model::part::{PartTensor, PartTensors, StoredTensors};
use swinq_model::quantized::{FloatModel, ResidualRange};
use swinq_model::{BatchSource, ModelError, Ptq, Recipe, Site, all_blocks};

use crate::calibrate::{CalibrateOptions, Calibrated, Progress};
use crate::error::CalibError;
use crate::histogram::Histogram;
use crate::run::Run;
use crate::task::Task;

/// The tensor of the largest magnitudes of the residual stream, one for each block.
const RESIDUAL: &str = "residual";

/// The observations on some of the images of a calibration.
#[derive(Debug)]
pub struct Observed {
    /// Positions of the images in the data set's full list, in the order of reading.
    pub ids: Vec<usize>,
    /// Everything that the calibration needs of these images.
    pub tensors: PartTensors,
}

/// Observes all batches of epoch 0 of `source`, which are a part of a calibration on `total` images.
///
/// The result has no image if no site has to be observed, or if the source leaves all out.
///
/// # Errors
/// Those of [`calibrate`](crate::calibrate()) up to the choice of ranges, without [`CalibError::NoImages`];
/// [`CalibError::Model`] for a recipe whose layers are reconstructed.
pub fn observe(
    model: &FloatModel,
    recipe: &Recipe,
    source: &mut dyn BatchSource,
    total: usize,
    options: CalibrateOptions,
) -> Result<Observed, CalibError> {
    let task = task(model, recipe)?;
    let mut run = Run::new(task.sampler(total), true);
    if task.needs_images() {
        run.all_batches(model, options.device, source, options.progress)?;
    }
    let mut tensors = PartTensors::new();
    run.sampler.store(&mut tensors);
    for (site, histogram) in run.sampler.observe.histograms() {
        let (counts, summary) = histogram_names(*site);
        let bins = histogram.counts();
        tensors.insert(counts, PartTensor::u64([bins.len()], bins.iter().copied()));
        let [zeros, max] = [histogram.zeros(), u64::from(histogram.max().to_bits())];
        tensors.insert(summary, PartTensor::u64([2], [zeros, max]));
    }
    let residual = ResidualRange::by_block(&model.config, run.sampler.observe.largest_in_blocks());
    let residual: Vec<f32> = residual.into_values().collect();
    tensors.insert(RESIDUAL.to_owned(), PartTensor::f32([residual.len()], &residual));
    let [height, width, channels] = image_shape(model);
    let pixels: Vec<u8> = run.kept.unwrap_or_default().into_iter().flat_map(|batch| batch.pixels).collect();
    tensors.insert("pixels".to_owned(), PartTensor::u8([run.ids.len(), height, width, channels], pixels));
    tensors.insert("ids".to_owned(), PartTensor::u64([run.ids.len()], run.ids.iter().map(|&id| id as u64)));
    Ok(Observed { ids: run.ids, tensors })
}

/// Height, width and channels of an image.
fn image_shape(FloatModel { transform, .. }: &FloatModel) -> [usize; 3] {
    [transform.size.height, transform.size.width, transform.channels()]
}

/// A calibration whose parts are added one after the other.
pub struct Merge<'a> {
    model: &'a FloatModel,
    task: Task<'a>,
    run: Run,
    seen: BTreeSet<usize>,
}

impl<'a> Merge<'a> {
    /// A calibration of `model` for `recipe` without parts yet.
    ///
    /// # Errors
    /// [`CalibError::Model`] for a recipe that does not fit, or whose layers are reconstructed.
    pub fn new(model: &'a FloatModel, recipe: &'a Recipe) -> Result<Merge<'a>, CalibError> {
        let task = task(model, recipe)?;
        // The number of images decides which rows are drawn, and all are drawn already.
        let run = Run::new(task.sampler(1), false);
        Ok(Merge { model, task, run, seen: BTreeSet::new() })
    }

    /// Adds a part, and returns the number of its images. Parts must be added in the order of their images.
    ///
    /// # Errors
    /// [`CalibError::Model`] for tensors that are missing, do not fit the model, or contradict each other or
    /// the parts before.
    pub fn add(&mut self, tensors: &StoredTensors<'_>) -> Result<usize, CalibError> {
        let ids = tensors.ids("ids")?;
        let [height, width, channels] = image_shape(self.model);
        let (shape, pixels) = tensors.u8("pixels", 4)?;
        if shape != [ids.len(), height, width, channels] {
            return Err(tensors.problem("pixels", &format!("has the shape {shape:?}")).into());
        }
        let own: BTreeSet<usize> = ids.iter().copied().collect();
        if let Some(id) = own.iter().find(|id| self.seen.contains(id)) {
            return Err(tensors
                .problem("ids", &format!("has image {id}, which another part has, too"))
                .into());
        }
        self.run.sampler.add_stored(tensors, self.model, &own)?;
        for (site, histogram) in self.run.sampler.observe.histograms_mut() {
            let found = stored_histogram(*site, tensors)?;
            if own.is_empty() && !found.is_empty() {
                return Err(tensors.problem(&histogram_names(*site).0, "has values, but no image").into());
            }
            histogram.merge(&found);
        }
        self.add_residual(tensors)?;
        self.run.hash.update(pixels);
        self.run.ids.extend(&ids);
        self.seen.extend(own);
        Ok(ids.len())
    }

    /// Adds the magnitudes of the residual stream: of each block, or of none if the part has no image.
    fn add_residual(&mut self, tensors: &StoredTensors<'_>) -> Result<(), CalibError> {
        let (_, largest) = tensors.f32(RESIDUAL, 1)?;
        let blocks = all_blocks(&self.model.config);
        let usable = |x: &f32| x.is_finite() && *x >= 0.0;
        if !(largest.is_empty() || largest.len() == blocks.len()) || !largest.iter().all(usable) {
            return Err(tensors.problem(RESIDUAL, "has no usable number for each block").into());
        }
        blocks.into_iter().zip(largest).for_each(|(block, x)| self.run.sampler.observe.raise(block, x));
        Ok(())
    }

    /// The result, after all parts were added. `progress` is called after each refined layer.
    ///
    /// # Errors
    /// Those of [`calibrate`](crate::calibrate()) from the choice of ranges on, and [`CalibError::NoImages`].
    pub fn finish(
        self,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Calibrated, CalibError> {
        if self.task.needs_images() {
            self.run.check_images()?;
        }
        self.task.finish(self.run, &Device::Cpu, progress)
    }
}

/// The task, which must not have layers to reconstruct.
fn task<'a>(model: &'a FloatModel, recipe: &'a Recipe) -> Result<Task<'a>, CalibError> {
    let task = Task::new(model, recipe, None)?;
    let Some(layer) = task.reconstructed.first() else { return Ok(task) };
    let problem = format!(
        "has `ptq: {}`, which cannot be divided into shards: the codes of each layer depend on what all layers before it do \
         to all images; calibrate without --shard, or with --ptq {}",
        Ptq::Reconstruct,
        Ptq::Refined
    );
    Err(ModelError::site(Site::Weight(*layer), problem).into())
}

/// The names of the tensors of the histogram at `site`: its counts; and its number of zeros and largest
/// magnitude.
fn histogram_names(site: Site) -> (String, String) {
    (format!("histogram.{site}.counts"), format!("histogram.{site}.summary"))
}

fn stored_histogram(site: Site, tensors: &StoredTensors<'_>) -> Result<Histogram, ModelError> {
    let (counts, summary) = histogram_names(site);
    let (bins, values) = (tensors.u64(&counts)?, tensors.u64(&summary)?);
    let [zeros, max] = values[..] else {
        return Err(tensors.problem(&summary, "is not two numbers"));
    };
    let max = u32::try_from(max).map_err(|_| tensors.problem(&summary, "has no largest magnitude"))?;
    Histogram::from_counts(&bins, zeros, f32::from_bits(max))
        .map_err(|problem| tensors.problem(&counts, &problem))
}
