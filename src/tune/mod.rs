//! Tuning: searches for the recipe with the least latency that keeps the accuracy, or the SQNR of a backbone's outputs.
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
use swinq_data::Sizing;
use swinq_eval::Interval;
use swinq_eval::results::tune::{CostModel, Goal, TUNE_SCHEMA, TuneImages, Tuning};
use swinq_model::quantized::FloatModel;
use swinq_model::{Batch, Recipe, Size, SwinConfig};

use crate::journal::{Found, Journal};
use crate::limits::check_batch_size;
use crate::quantizer::Quantizer;
use crate::sensitivity::metric::Metric;
use crate::sensitivity::{info, load, run_key, subject};
use crate::{BackendChoice, DEFAULT_BATCH, EngineOptions, Error, Images, Model, ReadOptions, environment};
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
    /// The size that images get before a backbone. Images of a classifier have the size of its transform.
    pub sizing: Sizing,
    /// The outputs of a backbone that count, such as `stage4`; if empty, all count.
    pub sqnr_of: Vec<String>,
    /// The engine whose latency counts. Candidates are compared on the CPU; the chosen one is verified on this
    /// engine.
    pub engine: EngineOptions,
    /// Images per inference whose latency counts. For a backbone on a CPU they have the size that most search images have; on
    /// a GPU they have the network's own size.
    pub batch_size: usize,
    /// The largest drop of top-1 accuracy of a classifier, in percentage points.
    pub max_drop: f64,
    /// The least SQNR in dB, against float, that every output of a backbone that counts must have; a backbone needs it.
    pub min_sqnr: Option<f64>,
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
        /// SQNR of the logits in dB, or of the worst output of a backbone.
        sqnr_db: f64,
        /// Top-1 accuracy minus the float model's; `None` for a backbone.
        difference: Option<Interval>,
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
/// Of a backbone, every output that counts must have an SQNR of `options.min_sqnr` dB, and images need no labels.
///
/// `progress` is called after every step; `Break` stops the run, and everything that was measured is in the cache.
///
/// # Errors
/// [`Error::Argument`] for options outside their limits, fewer than two images, or a model that is quantized;
/// [`Error::Labels`]; the errors of [`calibrate`](crate::calibrate()) and of the engine; [`Error::Interrupted`].
pub fn tune(
    model: Model,
    options: &TuneOptions,
    calibration: &Images,
    images: &Images,
    progress: &mut dyn FnMut(TuneProgress<'_>) -> ControlFlow<()>,
) -> Result<Tuned, Error> {
    check(options, images, model.config())?;
    crate::calibration::check_recipe(&model, &options.recipe)?;
    let metric = Metric::new(model.config(), &options.sqnr_of)?;
    let images = &match metric {
        Metric::Logits(_) => images.numbered_for(model.config(), model.labels(), model.dialect())?.0,
        Metric::Maps(_) => images.clone(),
    };
    let engine = EngineOptions {
        max_batch: options.batch_size.max(DEFAULT_BATCH),
        ..options.engine.clone().resolved()?
    };
    let float = model.into_float()?;
    let [search_images, verification] = images.halves();
    let search = load(&search_images, &float, &options.read, options.sizing)?;
    if search[0].labels.is_empty() && !float.config.is_backbone() {
        let problem = "the images have no labels, and a drop of accuracy needs them".to_owned();
        return Err(Error::Labels { problem });
    }
    let mut on_step = |step| progress(TuneProgress::Calibrate(step));
    let how = (&options.read, options.sizing);
    let mut quantizer = Quantizer::calibrate(float, &options.recipe, calibration, how, &mut on_step)?;
    let journal = match &options.cache {
        Some(path) => {
            let key = run_key("tune", &mut quantizer, (&options.recipe, &metric), &search)?;
            Journal::open(path, &key)?
        }
        None => Journal::in_memory(),
    };
    report(progress, TuneProgress::Cache(journal.found()))?;
    let size = timed_size(quantizer.float(), &search, &engine);
    let machine = match metric {
        Metric::Logits(_) => engine.describe()?,
        Metric::Maps(_) => format!("{}, images of {size}", engine.describe()?),
    };
    let table = match &options.latencies {
        Some(path) => Latencies::open(path, machine, options.batch_size)?,
        None => Latencies::new(machine, options.batch_size),
    };
    let start = options.recipe.clone();
    let space = Space::new(&start, quantizer.apply(&start)?);
    let table_path = options.latencies.clone();
    let counts = TuneImages {
        calibration: calibration.len(),
        search: count(&search),
        verification: verification.len(),
    };
    let engine_of_parts = engine.clone();
    let parts =
        Parts { quantizer, start, metric, search, journal, table, table_path, engine: engine_of_parts, size };
    let mut timed = |done, all| report(progress, TuneProgress::Latencies(done, all));
    let mut bench = Bench::new(parts, &space, &mut timed)?;
    let outcome = Search::new(&mut bench, space, options, progress).run()?;
    let of = ImageSets { all: images, calibration, verification: &verification };
    finish(bench, outcome, options, (&engine, size), of, counts, progress)
}

/// Number of images.
fn count(batches: &[Batch]) -> usize {
    batches.iter().map(Batch::len).sum()
}

/// The size of the images whose latency counts: the model's own, or on a CPU the one that most images before a backbone have.
fn timed_size(float: &FloatModel, search: &[Batch], engine: &EngineOptions) -> Size {
    let own = float.config.image_size;
    if !float.config.is_backbone() || engine.backend == BackendChoice::Cuda {
        return own;
    }
    search.iter().max_by_key(|batch| (batch.len(), batch.size.area())).map_or(own, |batch| batch.size)
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
    (engine, size): (&EngineOptions, Size),
    images: ImageSets<'_>,
    counts: TuneImages,
    progress: &mut dyn FnMut(TuneProgress<'_>) -> ControlFlow<()>,
) -> Result<Tuned, Error> {
    let Outcome { mut candidates, chosen, kept, end } = outcome;
    let mut on_step = |step| progress(TuneProgress::Calibrate(step));
    let recipe = &candidates[chosen].recipe;
    let how = (&options.read, options.sizing);
    let model = bench.quantizer_mut().finish(recipe, images.calibration, how, &mut on_step)?;
    let float = bench.model(&Recipe::float())?;
    let mut on_images = |done, all| progress(TuneProgress::Verify(done, all));
    let metric = bench.metric().clone();
    let verification =
        verify::verify([&float, &model], &metric, engine, images.verification, options, &mut on_images)?;
    let start = bench.model(&candidates[0].recipe)?;
    let latencies = verify::latencies([&float, &start, &model], engine, (size, options.batch_size))?;
    let [float_latency, start_latency, latency] = latencies;
    candidates[0].latency_ms = Some(start_latency);
    candidates[chosen].latency_ms = Some(latency);
    let results = Tuning {
        schema: TUNE_SCHEMA,
        model: subject(bench.quantizer()),
        start_recipe: options.recipe.name.clone(),
        goal: Goal {
            max_drop: matches!(metric, Metric::Logits(_)).then_some(options.max_drop),
            min_sqnr_db: options.min_sqnr,
            min_speedup: options.min_speedup,
            budget_minutes: options.budget.map(|budget| budget.as_secs_f64() / 60.0),
        },
        cost: CostModel {
            backend: engine.backend()?.name(),
            hardware: bench.table().machine.clone(),
            batch_size: options.batch_size,
            image_size: model.config.is_backbone().then_some([size.height, size.width]),
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
        data: Some(info(images.all, &model, options.sizing)),
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

fn check(options: &TuneOptions, images: &Images, config: &SwinConfig) -> Result<(), Error> {
    check_min_sqnr(options.min_sqnr, config)?;
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

/// Refuses a limit of the other kind of network: a classifier has a largest drop of accuracy, a backbone a least SQNR.
fn check_min_sqnr(min_sqnr: Option<f64>, config: &SwinConfig) -> Result<(), Error> {
    let refuse = |problem: String| Err(Error::argument("min_sqnr", problem));
    match (min_sqnr, config.is_backbone()) {
        (None, true) => refuse(format!(
            "is missing: {} is a backbone, which has no accuracy; state the least SQNR in dB of its outputs against float, \
             such as 30",
            config.name
        )),
        (Some(_), false) => refuse(format!(
            "{} is a classifier; state the largest drop of accuracy (max_drop) instead",
            config.name
        )),
        (Some(db), true) if !db.is_finite() => refuse(format!("{db} is not a number of dB")),
        _ => Ok(()),
    }
}
