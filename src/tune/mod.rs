//! Tuning: searches for the recipe with the least latency that keeps the accuracy, the SQNR of a backbone's
//! outputs, or a metric of the caller's.
//!
//! The latency of a recipe is predicted: a table holds the measured time of every variant of every launch.
//! [`choice`] has the rule of accuracy against speed. The search compares recipes on one half of the images;
//! the chosen one is verified on the other half. [`Judge`] says what decides.

mod bench;
mod budget;
mod changes;
mod choice;
mod judge;
mod latencies;
mod run;
mod search;
mod stopwatch;
mod verify;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use swinq_calib::Progress;
use swinq_data::Sizing;
use swinq_eval::Interval;
use swinq_eval::results::tune::{Goal, MetricGoal, TuneImages, Tuning};
use swinq_model::{Batch, Recipe, SwinConfig};

use crate::cache::{Cache, CacheContents, check_cache, check_kept};
use crate::calibration::check_recipe;
use crate::evaluation::Evaluation;
use crate::limits::check_batch_size;
use crate::quantizer::check_ptq;
use crate::sensitivity::load;
use crate::sensitivity::metric::Metric;
use crate::{EngineOptions, Error, Images, Model, ReadOptions};
use judge::{Judge, Limit};
use latencies::Latencies;
use run::Run;

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
    /// The engine whose latency counts. Candidates are compared on the CPU; the chosen one is verified on
    /// this engine.
    pub engine: EngineOptions,
    /// Images per inference whose latency counts. On a CPU they have the size that most search images have;
    /// on a GPU they have the network's own size.
    pub batch_size: usize,
    /// The largest drop of top-1 accuracy of a classifier, in percentage points; of a metric of the caller's,
    /// in its unit.
    pub max_drop: f64,
    /// The least SQNR in dB, against float, that every output of a backbone that counts must have; a backbone
    /// needs it.
    pub min_sqnr: Option<f64>,
    /// The least speedup over the float model.
    pub min_speedup: Option<f64>,
    /// Time of the search and of the timing of launches before it, without calibration and verification;
    /// `None` is unlimited. The start recipe is always tried. With a budget the result depends on the speed
    /// of the machine.
    pub budget: Option<Duration>,
    /// The file that keeps finished measurements; `None` keeps none.
    pub cache: Option<PathBuf>,
    /// The table of latencies: read if it exists, and extended. With a table that holds every launch the
    /// search needs, the result does not depend on the machine. A table that was written while other
    /// processes disturbed the times is measured again, and one of another machine is refused. `None` keeps
    /// no table.
    pub latencies: Option<PathBuf>,
}

impl TuneOptions {
    /// Refuses options that do not fit `model`, or that no search can have, before any image is read.
    ///
    /// # Errors
    /// The errors of [`tune_by_metric`] that do not depend on images.
    pub fn check_for(&self, model: &Model) -> Result<(), Error> {
        self.check(model).map(|_| ())
    }

    /// The same; returns the outputs that count.
    fn check(&self, model: &Model) -> Result<Metric, Error> {
        check_numbers(self)?;
        check_recipe(model, &self.recipe)?;
        check_ptq(model.config(), &self.recipe)?;
        check_cache(self.cache.as_deref())?;
        check_kept("latencies", self.latencies.as_deref())?;
        if let Some(table) = self.latencies.as_deref().filter(|table| table.exists()) {
            let hardware = self.engine.clone().resolved()?.describe()?;
            Latencies::check(table, &hardware, self.batch_size)?;
        }
        Metric::new(model.config(), &self.sqnr_of)
    }
}

/// The result of a search.
#[derive(Debug)]
pub struct Tuned {
    /// Everything that was measured.
    pub results: Tuning,
    /// The model of the chosen recipe.
    pub model: Model,
}

/// The progress of a search.
#[derive(Clone, Copy, Debug)]
pub enum TuneProgress<'a> {
    /// Images or layers of the calibration.
    Calibrate(Progress),
    /// The contents of the file of finished measurements.
    Cache(CacheContents),
    /// The table of latencies was written while other processes disturbed the times, and is measured again.
    DisturbedTable,
    /// Search images that the float model has run: done, all.
    Float(usize, usize),
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
        /// Top-1 accuracy minus the float model's; `None` for images without labels.
        difference: Option<Interval>,
        /// The caller's metric, if it decides.
        value: Option<f64>,
        /// The differences from the start recipe, in words.
        changes: &'a [String],
    },
    /// Images of the verification: done, all.
    Verify(usize, usize),
}

/// Searches a fast recipe for `model`, a float model, that loses at most `options.max_drop` points of top-1
/// accuracy on `images`, which must have labels; their classes are numbered as by [`Images::numbered_for`].
/// Every second image is a search image, the others verify the result. Ranges are calibrated on
/// `calibration`.
///
/// Of two recipes that keep the limit, the faster one is chosen if it saves more than the spread of the
/// latency ([`CostModel::spread`](swinq_eval::results::tune::CostModel::spread)), and else the one with the
/// higher SQNR.
///
/// Of a backbone, every output that counts must have an SQNR of `options.min_sqnr` dB, and images need no
/// labels.
///
/// `progress` is called after every step; `Break` stops the run, and everything that was measured is in the
/// cache.
///
/// # Errors
/// [`Error::Argument`] for options outside their limits, fewer than two images, or a model that is quantized;
/// [`Error::Labels`]; the errors of [`calibrate`](crate::calibrate()) and of the engine;
/// [`Error::Interrupted`].
pub fn tune(
    model: Model,
    options: &TuneOptions,
    calibration: &Images,
    images: &Images,
    progress: &mut dyn FnMut(TuneProgress<'_>) -> ControlFlow<()>,
) -> Result<Tuned, Error> {
    let metric = options.check(&model)?;
    check_min_sqnr(options.min_sqnr, model.config())?;
    if images.len() < 2 {
        let problem = "a search needs at least two images: one half is searched on, the other verifies";
        return Err(Error::argument("images", problem));
    }
    let images = &match metric {
        Metric::Logits(_) => images.numbered_for(model.config(), model.labels(), model.dialect())?.0,
        Metric::Maps(_) => images.clone(),
    };
    let float = model.into_float()?;
    let [search_images, verification] = images.halves();
    let search = load(&search_images, &float, &options.read, options.sizing)?;
    if search[0].labels.is_empty() && !float.config.is_backbone() {
        let problem = "the images have no labels, and a drop of accuracy needs them".to_owned();
        return Err(Error::Labels { problem });
    }
    let max_drop = matches!(metric, Metric::Logits(_)).then_some(options.max_drop);
    let goal = Goal { max_drop, min_sqnr_db: options.min_sqnr, ..goal(options, None) };
    let judge = options.min_sqnr.map_or(Judge::Top1(options.max_drop), Judge::Sqnr);
    let counts = TuneImages {
        calibration: calibration.len(),
        search: count(&search),
        verification: verification.len(),
    };
    let (mut run, space) =
        Run::new(float, options, metric, (calibration, search), ("tune", &mut |_| Ok(())), progress)?;
    let outcome = run.search(space, judge, progress)?;
    let recipe = &outcome.candidates[outcome.chosen].recipe;
    let mut on_step = |step| progress(TuneProgress::Calibrate(step));
    let how = (&options.read, options.sizing);
    let model = run.bench.quantizer_mut().finish(recipe, calibration, how, &mut on_step)?;
    let verification = run.verify(&model, &verification, progress)?;
    run.finish(outcome, model, (goal, counts, Some(verification)), images)
}

/// Searches a fast recipe for `model`, a float model, that loses at most `options.max_drop` of a metric of
/// the caller's, in its unit. Ranges are calibrated on `images`, on which also the noise of changes is
/// measured; it ranks them, and the metric decides. `options.min_sqnr` is not used.
///
/// The model of the result is that which was evaluated: layers keep what refinement under the start recipe
/// found, whereas [`calibrate`](crate::calibrate()) with the chosen recipe would refine them again.
///
/// `progress` is called after every step; `Break` stops the run, and everything that was measured is in the
/// cache.
///
/// # Errors
/// [`Error::Argument`] for options outside their limits, for a value that is not finite, or a model that is
/// quantized; the errors of [`calibrate`](crate::calibrate()) and of the engine; [`Error::Interrupted`].
pub fn tune_by_metric(
    model: Model,
    options: &TuneOptions,
    images: &Images,
    evaluation: Evaluation<'_>,
    progress: &mut dyn FnMut(TuneProgress<'_>) -> ControlFlow<()>,
) -> Result<Tuned, Error> {
    let metric = options.check(&model)?;
    let float = model.into_float()?;
    let search = load(images, &float, &options.read, options.sizing)?;
    let counts = TuneImages { calibration: images.len(), search: count(&search), verification: 0 };
    let key = evaluation.command();
    let mut limit = Limit { evaluation, float: 0.0, max_drop: options.max_drop };
    let mut first = |cache: &mut Cache| {
        limit.float = limit.evaluation.of(None, cache)?;
        Ok(())
    };
    let (mut run, space) = Run::new(float, options, metric, (images, search), (&key, &mut first), progress)?;
    let name = limit.evaluation.metric.clone();
    let metric = MetricGoal { name, float: limit.float, max_drop: limit.max_drop };
    let goal = goal(options, Some(metric));
    let outcome = run.search(space, Judge::Metric(limit), progress)?;
    let model = run.bench.model(&outcome.candidates[outcome.chosen].recipe)?;
    run.finish(outcome, model, (goal, counts, None), images)
}

/// The goal of `options`, without the limits of classifiers and backbones.
fn goal(options: &TuneOptions, metric: Option<MetricGoal>) -> Goal {
    Goal {
        metric,
        max_drop: None,
        min_sqnr_db: None,
        min_speedup: options.min_speedup,
        budget_minutes: options.budget.map(|budget| budget.as_secs_f64() / 60.0),
    }
}

/// Number of images.
fn count(batches: &[Batch]) -> usize {
    batches.iter().map(Batch::len).sum()
}

fn check_numbers(options: &TuneOptions) -> Result<(), Error> {
    if !(options.max_drop.is_finite() && options.max_drop >= 0.0) {
        return Err(Error::argument("max_drop", format!("{} is not a number from 0 on", options.max_drop)));
    }
    if let Some(speedup) = options.min_speedup.filter(|s| !(s.is_finite() && *s > 0.0)) {
        return Err(Error::argument("min_speedup", format!("{speedup} is not a positive number")));
    }
    check_batch_size(options.batch_size)
}

/// Refuses a limit of the other kind of network: a classifier has a largest drop of accuracy, a backbone a
/// least SQNR.
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
