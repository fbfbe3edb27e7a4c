//! Sensitivity by a metric of the caller's: what it gains if a part of the network is left in float.

use std::ops::ControlFlow;

use serde::Serialize;
use swinq_eval::results::sensitivity::{Effect, Element};
use swinq_model::Recipe;

use super::{PartsOf, Run, SensitivityOptions, SensitivityProgress, load};
use crate::evaluation::Evaluation;
use crate::quantizer::ModelQuantizer;
use crate::{Error, Images, Model};

/// The effects of parts on a metric of the caller's.
#[derive(Clone, Debug, Serialize)]
pub struct MetricSensitivity {
    /// The metric's name.
    pub metric: String,
    /// The recipe whose parts were measured.
    pub recipe: Recipe,
    /// Number of images on which the effects on the outputs were measured.
    pub images: usize,
    /// The metric of the caller's float model.
    pub float: f64,
    /// The metric of the model with the whole recipe.
    pub whole: f64,
    /// The distance of its outputs from the float model's.
    pub whole_effect: Effect,
    /// The parts; the one that gains most is first.
    pub parts: Vec<PartSensitivity>,
}

/// The effect of a part.
#[derive(Clone, Debug, Serialize)]
pub struct PartSensitivity {
    /// The part, and the effects on the outputs.
    #[serde(flatten)]
    pub element: Element,
    /// The metric of the model with the whole recipe in which only this part is left in float.
    pub value: f64,
}

/// Measures what a metric of the caller's gains if a part of `model`, a float model, is left in float under
/// the recipe of `options`, for each of `parts`. Ranges are calibrated on `images`, on which the effects on
/// the outputs are measured, too.
///
/// The metric is evaluated for the float model, the whole recipe, and each part. `progress` is called after
/// every step, and with the number of evaluations before the first; `Break` stops the run, and everything
/// that was measured is in the cache.
///
/// # Errors
/// [`Error::Argument`] for parts that the model does not have, for a value that is not finite, and for a
/// model that is quantized; those of [`sensitivity`](super::sensitivity()).
pub fn sensitivity_by_metric(
    model: Model,
    options: &SensitivityOptions,
    parts: &PartsOf,
    images: &Images,
    mut evaluation: Evaluation<'_>,
    progress: &mut dyn FnMut(SensitivityProgress<'_>) -> ControlFlow<()>,
) -> Result<MetricSensitivity, Error> {
    let (metric, parts) = options.check(&model, parts)?;
    let float = model.into_float()?;
    let batches = load(images, &float, &options.read, options.sizing)?;
    let how = (&options.read, options.sizing);
    let quantizer = ModelQuantizer::calibrate(float, &options.recipe, images, how, &mut |step| {
        progress(SensitivityProgress::Calibrate(step))
    })?;
    let mut run = Run::new(quantizer, options, metric, &batches, (&evaluation.command(), parts), progress)?;
    let measured = run.measure(&batches, progress)?;
    let values = run.evaluate(&mut evaluation, progress)?;
    let recipe = run.recipe.clone();
    let plan = run.plan()?;
    let [float, whole, rest @ ..] = &values[..] else { unreachable!("two models are always evaluated") };
    let elements = (0..run.parts.len()).map(|index| run.element(index, &measured, &plan));
    let mut parts: Vec<PartSensitivity> =
        elements.zip(rest).map(|(element, &value)| PartSensitivity { element, value }).collect();
    parts.sort_by(|a, b| {
        let by_noise = b.element.without.sqnr_db.total_cmp(&a.element.without.sqnr_db);
        b.value.total_cmp(&a.value).then(by_noise)
    });
    Ok(MetricSensitivity {
        metric: evaluation.metric,
        recipe,
        images: batches.iter().map(swinq_model::Batch::len).sum(),
        float: *float,
        whole: *whole,
        whole_effect: measured.whole[0].sums.effect(),
        parts,
    })
}

impl Run {
    /// The metric of the float model, of the whole recipe, and of the recipe without each part.
    fn evaluate(
        &mut self,
        evaluation: &mut Evaluation<'_>,
        progress: &mut dyn FnMut(SensitivityProgress<'_>) -> ControlFlow<()>,
    ) -> Result<Vec<f64>, Error> {
        let mut recipes = vec![None, Some(self.recipe.clone())];
        recipes.extend(self.parts.iter().map(|part| {
            let mut changed = self.recipe.clone();
            changed.rules.extend(part.switched(false));
            Some(changed)
        }));
        let mut is_known = Vec::with_capacity(recipes.len());
        for recipe in &recipes {
            let model = recipe.as_ref().map(|recipe| self.quantizer.apply(recipe)).transpose()?;
            is_known.push(Evaluation::has(&self.cache, model));
        }
        let mut known = is_known.iter().filter(|known| **known).count();
        let mut report = |known| match progress(SensitivityProgress::Evaluate(known, recipes.len())) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Interrupted),
        };
        report(known)?;
        let mut values = Vec::with_capacity(recipes.len());
        for (recipe, was_known) in recipes.iter().zip(is_known) {
            let model = recipe.as_ref().map(|recipe| self.quantizer.apply(recipe)).transpose()?;
            values.push(evaluation.of(model, &mut self.cache)?);
            if !was_known {
                known += 1;
                report(known)?;
            }
        }
        Ok(values)
    }
}
