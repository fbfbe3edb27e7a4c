//! Quantization of a float model with a recipe and ranges.

use std::collections::BTreeMap;

use swinq_model::params::check_parameters;
use swinq_model::quantized::{FloatModel, Param};
use swinq_model::{ModelError, Ptq, QuantizedModel, Recipe, Site, SiteSpec, all_linears};

use crate::error::CalibError;
use crate::refined::{LayerForm, RefinedParameters};

const NO_RANGE: &str =
    "is enabled but has no range: calibrate it, give it a fixed `amax`, or disable it with a rule";

/// Applies `recipe` to `model`.
///
/// Every enabled weight becomes INT8 ([`quantize_weight`](crate::quantize_weight)). Every enabled `s8`
/// activation gets its range: the `amax` of its rule if there is one, else the range in `ranges`. Ranges of
/// sites that the recipe disables are ignored. The result is validated. Its provenance has no calibration
/// record.
///
/// # Errors
/// - [`CalibError::Model`] if the recipe or the parameters do not fit the model, a range is missing or
///   unusable, or a layer's `ptq` is not `basic`.
/// - [`CalibError::UnknownSite`] for a range of a site that the model does not have.
/// - [`CalibError::WeightSite`] for a weight that cannot be quantized with the settings of its site.
pub fn quantize(
    model: &FloatModel,
    recipe: &Recipe,
    ranges: &BTreeMap<Site, f32>,
) -> Result<QuantizedModel, CalibError> {
    for (site, spec) in recipe.resolve(&model.config)? {
        if spec.enabled {
            refuse_ptq(site, spec.ptq)?;
        }
    }
    assemble(model, recipe, &RefinedParameters::new(ranges.clone()))
}

/// Applies `recipe` to `model` as it was refined, and rounds its weights as [`quantize`] does it.
pub(crate) fn assemble(
    model: &FloatModel,
    recipe: &Recipe,
    refined: &RefinedParameters,
) -> Result<QuantizedModel, CalibError> {
    check_parameters(&model.config, &model.tensors)?;
    let specs: BTreeMap<Site, SiteSpec> = recipe.resolve(&model.config)?.into_iter().collect();
    if let Some(&site) = refined.ranges.keys().find(|site| !specs.contains_key(site)) {
        return Err(CalibError::UnknownSite { site, config: model.config.name.clone() });
    }
    let sites = refined.site_states(&specs, |site, _| {
        refined.ranges.get(&site).copied().ok_or_else(|| ModelError::site(site, NO_RANGE))
    })?;
    let mut params = BTreeMap::new();
    for layer in all_linears(&model.config) {
        params.extend(refined.layer(model, layer, &LayerForm::new(layer, &sites))?);
    }
    for (name, tensor) in &model.tensors {
        params.entry(name.clone()).or_insert_with(|| Param::Float(tensor.clone()));
    }
    let quantized = QuantizedModel::of_parts(model, recipe.clone(), sites, params);
    quantized.validate()?;
    Ok(quantized)
}

/// Refuses a layer whose numbers ranges alone do not give.
fn refuse_ptq(site: Site, ptq: Ptq) -> Result<(), ModelError> {
    if ptq == Ptq::Basic {
        return Ok(());
    }
    let problem = format!("has ptq {ptq}, which needs images; calibrate on images, or state `ptq: basic`");
    Err(ModelError::site(site, problem))
}
