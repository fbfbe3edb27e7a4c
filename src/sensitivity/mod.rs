//! Sensitivity: the effect of each site and layer of a recipe on a model's logits, or on the feature maps of a backbone.
//!
//! Each part of the network (a site, a linear layer, a product of attention) is quantized alone in the float model,
//! and left alone in float in the quantized model. The engine runs both. What a variant shares with the model that
//! it was made from is computed once for a group of images, and the variant runs from its first difference on.

mod by_metric;
pub(crate) mod elements;
pub(crate) mod metric;
mod ranges;
pub(crate) mod walk;

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::path::PathBuf;

use swinq_calib::Progress;
use swinq_data::{Dataset, Padding, Sizing};
use swinq_eval::results::sensitivity::{BlockError, Element, SENSITIVITY_SCHEMA, Sensitivity, Subject};
use swinq_eval::{DataInfo, Distortion, EffectSums, EvalError};
use swinq_int8_runtime::{Outline, Variant, VariantRunner};
use swinq_model::quantized::FloatModel;
use swinq_model::{Batch, BatchSource, QuantizedModel, Recipe, Rule};

use crate::cache::{Cache, CacheContents, RunKey};
use crate::calibration::batches_for;
use crate::quantizer::ModelQuantizer;
use crate::{EngineOptions, Error, Images, Model, ReadOptions, environment};
pub use by_metric::{MetricSensitivity, PartKinds, PartSensitivity, PartsOf, sensitivity_by_metric};
use elements::{ModelElement, layers, sites};
use metric::{Metric, first_of};
use walk::{Walk, group_of, groups};

/// Images on which the largest magnitudes of channels are found.
const SPREAD_IMAGES: usize = 16;

/// How sensitivity is measured.
#[derive(Clone, Debug)]
pub struct SensitivityOptions {
    /// The recipe whose sites are measured.
    pub recipe: Recipe,
    /// How images are read.
    pub read: ReadOptions,
    /// The size that images get before a backbone. Images of a classifier have the size of its transform.
    pub sizing: Sizing,
    /// The outputs of a backbone that count, such as `stage4`; if empty, all count. The effect is that on the worst of them.
    pub sqnr_of: Vec<String>,
    /// Threads of the engine; 0 is one per core. The results do not depend on the number.
    pub threads: usize,
    /// The file that keeps finished measurements, so that an interrupted run continues; `None` keeps none.
    pub cache: Option<PathBuf>,
}

/// The progress of a long measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SensitivityProgress {
    /// Images or layers of the calibration.
    Calibrate(Progress),
    /// The contents of the file of finished measurements.
    Cache(CacheContents),
    /// Measurements: done, all.
    Measure(usize, usize),
    /// Values of a metric of the caller's: known, all. It is first called before the first evaluation.
    Evaluate(usize, usize),
}

/// Measures the effect of every part of `model`, a float model, under the recipe of `options`.
///
/// Ranges are calibrated on `calibration`; the effects are measured on `images`. Labels are used if the images have
/// them and the model is a classifier, numbered as by [`Images::numbered_for`]. `progress` is called after every batch or measurement; `Break` stops the run, and everything that was
/// measured is in the cache.
///
/// # Errors
/// [`Error::Argument`] for a model that is quantized, and for outputs that it does not have; [`Error::NothingQuantized`]; [`Error::Labels`] for labels that are
/// not the model's classes; the errors of [`calibrate`](crate::calibrate()); [`Error::Interrupted`]; an error if the cache cannot be written.
pub fn sensitivity(
    model: Model,
    options: &SensitivityOptions,
    calibration: &Images,
    images: &Images,
    progress: &mut dyn FnMut(SensitivityProgress) -> ControlFlow<()>,
) -> Result<Sensitivity, Error> {
    crate::calibration::check_recipe(&model, &options.recipe)?;
    let metric = Metric::new(model.config(), &options.sqnr_of)?;
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
    let parts = |model: &QuantizedModel| {
        let mut parts = layers(model);
        let layers = parts.len();
        parts.extend(sites(model));
        Ok((parts, layers))
    };
    let mut run = Run::new(quantizer, options, metric, &batches, ("sensitivity", parts), progress)?;
    let measured = run.measure(&batches, progress)?;
    run.results(options, images, &batches, measured)
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

/// Single sites are measured on one of so many images of a group: there are twice as many sites as layers, and layers
/// are what recipes change.
const SITE_SHARE: usize = 2;

/// The effects of all parts.
struct Measured {
    float: EffectSums,
    /// Of the whole recipe, on the images of the layers and of the sites.
    whole: [EffectSums; 2],
    /// Number of images of the sites.
    site_images: usize,
    /// For each part: quantized alone, and left alone in float.
    parts: Vec<[EffectSums; 2]>,
    blocks: Vec<(String, Distortion)>,
}

/// Parts to measure on some images of a group.
struct Job<'a> {
    /// Index of the group.
    group: usize,
    images: &'a Batch,
    /// Indices of the parts in forward order.
    parts: Vec<usize>,
    /// The float model and the model with the whole recipe, and their recipes and outputs.
    bases: &'a [Variant; 2],
    recipes: &'a [Recipe; 2],
    outputs: &'a [Vec<&'a [f32]>; 2],
}

struct Run {
    quantizer: ModelQuantizer,
    recipe: Recipe,
    runner: VariantRunner,
    cache: Cache,
    metric: Metric,
    /// The first `layers` are measured on all images, the others on some.
    parts: Vec<ModelElement>,
    layers: usize,
}

impl Run {
    /// A run whose cache's key begins with `command`. `parts` gives the parts of a model, and the number of those that are
    /// measured on all images; they are the first.
    fn new(
        mut quantizer: ModelQuantizer,
        options: &SensitivityOptions,
        metric: Metric,
        batches: &[Batch],
        (command, parts): (&str, impl FnOnce(&QuantizedModel) -> Result<(Vec<ModelElement>, usize), Error>),
        progress: &mut dyn FnMut(SensitivityProgress) -> ControlFlow<()>,
    ) -> Result<Run, Error> {
        let recipe = options.recipe.clone();
        let model = quantizer.apply(&recipe)?;
        let runner = VariantRunner::new(model, EngineOptions::cpu(options.threads).cpu_options()?)?;
        let (parts, layers) = parts(model)?;
        let cache = match &options.cache {
            Some(path) => Cache::open(path, &run_key(command, &mut quantizer, (&recipe, &metric), batches)?)?,
            None => Cache::in_memory(),
        };
        if options.cache.is_some() && progress(SensitivityProgress::Cache(cache.found())).is_break() {
            return Err(Error::Interrupted);
        }
        Ok(Run { quantizer, recipe, runner, cache, metric, parts, layers })
    }

    fn measure(
        &mut self,
        batches: &[Batch],
        progress: &mut dyn FnMut(SensitivityProgress) -> ControlFlow<()>,
    ) -> Result<Measured, Error> {
        let config = &self.quantizer.float().config;
        let of_size = |batch: &Batch| groups(batch, group_of(config, batch.size));
        let groups: Vec<Batch> = batches.iter().flat_map(of_size).collect();
        let each = 2 * self.parts.len() + 1;
        let mut measured = Measured {
            float: EffectSums::default(),
            whole: Default::default(),
            site_images: 0,
            parts: vec![Default::default(); self.parts.len()],
            blocks: Vec::new(),
        };
        let float = self.float_recipe();
        for (index, group) in groups.iter().enumerate() {
            let mut done = index * each;
            let mut finished = || {
                done += 1;
                match progress(SensitivityProgress::Measure(done, groups.len() * each)) {
                    ControlFlow::Continue(()) => Ok(()),
                    ControlFlow::Break(()) => Err(Error::Interrupted),
                }
            };
            self.group(index, group, &float, &mut measured, &mut finished)?;
        }
        Ok(measured)
    }

    /// The recipe with every site off. Unlike [`Recipe::float`], it keeps the settings of the sites.
    fn float_recipe(&self) -> Recipe {
        let off = Rule { pattern: "**".to_owned(), enable: Some(false), ..Rule::default() };
        self.recipe.clone().with_rule(off)
    }

    fn prepare(&mut self, recipe: &Recipe) -> Result<Variant, Error> {
        Ok(self.runner.prepare(self.quantizer.apply(recipe)?)?)
    }

    /// Measures one group of images, and adds the sums to `measured`.
    fn group(
        &mut self,
        index: usize,
        group: &Batch,
        float: &Recipe,
        measured: &mut Measured,
        finished: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.runner.set_size(group.size)?;
        let recipes = [float.clone(), self.recipe.clone()];
        let bases = [self.prepare(&recipes[0])?, self.prepare(&recipes[1])?];
        self.blocks(index, group, &bases, &mut measured.blocks)?;
        finished()?;
        let few = group.slice(0..group.len().div_ceil(SITE_SHARE));
        measured.site_images += few.len();
        let all = bases.each_ref().map(|base| Walk::new(base, group).outputs(&mut self.runner, base).values);
        for (set, images) in [group, &few].into_iter().enumerate() {
            let outputs = all.each_ref().map(|outputs| first_of(outputs, images.len(), group.len()));
            if set == 0 {
                measured.float.merge(&self.sums(&outputs[0], &borrowed(&outputs[0]), images)?);
            }
            measured.whole[set].merge(&self.sums(&outputs[0], &borrowed(&outputs[1]), images)?);
            let of_set = |part: &usize| (*part >= self.layers) == (set == 1);
            let parts = self.forward_order().into_iter().filter(of_set).collect();
            let job =
                Job { group: index, images, parts, bases: &bases, recipes: &recipes, outputs: &outputs };
            self.parts(&job, measured, finished)?;
        }
        Ok(())
    }

    /// The distance of the outputs `own` of `images` from those of the float model.
    fn sums(
        &self,
        reference: &[&[f32]],
        own: &[Cow<'_, [f32]>],
        images: &Batch,
    ) -> Result<EffectSums, EvalError> {
        self.metric.sums(reference, own, (images.len(), &images.labels))
    }

    /// Measures the parts of a job, and adds the sums to `measured`.
    fn parts(
        &mut self,
        job: &Job<'_>,
        measured: &mut Measured,
        finished: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<(), Error> {
        for (direction, (base, recipe)) in job.bases.iter().zip(job.recipes).enumerate() {
            let mut walk = Walk::new(base, job.images);
            for &part in &job.parts {
                let kind = self.parts[part].kind;
                let name = format!("{} {} {kind}", job.group, ["alone", "without"][direction]);
                let found = match self.cache.get::<EffectSums>(&name) {
                    Some(found) => found,
                    None => {
                        let mut changed = recipe.clone();
                        changed.rules.extend(self.parts[part].switched(direction == 0));
                        let variant = self.prepare(&changed)?;
                        let computed = walk.outputs(&mut self.runner, &variant);
                        let own = computed.with(&job.outputs[direction]);
                        let found = self.sums(&job.outputs[0], &own, job.images)?;
                        drop(variant);
                        self.runner.forget_unused();
                        self.cache.put(&name, &found)?;
                        found
                    }
                };
                measured.parts[part][direction].merge(&found);
                finished()?;
            }
        }
        Ok(())
    }

    /// Indices of the parts by their first site, so that a walk goes forward only.
    fn forward_order(&self) -> Vec<usize> {
        let order = swinq_model::site::all_sites(&self.quantizer.float().config);
        let first = |part: &ModelElement| order.iter().position(|site| part.sites.contains(site));
        let mut indices: Vec<usize> = (0..self.parts.len()).collect();
        indices.sort_by_key(|&index| first(&self.parts[index]));
        indices
    }

    /// Adds the distortion of the residual stream after each block of a group of images.
    fn blocks(
        &mut self,
        index: usize,
        group: &Batch,
        [float, whole]: &[Variant; 2],
        blocks: &mut Vec<(String, Distortion)>,
    ) -> Result<(), Error> {
        let name = format!("{index} blocks");
        let found = match self.cache.get::<Vec<(String, Distortion)>>(&name) {
            Some(found) => found,
            None => {
                let mut found = Vec::new();
                let mut walks = [Walk::new(float, group), Walk::new(whole, group)];
                let steps: Vec<String> = float.plan().steps.iter().map(|step| step.name.clone()).collect();
                let positions: Vec<usize> = self.runner.positions().iter().map(|p| p.step).collect();
                for (position, step) in positions.into_iter().enumerate() {
                    let Some(place) = step.checked_sub(1).and_then(|step| place_after(&steps[step])) else {
                        continue;
                    };
                    let [float, whole] = &mut walks;
                    let reference = float.residual_at(&mut self.runner, position);
                    let mut distortion = Distortion::default();
                    distortion.update(reference, whole.residual_at(&mut self.runner, position))?;
                    // Several steps complete the patch embedding; the last one counts.
                    found.retain(|(earlier, _): &(String, Distortion)| *earlier != place);
                    found.push((place, distortion));
                }
                self.cache.put(&name, &found)?;
                found
            }
        };
        if blocks.is_empty() {
            *blocks = found;
        } else {
            blocks.iter_mut().zip(&found).for_each(|((_, sum), (_, found))| sum.merge(found));
        }
        Ok(())
    }

    fn results(
        mut self,
        options: &SensitivityOptions,
        images: &Images,
        batches: &[Batch],
        measured: Measured,
    ) -> Result<Sensitivity, Error> {
        let recipe = self.recipe.clone();
        let plan = self.prepare(&recipe)?.plan().clone();
        let parts = self.parts.iter().zip(&measured.parts);
        let mut elements: Vec<Element> = parts.map(|(part, sums)| element(part, sums, &plan)).collect();
        let sites = elements.split_off(self.layers);
        let model = self.quantizer.apply(&recipe)?.clone();
        let first = &batches[0];
        let few = SPREAD_IMAGES * model.config.image_size.area() / first.size.area();
        let spread_on = first.slice(0..few.clamp(1, SPREAD_IMAGES).min(first.len()));
        let (float_effect, threads) = (measured.float.effect(), self.runner.threads());
        let [whole, site_whole] = measured.whole.map(|sums| sums.effect());
        Ok(Sensitivity {
            schema: SENSITIVITY_SCHEMA,
            model: subject(&self.quantizer),
            images: batches.iter().map(Batch::len).sum(),
            float_correct: float_effect.top1_correct,
            whole,
            site_images: measured.site_images,
            site_whole,
            layers: elements,
            sites,
            blocks: measured.blocks.iter().map(|(name, d)| BlockError::new(name, d)).collect(),
            ranges: ranges::statistics(&self.quantizer, &model, &spread_on)?,
            environment: environment(threads)?,
            data: Some(info(images, &model, options.sizing)),
            recipe: options.recipe.clone(),
        })
    }
}

/// A part and its effects, quantized alone and left alone in float; `plan` is that of the quantized model.
fn element(part: &ModelElement, [alone, without]: &[EffectSums; 2], plan: &Outline) -> Element {
    Element {
        name: part.kind.to_string(),
        kind: part.kind.result(),
        sites: part.sites.iter().map(ToString::to_string).collect(),
        macs: part.kind.macs(plan),
        alone: alone.effect(),
        without: without.effect(),
    }
}

/// The description of the images for results of `model`.
pub(crate) fn info(images: &Images, model: &QuantizedModel, sizing: Sizing) -> DataInfo {
    let sizing = model.config.is_backbone().then(|| sizing.to_string());
    DataInfo { sizing, ..images.info(&model.transform) }
}

/// `outputs`, borrowed.
fn borrowed<'a>(outputs: &[&'a [f32]]) -> Vec<Cow<'a, [f32]>> {
    outputs.iter().map(|output| Cow::Borrowed(*output)).collect()
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

/// A hash of everything that the measurements of a run depend on: parameters, ranges and codes, preprocessing,
/// the images and the outputs that count.
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

/// The place in the network whose output the step of this name completes; `None` within a block.
fn place_after(step: &str) -> Option<String> {
    let place = step.strip_suffix(".mlp.fc2").or_else(|| step.strip_suffix(".reduction"));
    let embedding = step.starts_with("patch_embed") || step == "absolute_pos_embed";
    place.map(str::to_owned).or_else(|| embedding.then(|| "patch_embed".to_owned()))
}
