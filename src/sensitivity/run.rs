//! A run of sensitivity: every part is quantized alone in the float model, and left alone in float in the
//! quantized one.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use swinq_eval::results::sensitivity::{BlockError, Element, ElementKind, SENSITIVITY_SCHEMA, Sensitivity};
use swinq_eval::{Distortion, EffectSums, ImageNoise};
use swinq_int8_runtime::{Outline, Variant, VariantRunner};
use swinq_model::{Batch, QuantizedModel, Recipe, Rule};

use super::cost::{Cost, Work};
use super::elements::{ElementId, ModelElement};
use super::metric::{Metric, Outputs, first_of};
use super::walk::{Walk, group_of, groups};
use super::{MeasuredParts, SensitivityOptions, SensitivityProgress, info, ranges, run_key, subject};
use crate::cache::Cache;
use crate::quantizer::ModelQuantizer;
use crate::{EngineOptions, Error, Images, environment};

/// Images on which the largest magnitudes of channels are found.
const SPREAD_IMAGES: usize = 16;

/// Single sites are measured on one of so many images of a group: there are twice as many sites as layers,
/// and layers are what recipes change.
const SITE_SHARE: usize = 2;

/// The two sets of parts, in the order of their measurement: layers or blocks on all images, then single
/// sites on some.
const SETS: [usize; 2] = [0, 1];

/// The reporter of a run's progress; `Break` stops the run.
pub(super) type Report<'a> = dyn FnMut(SensitivityProgress<'_>) -> ControlFlow<()> + 'a;

/// Reports a step; [`Error::Interrupted`] if that stops the run.
fn report(progress: &mut Report<'_>, what: SensitivityProgress<'_>) -> Result<(), Error> {
    match progress(what) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Error::Interrupted),
    }
}

/// The distance of a model's outputs from those of the float model: the sums, and the noise of each image.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Distance {
    pub(super) sums: EffectSums,
    noise: ImageNoise,
}

impl Distance {
    fn merge(&mut self, other: &Distance) {
        self.sums.merge(&other.sums);
        self.noise.merge(&other.noise);
    }
}

/// The effects of all parts.
#[derive(Clone)]
pub(super) struct Measured {
    float: Distance,
    /// Of the whole recipe, on the images of each set.
    pub(super) whole: [Distance; 2],
    /// For each part: quantized alone, and left alone in float.
    parts: Vec<[Distance; 2]>,
    blocks: Vec<(String, Distortion)>,
}

/// Parts to measure on some images of a group.
struct Job<'a> {
    /// Index of the group.
    group: usize,
    images: &'a Batch,
    /// The set of the parts.
    set: usize,
    /// The float model and the model with the whole recipe, and their recipes and outputs.
    bases: &'a [Variant; 2],
    recipes: &'a [Recipe; 2],
    outputs: &'a [Vec<&'a [f32]>; 2],
}

pub(super) struct Run {
    pub(super) quantizer: ModelQuantizer,
    pub(super) recipe: Recipe,
    pub(super) runner: VariantRunner,
    pub(super) cache: Cache,
    metric: Metric,
    /// Layers or blocks, then single sites.
    pub(super) parts: Vec<ModelElement>,
    /// Indices of the parts of each set by their first site, so that a walk goes forward only, and the share
    /// of the network from there on.
    sets: [Vec<(usize, f64)>; 2],
}

impl Run {
    /// A run whose cache's key begins with `command`. In `parts` sites are behind the others.
    pub(super) fn new(
        mut quantizer: ModelQuantizer,
        options: &SensitivityOptions,
        metric: Metric,
        batches: &[Batch],
        (command, parts): (&str, Vec<ModelElement>),
        progress: &mut Report<'_>,
    ) -> Result<Run, Error> {
        let recipe = options.recipe.clone();
        let model = quantizer.apply(&recipe)?;
        let runner = VariantRunner::new(model, EngineOptions::cpu(options.threads).cpu_options()?)?;
        let sets = sets(model, &parts);
        let cache = match &options.cache {
            Some(path) => Cache::open(path, &run_key(command, &mut quantizer, (&recipe, &metric), batches)?)?,
            None => Cache::in_memory(),
        };
        if options.cache.is_some() {
            report(progress, SensitivityProgress::Cache(cache.found()))?;
        }
        Ok(Run { quantizer, recipe, runner, cache, metric, parts, sets })
    }

    /// Measures all parts: layers first, then sites. If `progress` stops the run, it gets the parts that were
    /// measured.
    pub(super) fn measure(
        &mut self,
        batches: &[Batch],
        progress: &mut Report<'_>,
    ) -> Result<Measured, Error> {
        let config = &self.quantizer.float().config;
        let of_size = |batch: &Batch| groups(batch, group_of(config, batch.size));
        let groups: Vec<Batch> = batches.iter().flat_map(of_size).collect();
        let each = 2 * self.parts.len() + 1;
        let mut measured = Measured {
            float: Distance::default(),
            whole: Default::default(),
            parts: vec![Default::default(); self.parts.len()],
            blocks: Vec::new(),
        };
        let (mut done, total) = (0, groups.len() * each);
        for set in SETS {
            for index in 0..groups.len() {
                if set == 1 && self.sets[set].is_empty() {
                    continue;
                }
                let before = measured.clone();
                let mut tell = |what: Option<Cost>| match what {
                    Some(cost) => report(progress, SensitivityProgress::Cost(cost)),
                    None => {
                        done += 1;
                        report(progress, SensitivityProgress::Measure(done, total))
                    }
                };
                if let Err(error) = self.group((set, index), &groups, &mut measured, &mut tell) {
                    if matches!(error, Error::Interrupted) {
                        // Of the first group, the parts that were measured already are known.
                        let known = if index == 0 { &measured } else { &before };
                        self.stopped(set, known, progress)?;
                    }
                    return Err(error);
                }
            }
        }
        Ok(measured)
    }

    /// Reports the layers that were measured when the run was stopped; of a run without layers the sites.
    fn stopped(&mut self, set: usize, measured: &Measured, progress: &mut Report<'_>) -> Result<(), Error> {
        let set = if self.sets[0].is_empty() { set } else { 0 };
        let plan = self.plan()?;
        let is_complete = |(index, _): &&(usize, f64)| measured.parts[*index][1].sums.images > 0;
        let parts = self.sets[set].iter().filter(is_complete);
        let parts = parts.map(|&(index, _)| self.element(index, measured, &plan)).collect();
        let whole = &measured.whole[set].sums;
        let known =
            MeasuredParts { parts, all: self.sets[set].len(), whole: whole.effect(), images: whole.images };
        // The run ends whatever the answer is.
        let _ = progress(SensitivityProgress::Stopped(&known));
        Ok(())
    }

    /// The plan of the model with the whole recipe.
    pub(super) fn plan(&mut self) -> Result<Outline, Error> {
        let recipe = self.recipe.clone();
        Ok(self.prepare(&recipe)?.plan().clone())
    }

    /// The recipe with every site off. Unlike [`Recipe::float`], it keeps the settings of the sites.
    fn float_recipe(&self) -> Recipe {
        let off = Rule { pattern: "**".to_owned(), enable: Some(false), ..Rule::default() };
        self.recipe.clone().with_rule(off)
    }

    fn prepare(&mut self, recipe: &Recipe) -> Result<Variant, Error> {
        Ok(self.runner.prepare(self.quantizer.apply(recipe)?)?)
    }

    /// Measures the parts of a set on a group of images, and adds the distances to `measured`. `tell` gets
    /// the cost before the first measurement, and nothing after each.
    fn group(
        &mut self,
        (set, index): (usize, usize),
        groups: &[Batch],
        measured: &mut Measured,
        tell: &mut dyn FnMut(Option<Cost>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let group = &groups[index];
        self.runner.set_size(group.size)?;
        let recipes = [self.float_recipe(), self.recipe.clone()];
        let (float_model, float, float_seconds) = self.timed(&recipes[0], group)?;
        let (whole_model, whole, whole_seconds) = self.timed(&recipes[1], group)?;
        let bases = [float_model, whole_model];
        if (set, index) == (0, 0) {
            tell(Some(self.cost(groups, [float_seconds, whole_seconds])))?;
        }
        if set == 0 {
            self.blocks(index, group, &bases, &mut measured.blocks)?;
            tell(None)?;
        }
        let few = group.slice(0..group.len().div_ceil(SITE_SHARE));
        for (of_set, images) in [group, &few].into_iter().enumerate() {
            let outputs = [&float, &whole].map(|outputs| first_of(outputs, images.len(), group.len()));
            // Whole models are compared on the images of both sets at once.
            if set == 0 {
                let distance = |own: &[&[f32]]| self.distance(&outputs[0], &borrowed(own), images);
                measured.whole[of_set].merge(&distance(&outputs[1])?);
                if of_set == 0 {
                    measured.float.merge(&distance(&outputs[0])?);
                }
            }
            if of_set == set {
                let (bases, recipes, outputs) = (&bases, &recipes, &outputs);
                self.parts(&Job { group: index, images, set, bases, recipes, outputs }, measured, tell)?;
            }
        }
        Ok(())
    }

    /// The model of `recipe`, its outputs for the images of `group`, and the seconds that both took.
    fn timed(&mut self, recipe: &Recipe, group: &Batch) -> Result<(Variant, Outputs, f64), Error> {
        let begin = Instant::now();
        let variant = self.prepare(recipe)?;
        let outputs = Walk::new(&variant, group).outputs(&mut self.runner, &variant).values;
        Ok((variant, outputs, begin.elapsed().as_secs_f64()))
    }

    /// The measurements of the run and their time, which follows from the `seconds` that the float model and
    /// the whole recipe took for the first group.
    fn cost(&self, groups: &[Batch], seconds: [f64; 2]) -> Cost {
        let pixels = |images: usize, group: &Batch| (images * group.size.area()) as f64;
        let first = pixels(groups[0].len(), &groups[0]);
        let mut cost = Cost::new(groups.iter().map(Batch::len).sum());
        for (index, group) in groups.iter().enumerate() {
            // The residual stream takes a walk through both models.
            let walks = seconds.iter().sum::<f64>() * pixels(group.len(), group) / first;
            let is_known = self.cache.get::<Vec<(String, Distortion)>>(&format!("{index} blocks")).is_some();
            cost.add(Work { seconds: walks, is_known });
            for (set, images) in [group.len(), group.len().div_ceil(SITE_SHARE)].into_iter().enumerate() {
                // Each set runs both models, and walks through them between its parts, whatever is known.
                if !self.sets[set].is_empty() {
                    cost.wait(walks + seconds.iter().sum::<f64>() * pixels(images, group) / first);
                }
                for &(part, share) in &self.sets[set] {
                    for (direction, seconds) in seconds.into_iter().enumerate() {
                        let seconds = seconds * share * pixels(images, group) / first;
                        let is_known =
                            self.cache.get::<Distance>(&self.name(index, part, direction)).is_some();
                        cost.add(Work { seconds, is_known });
                    }
                }
            }
        }
        cost
    }

    /// The name of a measurement in the cache.
    fn name(&self, group: usize, part: usize, direction: usize) -> String {
        format!("{group} {} {}", ["alone", "without"][direction], self.parts[part].kind)
    }

    /// The distance of the outputs `own` of `images` from those of the float model.
    fn distance(
        &self,
        reference: &[&[f32]],
        own: &[Cow<'_, [f32]>],
        images: &Batch,
    ) -> Result<Distance, Error> {
        let sums = self.metric.sums(reference, own, (images.len(), &images.labels))?;
        Ok(Distance { sums, noise: self.metric.noise(reference, own, images.len())? })
    }

    /// Measures the parts of a job, and adds the distances to `measured`.
    fn parts(
        &mut self,
        job: &Job<'_>,
        measured: &mut Measured,
        tell: &mut dyn FnMut(Option<Cost>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut walks = job.bases.each_ref().map(|base| Walk::new(base, job.images));
        for (part, _) in self.sets[job.set].clone() {
            for (direction, walk) in walks.iter_mut().enumerate() {
                let name = self.name(job.group, part, direction);
                let found = match self.cache.get::<Distance>(&name) {
                    Some(found) => found,
                    None => {
                        let found = self.part(job, (part, direction), walk)?;
                        self.cache.put(&name, &found)?;
                        found
                    }
                };
                measured.parts[part][direction].merge(&found);
                tell(None)?;
            }
        }
        Ok(())
    }

    /// Measures a part, quantized alone (direction 0) or left alone in float (1).
    fn part(
        &mut self,
        job: &Job<'_>,
        (part, direction): (usize, usize),
        walk: &mut Walk<'_>,
    ) -> Result<Distance, Error> {
        let mut changed = job.recipes[direction].clone();
        changed.rules.extend(self.parts[part].switched(direction == 0));
        let variant = self.prepare(&changed)?;
        let computed = walk.outputs(&mut self.runner, &variant);
        let own = computed.with(&job.outputs[direction]);
        let found = self.distance(&job.outputs[0], &own, job.images)?;
        drop(variant);
        self.runner.forget_unused();
        Ok(found)
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

    /// The part with this index and its effects; `plan` is that of the quantized model.
    pub(super) fn element(&self, index: usize, measured: &Measured, plan: &Outline) -> Element {
        let (part, [alone, without]) = (&self.parts[index], &measured.parts[index]);
        let whole = &measured.whole[usize::from(is_site(part))];
        Element {
            name: part.kind.to_string(),
            kind: part.kind.result(),
            sites: part.sites.iter().map(ToString::to_string).collect(),
            macs: part.kind.macs(plan),
            alone: alone.sums.effect(),
            without: without.sums.effect(),
            alone_spread_db: alone.noise.sqnr_spread_db(),
            gain_spread_db: without.noise.gain_spread_db(&whole.noise),
        }
    }

    pub(super) fn results(
        mut self,
        options: &SensitivityOptions,
        images: &Images,
        batches: &[Batch],
        measured: &Measured,
    ) -> Result<Sensitivity, Error> {
        let plan = self.plan()?;
        let all = (0..self.parts.len()).map(|index| self.element(index, measured, &plan));
        let (sites, layers): (Vec<Element>, Vec<Element>) =
            all.partition(|element| element.kind == ElementKind::Site);
        let model = self.quantizer.apply(&self.recipe)?.clone();
        let first = &batches[0];
        let few = SPREAD_IMAGES * model.config.image_size.area() / first.size.area();
        let spread_on = first.slice(0..few.clamp(1, SPREAD_IMAGES).min(first.len()));
        let [whole, site_whole] = measured.whole.each_ref().map(|distance| &distance.sums);
        Ok(Sensitivity {
            schema: SENSITIVITY_SCHEMA,
            model: subject(&self.quantizer),
            images: whole.images,
            float_correct: measured.float.sums.effect().top1_correct,
            whole: whole.effect(),
            site_images: site_whole.images,
            site_whole: site_whole.effect(),
            layers,
            sites,
            blocks: measured.blocks.iter().map(|(name, d)| BlockError::new(name, d)).collect(),
            ranges: ranges::statistics(&self.quantizer, &model, &spread_on)?,
            environment: environment(self.runner.threads())?,
            data: Some(info(images, &model, options.sizing)),
            recipe: options.recipe.clone(),
        })
    }
}

/// Whether a part is a single site.
fn is_site(part: &ModelElement) -> bool {
    matches!(part.kind, ElementId::Site(_))
}

/// The parts of each set in the order of their first site, each with the share of the network from there on.
fn sets(model: &QuantizedModel, parts: &[ModelElement]) -> [Vec<(usize, f64)>; 2] {
    let order = swinq_model::site::all_sites(&model.config);
    let first = |part: &ModelElement| {
        order.iter().position(|site| part.sites.contains(site)).expect("a part has a site of the model")
    };
    SETS.map(|set| {
        let own = parts.iter().enumerate().filter(|(_, part)| is_site(part) == (set == 1));
        let mut own: Vec<(usize, usize)> = own.map(|(index, part)| (first(part), index)).collect();
        own.sort_unstable();
        let share = |first: usize| 1.0 - first as f64 / order.len() as f64;
        own.into_iter().map(|(first, index)| (index, share(first))).collect()
    })
}

/// `outputs`, borrowed.
fn borrowed<'a>(outputs: &[&'a [f32]]) -> Vec<Cow<'a, [f32]>> {
    outputs.iter().map(|output| Cow::Borrowed(*output)).collect()
}

/// The place in the network whose output the step of this name completes; `None` within a block.
fn place_after(step: &str) -> Option<String> {
    let place = step.strip_suffix(".mlp.fc2").or_else(|| step.strip_suffix(".reduction"));
    let embedding = step.starts_with("patch_embed") || step == "absolute_pos_embed";
    place.map(str::to_owned).or_else(|| embedding.then(|| "patch_embed".to_owned()))
}
