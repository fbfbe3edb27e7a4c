//! Sensitivity and tuning of a model inside a program of Python, by the program's own metric.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use pyo3::prelude::*;
use swinq::eval::results::sensitivity::few_images;
use swinq::{
    CacheContents, EngineOptions, Evaluation, PartKinds, PartsOf, ReadOptions, Recipe, SensitivityOptions,
    SensitivityProgress, Sizing, TuneOptions, TuneProgress, sensitivity_by_metric, tune_by_metric,
};

use crate::engine::{Numbers, options};
use crate::error::{choice, json, raise};
use crate::images::Images;
use crate::model::Model;
use crate::quantize::{recipe_of, step_of};
use crate::work::{self, Asker, Step};

/// The work's questions to Python.
enum Question {
    /// Progress.
    Step(Step),
    /// The contents of the file of finished measurements.
    Cache(CacheContents),
    /// The metric of the program with this model, or with its own float model.
    Evaluate(Option<swinq::Model>),
}

type SearchAsker = Asker<Question, f64>;

/// The functions of the caller, and what their values depend on.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Caller<'py> {
    /// Called with a model, or `None` for the program's own; returns a float.
    evaluate: Bound<'py, PyAny>,
    /// The metric's name, and whatever else the values depend on.
    metric: String,
    context: String,
    /// Called with what the cache held: numbers of measurements that are kept and of damaged lines, and whether it was that of
    /// another run.
    on_cache: Bound<'py, PyAny>,
    progress: Option<Bound<'py, PyAny>>,
    cache: Option<PathBuf>,
}

impl Caller<'_> {
    /// The answer to a question of the work.
    fn answer(&self, py: Python<'_>, question: Question) -> PyResult<f64> {
        match question {
            Question::Step(step) => {
                self.progress.as_ref().map(|progress| progress.call1(step)).transpose()?;
            }
            Question::Cache(CacheContents { kept, damaged, replaced }) => {
                self.on_cache.call1((kept, damaged, replaced))?;
            }
            Question::Evaluate(model) => {
                let model = model.map(|model| Py::new(py, Model::from(model))).transpose()?;
                return self.evaluate.call1((model,))?.extract();
            }
        }
        Ok(0.0)
    }

    /// Runs `work` with an evaluation that asks Python.
    fn run<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(Evaluation<'_>, &Shared<'_>) -> Result<T, swinq::Error> + Send + 'static,
    ) -> PyResult<T> {
        let (metric, context) = (self.metric.clone(), self.context.clone());
        let found = work::converse(
            py,
            |question| self.answer(py, question),
            move |asker| {
                let shared = Shared(RefCell::new(asker));
                let mut evaluate =
                    |model: Option<&swinq::Model>| shared.ask(Question::Evaluate(model.cloned()));
                work(Evaluation { metric, context, evaluate: &mut evaluate }, &shared)
            },
        )?;
        found.map_err(|error| raise(py, &error))
    }
}

/// The connection to Python, which evaluations and progress share.
struct Shared<'a>(RefCell<&'a mut SearchAsker>);

impl Shared<'_> {
    fn ask(&self, question: Question) -> ControlFlow<(), f64> {
        self.0.borrow_mut().ask(question)
    }

    fn step(&self, step: Step) -> ControlFlow<()> {
        self.tell(Question::Step(step))
    }

    fn tell(&self, question: Question) -> ControlFlow<()> {
        self.ask(question).map_continue(|_| ())
    }

    fn check(&self) -> ControlFlow<()> {
        self.0.borrow().check()
    }
}

/// `max_drop`, `min_speedup` and the minutes of a search.
type TuneGoal = (f64, Option<f64>, Option<f64>);

/// The options of [`tune`]; `kept` are the cache and the table of latencies.
fn tune_options(
    (recipe, engine): (Recipe, EngineOptions),
    batch_size: usize,
    (max_drop, min_speedup, budget): TuneGoal,
    (cache, latencies): (Option<PathBuf>, Option<PathBuf>),
) -> TuneOptions {
    TuneOptions {
        recipe,
        read: ReadOptions::default(),
        sizing: Sizing::Keep,
        sqnr_of: Vec::new(),
        engine,
        batch_size,
        max_drop,
        min_sqnr: None,
        min_speedup,
        budget: budget.map(|minutes| Duration::try_from_secs_f64(60.0 * minutes).unwrap_or(Duration::MAX)),
        cache,
        latencies,
    }
}

/// Refuses arguments of [`tune`] that it would refuse for any images. `kept` are the cache and the table of latencies.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "they are the keyword arguments of the Python function")]
pub fn check_tune(
    py: Python<'_>,
    model: &Model,
    recipe: (String, bool),
    ptq: Option<&str>,
    engine: (String, Numbers, String),
    batch_size: usize,
    goal: TuneGoal,
    kept: (Option<PathBuf>, Option<PathBuf>),
) -> PyResult<()> {
    let recipe = recipe_of(py, model, (&recipe.0, recipe.1), ptq)?;
    let engine = options(py, &engine.0, &engine.1, &engine.2)?;
    let options = tune_options((recipe, engine), batch_size, goal, kept);
    options.check_for(&model.model).map_err(|error| raise(py, &error))
}

/// Refuses arguments of [`sensitivity`] that it would refuse for any images.
#[pyfunction]
pub fn check_sensitivity(
    py: Python<'_>,
    model: &Model,
    recipe: (String, bool),
    ptq: Option<&str>,
    parts: (String, String),
    cache: Option<PathBuf>,
) -> PyResult<()> {
    let recipe = recipe_of(py, model, (&recipe.0, recipe.1), ptq)?;
    let options = sensitivity_options(recipe, 0, cache);
    let parts = parts_of(py, parts)?;
    options.check_for(&model.model, &parts).map_err(|error| raise(py, &error))
}

/// The options of [`sensitivity`].
fn sensitivity_options(recipe: Recipe, threads: usize, cache: Option<PathBuf>) -> SensitivityOptions {
    SensitivityOptions {
        recipe,
        read: ReadOptions::default(),
        sizing: Sizing::Keep,
        sqnr_of: Vec::new(),
        threads,
        cache,
    }
}

/// The parts of this kind and with a name that a pattern matches.
fn parts_of(py: Python<'_>, (kind, pattern): (String, String)) -> PyResult<PartsOf> {
    Ok(PartsOf { kinds: choice(py, "parts", &kind, &KINDS)?, pattern })
}

/// Searches the fastest recipe for `model`, whose images are `images`. `recipe` and `ptq` are those of `quantize`; the engine has the
/// arguments of `Engine`. Returns the results in JSON, the model, the warnings about the results and the reason of the search's end.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "they are the keyword arguments of the Python function")]
pub fn tune(
    py: Python<'_>,
    model: &Model,
    images: &Images,
    recipe: (String, bool),
    ptq: Option<&str>,
    engine: (String, Numbers, String),
    batch_size: usize,
    goal: TuneGoal,
    latencies: Option<PathBuf>,
    caller: Caller<'_>,
) -> PyResult<(String, Model, (Vec<String>, String))> {
    let recipe = recipe_of(py, model, (&recipe.0, recipe.1), ptq)?;
    let engine = options(py, &engine.0, &engine.1, &engine.2)?;
    let options = tune_options((recipe, engine), batch_size, goal, (caller.cache.clone(), latencies));
    let (model, images) = (model.model.clone(), images.images.clone());
    let tuned = caller.run(py, move |evaluation, shared| {
        let mut progress = |progress: TuneProgress<'_>| match progress {
            TuneProgress::Calibrate(step) => shared.step(step_of(step)),
            TuneProgress::Cache(found) => shared.tell(Question::Cache(found)),
            TuneProgress::Latencies(done, all) => shared.step(("time launches", done, all)),
            TuneProgress::Trial { number, .. } => shared.step(("trial", number, number)),
            TuneProgress::Probe | TuneProgress::Verify(..) | TuneProgress::DisturbedTable => shared.check(),
        };
        tune_by_metric(model, &options, &images, evaluation, &mut progress)
    })?;
    let words = (tuned.results.warnings(), tuned.results.ending());
    Ok((json(&tuned.results)?, tuned.model.into(), words))
}

/// The kinds of parts.
const KINDS: [(&str, PartKinds); 3] =
    [("layers", PartKinds::Layers), ("blocks", PartKinds::Blocks), ("sites", PartKinds::Sites)];

/// Measures what the metric gains if a part of `model` is left in float. `parts` are their kind and a pattern of their names. Returns
/// the results in JSON, and the warning about few images.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "they are the keyword arguments of the Python function")]
pub fn sensitivity(
    py: Python<'_>,
    model: &Model,
    images: &Images,
    recipe: (String, bool),
    ptq: Option<&str>,
    threads: usize,
    parts: (String, String),
    caller: Caller<'_>,
) -> PyResult<(String, Option<String>)> {
    let recipe = recipe_of(py, model, (&recipe.0, recipe.1), ptq)?;
    let options = sensitivity_options(recipe, threads, caller.cache.clone());
    let parts = parts_of(py, parts)?;
    let (model, images) = (model.model.clone(), images.images.clone());
    let found = caller.run(py, move |evaluation, shared| {
        let mut progress = |progress: SensitivityProgress<'_>| match progress {
            SensitivityProgress::Calibrate(step) => shared.step(step_of(step)),
            SensitivityProgress::Cache(found) => shared.tell(Question::Cache(found)),
            SensitivityProgress::Measure(done, all) => shared.step(("measure", done, all)),
            SensitivityProgress::Cost(_) | SensitivityProgress::Stopped(_) => shared.check(),
            SensitivityProgress::Evaluate(done, all) => shared.step(("evaluate", done, all)),
        };
        sensitivity_by_metric(model, &options, &parts, &images, evaluation, &mut progress)
    })?;
    Ok((json(&found)?, few_images(found.images)))
}
