//! Quantization of a float model with a recipe and ranges.

use std::collections::BTreeMap;

use swinq_model::quantized::{FloatModel, Param, SiteState, check_range};
use swinq_model::{HostTensor, Linear, ModelError, Ptq, QuantizedModel, Recipe, Site, SiteSpec, all_linears};

use crate::channels::set_channel_codes;
use crate::error::CalibError;
use crate::refine::Refined;
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
    assemble(recipe, &Refined::new(model, ranges.clone()))
}

/// Applies `recipe` to a refined model, and rounds its weights as [`quantize`] does it.
pub(crate) fn assemble(recipe: &Recipe, refined: &Refined<'_>) -> Result<QuantizedModel, CalibError> {
    let Refined { model, ranges, channels, biases, .. } = refined;
    let mut quantized = QuantizedModel::from_float(model)?;
    quantized.sites = site_states(model, recipe, ranges)?;
    quantized.recipe = recipe.clone();
    for linear in all_linears(&model.config) {
        let site = Site::Weight(linear);
        let spec = &quantized.site(site).spec;
        if spec.enabled {
            let name = linear.weight_name();
            let weight = quantize_weight(&model.tensors[&name], spec)
                .map_err(|source| CalibError::WeightSite { site, source: Box::new(source) })?;
            quantized.params.insert(name, Param::Int8(weight));
        }
    }
    for (&block, codes) in channels {
        let amax = ranges[&Site::Input(Linear::Fc2(block))];
        set_channel_codes(&mut quantized, model, block, amax, codes.clone())?;
    }
    for (linear, bias) in biases {
        let bias = HostTensor::new([bias.len()], bias.clone());
        quantized.params.insert(linear.bias_name(), Param::Float(bias));
    }
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
