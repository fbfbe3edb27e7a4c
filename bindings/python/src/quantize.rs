//! Calibration.

use pyo3::prelude::*;
use swinq::model::Ptq;
use swinq::{CalibrateOptions, Error, Phase, ReadOptions, Recipe, Rule, change_recipe, load_recipe};

use crate::error::{raise, raise_as};
use crate::images::Images;
use crate::model::Model;
use crate::work::{self, Step};

/// Quantizes the float `model` on `images`. `recipe` is a name, a file, or the text of a recipe if `is_text`; `ptq`
/// overrides how it finds the numbers of each layer.
///
/// `progress` is called with the phase, the number of images or layers done, and the number of all. Returns the model
/// and the messages about the corrupt images that were left out.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "they are the keyword arguments of the Python function")]
pub fn quantize(
    py: Python<'_>,
    model: &Model,
    images: &Images,
    recipe: &str,
    is_text: bool,
    ptq: Option<&str>,
    batch_size: usize,
    threads: usize,
    skip_corrupt: usize,
    progress: Option<Bound<'_, PyAny>>,
) -> PyResult<(Model, Vec<String>)> {
    let recipe = recipe_of(py, model, (recipe, is_text), ptq)?;
    let read = ReadOptions { batch_size, threads, skip_corrupt };
    let options = CalibrateOptions { recipe, read, ..CalibrateOptions::default() };
    let (model, images) = (model.model.clone(), images.images.clone());
    let calibrated = work::run(py, progress.as_ref(), move |reporter| {
        let mut step = |step: swinq::Progress| reporter.ask(step_of(step));
        let calibrated = swinq::calibrate(model, &options, &images, &mut step)?;
        Ok((calibrated.model, calibrated.skipped))
    })?;
    let (model, skipped) = calibrated.map_err(|error: Error| raise(py, &error))?;
    Ok((model.into(), skipped))
}

/// Refuses a `recipe` or `ptq`, as [`quantize`] has them, that cannot be read, or that does not fit `model`, if there is one.
#[pyfunction]
pub fn check_recipe(
    py: Python<'_>,
    model: Option<&Model>,
    recipe: &str,
    is_text: bool,
    ptq: Option<&str>,
) -> PyResult<()> {
    let Some(model) = model else { return read(py, (recipe, is_text), ptq).map(|_| ()) };
    let recipe = recipe_of(py, model, (recipe, is_text), ptq)?;
    swinq::check_recipe(&model.model, &recipe).map_err(|error| raise(py, &error))
}

/// The recipe for `model` that the arguments of [`quantize`] name.
pub fn recipe_of(
    py: Python<'_>,
    model: &Model,
    (recipe, is_text): (&str, bool),
    ptq: Option<&str>,
) -> PyResult<Recipe> {
    let (recipe, ptq) = read(py, (recipe, is_text), ptq)?;
    let rules = ptq.map(Rule::with_ptq).into_iter().collect();
    change_recipe(recipe, rules, model.model.config()).map_err(|error| raise(py, &error))
}

/// The recipe and the `ptq` that these arguments name.
fn read(
    py: Python<'_>,
    (recipe, is_text): (&str, bool),
    ptq: Option<&str>,
) -> PyResult<(Recipe, Option<Ptq>)> {
    let ptq = ptq.map(str::parse::<Ptq>).transpose();
    let ptq = ptq.map_err(|problem| raise_as(py, "ArgumentError", format!("ptq: {problem}")))?;
    let found = match is_text {
        true => Recipe::from_yaml("recipe", recipe).map_err(Error::from),
        false => load_recipe(recipe),
    };
    Ok((found.map_err(|error| raise(py, &error))?, ptq))
}

/// A step of a calibration, for Python.
pub fn step_of(step: swinq::Progress) -> Step {
    let phase = match step.phase {
        Phase::Observe => "observe",
        Phase::Refine => "refine",
        Phase::Reconstruct => "reconstruct",
    };
    (phase, step.done, step.total)
}
