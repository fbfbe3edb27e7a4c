//! Converts the parameters of a training to a model.

use std::borrow::Cow;
use std::collections::BTreeMap;

use candle_core::Tensor;
use swinq_calib::{fold_factors, quantize_by_scales, quantize_weight};
use swinq_model::params::parameters;
use swinq_model::quantized::{FloatModel, Param};
use swinq_model::{HostTensor, QuantizedModel, Site, StateDict, SwinConfig, all_linears};

use crate::error::QatError;
use crate::scales::ScaleTable;

/// The network's parameters among `values`, which may also hold ratios of learned scales.
///
/// # Errors
/// Errors of candle.
pub fn state_dict(config: &SwinConfig, values: &BTreeMap<String, Tensor>) -> Result<StateDict, QatError> {
    let tensor = |name: &str| -> Result<HostTensor, QatError> {
        let tensor = &values[name];
        Ok(HostTensor::new(tensor.dims().to_vec(), tensor.flatten_all()?.to_vec1()?))
    };
    parameters(config).into_iter().map(|(name, _)| Ok((name.clone(), tensor(&name)?))).collect()
}

/// Quantizes the parameters `values` with their scales and ranges. The recipe, the calibration's record and
/// the preprocessing come from `template`.
///
/// # Errors
/// A weight or a range that cannot be quantized.
pub fn quantized(
    template: &QuantizedModel,
    start: &FloatModel,
    scales: &ScaleTable,
    values: &BTreeMap<String, Tensor>,
) -> Result<QuantizedModel, QatError> {
    let config = &template.config;
    let tensors = state_dict(config, values)?;
    let mut model = template.clone();
    for (&site, state) in &mut model.sites {
        if state.amax.is_some() {
            state.amax = scales.amax(site, values)?.or(state.amax);
        }
    }
    for (name, tensor) in &tensors {
        model.params.insert(name.clone(), Param::Float(tensor.clone()));
    }
    for linear in all_linears(config) {
        let name = linear.weight_name();
        let spec = &template.site(Site::Weight(linear)).spec;
        if !spec.enabled {
            continue;
        }
        // The codes include the factors of the input's channels.
        let tensor = match template.weight_factors(linear) {
            Some(factors) => Cow::Owned(fold_factors(&tensors[&name], factors)),
            None => Cow::Borrowed(&tensors[&name]),
        };
        let weight = match scales.trained_weight_scales(linear, values)? {
            Some((scales, largest)) => quantize_by_scales(&tensor, scales, largest),
            None => quantize_weight(&tensor, spec)?,
        };
        model.params.insert(name, Param::Int8(weight));
    }
    model.provenance.tool_version = env!("CARGO_PKG_VERSION").to_owned();
    model.provenance.source = start.source.clone();
    model.validate()?;
    Ok(model)
}

/// The float model with the parameters `values`.
///
/// # Errors
/// Errors of candle.
pub fn float(start: &FloatModel, values: &BTreeMap<String, Tensor>) -> Result<FloatModel, QatError> {
    Ok(start.with_tensors(state_dict(&start.config, values)?))
}
