//! From a float model, a recipe and ranges to a quantized model.

use std::collections::BTreeMap;

use swinq_model::quantized::{FloatModel, Param, SiteState, check_range};
use swinq_model::{ModelError, QuantizedModel, Recipe, Site, SiteSpec, all_linears};

use crate::error::CalibError;
use crate::weight::quantize_weight;

/// Applies `recipe` to `model`: every enabled weight in INT8 ([`quantize_weight`]), every enabled `s8` activation with
/// its range, from its rule's `amax` if there is one, else from `ranges`. Ranges of sites that the recipe leaves off
/// are ignored. The result is validated; its provenance has no calibration.
///
/// # Errors
/// A recipe or parameters that do not fit the model; a range that is missing, that cannot be one, or that is for a site
/// the model does not have; a weight that cannot be quantized as its site says.
pub fn quantize(
    model: &FloatModel,
    recipe: &Recipe,
    ranges: &BTreeMap<Site, f32>,
) -> Result<QuantizedModel, CalibError> {
    let mut quantized = QuantizedModel::from_float(model)?;
    quantized.sites = states(model, recipe, ranges)?;
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
    quantized.validate()?;
    Ok(quantized)
}

fn states(
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
        let amax = if spec.needs_scale(site) { Some(range(site, given)?) } else { None };
        Ok((site, SiteState { spec, amax }))
    };
    table.into_iter().map(state).collect()
}

fn range(site: Site, given: Option<f32>) -> Result<f32, ModelError> {
    let amax = given.ok_or_else(|| {
        ModelError::site(
            site,
            "is enabled but has no range: calibrate it, give it a fixed `amax`, or disable it with a rule",
        )
    })?;
    check_range(site, amax)?;
    Ok(amax)
}
