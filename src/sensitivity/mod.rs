//! Sensitivity: the effect of each site and layer of a recipe on a model's logits, or on the feature maps of
//! a backbone.
//!
//! Each part of the network (a site, a linear layer, a product of attention) is quantized alone in the float
//! model, and left alone in float in the quantized model. The engine runs both. What a variant shares with
//! the model that it was made from is computed once for a group of images, and the variant runs from its
//! first difference on.

mod by_metric;
mod cost;
pub(crate) mod elements;
pub(crate) mod metric;
mod parts;
mod ranges;
mod run;
pub(crate) mod walk;

use std::ops::ControlFlow;
use std::path::PathBuf;

use swinq_calib::Progress;
use swinq_data::{Dataset, Padding, Sizing};
use swinq_eval::results::sensitivity::{Effect, Element, Sensitivity, Subject};
use swinq_eval::{DataInfo, EvalError};
use swinq_model::quantized::FloatModel;
use swinq_model::{Batch, BatchSource, QuantizedModel, Recipe};

use crate::cache::{CacheContents, RunKey, check_cache};
use crate::calibration::{batches_for, check_recipe};
use crate::quantizer::{ModelQuantizer, check_ptq};
use crate::{Error, Images, Model, ReadOptions};
pub use by_metric::{MetricSensitivity, PartSensitivity, sensitivity_by_metric};
pub use cost::Cost;
use elements::ModelElement;
use metric::Metric;
pub use parts::{PartKinds, PartsOf, sites_of_part};
use run::Run;

/// How sensitivity is measured.
#[derive(Clone, Debug)]
pub struct SensitivityOptions {
    /// The recipe whose sites are measured.
    pub recipe: Recipe,
    /// How images are read.
    pub read: ReadOptions,
    /// The size that images get before a backbone. Images of a classifier have the size of its transform.
    pub sizing: Sizing,
    /// The outputs of a backbone that count, such as `stage4`; if empty, all count. The effect is that on the
    /// worst of them.
    pub sqnr_of: Vec<String>,
    /// Threads of the engine; 0 is one per core. The results do not depend on the number.
    pub threads: usize,
    /// The file that keeps finished measurements, so that an interrupted run continues; `None` keeps none.
    pub cache: Option<PathBuf>,
}

impl SensitivityOptions {
    /// Refuses options that do not fit `model`, or that no run can have, before any image is read.
    ///
    /// # Errors
    /// The errors of [`sensitivity`] that do not depend on images.
    pub fn check_for(&self, model: &Model, parts: &PartsOf) -> Result<(), Error> {
        self.check(model, parts).map(|_| ())
    }

    /// The same; returns the outputs that count, and the parts.
    fn check(&self, model: &Model, parts: &PartsOf) -> Result<(Metric, Vec<ModelElement>), Error> {
        check_recipe(model, &self.recipe)?;
        check_ptq(model.config(), &self.recipe)?;
        check_cache(self.cache.as_deref())?;
        let metric = Metric::new(model.config(), &self.sqnr_of)?;
        Ok((metric, parts.find(&self.recipe, model.config())?))
    }
}

/// The parts that were measured when a run was stopped.
#[derive(Clone, Debug)]
pub struct MeasuredParts {
    /// Layers or blocks, or sites if the run measures nothing else, in forward order.
    pub parts: Vec<Element>,
    /// Number of such parts that the run would measure.
    pub all: usize,
    /// The model with the whole recipe on the same images.
    pub whole: Effect,
    /// Number of images.
    pub images: usize,
}

/// The progress of a long measurement.
#[derive(Clone, Copy, Debug)]
pub enum SensitivityProgress<'a> {
    /// Images or layers of the calibration.
    Calibrate(Progress),
    /// The contents of the file of finished measurements.
    Cache(CacheContents),
    /// The number of measurements and their time, before the first one.
    Cost(Cost),
    /// Measurements: done, all.
    Measure(usize, usize),
    /// Values of a metric of the caller's: known, all. It is first called before the first evaluation.
    Evaluate(usize, usize),
    /// The run was stopped between measurements; these are known. The answer to this report does not count.
    Stopped(&'a MeasuredParts),
}

/// Measures the effect of each of `parts` of `model`, a float model, under the recipe of `options`: layers or
/// blocks first, then sites.
///
/// Ranges are calibrated on `calibration`; the effects are measured on `images`. Labels are used if the
/// images have them and the model is a classifier, numbered as by [`Images::numbered_for`]. `progress` is
/// called after every batch or measurement; `Break` stops the run, and everything that was measured is in the
/// cache.
///
/// # Errors
/// [`Error::Argument`] for a model that is quantized, and for outputs and parts that it does not have;
/// [`Error::NothingQuantized`]; [`Error::Labels`] for labels that are not the model's classes; the errors of
/// [`calibrate`](crate::calibrate()); [`Error::Interrupted`]; an error if the cache cannot be written.
pub fn sensitivity(
    model: Model,
    options: &SensitivityOptions,
    parts: &PartsOf,
    calibration: &Images,
    images: &Images,
    progress: &mut dyn FnMut(SensitivityProgress<'_>) -> ControlFlow<()>,
) -> Result<Sensitivity, Error> {
    let (metric, parts) = options.check(&model, parts)?;
    let labelled = !model.config().is_backbone() && images.dataset().is_some_and(Dataset::has_labels);
    let images = &if labelled {
        images.numbered_for(model.config(), model.labels(), model.dialect())?.0
    } else {
        images.clone()
    };
    let float = model.into_float()?;
    let batches = load(images, &float, &options.read, options.sizing)?;
    let how = (&options.read, options.sizing);
    let quantizer = ModelQuantizer::calibrate(float, &options.recipe, calibration, how, &mut |step| {
        progress(SensitivityProgress::Calibrate(step))
    })?;
    let mut run = Run::new(quantizer, options, metric, &batches, ("sensitivity", parts), progress)?;
    let measured = run.measure(&batches, progress)?;
    run.results(options, images, &batches, &measured)
}

/// All images, preprocessed for `model`: a batch for each size.
pub(crate) fn load(
    images: &Images,
    model: &FloatModel,
    read: &ReadOptions,
    sizing: Sizing,
) -> Result<Vec<Batch>, Error> {
    let mut source = batches_for(model, images, (read, sizing, Padding::default()))?;
    let mut all: Vec<Batch> = Vec::new();
    for index in 0..source.batches() {
        let batch = source.batch(0, index).map_err(Error::batch)?;
        match all.iter_mut().find(|known| known.size == batch.size) {
            None => all.push(batch),
            Some(known) => {
                known.pixels.extend(batch.pixels);
                known.labels.extend(batch.labels);
                known.ids.extend(batch.ids);
            }
        }
    }
    all.retain(|batch| !batch.is_empty());
    match all.is_empty() {
        true => Err(EvalError::NoImages.into()),
        false => Ok(all),
    }
}

/// The description of the images for results of `model`.
pub(crate) fn info(images: &Images, model: &QuantizedModel, sizing: Sizing) -> DataInfo {
    let sizing = model.config.is_backbone().then(|| sizing.to_string());
    DataInfo { sizing, ..images.info(&model.transform) }
}

/// The model in results.
pub(crate) fn subject(quantizer: &ModelQuantizer) -> Subject {
    let float = quantizer.float();
    let file = std::path::Path::new(&float.source.file).file_name();
    Subject {
        name: file.map_or_else(|| float.config.name.clone(), |name| name.to_string_lossy().into_owned()),
        architecture: float.config.name.clone(),
        sha256: float.source.sha256.clone(),
    }
}

/// A hash of everything that the measurements of a run depend on: parameters, ranges and codes,
/// preprocessing, the images and the outputs that count.
pub(crate) fn run_key(
    command: &str,
    quantizer: &mut ModelQuantizer,
    (recipe, metric): (&Recipe, &Metric),
    batches: &[Batch],
) -> Result<String, Error> {
    let mut key = RunKey::new(command).with_json(recipe);
    let model = quantizer.apply(recipe)?;
    for (site, state) in &model.sites {
        let channels = state.channels.as_ref().map(|codes| (&codes.factors, &codes.zero_points));
        key = key.with_json(&(site.to_string(), &state.spec, state.amax, channels));
    }
    key = key.with_json(&model.transform).with_json(quantizer.record());
    let float = quantizer.float();
    for (name, tensor) in &float.tensors {
        let bytes: Vec<u8> = tensor.data.iter().flat_map(|value| value.to_le_bytes()).collect();
        key = key.with(name.as_bytes()).with(&bytes);
    }
    key = key.with_json(&float.config.name);
    if let Metric::Maps(outputs) = metric {
        key = key.with_json(&(outputs, &float.config.outputs));
    }
    for batch in batches {
        let size = (batch.size.height, batch.size.width);
        key = key.with(&batch.pixels).with_json(&batch.labels).with_json(&size);
    }
    Ok(key.finish())
}
