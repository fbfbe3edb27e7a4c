//! Evaluation: accuracy, agreement with a baseline and latency of one or more models, as one set of results.

mod candidate;
mod latency;
#[cfg(feature = "float")]
mod site_noise;

use std::ops::ControlFlow;
use std::time::Duration;

use swinq_eval::{Accuracy, Collected, Environment, Latency, LatencyOptions, ModelResult, Results};
use swinq_model::Classifier;

pub use candidate::{Candidate, Runner};
pub use latency::{measure_latency, noise};

use crate::{EngineOptions, Error, Images, ReadOptions};

/// What [`evaluate`] measures.
#[derive(Clone, Debug, Default)]
pub struct EvaluateOptions {
    /// How the images are read.
    pub read: ReadOptions,
    /// Threads of the engines, for the results' description of the machine; 0 is one per core.
    pub threads: usize,
    /// Batch sizes whose latency is measured after the accuracy, with noise as images; empty measures none.
    pub latency: Vec<usize>,
    /// How latency is measured.
    pub latency_options: LatencyOptions,
    /// Measures the quantization noise of every site, over a few images, for the candidates that hold their model
    /// ([`Candidate::with_sites_of`]).
    #[cfg(feature = "float")]
    pub site_noise: bool,
}

/// Follows an evaluation and may stop it. A closure `FnMut(done, total) -> ControlFlow<()>` is an observer: it is
/// called with the images of the current model.
pub trait Observer {
    /// `model` starts to run on `images` images.
    fn begin(&mut self, model: &ModelResult, images: usize) {
        let _ = (model, images);
    }

    /// `done` of `total` images of the current model are done. `Break` stops the evaluation with an error.
    fn images(&mut self, done: usize, total: usize) -> ControlFlow<()>;

    /// `model` has run on all images; `skipped` are the messages of the corrupt images that were left out.
    fn evaluated(&mut self, model: &ModelResult, accuracy: &Accuracy, skipped: &[String]) {
        let _ = (model, accuracy, skipped);
    }

    /// The latency of every model at `batch_size` is known; measuring took `elapsed`.
    fn timed(&mut self, batch_size: usize, elapsed: Duration, latencies: &[(&ModelResult, &Latency)]) {
        let _ = (batch_size, elapsed, latencies);
    }

    /// Whether to stop; asked before every timed inference.
    fn stop(&self) -> bool {
        false
    }
}

impl<F: FnMut(usize, usize) -> ControlFlow<()>> Observer for F {
    fn images(&mut self, done: usize, total: usize) -> ControlFlow<()> {
        self(done, total)
    }
}

/// Runs every candidate on `images`, compares each with the first, and returns the figures of all.
///
/// # Errors
/// [`Error::Argument`] for no candidate; [`Error::Comparison`] for candidates of different classes; [`Error::Labels`]
/// for images whose labels are not the models' classes; [`Error::Evaluating`] where a model or its images fail or
/// `observer` stops; what [`measure_latency`] refuses.
pub fn evaluate(
    candidates: &mut [Candidate],
    images: &Images,
    options: &EvaluateOptions,
    observer: &mut dyn Observer,
) -> Result<Results, Error> {
    check_classes(candidates)?;
    let mut results = Results::new(environment(options.threads)?);
    let mut baseline: Option<Collected> = None;
    for candidate in candidates.iter_mut() {
        let collected = candidate.collect(images, &options.read, observer)?;
        match &baseline {
            None => baseline = Some(collected),
            Some(baseline) => candidate.compare(baseline, &collected)?,
        }
    }
    measure_latency(candidates, &options.latency, &options.latency_options, observer)?;
    #[cfg(feature = "float")]
    if options.site_noise {
        candidates.iter_mut().try_for_each(|candidate| candidate.measure_sites(images))?;
    }
    results.data = Some(images.info(candidates[0].transform()));
    results.models = candidates.iter().map(|candidate| candidate.result.clone()).collect();
    Ok(results)
}

/// The description of this machine for results. `threads` is the engines' number of threads; 0 is one per core.
///
/// # Errors
/// The instruction set that `SWINQ_ISA` asks for cannot be had.
pub fn environment(threads: usize) -> Result<Environment, Error> {
    let options = EngineOptions { threads, ..EngineOptions::default() };
    let cpu = options.cpu_options()?.cpu;
    Ok(Environment::detect(Some(cpu.name()), options.thread_count(), Default::default()))
}

fn check_classes(candidates: &[Candidate]) -> Result<(), Error> {
    let Some(first) = candidates.first() else {
        return Err(Error::argument("candidates", "there is no model to evaluate"));
    };
    let classes = first.runner.classes();
    let Some(other) = candidates.iter().find(|candidate| candidate.runner.classes() != classes) else {
        return Ok(());
    };
    let problem = format!(
        "{} has {} classes and {} has {classes}; only models of the same classes can be compared",
        other.result.name,
        other.runner.classes(),
        first.result.name
    );
    Err(Error::Comparison { problem })
}
