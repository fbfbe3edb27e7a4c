//! The parts of a search: the calibration, the cache and the table, the bench, and the results.

use std::ops::ControlFlow;

use swinq_eval::LoadMeter;
use swinq_eval::results::tune::{
    CostModel, Goal, TUNE_SCHEMA, TuneCandidate, TuneImages, Tuning, Verification,
};
use swinq_model::quantized::FloatModel;
use swinq_model::{Batch, QuantizedModel, Recipe, Size};

use super::bench::{Bench, Parts};
use super::budget::Budget;
use super::changes::Space;
use super::judge::Judge;
use super::latencies::Latencies;
use super::search::{Outcome, Search};
use super::{TuneOptions, TuneProgress, Tuned, verify};
use crate::cache::Cache;
use crate::quantizer::ModelQuantizer;
use crate::sensitivity::metric::Metric;
use crate::sensitivity::{info, run_key, subject};
use crate::{BackendChoice, DEFAULT_BATCH, EngineOptions, Error, Images, Model, environment};

/// The measurements before the long ones.
type First<'a> = dyn FnMut(&mut Cache) -> Result<(), Error> + 'a;

/// The means of a search's measurements.
pub(super) struct Run<'a> {
    options: &'a TuneOptions,
    /// The engine whose latency counts; resolved.
    engine: EngineOptions,
    /// The size of the images whose latency counts.
    size: Size,
    pub(super) bench: Bench,
    budget: Budget,
}

impl<'a> Run<'a> {
    /// A search for the recipe of `float`, and where it looks. `first` is called before the long
    /// measurements. `float` is calibrated on the images. Recipes are compared on the batches; `command` is
    /// what the key of the cache begins with.
    pub(super) fn new(
        float: FloatModel,
        options: &'a TuneOptions,
        metric: Metric,
        (calibration, search): (&Images, Vec<Batch>),
        (command, first): (&str, &mut First<'_>),
        progress: &mut dyn FnMut(TuneProgress<'_>) -> ControlFlow<()>,
    ) -> Result<(Run<'a>, Space), Error> {
        let max_batch = options.batch_size.max(DEFAULT_BATCH);
        let engine = EngineOptions { max_batch, ..options.engine.clone().resolved()? };
        let size = timed_size(&float, &search, &engine);
        let mut machine = engine.describe()?;
        if float.config.is_backbone() || size != float.config.image_size {
            machine += &format!(", images of {size}");
        }
        if let Some(path) = &options.latencies {
            Latencies::check(path, &machine, options.batch_size)?;
        }
        let mut on_step = |step| progress(TuneProgress::Calibrate(step));
        let how = (&options.read, options.sizing);
        let start = options.recipe.clone();
        let mut quantizer = ModelQuantizer::calibrate(float, &start, calibration, how, &mut on_step)?;
        let engine = engine.for_model(quantizer.apply(&start)?)?;
        let mut cache = match &options.cache {
            Some(path) => Cache::open(path, &run_key(command, &mut quantizer, (&start, &metric), &search)?)?,
            None => Cache::in_memory(),
        };
        report(progress, TuneProgress::Cache(cache.found()))?;
        let budget = Budget::start(options.budget);
        first(&mut cache)?;
        // The default depends on the model.
        if engine.backend == BackendChoice::Cuda
            && engine.cuda.residual == Some(swinq_int8_runtime::cuda::ResidualType::F32)
        {
            machine += ", f32 residual";
        }
        let table = table(options, machine, progress)?;
        let space = Space::new(&start, quantizer.apply(&start)?);
        let parts = Parts {
            quantizer,
            start,
            metric,
            search,
            cache,
            table,
            table_path: options.latencies.clone(),
            engine: engine.clone(),
            size,
            cores: environment(engine.threads)?.cores.unwrap_or(1),
        };
        let bench = Bench::new(parts, (&space, budget), &mut |step| report(progress, step))?;
        Ok((Run { options, engine, size, bench, budget }, space))
    }

    /// Searches in `space`.
    pub(super) fn search(
        &mut self,
        space: Space,
        judge: Judge<'_>,
        progress: &mut dyn FnMut(TuneProgress<'_>) -> ControlFlow<()>,
    ) -> Result<Outcome, Error> {
        Search::new(&mut self.bench, space, judge, (self.options, self.budget), progress).run()
    }

    /// Compares `model` with the float model on images that the search did not see.
    pub(super) fn verify(
        &mut self,
        model: &QuantizedModel,
        images: &Images,
        progress: &mut dyn FnMut(TuneProgress<'_>) -> ControlFlow<()>,
    ) -> Result<Verification, Error> {
        let float = self.bench.model(&Recipe::float())?;
        let mut on_images = |done, all| progress(TuneProgress::Verify(done, all));
        let metric = self.bench.metric();
        verify::verify([&float, model], metric, &self.engine, images, self.options, &mut on_images)
    }

    /// Measures the latency of `model`, the chosen one, and assembles the results. `images` are those of
    /// search and verification.
    pub(super) fn finish(
        mut self,
        outcome: Outcome,
        model: QuantizedModel,
        (goal, counts, verification): (Goal, TuneImages, Option<Verification>),
        images: &Images,
    ) -> Result<Tuned, Error> {
        let Outcome { mut candidates, chosen, kept, end } = outcome;
        let Run { options, ref engine, size, ref mut bench, .. } = self;
        let (float, start) = (bench.model(&Recipe::float())?, bench.model(&candidates[0].recipe)?);
        let meter = LoadMeter::start();
        let latencies = verify::latencies([&float, &start, &model], engine, (size, options.batch_size))?;
        let latency_load = meter.finish();
        let [float_latency, start_latency, latency] = latencies;
        candidates[0].latency_ms = Some(start_latency);
        candidates[chosen].latency_ms = Some(latency);
        let results = Tuning {
            schema: TUNE_SCHEMA,
            model: subject(bench.quantizer()),
            start_recipe: options.recipe.name.clone(),
            goal,
            cost: CostModel {
                backend: engine.backend()?.name(),
                hardware: bench.table().machine.clone(),
                batch_size: options.batch_size,
                image_size: model.config.is_backbone().then_some([size.height, size.width]),
                table_sha256: bench.table().sha256(),
                spread: bench.spread(),
            },
            images: counts,
            float_ms: bench.float_ms(),
            float_latency_ms: float_latency,
            front: front(&candidates),
            candidates,
            chosen,
            kept,
            verification,
            end,
            launch_load: bench.load(),
            latency_load,
            environment: environment(engine.threads)?,
            data: Some(info(images, &model, options.sizing)),
        };
        Ok(Tuned { results, model: Model::from_quantized(model)? })
    }
}

/// The table of latencies for `machine`: that of the file, if it holds times that other processes did not
/// disturb.
fn table(
    options: &TuneOptions,
    machine: String,
    progress: &mut dyn FnMut(TuneProgress<'_>) -> ControlFlow<()>,
) -> Result<Latencies, Error> {
    let Some(path) = &options.latencies else { return Ok(Latencies::new(machine, options.batch_size)) };
    let table = Latencies::open(path, machine.clone(), options.batch_size)?;
    if !table.is_disturbed() {
        return Ok(table);
    }
    report(progress, TuneProgress::DisturbedTable)?;
    Ok(Latencies::new(machine, options.batch_size))
}

/// The size of the images whose latency counts: on a CPU the one that most images have, on a GPU the model's
/// own.
fn timed_size(float: &FloatModel, search: &[Batch], engine: &EngineOptions) -> Size {
    let own = float.config.image_size;
    if engine.backend == BackendChoice::Cuda {
        return own;
    }
    search.iter().max_by_key(|batch| (batch.len(), batch.size.area())).map_or(own, |batch| batch.size)
}

/// Indices of the candidates that no other candidate beats in both latency and SQNR, from the fastest.
fn front(candidates: &[TuneCandidate]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_by(|&a, &b| {
        let [a, b] = [a, b].map(|index| &candidates[index]);
        let by_time = a.predicted_ms.total_cmp(&b.predicted_ms);
        by_time.then(b.effect.sqnr_db.total_cmp(&a.effect.sqnr_db))
    });
    let mut best = f64::NEG_INFINITY;
    order.retain(|&index| {
        let better = candidates[index].effect.sqnr_db > best;
        best = best.max(candidates[index].effect.sqnr_db);
        better
    });
    order
}

/// Calls `progress`; [`Error::Interrupted`] if it stops the run.
fn report(
    progress: &mut dyn FnMut(TuneProgress<'_>) -> ControlFlow<()>,
    what: TuneProgress<'_>,
) -> Result<(), Error> {
    match progress(what) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Error::Interrupted),
    }
}
