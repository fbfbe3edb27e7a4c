//! Measures recipes: accuracy on the search images, noise on a few of them, and predicted latency. Measurements are
//! kept in a journal.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use swinq_eval::{Collected, EffectSums, Interval, top1_difference};
use swinq_int8_runtime::{Plan, Start, Variant, VariantRunner};
use swinq_model::{Batch, Logits, QuantizedModel, Recipe};

use super::changes::{Space, State};
use super::latencies::Latencies;
use super::stopwatch::Stopwatch;
use crate::journal::{Journal, RunKey};
use crate::quantizer::Quantizer;
use crate::sensitivity::walk::{GROUP, Walk};
use crate::{BackendChoice, EngineOptions, Error};

/// Images on which changes are compared before the best is tried on all search images.
const PROBE_IMAGES: usize = GROUP;

/// The measurement of one recipe.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Trial {
    /// Distance from the float model on the search images.
    pub(super) sums: EffectSums,
    /// Top-1 accuracy minus the float model's on the search images.
    pub(super) difference: Interval,
    /// Share of the multiply-accumulates in INT8.
    pub(super) int8_share: f64,
    /// Predicted latency.
    pub(super) predicted_ms: f64,
}

/// The part of a [`Trial`] that is kept.
#[derive(Serialize, Deserialize)]
struct Kept {
    sums: EffectSums,
    difference: Interval,
}

/// The noise of several recipes at the logits, relative to the signal.
pub(super) struct Probe {
    /// Of the recipe that the others change.
    pub(super) base: f64,
    /// Of the others.
    pub(super) variants: Vec<f64>,
}

/// Measures recipes of one model.
pub(super) struct Bench {
    quantizer: Quantizer,
    runner: VariantRunner,
    start: Recipe,
    search: Batch,
    /// The first search images.
    probe: Batch,
    /// The float model's logits on the search images.
    reference: Collected,
    journal: Journal,
    table: Latencies,
    table_path: Option<PathBuf>,
    stopwatch: Stopwatch,
    on_gpu: bool,
    /// Predicted latencies of recipes; `None` for those that the backend cannot run.
    predicted: BTreeMap<String, Option<f64>>,
    float_ms: f64,
}

/// What a [`Bench`] is made of.
pub(super) struct Parts {
    pub(super) quantizer: Quantizer,
    pub(super) start: Recipe,
    pub(super) search: Batch,
    pub(super) journal: Journal,
    pub(super) table: Latencies,
    pub(super) table_path: Option<PathBuf>,
    /// The engine whose latency counts; resolved.
    pub(super) engine: EngineOptions,
}

impl Bench {
    /// A bench, after it has run the float model on the search images, and measured the launches of the float model,
    /// of the start recipe's and of models in which all layers of one type are left in float.
    ///
    /// # Errors
    /// The errors of the engine, and an error if the table of latencies cannot be written.
    pub(super) fn new(
        parts: Parts,
        space: &Space,
        progress: &mut dyn FnMut(usize, usize) -> Result<(), Error>,
    ) -> Result<Bench, Error> {
        let Parts { mut quantizer, start, search, journal, table, table_path, engine } = parts;
        let cpu = EngineOptions { backend: BackendChoice::Cpu, ..engine.clone() }.cpu_options()?;
        let runner = VariantRunner::new(quantizer.apply(&start)?, cpu)?;
        let stopwatch = Stopwatch::new(&engine, &search, table.batch_size)?;
        let probe = search.slice(0..PROBE_IMAGES.min(search.len()));
        let classes = quantizer.float().config.num_classes;
        let reference = Collected {
            logits: Logits { values: Vec::new(), classes },
            labels: search.labels.clone(),
            ids: search.ids.clone(),
        };
        let on_gpu = engine.backend == BackendChoice::Cuda;
        let (predicted, float_ms) = (BTreeMap::new(), 0.0);
        let mut bench = Bench {
            quantizer,
            runner,
            start,
            search,
            probe,
            reference,
            journal,
            table,
            table_path,
            stopwatch,
            on_gpu,
            predicted,
            float_ms,
        };
        let (float, families) = (Recipe::float(), space.families());
        let variant = bench.prepare(&float)?;
        bench.reference.logits = bench.logits(&variant, &mut || progress(0, families.len() + 2))?;
        let mut recipes = vec![bench.start.clone(), float.clone()];
        recipes.extend(families.iter().map(|state| space.recipe(state)));
        for (done, recipe) in recipes.iter().enumerate() {
            bench.predict(recipe)?;
            bench.runner.forget_unused();
            progress(done + 1, recipes.len())?;
        }
        let unable = "the backend cannot run the float model";
        bench.float_ms = bench.predict(&float)?.ok_or_else(|| Error::argument("backend", unable))?;
        Ok(bench)
    }

    /// The predicted latency of the float model.
    pub(super) fn float_ms(&self) -> f64 {
        self.float_ms
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
    pub(super) fn quantizer(&self) -> &Quantizer {
        &self.quantizer
    }

    /// The quantizer of the models, to make the final one.
    pub(super) fn quantizer_mut(&mut self) -> &mut Quantizer {
        &mut self.quantizer
    }

    /// Runs a recipe on all search images, unless the journal has it. `tick` is called after every batch, and may
    /// stop the run.
    pub(super) fn trial(
        &mut self,
        recipe: &Recipe,
        tick: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<Trial, Error> {
        let unable = || Error::argument("recipe", format!("the backend cannot run `{}`", recipe.name));
        let predicted_ms = self.predict(recipe)?.ok_or_else(unable)?;
        let model = self.quantizer.apply(recipe)?;
        let (name, int8_share) = (format!("trial {}", identity(model)), model.int8_share());
        let kept = match self.journal.get::<Kept>(&name) {
            Some(kept) => kept,
            None => {
                let variant = self.runner.prepare(model)?;
                let logits = self.logits(&variant, tick)?;
                let kept = self.compare(logits)?;
                self.journal.put(&name, &kept)?;
                kept
            }
        };
        Ok(Trial { sums: kept.sums, difference: kept.difference, int8_share, predicted_ms })
    }

    fn compare(&self, logits: Logits) -> Result<Kept, Error> {
        let mut sums = EffectSums::default();
        sums.add(&self.reference.logits, &logits, &self.search.labels)?;
        let own = Collected { logits, labels: self.search.labels.clone(), ids: self.search.ids.clone() };
        Ok(Kept { sums, difference: top1_difference(&self.reference, &own)? })
    }

    /// The noise of `state` and of `states` at the logits of the first search images. Each of `states` runs from
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
            let sums = self.journal.get(&name);
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
            10f64.powf(-db / 10.0)
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
        let classes = self.reference.logits.classes;
        let values = self.reference.logits.values[..self.probe.len() * classes].to_vec();
        let reference = Logits { values, classes };
        let mut walk = Walk::new(base, &self.probe, classes);
        for (_, index, variant) in variants {
            let mut sums = EffectSums::default();
            sums.add(&reference, &walk.logits(&mut self.runner, variant), &self.probe.labels)?;
            self.journal.put(&found[*index].0, &sums)?;
            found[*index].1 = Some(sums);
            tick()?;
        }
        Ok(())
    }

    /// The predicted latency of a recipe in milliseconds; `None` if the backend cannot run it. Launches that the
    /// table does not hold are measured.
    pub(super) fn predict(&mut self, recipe: &Recipe) -> Result<Option<f64>, Error> {
        let model = self.quantizer.apply(recipe)?;
        let key = identity(model);
        if let Some(&known) = self.predicted.get(&key) {
            return Ok(known);
        }
        let plan = Plan::new(model)?.outline();
        let mut predicted = self.table.predict(&plan);
        if predicted.is_none() {
            match self.measure(recipe) {
                Ok(()) => predicted = self.table.predict(&plan),
                // The GPU has no kernel for some recipes.
                Err(Error::Runtime(_)) if self.on_gpu && *recipe != self.start => {}
                Err(error) => return Err(error),
            }
        }
        self.predicted.insert(key, predicted);
        Ok(predicted)
    }

    /// Measures the launches of a recipe's model, and keeps them.
    fn measure(&mut self, recipe: &Recipe) -> Result<(), Error> {
        let reference = self.quantizer.apply(&self.start)?.clone();
        let reference_variant = self.runner.prepare(&reference)?;
        let model = self.quantizer.apply(recipe)?;
        let variant = self.runner.prepare(model)?;
        let (table, runner) = (&mut self.table, &mut self.runner);
        self.stopwatch.measure(runner, (model, &variant), (&reference, &reference_variant), table)?;
        if let Some(path) = &self.table_path {
            self.table.save(path)?;
        }
        Ok(())
    }

    fn prepare(&mut self, recipe: &Recipe) -> Result<Variant, Error> {
        Ok(self.runner.prepare(self.quantizer.apply(recipe)?)?)
    }

    /// The logits of `variant` on all search images. `tick` is called after every batch.
    fn logits(
        &mut self,
        variant: &Variant,
        tick: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<Logits, Error> {
        let (classes, last) = (self.reference.logits.classes, self.runner.positions().len() - 1);
        let image_bytes = self.search.image_bytes();
        let mut values = vec![0.0; self.search.len() * classes];
        let each = self.runner.images_at_a_time();
        let parts = self.search.pixels.chunks(each * image_bytes).zip(values.chunks_mut(each * classes));
        for (pixels, logits) in parts {
            let images = logits.len() / classes;
            self.runner.run(variant, images, Start::Pixels(pixels), last, logits);
            tick()?;
        }
        Ok(Logits { values, classes })
    }
}

/// A hash of what distinguishes the models of one run: the settings and ranges of their sites.
fn identity(model: &QuantizedModel) -> String {
    let sites = model.sites.iter().map(|(site, state)| (site.to_string(), &state.spec, state.amax));
    RunKey::new("model").with_json(&sites.collect::<Vec<_>>()).finish()
}
