//! From parameters in training to a checkpoint.

use std::collections::BTreeMap;

use candle_core::Tensor;
use swinq_calib::{quantize, quantize_weight};
use swinq_model::params::parameters;
use swinq_model::quantized::{FloatModel, Int8Weight, Param};
use swinq_model::{HostTensor, QuantizedModel, Recipe, Site, StateDict, SwinConfig, all_linears};

use crate::error::QatError;
use crate::scales::ScaleTable;

/// The float tensors among `values`, which may hold multiples of steps too.
///
/// # Errors
/// Those of candle.
pub fn state_dict(config: &SwinConfig, values: &BTreeMap<String, Tensor>) -> Result<StateDict, QatError> {
    let tensor = |name: &str| -> Result<HostTensor, QatError> {
        let tensor = &values[name];
        Ok(HostTensor::new(tensor.dims().to_vec(), tensor.flatten_all()?.to_vec1()?))
    };
    parameters(config).into_iter().map(|(name, _)| Ok((name.clone(), tensor(&name)?))).collect()
}

/// The quantized model that `values` are: weights by their scales, ranges as trained. What `template` says of the recipe,
/// the images and where the model came from stays.
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
        let weight = match scales.trained_weight_scales(linear, values)? {
            Some((scales, largest)) => codes(&tensors[&name], scales, largest),
            None => quantize_weight(&tensors[&name], spec)?,
        };
        model.params.insert(name, Param::Int8(weight));
    }
    model.provenance.tool_version = env!("CARGO_PKG_VERSION").to_owned();
    model.provenance.source = start.source.clone();
    model.validate()?;
    Ok(model)
}

/// The codes of `weight` under given scales.
fn codes(weight: &HostTensor, scales: Vec<f32>, largest: f32) -> Int8Weight {
    let run = weight.data.len() / scales.len();
    let code = |(values, scale): (&[f32], &f32)| {
        let recip = scale.recip();
        values
            .iter()
            .map(move |w| (w * recip).clamp(-largest, largest).round_ties_even() as i8)
            .collect::<Vec<i8>>()
    };
    let codes = weight.data.chunks(run).zip(&scales).flat_map(code).collect();
    Int8Weight { shape: weight.shape.clone(), codes, scales }
}

/// The float model that `values` are.
///
/// # Errors
/// Those of candle.
pub fn float(start: &FloatModel, values: &BTreeMap<String, Tensor>) -> Result<FloatModel, QatError> {
    Ok(FloatModel { tensors: state_dict(&start.config, values)?, ..start.clone() })
}

/// A float model as a quantized one with every site off, which the engine runs.
///
/// # Errors
/// Parameters that are not finite.
pub fn unquantized(model: &FloatModel) -> Result<QuantizedModel, QatError> {
    Ok(quantize(model, &Recipe::float(), &BTreeMap::new())?)
}
