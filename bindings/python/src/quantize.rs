//! Calibration.

use pyo3::prelude::*;
use swinq::model::Ptq;
use swinq::{CalibrateOptions, Error, Phase, ReadOptions, Recipe, Rule, change_recipe, load_recipe};

use crate::error::{raise, raise_as, raise_reading};
use crate::images::Images;
use crate::model::Model;
use crate::work::{self, Step};

/// A recipe: its name, its file, or its text if `is_text`. `ptq` overrides how it finds the numbers of each
/// layer.
#[derive(FromPyObject)]
pub struct RecipeText {
    recipe: String,
    is_text: bool,
    ptq: Option<String>,
}

/// How images are read.
#[derive(FromPyObject)]
pub struct ReadingImages {
    pub batch_size: usize,
    pub threads: usize,
    pub skip_corrupt: usize,
}

impl ReadingImages {
    /// The options of the library.
    pub fn options(&self) -> ReadOptions {
        ReadOptions { batch_size: self.batch_size, threads: self.threads, skip_corrupt: self.skip_corrupt }
    }
}

/// A quantized model, and the messages about the corrupt images that were left out.
#[pyclass(frozen, get_all, module = "swinq._native")]
pub struct Calibrated {
    model: Py<Model>,
    skipped: Vec<String>,
}

/// Quantizes the float `model` on `images`. `progress` is called with the phase, the number of images or
/// layers done, and the number of all.
#[pyfunction]
pub fn quantize(
    py: Python<'_>,
    model: &Model,
    images: &Images,
    recipe: RecipeText,
    reading: ReadingImages,
    progress: Option<Bound<'_, PyAny>>,
) -> PyResult<Calibrated> {
    let recipe = recipe_of(py, model, &recipe)?;
    let options = CalibrateOptions { recipe, read: reading.options(), ..CalibrateOptions::default() };
    let (model, images) = (model.model.clone(), images.images.clone());
    let calibrated = work::run(py, progress.as_ref(), move |reporter| {
        let mut step = |step: swinq::Progress| reporter.ask(step_of(step));
        let calibrated = swinq::calibrate(model, &options, &images, &mut step)?;
        Ok((calibrated.model, calibrated.skipped))
    })?;
    let (model, skipped) = calibrated.map_err(|error: Error| raise_reading(py, &error))?;
    Ok(Calibrated { model: Py::new(py, Model::from(model))?, skipped })
}

/// Refuses a `recipe` that cannot be read, or that does not fit `model`, if there is one.
#[pyfunction]
pub fn check_recipe(py: Python<'_>, model: Option<&Model>, recipe: RecipeText) -> PyResult<()> {
    let Some(model) = model else { return read(py, &recipe).map(|_| ()) };
    let recipe = recipe_of(py, model, &recipe)?;
    swinq::check_recipe(&model.model, &recipe).map_err(|error| raise(py, &error))
}

/// The recipe for `model`.
pub fn recipe_of(py: Python<'_>, model: &Model, recipe: &RecipeText) -> PyResult<Recipe> {
    let (recipe, ptq) = read(py, recipe)?;
    let rules = ptq.map(Rule::with_ptq).into_iter().collect();
    change_recipe(recipe, rules, model.model.config()).map_err(|error| raise(py, &error))
}

/// The recipe and the `ptq` that a text names.
fn read(py: Python<'_>, text: &RecipeText) -> PyResult<(Recipe, Option<Ptq>)> {
    let ptq = text.ptq.as_deref().map(str::parse::<Ptq>).transpose();
    let ptq = ptq.map_err(|problem| raise_as(py, "ArgumentError", format!("ptq: {problem}")))?;
    let found = match text.is_text {
        true => Recipe::from_yaml("recipe", &text.recipe).map_err(Error::from),
        false => load_recipe(&text.recipe),
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
