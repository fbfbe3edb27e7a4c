//! Verification of the chosen recipe on images that the search did not see, and its measured latency.

use std::ops::ControlFlow;

use swinq_eval::results::tune::{Verdict, Verification};
use swinq_eval::{
    EffectSums, EvalError, LatencyOptions, Stats, Step, accuracy, measure_interleaved, top1_difference,
};
use swinq_model::{QuantizedModel, Size};

use super::TuneOptions;
use crate::evaluate::{maps, noise_of};
use crate::sensitivity::metric::Metric;
use crate::{
    Candidate, Engine, EngineOptions, Error, EvaluateOptions, Images, Model, features, infer_images,
};

/// Least total time of the recorded runs of each model, in milliseconds.
const LATENCY_MS: f64 = 1000.0;

/// Runs the float model and the chosen model on `images`.
pub(super) fn verify(
    models: [&QuantizedModel; 2],
    metric: &Metric,
    engine: &EngineOptions,
    images: &Images,
    options: &TuneOptions,
    progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
) -> Result<Verification, Error> {
    match metric {
        Metric::Logits(_) => verify_logits(models, engine, images, options, progress),
        Metric::Maps(outputs) => verify_maps(models, outputs, engine, images, options, progress),
    }
}

fn verify_logits(
    [float, chosen]: [&QuantizedModel; 2],
    engine: &EngineOptions,
    images: &Images,
    options: &TuneOptions,
    progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
) -> Result<Verification, Error> {
    let total = 2 * images.len();
    let mut run = |model: &QuantizedModel, before: usize| {
        let engine = Engine::new(model, engine.backend()?)?;
        let mut on_images = |done, _| progress(before + done, total);
        Ok::<_, Error>(infer_images(&engine, images, &options.read, &mut on_images)?.scores)
    };
    let reference = run(float, 0)?;
    let own = run(chosen, images.len())?;
    let mut sums = EffectSums::default();
    sums.add(&reference.logits, &own.logits, &own.labels)?;
    let difference = top1_difference(&reference, &own)?;
    Ok(Verification {
        images: own.images(),
        float_correct: Some(accuracy(&reference)?.top1_correct),
        effect: sums.effect(),
        top1_difference: Some(difference),
        verdict: Verdict::of(&difference, own.images(), options.max_drop),
    })
}

/// [`verify`] of backbones by the outputs `outputs`, indices and names.
fn verify_maps(
    models: [&QuantizedModel; 2],
    outputs: &[(usize, String)],
    engine: &EngineOptions,
    images: &Images,
    options: &TuneOptions,
    progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
) -> Result<Verification, Error> {
    let candidate = |model: &QuantizedModel| {
        Candidate::engine(&model.recipe.name, &Model::from_quantized(model.clone())?, engine)
    };
    let candidates = models.into_iter().map(candidate).collect::<Result<Vec<_>, Error>>()?;
    let how = EvaluateOptions { read: options.read, sizing: options.sizing, ..EvaluateOptions::default() };
    let mut on_images = |done: usize, total: usize| progress(done, total);
    let compared = maps::compare(&candidates, images, &how, &mut on_images).map_err(|error| match error {
        Error::Evaluating { source: EvalError::Interrupted { .. }, .. } => Error::Interrupted,
        error => error,
    })?;
    let errors = &compared.errors[0];
    let totals = errors.totals();
    let chosen = outputs.iter().map(|(index, name)| (name.clone(), totals[*index]));
    let effect = EffectSums::of_maps(errors.images().len(), chosen.collect()).effect();
    Ok(Verification {
        images: errors.images().len(),
        float_correct: None,
        top1_difference: None,
        verdict: Verdict::of_sqnr(effect.sqnr_db, options.min_sqnr.unwrap_or(f64::NEG_INFINITY)),
        effect,
    })
}

/// The latency of each model at one batch size, for images of `size`. The models take turns.
pub(super) fn latencies<const N: usize>(
    models: [&QuantizedModel; N],
    engine: &EngineOptions,
    (size, batch_size): (Size, usize),
) -> Result<[Stats; N], Error> {
    let mut engines = Vec::with_capacity(N);
    for model in models {
        engines.push(Engine::new(model, engine.backend()?)?);
    }
    let batch = noise_of(size, engines[0].channels(), batch_size)?;
    let steps = engines.iter().map(|engine| -> Step<'_> {
        let mut values = Vec::new();
        let batch = &batch;
        Box::new(move || Ok(features::compute(engine, batch, &mut values)?))
    });
    let mut steps: Vec<Step<'_>> = steps.collect();
    let found =
        measure_interleaved(&mut steps, &LatencyOptions { min_ms: LATENCY_MS, ..LatencyOptions::default() })?;
    Ok(std::array::from_fn(|index| found[index].stats()))
}
