//! Tuning: searches for the recipe with the least latency that keeps the accuracy.
//!
//! The latency of a recipe is predicted: a table holds the measured time of every variant of every launch. The
//! search compares recipes on one half of the images; the chosen one is verified on the other half.

mod bench;
mod changes;
mod latencies;
mod search;
mod stopwatch;
mod verify;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use swinq_calib::Progress;
use swinq_eval::Interval;
use swinq_eval::results::tune::{CostModel, Goal, TUNE_SCHEMA, TuneImages, Tuning};
use swinq_model::Recipe;

use crate::journal::{Found, Journal};
use crate::limits::check_batch_size;
use crate::quantizer::Quantizer;
use crate::sensitivity::{load, run_key, subject};
use crate::{DEFAULT_BATCH, EngineOptions, Error, Images, Model, ReadOptions, environment};
use bench::{Bench, Parts};
use changes::Space;
use latencies::Latencies;
use search::{Outcome, Search};

/// How a recipe is searched.
#[derive(Clone, Debug)]
pub struct TuneOptions {
    /// The recipe from which the search starts.
    pub recipe: Recipe,
    /// How images are read.
    pub read: ReadOptions,
    /// The engine whose latency counts. Candidates are compared on the CPU; the chosen one is verified on this
    /// engine.
    pub engine: EngineOptions,
    /// Images per inference whose latency counts.
    pub batch_size: usize,
    /// The largest drop of top-1 accuracy, in percentage points.
    pub max_drop: f64,
    /// The least speedup over the float model.
    pub min_speedup: Option<f64>,
    /// Time of the search, without calibration and verification; `None` is unlimited. With a budget the result
    /// depends on the speed of the machine.
    pub budget: Option<Duration>,
    /// The file that keeps finished measurements; `None` keeps none.
    pub cache: Option<PathBuf>,
    /// The table of latencies: read if it exists, and extended. With a table that holds every launch the search
    /// needs, the result does not depend on the machine. `None` keeps no table.
    pub latencies: Option<PathBuf>,
}

/// The result of a search.
#[derive(Debug)]
pub struct Tuned {
    /// Everything that was measured.
    pub results: Tuning,
    /// The model of the chosen recipe.
    pub model: Model,
}

/// What a search tells its caller.
#[derive(Clone, Copy, Debug)]
pub enum TuneProgress<'a> {
    /// Images or layers of the calibration.
    Calibrate(Progress),
    /// What the file of finished measurements held.
    Cache(Found),
    /// Models whose launches are timed: done, all.
    Latencies(usize, usize),
    /// A measurement goes on.
    Probe,
    /// A recipe was run on all search images.
    Trial {
        /// Its number, from 1.
        number: usize,
        /// The float model's predicted latency divided by this one's.
        speedup: f64,
        /// SQNR of the logits in dB.
        sqnr_db: f64,
        /// Top-1 accuracy minus the float model's.
        difference: Interval,
        /// The differences from the start recipe, in words.
        changes: &'a [String],
    },
    /// Images of the verification: done, all.
    Verify(usize, usize),
}

/// Searches the fastest recipe for `model`, a float model, that loses at most `options.max_drop` points of top-1
/// accuracy on `images`, which must have labels; their classes are numbered as by [`Images::numbered_for`]. Every second image is a search image, the others verify the result.
/// Ranges are calibrated on `calibration`.
///
/// `progress` is called after every step; `Break` stops the run, and everything that was measured is in the cache.
///
/// # Errors
/// [`Error::Argument`] for options outside their limits, fewer than two images, or a model that is quantized;
/// [`Error::Labels`]; [`Error::Backbone`]; the errors of [`calibrate`](crate::calibrate()) and of the engine; [`Error::Interrupted`].
pub fn tune(
    model: Model,
    options: &TuneOptions,
    calibration: &Images,
    images: &Images,
    progress: &mut dyn FnMut(TuneProgress<'_>) -> ControlFlow<()>,
) -> Result<Tuned, Error> {
    check(options, images)?;
    model.check_classifier()?;
    crate::calibration::check_recipe(&model, &options.recipe)?;
    let (images, _) = &images.numbered_for(model.config(), model.labels(), model.dialect())?;
    let engine = EngineOptions {
        max_batch: options.batch_size.max(DEFAULT_BATCH),
        ..options.engine.clone().resolved()?
    };
    let float = model.into_float()?;
    let [search_images, verification] = images.halves();
    let search = load(&search_images, &float.transform, &options.read)?;
    if search.labels.is_empty() {
        let problem = "the images have no labels, and a drop of accuracy needs them".to_owned();
        return Err(Error::Labels { problem });
    }
    let mut on_step = |step| progress(TuneProgress::Calibrate(step));
    let mut quantizer =
        Quantizer::calibrate(float, &options.recipe, calibration, &options.read, &mut on_step)?;
    let journal = match &options.cache {
        Some(path) => Journal::open(path, &run_key("tune", &mut quantizer, &options.recipe, &search)?)?,
        None => Journal::in_memory(),
    };
    report(progress, TuneProgress::Cache(journal.found()))?;
    let machine = engine.describe()?;
    let table = match &options.latencies {
        Some(path) => Latencies::open(path, machine, options.batch_size)?,
        None => Latencies::new(machine, options.batch_size),
    };
    let start = options.recipe.clone();
    let space = Space::new(&start, quantizer.apply(&start)?);
    let table_path = options.latencies.clone();
    let counts =
        TuneImages { calibration: calibration.len(), search: search.len(), verification: verification.len() };
    let parts = Parts { quantizer, start, search, journal, table, table_path, engine: engine.clone() };
    let mut timed = |done, all| report(progress, TuneProgress::Latencies(done, all));
    let mut bench = Bench::new(parts, &space, &mut timed)?;
    let outcome = Search::new(&mut bench, space, options, progress).run()?;
    let of = ImageSets { all: images, calibration, verification: &verification };
    finish(bench, outcome, options, &engine, of, counts, progress)
}

/// The images of a search.
struct ImageSets<'a> {
    all: &'a Images,
    calibration: &'a Images,
    verification: &'a Images,
}

/// Verifies and measures the chosen recipe, and assembles the results.
fn finish(
    mut bench: Bench,
    outcome: Outcome,
    options: &TuneOptions,
    engine: &EngineOptions,
    images: ImageSets<'_>,
    counts: TuneImages,
    progress: &mut dyn FnMut(TuneProgress<'_>) -> ControlFlow<()>,
) -> Result<Tuned, Error> {
    let Outcome { mut candidates, chosen, kept, end } = outcome;
    let mut on_step = |step| progress(TuneProgress::Calibrate(step));
    let recipe = &candidates[chosen].recipe;
    let model = bench.quantizer_mut().finish(recipe, images.calibration, &options.read, &mut on_step)?;
    let float = bench.model(&Recipe::float())?;
    let mut on_images = |done, all| progress(TuneProgress::Verify(done, all));
    let verification =
        verify::verify([&float, &model], engine, images.verification, options, &mut on_images)?;
    let start = bench.model(&candidates[0].recipe)?;
    let latencies = verify::latencies([&float, &start, &model], engine, options.batch_size)?;
    let [float_latency, start_latency, latency] = latencies;
    candidates[0].latency_ms = Some(start_latency);
    candidates[chosen].latency_ms = Some(latency);
    let results = Tuning {
        schema: TUNE_SCHEMA,
        model: subject(bench.quantizer()),
        start_recipe: options.recipe.name.clone(),
        goal: Goal {
            max_drop: options.max_drop,
            min_speedup: options.min_speedup,
            budget_minutes: options.budget.map(|budget| budget.as_secs_f64() / 60.0),
        },
        cost: CostModel {
            backend: engine.backend()?.name(),
            hardware: bench.table().machine.clone(),
            batch_size: options.batch_size,
            table_sha256: bench.table().sha256(),
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
        environment: environment(engine.threads)?,
        data: Some(images.all.info(&model.transform)),
    };
    Ok(Tuned { results, model: Model::from_quantized(model)? })
}

/// Indices of the candidates that no other candidate beats in both latency and SQNR, from the fastest.
fn front(candidates: &[swinq_eval::results::tune::TuneCandidate]) -> Vec<usize> {
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

fn check(options: &TuneOptions, images: &Images) -> Result<(), Error> {
    if !(options.max_drop.is_finite() && options.max_drop >= 0.0) {
        return Err(Error::argument("max_drop", format!("{} is not 0 or more points", options.max_drop)));
    }
    if let Some(speedup) = options.min_speedup.filter(|s| !(s.is_finite() && *s > 0.0)) {
        return Err(Error::argument("min_speedup", format!("{speedup} is not a positive number")));
    }
    check_batch_size(options.batch_size)?;
    if images.len() < 2 {
        let problem = "a search needs at least two images: one half is searched on, the other verifies";
        return Err(Error::argument("images", problem));
    }
    Ok(())
}
