//! Converts the parameters of a training to a model.

use std::collections::BTreeMap;

use candle_core::Tensor;
use swinq_calib::{fold_factors, quantize_by_scales, quantize_weight};
use swinq_model::params::parameters;
use swinq_model::quantized::{FloatModel, Param, Source};
use swinq_model::{HostTensor, Linear, QuantizedModel, Site, StateDict, SwinConfig, all_linears};

use crate::error::QatError;
use crate::flat::host_values;
use crate::scales::ScaleTable;

/// The network's parameters among `values`, which may also hold ratios of learned scales.
///
/// # Errors
/// Errors of candle.
pub fn state_dict(config: &SwinConfig, values: &BTreeMap<String, Tensor>) -> Result<StateDict, QatError> {
    let tensor = |name: &str| -> Result<HostTensor, QatError> {
        let tensor = &values[name];
        Ok(HostTensor::new(tensor.dims().to_vec(), host_values(tensor)?))
    };
    parameters(config).into_iter().map(|(name, _)| Ok((name.clone(), tensor(&name)?))).collect()
}

/// The results of a training: parameters, and the scales that it learned.
pub struct Trained<'a> {
    /// Every parameter, in the names of [`parameters`].
    pub tensors: &'a StateDict,
    /// The range of an activation site; `None` keeps that of the template.
    pub amax: &'a dyn Fn(Site) -> Result<Option<f32>, QatError>,
    /// The scales of a weight; `None` computes them from its values, as the recipe says.
    pub weight_scales: &'a dyn Fn(Linear) -> Result<Option<Vec<f32>>, QatError>,
}

/// Quantizes the parameters of a training with its scales and ranges. The recipe, the calibration's record
/// and the preprocessing come from `template`, the source of the float model from `source`.
///
/// # Errors
/// A weight or a range that cannot be quantized.
pub fn quantized(
    template: &QuantizedModel,
    source: &Source,
    trained: &Trained<'_>,
) -> Result<QuantizedModel, QatError> {
    let config = &template.config;
    let mut model = template.clone();
    for (&site, state) in &mut model.sites {
        if state.amax.is_some() {
            state.amax = (trained.amax)(site)?.or(state.amax);
        }
    }
    for (name, tensor) in trained.tensors {
        model.params.insert(name.clone(), Param::Float(tensor.clone()));
    }
    for linear in all_linears(config) {
        let name = linear.weight_name();
        let spec = &template.site(Site::Weight(linear)).spec;
        if !spec.enabled {
            continue;
        }
        // The codes include the factors of the input's channels.
        let factors = template.weight_factors(linear).unwrap_or_default();
        let tensor = fold_factors(&trained.tensors[&name], factors);
        let weight = match (trained.weight_scales)(linear)? {
            Some(scales) => quantize_by_scales(&tensor, scales, spec.largest_code()),
            None => quantize_weight(&tensor, spec)?,
        };
        model.params.insert(name, Param::Int8(weight));
    }
    model.provenance.tool_version = env!("CARGO_PKG_VERSION").to_owned();
    model.provenance.source = source.clone();
    model.validate()?;
    Ok(model)
}

/// [`quantized`], for the parameters `values` of a student with the scales `scales`.
///
/// # Errors
/// A weight or a range that cannot be quantized, and errors of candle.
pub fn quantized_student(
    template: &QuantizedModel,
    start: &FloatModel,
    scales: &ScaleTable,
    values: &BTreeMap<String, Tensor>,
) -> Result<QuantizedModel, QatError> {
    let trained = Trained {
        tensors: &state_dict(&template.config, values)?,
        amax: &|site| scales.amax(site, values),
        weight_scales: &|linear| scales.trained_weight_scales(linear, values),
    };
    quantized(template, &start.source, &trained)
}

/// The float model with the parameters `values`.
///
/// # Errors
/// Errors of candle.
pub fn float(start: &FloatModel, values: &BTreeMap<String, Tensor>) -> Result<FloatModel, QatError> {
    Ok(start.with_tensors(state_dict(&start.config, values)?))
}
