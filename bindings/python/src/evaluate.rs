//! Evaluation: accuracy, agreement and latency of models.

use std::ops::ControlFlow;

use pyo3::prelude::*;
use swinq::eval::{Accuracy, ModelResult, results_json, table};
use swinq::{Candidate, EvaluateOptions, Observer, ReadOptions};

use crate::engine::{Numbers, options};
use crate::error::raise;
use crate::images::Images;
use crate::model::Model;
use crate::work::{self, Reporter};

/// Runs `models`, with their names, on `images`, and compares each with the first. Returns the results in JSON and as a
/// text table, and the messages about the corrupt images that were left out.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "they are the keyword arguments of the Python function")]
pub fn evaluate(
    py: Python<'_>,
    models: Vec<(String, Py<Model>)>,
    images: &Images,
    backend: &str,
    threads: usize,
    batch_size: usize,
    latency: Vec<usize>,
    skip_corrupt: usize,
    progress: Option<Bound<'_, PyAny>>,
) -> PyResult<(String, String, Vec<String>)> {
    let largest = latency.iter().copied().max().unwrap_or(0).max(batch_size).max(1);
    let numbers = Numbers { threads, max_batch: largest, ..Numbers::default() };
    let engine = options(py, backend, &numbers, "f16")?;
    let read = ReadOptions { batch_size, threads, skip_corrupt };
    let settings = EvaluateOptions { read, threads, latency, ..EvaluateOptions::default() };
    let handle = |(name, model): (String, Py<Model>)| (name, model.get().model.clone());
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
    let results = results.map_err(|error| raise(py, &error))?;
    let json = results_json(&results).map_err(|error| raise(py, &error.into()))?;
    Ok((json, table(&results), skipped))
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
