//! Measures recipes: accuracy on the search images, noise on a few of them, and predicted latency.
//! Measurements are kept in a cache.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use swinq_eval::{Collected, EffectSums, Interval, Load, top1_difference};
use swinq_int8_runtime::{LaunchSteps, Outline, Plan, Variant, VariantRunner};
use swinq_model::{Batch, Logits, QuantizedModel, Recipe, Size};

use super::TuneProgress;
use super::budget::Budget;
use super::changes::{Space, State};
use super::judge::Judge;
use super::latencies::Latencies;
use super::stopwatch::Stopwatch;
use crate::cache::Cache;
use crate::quantizer::{ModelQuantizer, identity};
use crate::sensitivity::metric::{Metric, Outputs, first_of};
use crate::sensitivity::walk::{GROUP, Walk, group_of, groups};
use crate::{BackendChoice, EngineOptions, Error};

/// The most bytes of feature maps of the float model that are kept. Those of further images are computed
/// again for every recipe.
const KEPT_BYTES: usize = 1 << 30;

/// The models whose launches are timed whatever the budget is: the start recipe's and the float model.
const NEEDED: usize = 2;

/// The measurement of one recipe.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Trial {
    /// Distance from the float model on the search images.
    pub(super) sums: EffectSums,
    /// Top-1 accuracy minus the float model's on the search images; `None` for images without labels.
    pub(super) difference: Option<Interval>,
    /// The caller's metric, if it decides.
    pub(super) value: Option<f64>,
    /// Share of the multiply-accumulates in INT8.
    pub(super) int8_share: f64,
    /// Predicted latency.
    pub(super) predicted_ms: f64,
}

/// The part of a [`Trial`] that is kept.
#[derive(Serialize, Deserialize)]
struct Kept {
    sums: EffectSums,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    difference: Option<Interval>,
}

/// The noise of several recipes at the logits, or at the worst output of a backbone, relative to the signal.
pub(super) struct Probe {
    /// Of the recipe that the others change.
    pub(super) base: f64,
    /// Of the others.
    pub(super) variants: Vec<f64>,
}

/// Measures recipes of one model.
pub(super) struct Bench {
    quantizer: ModelQuantizer,
    runner: VariantRunner,
    start: Recipe,
    metric: Metric,
    /// The float model.
    float: Variant,
    /// The search images, in groups of one size.
    groups: Vec<Batch>,
    /// The float model's outputs on these groups, as far as they are kept. Those of the first are.
    references: Vec<Option<Outputs>>,
    /// The first images of the first group, on which changes are compared before the best is tried on all
    /// search images.
    probe: Batch,
    cache: Cache,
    table: Latencies,
    table_path: Option<PathBuf>,
    stopwatch: Stopwatch,
    cores: usize,
    on_gpu: bool,
    /// Predicted latencies of recipes; `None` for those that the backend cannot run.
    predicted: BTreeMap<String, Option<f64>>,
    float_ms: f64,
}

/// The parts of a [`Bench`].
pub(super) struct Parts {
    pub(super) quantizer: ModelQuantizer,
    pub(super) start: Recipe,
    pub(super) metric: Metric,
    /// A batch for each size.
    pub(super) search: Vec<Batch>,
    pub(super) cache: Cache,
    pub(super) table: Latencies,
    pub(super) table_path: Option<PathBuf>,
    /// The engine whose latency counts; resolved.
    pub(super) engine: EngineOptions,
    /// The size of the images whose latency counts.
    pub(super) size: Size,
    /// The cores of the machine.
    pub(super) cores: usize,
}

impl Bench {
    /// A bench, after it has run the float model on the search images, and measured the launches of the float
    /// model, of the start recipe's and, within `budget`, of models whose layers of one type are all left in
    /// float.
    ///
    /// # Errors
    /// The errors of the engine, and an error if the table of latencies cannot be written.
    pub(super) fn new(
        parts: Parts,
        (space, budget): (&Space, Budget),
        progress: &mut dyn FnMut(TuneProgress<'_>) -> Result<(), Error>,
    ) -> Result<Bench, Error> {
        let Parts { mut quantizer, start, metric, search, cache, table, table_path, engine, size, cores } =
            parts;
        let cpu = EngineOptions { backend: BackendChoice::Cpu, ..engine.clone() }.cpu_options()?;
        let mut runner = VariantRunner::new(quantizer.apply(&start)?, cpu)?;
        let (float, families) = (Recipe::float(), space.families());
        let variant = runner.prepare(quantizer.apply(&float)?)?;
        let config = &quantizer.float().config;
        let stopwatch = Stopwatch::new(&engine, (size, config.in_chans), table.batch_size)?;
        let probe = search[0].slice(0..group_of(config, search[0].size).min(search[0].len()));
        let each = |batch: &Batch| match metric {
            // Logits take no memory: all threads have work.
            Metric::Logits(_) => runner.images_at_a_time().max(GROUP),
            Metric::Maps(_) => group_of(config, batch.size),
        };
        let groups: Vec<Batch> = search.iter().flat_map(|batch| groups(batch, each(batch))).collect();
        let on_gpu = engine.backend == BackendChoice::Cuda;
        let (predicted, float_ms) = (BTreeMap::new(), 0.0);
        let mut bench = Bench {
            quantizer,
            runner,
            start,
            metric,
            float: variant,
            references: vec![None; groups.len()],
            groups,
            probe,
            cache,
            table,
            table_path,
            stopwatch,
            cores,
            on_gpu,
            predicted,
            float_ms,
        };
        bench.keep_references(progress)?;
        let mut recipes = vec![bench.start.clone(), float.clone()];
        recipes.extend(families.iter().map(|state| space.recipe(state)));
        for (done, recipe) in recipes.iter().enumerate() {
            // The launches of further models are timed when a candidate needs them.
            if done >= NEEDED && budget.is_over() {
                break;
            }
            bench.predict(recipe)?;
            bench.runner.forget_unused();
            progress(TuneProgress::Latencies(done + 1, recipes.len()))?;
        }
        if !budget.is_over() {
            bench.table.settle();
            bench.save_table()?;
        }
        let unable = "the backend cannot run the float model";
        bench.float_ms = bench.predict(&float)?.ok_or_else(|| Error::argument("backend", unable))?;
        Ok(bench)
    }

    /// The predicted latency of the float model.
    pub(super) fn float_ms(&self) -> f64 {
        self.float_ms
    }

    /// The spread of a latency, as a fraction of it.
    pub(super) fn spread(&self) -> f64 {
        self.table.spread()
    }

    /// The load of the machine while launches were timed.
    pub(super) fn load(&self) -> Load {
        self.stopwatch.load()
    }

    /// What counts.
    pub(super) fn metric(&self) -> &Metric {
        &self.metric
    }

    /// The table of latencies.
    pub(super) fn table(&self) -> &Latencies {
        &self.table
    }

    /// The recipe's model.
    pub(super) fn model(&mut self, recipe: &Recipe) -> Result<QuantizedModel, Error> {
        Ok(self.quantizer.apply(recipe)?.clone())
    }

    /// The quantizer of the models.
    pub(super) fn quantizer(&self) -> &ModelQuantizer {
        &self.quantizer
    }

    /// The quantizer of the models, to make the final one.
    pub(super) fn quantizer_mut(&mut self) -> &mut ModelQuantizer {
        &mut self.quantizer
    }

    /// Runs a recipe on all search images, and asks `judge` for its value, unless the cache has them. `tick`
    /// is called after every batch, and may stop the run.
    pub(super) fn trial(
        &mut self,
        recipe: &Recipe,
        judge: &mut Judge<'_>,
        tick: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<Trial, Error> {
        let unable = || Error::argument("recipe", format!("the backend cannot run `{}`", recipe.name));
        let predicted_ms = self.predict(recipe)?.ok_or_else(unable)?;
        let model = self.quantizer.apply(recipe)?;
        let (name, int8_share) = (format!("trial {}", identity(model)), model.int8_share());
        let kept = match self.cache.get::<Kept>(&name) {
            Some(kept) => kept,
            None => {
                let variant = self.runner.prepare(model)?;
                let kept = self.compare(&variant, tick)?;
                self.cache.put(&name, &kept)?;
                kept
            }
        };
        let value = judge.value(self.quantizer.apply(recipe)?, &mut self.cache)?;
        Ok(Trial { sums: kept.sums, difference: kept.difference, value, int8_share, predicted_ms })
    }

    /// Runs the float model on the search images, and keeps its outputs: those of the first group, and as
    /// many more as may be kept. `progress` is called after every group.
    fn keep_references(
        &mut self,
        progress: &mut dyn FnMut(TuneProgress<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (mut bytes, mut done) = (0, 0);
        let all = self.groups.iter().map(Batch::len).sum();
        for index in 0..self.groups.len() {
            if index > 0 && bytes > KEPT_BYTES {
                break;
            }
            let outputs = outputs_of(&mut self.runner, &self.float, &self.groups[index])?;
            bytes += outputs.iter().map(|output| output.len() * size_of::<f32>()).sum::<usize>();
            self.references[index] = Some(outputs);
            done += self.groups[index].len();
            progress(TuneProgress::Float(done, all))?;
        }
        Ok(())
    }

    /// Compares `variant` with the float model on all search images. `tick` is called after every group.
    fn compare(
        &mut self,
        variant: &Variant,
        tick: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<Kept, Error> {
        let (mut sums, mut logits) = (EffectSums::default(), [Vec::new(), Vec::new()]);
        for index in 0..self.groups.len() {
            let (runner, group) = (&mut self.runner, &self.groups[index]);
            let own = outputs_of(runner, variant, group)?;
            let reference = match &self.references[index] {
                Some(kept) => Cow::Borrowed(kept),
                None => Cow::Owned(outputs_of(runner, &self.float, group)?),
            };
            match self.metric {
                Metric::Logits(_) => {
                    logits[0].extend_from_slice(&reference[0]);
                    logits[1].extend_from_slice(&own[0]);
                }
                Metric::Maps(_) => sums.merge(&self.sums(&reference, &own, group)?),
            }
            tick()?;
        }
        match self.metric {
            Metric::Logits(classes) => self.compare_logits(classes, logits),
            Metric::Maps(_) => Ok(Kept { sums, difference: None }),
        }
    }

    /// The distance of the outputs `own` of `group` from those of the float model.
    fn sums(&self, reference: &Outputs, own: &Outputs, group: &Batch) -> Result<EffectSums, Error> {
        let own: Vec<Cow<'_, [f32]>> = own.iter().map(|output| Cow::Borrowed(&output[..])).collect();
        Ok(self.metric.sums(&whole(reference), &own, (group.len(), &group.labels))?)
    }

    /// Compares logits of all search images: the float model's and another's.
    fn compare_logits(&self, classes: usize, logits: [Vec<f32>; 2]) -> Result<Kept, Error> {
        let [reference, own] = logits.map(|values| Collected {
            logits: Logits { values, classes },
            labels: self.groups.iter().flat_map(|group| group.labels.clone()).collect(),
            ids: self.groups.iter().flat_map(|group| group.ids.clone()).collect(),
        });
        let mut sums = EffectSums::default();
        sums.add(&reference.logits, &own.logits, &own.labels)?;
        let labelled = !own.labels.is_empty();
        let difference = labelled.then(|| top1_difference(&reference, &own)).transpose()?;
        Ok(Kept { sums, difference })
    }

    /// The noise of `state` and of `states` on the first search images. Each of `states` runs from
    /// its first difference from `state` on. `tick` is called after every step, and may stop the measurement.
    pub(super) fn probe(
        &mut self,
        space: &Space,
        state: &State,
        states: &[State],
        tick: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<Probe, Error> {
        let base = space.recipe(state);
        let mut recipes = vec![base.clone()];
        recipes.extend(states.iter().map(|state| space.recipe(state)));
        let mut found: Vec<(String, Option<EffectSums>)> = Vec::with_capacity(recipes.len());
        for recipe in &recipes {
            let name = format!("probe {}", identity(self.quantizer.apply(recipe)?));
            let sums = self.cache.get(&name);
            found.push((name, sums));
        }
        let missing: Vec<usize> = (0..recipes.len()).filter(|&index| found[index].1.is_none()).collect();
        if !missing.is_empty() {
            let base = self.prepare(&base)?;
            let mut variants = Vec::with_capacity(missing.len());
            for index in missing {
                let variant = self.prepare(&recipes[index])?;
                // A walk goes forward only, so variants are taken in the order of their first difference.
                let position = self.runner.first_difference(&base, &variant).unwrap_or(usize::MAX);
                variants.push((position, index, variant));
                tick()?;
            }
            variants.sort_by_key(|(position, index, _)| (*position, *index));
            self.probe_variants(&base, &variants, &mut found, tick)?;
        }
        self.runner.forget_unused();
        let noise = |(_, sums): &(String, Option<EffectSums>)| {
            let db = sums.as_ref().map_or(f64::INFINITY, |sums| sums.effect().sqnr_db);
            libm::pow(10.0, -db / 10.0)
        };
        Ok(Probe { base: noise(&found[0]), variants: found[1..].iter().map(noise).collect() })
    }

    /// Runs `variants` of `base` on the probe images, and keeps the sums of each as soon as it is finished.
    fn probe_variants(
        &mut self,
        base: &Variant,
        variants: &[(usize, usize, Variant)],
        found: &mut [(String, Option<EffectSums>)],
        tick: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let group = &self.probe;
        self.runner.set_size(group.size)?;
        let complete = match self.metric {
            // A classifier has one output, which every run computes.
            Metric::Logits(_) => Vec::new(),
            Metric::Maps(_) => outputs_of(&mut self.runner, base, group)?,
        };
        let reference = self.references[0].as_ref().expect("the outputs of the first group are kept");
        let reference = first_of(reference, group.len(), self.groups[0].len());
        let mut walk = Walk::new(base, group);
        for (_, index, variant) in variants {
            let computed = walk.outputs(&mut self.runner, variant);
            let own = computed.with(&whole(&complete)[..computed.first]);
            let sums = self.metric.sums(&reference, &own, (group.len(), &group.labels))?;
            self.cache.put(&found[*index].0, &sums)?;
            found[*index].1 = Some(sums);
            tick()?;
        }
        Ok(())
    }

    /// The predicted latency of a recipe in milliseconds; `None` if the backend cannot run it. Launches that
    /// the table does not hold are measured.
    pub(super) fn predict(&mut self, recipe: &Recipe) -> Result<Option<f64>, Error> {
        let model = self.quantizer.apply(recipe)?;
        let key = identity(model);
        if let Some(&known) = self.predicted.get(&key) {
            return Ok(known);
        }
        let plan = Plan::new(model)?;
        let (launches, plan) = (self.stopwatch.launches(&plan), plan.outline());
        let predicted = match launches.and_then(|launches| self.predict_launches(recipe, &plan, &launches)) {
            // The GPU has no kernel for some recipes.
            Err(Error::Runtime(_)) if self.on_gpu && *recipe != self.start => None,
            predicted => predicted?,
        };
        self.predicted.insert(key, predicted);
        Ok(predicted)
    }

    fn predict_launches(
        &mut self,
        recipe: &Recipe,
        plan: &Outline,
        launches: &[LaunchSteps],
    ) -> Result<Option<f64>, Error> {
        let known = self.table.predict(plan, launches);
        if known.is_some() {
            return Ok(known);
        }
        self.measure(recipe, launches)?;
        Ok(self.table.predict(plan, launches))
    }

    /// Measures the `launches` of a recipe's model, and keeps them.
    fn measure(&mut self, recipe: &Recipe, launches: &[LaunchSteps]) -> Result<(), Error> {
        let reference = self.quantizer.apply(&self.start)?.clone();
        let reference_variant = self.runner.prepare(&reference)?;
        let model = self.quantizer.apply(recipe)?;
        let variant = self.runner.prepare(model)?;
        let (table, runner) = (&mut self.table, &mut self.runner);
        self.stopwatch.measure(
            runner,
            (model, &variant),
            (&reference, &reference_variant),
            launches,
            table,
        )?;
        self.save_table()
    }

    /// Writes the table, if it is kept, with the disturbance of this run's measurements.
    fn save_table(&mut self) -> Result<(), Error> {
        self.table.set_disturbance(self.stopwatch.load().disturbance(self.cores));
        match &self.table_path {
            Some(path) => self.table.save(path),
            None => Ok(()),
        }
    }

    fn prepare(&mut self, recipe: &Recipe) -> Result<Variant, Error> {
        Ok(self.runner.prepare(self.quantizer.apply(recipe)?)?)
    }
}

/// All outputs of `variant` for the images of `group`.
fn outputs_of(runner: &mut VariantRunner, variant: &Variant, group: &Batch) -> Result<Outputs, Error> {
    runner.set_size(group.size)?;
    Ok(Walk::new(variant, group).outputs(runner, variant).values)
}

/// `outputs`, borrowed.
fn whole(outputs: &Outputs) -> Vec<&[f32]> {
    outputs.iter().map(|output| &output[..]).collect()
}
