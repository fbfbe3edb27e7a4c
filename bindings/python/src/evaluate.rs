//! Evaluation: accuracy, agreement and latency of models.

use std::ops::ControlFlow;

use pyo3::prelude::*;
use swinq::eval::{Accuracy, ModelResult, results_json, table};
use swinq::{Candidate, EvaluateOptions, Observer};

use crate::engine::{Numbers, options};
use crate::error::{raise, raise_reading};
use crate::images::Images;
use crate::model::Model;
use crate::quantize::ReadingImages;
use crate::work::{self, Reporter};

/// A model that is evaluated.
#[derive(FromPyObject)]
pub struct NamedModel {
    name: String,
    model: Py<Model>,
}

/// Results in JSON and as a text table, and the messages about the corrupt images that were left out.
#[pyclass(frozen, get_all, module = "swinq._native")]
pub struct Evaluated {
    results: String,
    table: String,
    skipped: Vec<String>,
}

/// Runs `models` on `images`, and compares each with the first.
#[pyfunction]
pub fn evaluate(
    py: Python<'_>,
    models: Vec<NamedModel>,
    images: &Images,
    backend: &str,
    reading: ReadingImages,
    latency: Vec<usize>,
    progress: Option<Bound<'_, PyAny>>,
) -> PyResult<Evaluated> {
    let (read, threads) = (reading.options(), reading.threads);
    let largest = latency.iter().copied().max().unwrap_or(0).max(read.batch_size).max(1);
    let numbers = Numbers { threads, max_batch: largest, ..Numbers::default() };
    let engine = options(py, backend, &numbers, "f16")?;
    let settings = EvaluateOptions { read, threads, latency, ..EvaluateOptions::default() };
    let handle = |named: NamedModel| (named.name, named.model.get().model.clone());
    let models: Vec<(String, swinq::Model)> = models.into_iter().map(handle).collect();
    let images = images.images.clone();
    let (results, skipped) = work::run(py, progress.as_ref(), move |reporter| {
        let mut watcher = Watcher { reporter, skipped: Vec::new() };
        let results = (|| {
            let candidate = |(name, model): &(String, swinq::Model)| Candidate::engine(name, model, &engine);
            let mut candidates = models.iter().map(candidate).collect::<Result<Vec<_>, _>>()?;
            swinq::evaluate(&mut candidates, &images, &settings, &mut watcher)
        })();
        (results, watcher.skipped)
    })?;
    let results = results.map_err(|error| raise_reading(py, &error))?;
    let json = results_json(&results).map_err(|error| raise(py, &error.into()))?;
    Ok(Evaluated { results: json, table: table(&results), skipped })
}

/// Reports the progress of an evaluation.
struct Watcher<'a> {
    reporter: &'a mut Reporter,
    /// The messages about the corrupt images.
    skipped: Vec<String>,
}

impl Observer for Watcher<'_> {
    fn images(&mut self, done: usize, total: usize) -> ControlFlow<()> {
        self.reporter.step("evaluate", done, total)
    }

    fn evaluated(&mut self, _: &ModelResult, _: Option<&Accuracy>, skipped: &[String]) {
        // Every model leaves out the same images.
        skipped.clone_into(&mut self.skipped);
    }

    fn stop(&self) -> bool {
        self.reporter.is_stopped()
    }
}
