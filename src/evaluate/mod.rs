//! Evaluation: accuracy, agreement with a baseline and latency of one or more models, as one set of results.
//! Backbones are compared by their feature maps.

mod candidate;
mod latency;
pub(crate) mod maps;
pub(crate) mod predictions;
mod report;
#[cfg(feature = "float")]
pub(crate) mod site_noise;

use std::ops::ControlFlow;
use std::time::Duration;

use swinq_data::Sizing;
use swinq_eval::{Accuracy, Collected, DataInfo, Environment, Latency, LatencyOptions, ModelResult, Results};
use swinq_model::{Size, SwinConfig};

pub use candidate::{Candidate, CandidateRunner};
pub(crate) use latency::noise_of;
pub use latency::{measure_latency, noise};
pub use predictions::{Predicted, write_predictions};
pub use report::{ReportFiles, write_report};

use crate::class_numbers::contradiction;
use crate::{EngineOptions, Error, Images, ReadOptions};

/// The measurements of [`evaluate`].
#[derive(Clone, Debug, Default)]
pub struct EvaluateOptions {
    /// How the images are read.
    pub read: ReadOptions,
    /// The size that images get before a backbone. Images of a classifier have the size of its transform.
    pub sizing: Sizing,
    /// Number of threads of the engines, which the results record; 0 is one per core.
    pub threads: usize,
    /// Batch sizes whose latency is measured after the accuracy, on images of noise. If empty, no latency is
    /// measured. For backbones the images have the sizes that most images of the evaluation have.
    pub latency: Vec<usize>,
    /// How latency is measured.
    pub latency_options: LatencyOptions,
    /// Whether to measure the quantization noise of every site on a few images, for the candidates that keep
    /// their model ([`Candidate::with_sites_of`]). The noise of weights is that of their calibration
    /// ([`Candidate::record_file`]).
    #[cfg(feature = "float")]
    pub site_noise: bool,
    /// Whether to measure the time of each launch, at the smallest batch size in `latency`.
    pub profile: bool,
}

/// Observes an evaluation and may stop it. A closure `FnMut(done, total) -> ControlFlow<()>` is an observer:
/// it is called with the numbers of images of the current model.
pub trait Observer {
    /// Called with a remark for the reader on the images or models.
    fn remark(&mut self, text: &str) {
        let _ = text;
    }

    /// Called when `model` starts to run on `images` images.
    fn begin(&mut self, model: &ModelResult, images: usize) {
        let _ = (model, images);
    }

    /// Called when `models`, which are backbones, start to run side by side on `images` images.
    fn begin_together(&mut self, models: &[&ModelResult], images: usize) {
        let _ = (models, images);
    }

    /// Called when `done` of `total` images of the current model are done. `Break` stops the evaluation with
    /// an error.
    fn images(&mut self, done: usize, total: usize) -> ControlFlow<()>;

    /// Called when `model` has run on all images. `accuracy` is `None` for images without labels; `skipped`
    /// holds the error messages of the corrupt images that were left out.
    fn evaluated(&mut self, model: &ModelResult, accuracy: Option<&Accuracy>, skipped: &[String]) {
        let _ = (model, accuracy, skipped);
    }

    /// Called before the latency of every model at `batch_size` is measured, with about the time that it will
    /// take. Not called for batches that take a few milliseconds.
    fn timing(&mut self, batch_size: usize, estimate: Duration) {
        let _ = (batch_size, estimate);
    }

    /// Called when the latency of every model at `batch_size` has been measured, which took `elapsed`.
    fn timed(&mut self, batch_size: usize, elapsed: Duration, latencies: &[(&ModelResult, &Latency)]) {
        let _ = (batch_size, elapsed, latencies);
    }

    /// Called before the noise of the sites of `model` is measured, and after each of its `total` sites.
    /// `Break` stops the evaluation with an error.
    fn site(&mut self, model: &ModelResult, done: usize, total: usize) -> ControlFlow<()> {
        let _ = (model, done, total);
        ControlFlow::Continue(())
    }

    /// Whether to stop the evaluation; called before every timed inference.
    fn stop(&self) -> bool {
        false
    }
}

impl<F: FnMut(usize, usize) -> ControlFlow<()>> Observer for F {
    fn images(&mut self, done: usize, total: usize) -> ControlFlow<()> {
        self(done, total)
    }
}

/// Runs every candidate on `images`, compares each with the first, and returns the figures of all. Images
/// without labels give no accuracy: the figures that compare two models need none. Backbones are compared by
/// their feature maps, and need no labels.
///
/// # Errors
/// [`Error::Argument`] for an empty list of candidates; [`Error::Comparison`] for candidates with different
/// numbers of classes or different outputs, and for a single backbone; [`Error::Labels`] for images whose
/// labels are not the models' classes, and for images without labels if there is only one candidate;
/// [`Error::Evaluating`] if a model or its images fail, or if `observer` stops the evaluation; the errors of
/// [`measure_latency`].
pub fn evaluate(
    candidates: &mut [Candidate],
    images: &Images,
    options: &EvaluateOptions,
    observer: &mut dyn Observer,
) -> Result<Results, Error> {
    check_alike(candidates)?;
    let (images, remark) = &numbered(candidates, images)?;
    latency::check_memory(candidates, &options.latency)?;
    let mut results = Results::new(environment(options.threads)?);
    if let Some(remark) = remark {
        observer.remark(remark);
        results.notes.push(remark.clone());
    }
    let sizes = match candidates[0].config().is_backbone() {
        true => compare_maps(candidates, images, options, observer)?,
        false => compare_logits(candidates, images, options, observer)?,
    };
    if let Some(turned) = images.turned() {
        observer.remark(&turned);
        results.notes.push(turned);
    }
    results.load = latency::measure_sizes(candidates, &sizes, options, observer)?;
    if let Some(&batch_size) = options.latency.iter().min().filter(|_| options.profile) {
        candidates.iter_mut().try_for_each(|candidate| candidate.profile(batch_size))?;
    }
    #[cfg(feature = "float")]
    if options.site_noise {
        site_noise::measure_all(candidates, images, options.sizing, observer)?;
    }
    results.data = Some(data_info(candidates, images, options.sizing));
    results.peak_memory_bytes = swinq_eval::peak_memory_bytes();
    results.models = candidates.iter().map(|candidate| candidate.result.clone()).collect();
    Ok(results)
}

/// Runs every candidate, a classifier, and stores its accuracy and its agreement with the first. Returns no
/// sizes: latency is that of the candidates' own.
fn compare_logits(
    candidates: &mut [Candidate],
    images: &Images,
    options: &EvaluateOptions,
    observer: &mut dyn Observer,
) -> Result<Vec<Size>, Error> {
    let mut baseline: Option<Collected> = None;
    for candidate in candidates {
        let collected = candidate.collect(images, &options.read, observer)?;
        match &baseline {
            None => baseline = Some(collected),
            Some(baseline) => candidate.compare(baseline, &collected, images)?,
        }
    }
    Ok(Vec::new())
}

/// Runs the candidates, which are backbones, and stores how far the outputs of each are from the first's.
/// Returns the sizes of images whose latency is of interest.
fn compare_maps(
    candidates: &mut [Candidate],
    images: &Images,
    options: &EvaluateOptions,
    observer: &mut dyn Observer,
) -> Result<Vec<Size>, Error> {
    let compared = maps::compare(candidates, images, options, observer)?;
    compared.store(candidates, images)?;
    candidates.iter().for_each(|candidate| observer.evaluated(&candidate.result, None, &compared.skipped));
    Ok(compared.sizes())
}

/// `images` with their classes numbered as the candidates number them, and a remark if that changes the
/// numbers or they are not certain.
///
/// Backbones have no classes, so that their images are returned as they are.
pub(crate) fn numbered(candidates: &[Candidate], images: &Images) -> Result<(Images, Option<String>), Error> {
    if candidates[0].config().is_backbone() {
        return Ok((images.clone(), None));
    }
    let mut named = candidates.iter().filter_map(|candidate| Some((candidate, candidate.labels()?)));
    let first = named.next();
    for ((candidate, labels), (first, expected)) in named.zip(first.into_iter().cycle()) {
        if let Some(class) = contradiction(expected, labels) {
            let problem = format!(
                "{} and {} state the same class names in different orders: class {class} is {} and {}; their outputs \
                 cannot be compared",
                first.result.name, candidate.result.name, expected[class], labels[class]
            );
            return Err(Error::Comparison { problem });
        }
    }
    if images.has_labels() {
        return images.numbered_for(
            candidates[0].config(),
            first.map(|(_, labels)| labels),
            candidates[0].dialect(),
        );
    }
    if candidates.len() == 1 {
        let problem = format!(
            "{}: without labels there is no accuracy, and one model has no other to agree with; give a second model, or \
             images with labels: a folder per class, a zip layout or a list with classes",
            images.describe()
        );
        return Err(Error::Labels { problem });
    }
    let remark = format!("{}: accuracy is not measured; the models are compared", images.describe());
    Ok((images.clone(), Some(remark)))
}

/// The description of the images, with the class names of a model that has them, else of the data set.
pub(crate) fn data_info(candidates: &[Candidate], images: &Images, sizing: Sizing) -> DataInfo {
    let mut info = images.info(candidates[0].transform());
    if candidates[0].config().is_backbone() {
        return DataInfo { sizing: Some(sizing.to_string()), class_names: None, ..info };
    }
    let named = |candidate: &Candidate| Some(candidate.model()?.labels()?.to_vec());
    info.class_names = candidates.iter().find_map(named).or(info.class_names);
    info
}

/// The description of this machine for results. `threads` is the engines' number of threads; 0 is one per
/// core.
///
/// # Errors
/// An error if the processor does not have the instruction set that `SWINQ_ISA` names.
pub fn environment(threads: usize) -> Result<Environment, Error> {
    let options = EngineOptions { threads, ..EngineOptions::default() };
    let cpu = options.cpu_options()?.cpu;
    Ok(Environment::detect(Some(cpu.name()), options.thread_count(), Default::default()))
}

/// Refuses candidates whose results cannot be compared.
pub(crate) fn check_alike(candidates: &[Candidate]) -> Result<(), Error> {
    let Some((first, others)) = candidates.split_first() else {
        return Err(Error::argument("candidates", "there is no model to evaluate"));
    };
    if first.config().is_backbone() && others.is_empty() {
        let problem = format!(
            "{} is a backbone, whose feature maps are measured against those of another; give the float checkpoint first, \
             and then a quantized one (`swinq bench` measures latency alone)",
            first.result.name
        );
        return Err(Error::Comparison { problem });
    }
    others.iter().try_for_each(|other| check_pair(first, other))
}

/// Refuses two candidates if one of them is a backbone, or if they have different outputs or classes.
fn check_pair(first: &Candidate, other: &Candidate) -> Result<(), Error> {
    let [(name, config), (other_name, other_config)] =
        [first, other].map(|candidate| (&candidate.result.name, candidate.config()));
    let outputs = |config: &SwinConfig| -> Vec<(String, usize)> {
        let stages = config.stages();
        config.outputs.iter().map(|output| (output.name.clone(), stages[output.stage].dim)).collect()
    };
    let listed = |config: &SwinConfig| {
        let text: Vec<String> =
            outputs(config).iter().map(|(output, channels)| format!("{output} ({channels})")).collect();
        text.join(", ")
    };
    let problem = match (config.is_backbone(), other_config.is_backbone()) {
        (true, true) if outputs(config) == outputs(other_config) => return Ok(()),
        (false, false) if first.classes() == other.classes() => return Ok(()),
        (true, true) => format!(
            "{other_name} has the outputs {} and {name} has {} (channels in parentheses); choose those of a float checkpoint \
             with --outputs",
            listed(other_config),
            listed(config)
        ),
        (false, false) => format!(
            "{other_name} has {} classes and {name} has {}; compare models with the same number of classes",
            other.classes(),
            first.classes()
        ),
        (backbone, _) => {
            let [backbone, classifier] = if backbone { [name, other_name] } else { [other_name, name] };
            format!(
                "{backbone} is a backbone and {classifier} a classifier; add --task features to read a float checkpoint as \
                 a backbone"
            )
        }
    };
    Err(Error::Comparison { problem })
}
