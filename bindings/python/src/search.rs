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

use crate::engine::EngineChoice;
use crate::error::{choice, json, raise};
use crate::images::Images;
use crate::model::Model;
use crate::quantize::{RecipeText, recipe_of, step_of};
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
pub struct Caller<'py> {
    /// Called with a model, or `None` for the program's own; returns a float.
    evaluate: Bound<'py, PyAny>,
    /// The metric's name, and whatever else the values depend on.
    metric: String,
    context: String,
    /// Called with what the cache held: numbers of measurements that are kept and of damaged lines, and
    /// whether it was that of another run.
    on_cache: Bound<'py, PyAny>,
    progress: Option<Bound<'py, PyAny>>,
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

/// The goal of a search, and its minutes.
#[derive(FromPyObject)]
pub struct Goal {
    max_drop: f64,
    min_speedup: Option<f64>,
    budget: Option<f64>,
}

/// The files that a search keeps: the cache and the table of latencies.
#[derive(FromPyObject)]
pub struct Kept {
    cache: Option<PathBuf>,
    latencies: Option<PathBuf>,
}

/// The parts of this kind and with a name that a pattern matches.
#[derive(FromPyObject)]
pub struct Parts {
    kind: String,
    pattern: String,
}

impl Parts {
    fn of(self, py: Python<'_>) -> PyResult<PartsOf> {
        Ok(PartsOf { kinds: choice(py, "parts", &self.kind, &KINDS)?, pattern: self.pattern })
    }
}

/// The options of [`tune`].
fn tune_options(
    (recipe, engine): (Recipe, EngineOptions),
    batch_size: usize,
    Goal { max_drop, min_speedup, budget }: Goal,
    Kept { cache, latencies }: Kept,
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

/// Refuses arguments of [`tune`] that it would refuse for any images.
#[pyfunction]
pub fn check_tune(
    py: Python<'_>,
    model: &Model,
    recipe: RecipeText,
    engine: EngineChoice,
    batch_size: usize,
    goal: Goal,
    kept: Kept,
) -> PyResult<()> {
    let recipe = recipe_of(py, model, &recipe)?;
    let options = tune_options((recipe, engine.options(py)?), batch_size, goal, kept);
    options.check_for(&model.model).map_err(|error| raise(py, &error))
}

/// Refuses arguments of [`sensitivity`] that it would refuse for any images.
#[pyfunction]
pub fn check_sensitivity(
    py: Python<'_>,
    model: &Model,
    recipe: RecipeText,
    parts: Parts,
    kept: Kept,
) -> PyResult<()> {
    let recipe = recipe_of(py, model, &recipe)?;
    let options = sensitivity_options(recipe, 0, kept.cache);
    options.check_for(&model.model, &parts.of(py)?).map_err(|error| raise(py, &error))
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

/// The results of [`tune`] in JSON, the model, the warnings about the results and the reason of the search's
/// end.
#[pyclass(frozen, get_all, module = "swinq._native")]
pub struct Tuned {
    results: String,
    model: Py<Model>,
    warnings: Vec<String>,
    ending: String,
}

/// Searches the fastest recipe for `model`, whose images are `images`.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "they are the arguments of the Python function")]
pub fn tune(
    py: Python<'_>,
    model: &Model,
    images: &Images,
    recipe: RecipeText,
    engine: EngineChoice,
    batch_size: usize,
    goal: Goal,
    kept: Kept,
    caller: Caller<'_>,
) -> PyResult<Tuned> {
    let recipe = recipe_of(py, model, &recipe)?;
    let options = tune_options((recipe, engine.options(py)?), batch_size, goal, kept);
    let (model, images) = (model.model.clone(), images.images.clone());
    let tuned = caller.run(py, move |evaluation, shared| {
        let mut progress = |progress: TuneProgress<'_>| match progress {
            TuneProgress::Calibrate(step) => shared.step(step_of(step)),
            TuneProgress::Cache(found) => shared.tell(Question::Cache(found)),
            TuneProgress::Float(done, all) => shared.step(("float model", done, all)),
            TuneProgress::Latencies(done, all) => shared.step(("time launches", done, all)),
            TuneProgress::Trial { number, .. } => shared.step(("trial", number, number)),
            TuneProgress::Probe | TuneProgress::Verify(..) | TuneProgress::DisturbedTable => shared.check(),
        };
        tune_by_metric(model, &options, &images, evaluation, &mut progress)
    })?;
    Ok(Tuned {
        results: json(&tuned.results)?,
        warnings: tuned.results.warnings(),
        ending: tuned.results.ending(),
        model: Py::new(py, Model::from(tuned.model))?,
    })
}

/// The kinds of parts.
const KINDS: [(&str, PartKinds); 3] =
    [("layers", PartKinds::Layers), ("blocks", PartKinds::Blocks), ("sites", PartKinds::Sites)];

/// The results of [`sensitivity`] in JSON, and the warning about few images.
#[pyclass(frozen, get_all, module = "swinq._native")]
pub struct Measured {
    results: String,
    warning: Option<String>,
}

/// Measures what the metric gains if a part of `model` is left in float.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "they are the arguments of the Python function")]
pub fn sensitivity(
    py: Python<'_>,
    model: &Model,
    images: &Images,
    recipe: RecipeText,
    threads: usize,
    parts: Parts,
    kept: Kept,
    caller: Caller<'_>,
) -> PyResult<Measured> {
    let recipe = recipe_of(py, model, &recipe)?;
    let options = sensitivity_options(recipe, threads, kept.cache);
    let parts = parts.of(py)?;
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
    Ok(Measured { results: json(&found)?, warning: few_images(found.images) })
}
