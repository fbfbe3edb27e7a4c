//! Quantization of a float model with a recipe and ranges.

use std::collections::BTreeMap;

use swinq_model::params::check_parameters;
use swinq_model::quantized::{FloatModel, Param, SiteState, check_range};
use swinq_model::{HostTensor, Linear, ModelError, Ptq, QuantizedModel, Recipe, Site, SiteSpec, all_linears};

use crate::channels::set_codes;
use crate::error::CalibError;
use crate::refine::RefinedParameters;
use crate::weight::quantize_weight;

/// Applies `recipe` to `model`.
///
/// Every enabled weight becomes INT8 ([`quantize_weight`]). Every enabled `s8` activation gets its range: the
/// `amax` of its rule if there is one, else the range in `ranges`. Ranges of sites that the recipe disables are
/// ignored. The result is validated. Its provenance has no calibration record.
///
/// # Errors
/// - [`CalibError::Model`] if the recipe or the parameters do not fit the model, a range is missing or unusable, or a
///   layer's `ptq` is not `basic`.
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
    let sites = site_states(model, recipe, &refined.ranges)?;
    let params = parameters(model, &sites, refined)?;
    let mut quantized = QuantizedModel::of_parts(model, recipe.clone(), sites, params);
    for (&block, codes) in &refined.channels {
        let linear = Linear::Fc2(block);
        let weight = refined.tensor(model, &linear.weight_name()).expect("a layer has a weight");
        set_codes(&mut quantized, weight, block, refined.ranges[&Site::Input(linear)], codes.clone())?;
    }
    for (linear, bias) in &refined.biases {
        let bias = HostTensor::new([bias.len()], bias.clone());
        quantized.params.insert(linear.bias_name(), Param::Float(bias));
    }
    quantized.validate()?;
    Ok(quantized)
}

/// The parameters: the enabled weights as INT8, and copies of all others.
fn parameters(
    model: &FloatModel,
    sites: &BTreeMap<Site, SiteState>,
    refined: &RefinedParameters,
) -> Result<BTreeMap<String, Param>, CalibError> {
    let mut weights: BTreeMap<String, Site> =
        all_linears(&model.config).into_iter().map(|l| (l.weight_name(), Site::Weight(l))).collect();
    weights.retain(|_, site| sites[site].spec.enabled);
    let param = |(name, tensor): (&String, &HostTensor)| {
        let tensor = refined.tensors.get(name).unwrap_or(tensor);
        let Some(&site) = weights.get(name) else { return Ok((name.clone(), Param::Float(tensor.clone()))) };
        let weight = quantize_weight(tensor, &sites[&site].spec)
            .map_err(|source| CalibError::WeightSite { site, source: Box::new(source) })?;
        Ok((name.clone(), Param::Int8(weight)))
    };
    model.tensors.iter().map(param).collect()
}

/// Refuses a layer whose numbers ranges alone do not give.
fn refuse_ptq(site: Site, ptq: Ptq) -> Result<(), ModelError> {
    if ptq == Ptq::Basic {
        return Ok(());
    }
    let problem = format!("has ptq {ptq}, which needs images; calibrate on images, or state `ptq: basic`");
    Err(ModelError::site(site, problem))
}

/// The state of every site: its settings and, if it needs a scale, its range.
fn site_states(
    model: &FloatModel,
    recipe: &Recipe,
    ranges: &BTreeMap<Site, f32>,
) -> Result<BTreeMap<Site, SiteState>, CalibError> {
    let table: BTreeMap<Site, SiteSpec> = recipe.resolve(&model.config)?.into_iter().collect();
    if let Some(&site) = ranges.keys().find(|site| !table.contains_key(site)) {
        return Err(CalibError::UnknownSite { site, config: model.config.name.clone() });
    }
    let state = |(site, spec): (Site, SiteSpec)| {
        let given = spec.amax.or(ranges.get(&site).copied());
        let amax = if spec.needs_scale(site) { Some(check_given(site, given)?) } else { None };
        Ok((site, SiteState::new(spec, amax)))
    };
    table.into_iter().map(state).collect()
}

/// Refuses a missing or unusable range.
fn check_given(site: Site, given: Option<f32>) -> Result<f32, ModelError> {
    let amax = given.ok_or_else(|| {
        ModelError::site(
            site,
            "is enabled but has no range: calibrate it, give it a fixed `amax`, or disable it with a rule",
        )
    })?;
    check_range(site, amax)?;
    Ok(amax)
}
