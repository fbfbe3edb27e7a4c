//! Models that are run and what is found of them.

use std::path::Path;
use std::time::Instant;

use swinq_eval::{Latency, LatencyOptions, ModelResult, SiteResult, Step, measure_interleaved};
use swinq_int8_runtime::Engine;
use swinq_model::site::all_sites;
use swinq_model::{Batch, Classifier, QuantizedModel, SwinConfig, Transform};

use crate::backend::{Runnable, Target};

/// A model being evaluated or timed.
pub struct Subject {
    /// What is known of it so far.
    pub result: ModelResult,
    /// What runs it.
    pub classifier: Runnable,
    /// Its preprocessing.
    pub transform: Transform,
    /// Its architecture.
    pub config: SwinConfig,
    /// The model, where its sites can be measured.
    pub quantized: Option<QuantizedModel>,
}

impl Subject {
    /// `model`, from `path`, on an engine, which holds what it needs of it.
    pub fn engine(path: &Path, model: &QuantizedModel, target: Target) -> anyhow::Result<Subject> {
        let mut result = ModelResult::new(path.display().to_string(), target.precision(model), target.name());
        result.size_bytes = Some(model.size_bytes());
        if model.is_quantized() {
            result.recipe = Some(model.recipe.name.clone());
            result.int8_share = Some(model.int8_share());
            result.sites = site_results(model);
        }
        Ok(Subject {
            result,
            classifier: target.engine(model)?,
            transform: model.transform.clone(),
            config: model.config.clone(),
            quantized: None,
        })
    }
}

fn site_results(model: &QuantizedModel) -> Vec<SiteResult> {
    let rule_of = |name: &str| model.recipe.deciding_rule(name);
    let result = |site: swinq_model::Site| {
        let state = model.site(site);
        let name = site.to_string();
        let reason = (!state.spec.enabled).then(|| match rule_of(&name) {
            Some(rule) => format!("rule `{}` of recipe {}", rule.pattern, model.recipe.name),
            None => "no rule enables it".to_owned(),
        });
        let (enabled, kind, scale) = (state.spec.enabled, state.spec.kind, state.scale());
        SiteResult { site: name, enabled, kind, scale, sqnr_db: None, reason }
    };
    all_sites(&model.config).into_iter().map(result).collect()
}

/// Measures the latency of every subject at every batch size, in turn within one run, and enters it.
pub fn measure(
    subjects: &mut [Subject],
    batch_sizes: &[usize],
    options: &LatencyOptions,
    each: &mut dyn FnMut(&Subject, usize, &Latency),
) -> anyhow::Result<()> {
    for &batch_size in batch_sizes {
        let batches: Vec<Batch> = subjects.iter().map(|s| noise(s.config.image_size, batch_size)).collect();
        let mut steps: Vec<Step<'_>> = Vec::new();
        for (subject, batch) in subjects.iter_mut().zip(&batches) {
            let classifier = &mut subject.classifier;
            steps.push(Box::new(move || {
                if crate::interrupt::requested() {
                    return Err("interrupted; nothing was written".into());
                }
                classifier.infer(batch).map(|_| ())
            }));
        }
        let start = Instant::now();
        let latencies = measure_interleaved(&mut steps, options)?;
        drop(steps);
        eprintln!("latency at batch {batch_size}: {:.1} s", start.elapsed().as_secs_f64());
        for (subject, latency) in subjects.iter_mut().zip(&latencies) {
            subject.result.set_latency(batch_size, latency);
            if let Runnable::Engine(engine) = &subject.classifier
                && let Some(times) = compute_times(engine, batch_size)?
            {
                subject.result.set_compute(batch_size, &times);
            }
            each(subject, batch_size, latency);
        }
    }
    for subject in subjects {
        subject.result.peak_memory_bytes = swinq_eval::peak_memory_bytes();
    }
    Ok(())
}

/// Forwards timed on the GPU alone.
const COMPUTE_RUNS: usize = 200;

/// Times of forwards whose images are on the GPU already; `None` on the CPU.
fn compute_times(engine: &Engine, batch_size: usize) -> anyhow::Result<Option<Latency>> {
    if engine.device().is_none() {
        return Ok(None);
    }
    engine.compute_times(batch_size, COMPUTE_RUNS / 4)?;
    let Some(times) = engine.compute_times(batch_size, COMPUTE_RUNS)? else { return Ok(None) };
    Ok(Some(Latency::from_samples(times.iter().map(|time| 1e3 * time.as_secs_f64()).collect())?))
}

/// Images of deterministic noise: the time of a forward does not depend on the pixels.
pub fn noise(size: usize, images: usize) -> Batch {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut byte = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    let pixels = (0..images * size * size * 3).map(|_| byte()).collect();
    Batch { pixels, size, labels: Vec::new(), ids: (0..images).collect() }
}
