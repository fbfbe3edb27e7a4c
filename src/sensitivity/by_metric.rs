//! Sensitivity by a metric of the caller's: what it gains if a part of the network is left in float.

use std::ops::ControlFlow;

use serde::Serialize;
use swinq_eval::results::sensitivity::{Effect, Element};
use swinq_model::{QuantizedModel, Recipe, SitePattern};

use super::elements::{ModelElement, blocks, layers, sites};
use super::metric::Metric;
use super::{Run, SensitivityOptions, SensitivityProgress, element, load};
use crate::evaluation::Evaluation;
use crate::quantizer::ModelQuantizer;
use crate::{Error, Images, Model};

/// Kinds of parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PartKinds {
    /// Linear layers and attention products that run in INT8.
    #[default]
    Layers,
    /// Blocks, and the layers outside of them.
    Blocks,
    /// Single sites.
    Sites,
}

/// The parts that are measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartsOf {
    /// What they are.
    pub kinds: PartKinds,
    /// A pattern of their names, as of sites in recipes.
    pub pattern: String,
}

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

/// Measures what a metric of the caller's gains if a part of `model`, a float model, is left in float under the recipe of `options`,
/// for each of `parts`. Ranges are calibrated on `images`, on which the effects on the outputs are measured, too.
///
/// The metric is evaluated for the float model, the whole recipe, and each part. `progress` is called after every step, and with the
/// number of evaluations before the first; `Break` stops the run, and everything that was measured is in the cache.
///
/// # Errors
/// [`Error::Argument`] for parts that the model does not have, for a value that is not finite, and for a model that is quantized;
/// those of [`sensitivity`](super::sensitivity()).
pub fn sensitivity_by_metric(
    model: Model,
    options: &SensitivityOptions,
    parts: &PartsOf,
    images: &Images,
    mut evaluation: Evaluation<'_>,
    progress: &mut dyn FnMut(SensitivityProgress) -> ControlFlow<()>,
) -> Result<MetricSensitivity, Error> {
    crate::calibration::check_recipe(&model, &options.recipe)?;
    let metric = Metric::new(model.config(), &options.sqnr_of)?;
    let float = model.into_float()?;
    let batches = load(images, &float, &options.read, options.sizing)?;
    let how = (&options.read, options.sizing);
    let quantizer = ModelQuantizer::calibrate(float, &options.recipe, images, how, &mut |step| {
        progress(SensitivityProgress::Calibrate(step))
    })?;
    let all = |model: &QuantizedModel| {
        let parts = parts.find(model)?;
        let count = parts.len();
        Ok((parts, count))
    };
    let mut run = Run::new(quantizer, options, metric, &batches, (&evaluation.command(), all), progress)?;
    let measured = run.measure(&batches, progress)?;
    let values = run.evaluate(&mut evaluation, progress)?;
    let recipe = run.recipe.clone();
    let plan = run.prepare(&recipe)?.plan().clone();
    let [float, whole, rest @ ..] = &values[..] else { unreachable!("two models are always evaluated") };
    let elements = run.parts.iter().zip(&measured.parts).map(|(part, sums)| element(part, sums, &plan));
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
        whole_effect: measured.whole[0].effect(),
        parts,
    })
}

impl PartsOf {
    /// Those of `model`, in forward order.
    fn find(&self, model: &QuantizedModel) -> Result<Vec<ModelElement>, Error> {
        let refuse = |problem: String| Error::argument("only", format!("`{}`: {problem}", self.pattern));
        let pattern = SitePattern::new(&self.pattern).map_err(refuse)?;
        let all = match self.kinds {
            PartKinds::Layers => layers(model),
            PartKinds::Blocks => blocks(model),
            PartKinds::Sites => sites(model),
        };
        let example = all.first().map_or(String::new(), |part| format!("; one of them is {}", part.kind));
        let found: Vec<ModelElement> =
            all.into_iter().filter(|part| pattern.matches(&part.kind.to_string())).collect();
        match found.is_empty() {
            true => Err(refuse(format!("matches none of the quantized parts{example}"))),
            false => Ok(found),
        }
    }
}

impl Run {
    /// The metric of the float model, of the whole recipe, and of the recipe without each part.
    fn evaluate(
        &mut self,
        evaluation: &mut Evaluation<'_>,
        progress: &mut dyn FnMut(SensitivityProgress) -> ControlFlow<()>,
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
