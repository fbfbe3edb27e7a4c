//! Evaluation: accuracy, agreement and latency of models.

use std::ops::ControlFlow;

use pyo3::prelude::*;
use swinq::eval::{results_json, table};
use swinq::{Candidate, EvaluateOptions, ReadOptions};

use crate::engine::options;
use crate::error::raise;
use crate::images::Images;
use crate::model::Model;
use crate::quantize::Observer;

/// Runs `models`, with their names, on `images`, and compares each with the first. Returns the results in JSON and as a
/// text table.
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
    progress: Option<Py<PyAny>>,
) -> PyResult<(String, String)> {
    let largest = latency.iter().copied().max().unwrap_or(0).max(batch_size).max(1);
    let engine = options(py, backend, threads, largest, 0, "f16")?;
    let read = ReadOptions { batch_size, threads, skip_corrupt };
    let settings = EvaluateOptions { read, threads, latency, ..EvaluateOptions::default() };
    let mut observer = Observer::new(progress);
    let results = py.detach(|| {
        let candidate =
            |(name, model): &(String, Py<Model>)| Candidate::engine(name, &model.get().model, &engine);
        let mut candidates = models.iter().map(candidate).collect::<Result<Vec<_>, _>>()?;
        let mut images_done =
            |done: usize, total: usize| -> ControlFlow<()> { observer.step("evaluate", done, total) };
        swinq::evaluate(&mut candidates, &images.images, &settings, &mut images_done)
    });
    observer.check()?;
    let results = results.map_err(|error| raise(py, &error))?;
    let json = results_json(&results).map_err(|error| raise(py, &error.into()))?;
    Ok((json, table(&results)))
}
