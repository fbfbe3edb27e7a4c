//! Verification of the chosen recipe on images that the search did not see, and its measured latency.

use std::ops::ControlFlow;

use swinq_eval::results::tune::{Verdict, Verification};
use swinq_eval::{EffectSums, LatencyOptions, Stats, Step, accuracy, measure_interleaved, top1_difference};
use swinq_model::QuantizedModel;

use super::TuneOptions;
use crate::{Engine, EngineOptions, Error, Images, infer_images, noise};

/// Runs the float model and the chosen model on `images`.
pub(super) fn verify(
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
        float_correct: accuracy(&reference)?.top1_correct,
        effect: sums.effect(),
        top1_difference: difference,
        verdict: Verdict::of(&difference, own.images(), options.max_drop),
    })
}

/// The latency of each model at one batch size. The models take turns.
pub(super) fn latencies<const N: usize>(
    models: [&QuantizedModel; N],
    engine: &EngineOptions,
    batch_size: usize,
) -> Result<[Stats; N], Error> {
    let mut engines = Vec::with_capacity(N);
    for model in models {
        engines.push(Engine::new(model, engine.backend()?)?);
    }
    let batch = noise(&engines[0], batch_size)?;
    let steps = engines
        .iter()
        .map(|engine| -> Step<'_> { Box::new(|| engine.infer(&batch).map(|_| ()).map_err(Into::into)) });
    let mut steps: Vec<Step<'_>> = steps.collect();
    let found = measure_interleaved(&mut steps, &LatencyOptions::default())?;
    Ok(std::array::from_fn(|index| found[index].stats()))
}
