//! What a training in Python needs of a model, and the model that it leaves.

use std::collections::BTreeMap;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use swinq::model::quantized::{ChannelCodes, Param, SiteState};
use swinq::model::{Calibrator, HostTensor, Ptq, QuantizedModel, Size, StateDict, Values};
use swinq::{Site, TrainedParameters};
use twox_hash::XxHash3_128;

use crate::buffer::Array;
use crate::error::{raise, raise_as};
use crate::model::Model;

/// A tensor of the state dictionary that is a parameter or a part of one, and how its values become the
/// parameter's.
#[pyclass(frozen, get_all, module = "swinq._native")]
pub struct StoredParameter {
    name: String,
    parameter: String,
    values: String,
}

/// A float tensor: its values in f32.
#[pyclass(frozen, get_all, module = "swinq._native")]
pub struct FloatTensor {
    name: String,
    shape: Vec<usize>,
    values: Py<PyBytes>,
}

/// A quantized site. Factors, zero points and scales are f32.
#[pyclass(frozen, get_all, module = "swinq._native")]
pub struct QuantizedSite {
    name: String,
    bits: u8,
    /// Whether the scales of a weight are those of its largest values.
    of_largest: bool,
    /// The range of an activation.
    amax: Option<f32>,
    /// Factors and zero points of the channels of an activation.
    factors: Option<Py<PyBytes>>,
    zero_points: Option<Py<PyBytes>>,
    /// The scales of a weight.
    scales: Option<Py<PyBytes>>,
}

/// A stage.
#[pyclass(frozen, get_all, module = "swinq._native")]
pub struct Stage {
    depth: usize,
    channels: usize,
    heads: usize,
    /// Height and width of a window.
    window: [usize; 2],
    /// The row of the bias table for each query and key, i64.
    bias_rows: Py<PyBytes>,
    /// The region of each token under each mask, u8.
    regions: Py<PyBytes>,
}

/// A stage for one image. Rows are i64.
#[pyclass(frozen, get_all, module = "swinq._native")]
pub struct Grid {
    /// Height and width.
    size: [usize; 2],
    /// The tokens in the order of windows without and with the shift, -1 for padding.
    plain: Py<PyBytes>,
    shifted: Py<PyBytes>,
    /// The mask of each shifted window, u8.
    masks: Py<PyBytes>,
    /// The sources of patch merging, -1 for padding.
    merge: Py<PyBytes>,
}

/// A trained parameter: its values in f32.
#[derive(FromPyObject)]
pub struct TrainedTensor<'py> {
    name: String,
    shape: Vec<usize>,
    values: Bound<'py, PyAny>,
}

/// Factors and zero points of the channels of an activation.
#[derive(FromPyObject)]
pub struct ChannelScales {
    factors: Vec<f32>,
    zero_points: Vec<i8>,
}

/// The tensors of the state dictionary that are parameters.
#[pyfunction]
pub fn stored_parameters(model: &Model) -> Vec<StoredParameter> {
    let values = |values| match values {
        Values::Whole => "whole".to_owned(),
        Values::Third(index) => format!("third {index}"),
        Values::Unfolded => "unfolded".to_owned(),
        Values::Map => "map".to_owned(),
    };
    let row = |stored: &swinq::model::StoredParameter| StoredParameter {
        name: stored.name.clone(),
        parameter: stored.parameter.clone(),
        values: values(stored.values),
    };
    model.stored.iter().map(row).collect()
}

/// The coefficients of the GELU of quantized models (docs/inference.md, section 2): `[3, 32]` in f32, by
/// powers.
#[pyfunction]
pub fn gelu_table(py: Python<'_>) -> Py<PyBytes> {
    floats(py, swinq::numerics::reference::math::QUADRATIC.0.as_flattened())
}

/// A hash of the bytes of arrays of `uint8`, in their order.
#[pyfunction]
pub fn fingerprint(py: Python<'_>, arrays: Vec<Bound<'_, PyAny>>) -> PyResult<u128> {
    let arrays: Vec<Array<u8>> =
        arrays.iter().map(|array| Array::of(array, "a tensor")).collect::<PyResult<_>>()?;
    Ok(py.detach(|| {
        let mut hash = XxHash3_128::new();
        arrays.iter().for_each(|array| hash.write(array.as_slice()));
        hash.finish_128()
    }))
}

/// The float values of all parameters.
#[pyfunction]
pub fn parameters(py: Python<'_>, model: &Model) -> Vec<FloatTensor> {
    let tensors = py.detach(|| model.model.as_quantized().float_tensors());
    let row = |(name, tensor): (String, HostTensor)| {
        let values = floats(py, &tensor.data);
        FloatTensor { name, shape: tensor.shape, values }
    };
    tensors.into_iter().map(row).collect()
}

/// The sites that are on.
#[pyfunction]
pub fn quantized_sites(py: Python<'_>, model: &Model) -> Vec<QuantizedSite> {
    let model = model.model.as_quantized();
    let on = model.sites.iter().filter(|(_, state)| state.spec.enabled);
    on.map(|(&site, state)| quantized_site(py, model, site, state)).collect()
}

fn quantized_site(py: Python<'_>, model: &QuantizedModel, site: Site, state: &SiteState) -> QuantizedSite {
    let scales = match site {
        Site::Weight(linear) => match &model.params[&linear.weight_name()] {
            Param::Int8(weight) => Some(floats(py, &weight.scales)),
            Param::Float(_) => None,
        },
        _ => None,
    };
    let (spec, channels) = (&state.spec, state.channels.as_ref());
    let factors = channels.map(|channels| floats(py, &channels.factors));
    let zero_points = channels.map(|channels| {
        let values: Vec<f32> = channels.zero_points.iter().map(|&z| f32::from(z)).collect();
        floats(py, &values)
    });
    // Reconstruction chooses codes for scales that it keeps, and the largest code that it leaves may be a
    // smaller one.
    let of_largest = site.is_weight() && spec.calibrator == Calibrator::Max && spec.ptq != Ptq::Reconstruct;
    QuantizedSite {
        name: site.to_string(),
        bits: spec.bits,
        of_largest,
        amax: state.amax,
        factors,
        zero_points,
        scales,
    }
}

/// The stages of a model.
#[pyfunction]
pub fn stages(py: Python<'_>, model: &Model) -> Vec<Stage> {
    let stages = model.model.config().stages();
    let row = |stage: &swinq::model::Stage| {
        let index: Vec<i64> = stage.relative_position_index().into_iter().map(|i| i as i64).collect();
        let Size { height, width } = stage.window;
        Stage {
            depth: stage.depth,
            channels: stage.dim,
            heads: stage.heads,
            window: [height, width],
            bias_rows: integers(py, &index),
            regions: PyBytes::new(py, &stage.mask_regions()).unbind(),
        }
    };
    stages.iter().map(row).collect()
}

/// The stages of a model for images of `height` x `width` pixels.
#[pyfunction]
pub fn grids(py: Python<'_>, model: &Model, height: usize, width: usize) -> PyResult<Vec<Grid>> {
    let found = model.model.config().grids(Size::new(height, width));
    let grids = found.map_err(|error| raise(py, &error.into()))?;
    let rows = |rows: Vec<Option<usize>>| {
        let rows: Vec<i64> = rows.into_iter().map(|row| row.map_or(-1, |row| row as i64)).collect();
        integers(py, &rows)
    };
    let row = |grid: &swinq::model::Grid| {
        let Size { height, width } = grid.size;
        Grid {
            size: [height, width],
            plain: rows(grid.partition(false)),
            shifted: rows(grid.partition(true)),
            masks: PyBytes::new(py, &grid.masks(true)).unbind(),
            merge: rows(grid.merge_sources()),
        }
    };
    Ok(grids.iter().map(row).collect())
}

/// The quantized model with trained parameters, and with ranges, scales of channels and scales of weights by
/// site.
#[pyfunction]
pub fn trained(
    py: Python<'_>,
    model: &Model,
    tensors: Vec<TrainedTensor<'_>>,
    ranges: BTreeMap<String, f32>,
    channels: BTreeMap<String, ChannelScales>,
    weight_scales: BTreeMap<String, Vec<f32>>,
) -> PyResult<Model> {
    let site = |name: &str| {
        name.parse::<Site>().map_err(|problem| raise_as(py, "ArgumentError", problem.to_string()))
    };
    let mut trained = TrainedParameters { tensors: held(tensors)?, ..TrainedParameters::default() };
    for (name, amax) in ranges {
        trained.ranges.insert(site(&name)?, amax);
    }
    for (name, ChannelScales { factors, zero_points }) in channels {
        trained.channels.insert(site(&name)?, ChannelCodes { factors, zero_points });
    }
    for (name, scales) in weight_scales {
        trained.weight_scales.insert(site(&name)?, scales);
    }
    let found = py.detach(|| model.model.trained(trained));
    Ok(found.map_err(|error| raise(py, &error))?.into())
}

/// The tensors of arrays `float32`.
fn held(tensors: Vec<TrainedTensor<'_>>) -> PyResult<StateDict> {
    let tensor = |TrainedTensor { name, shape, values }: TrainedTensor<'_>| {
        let values = Array::<f32>::of(&values, &name)?.as_slice().to_vec();
        Ok((name, HostTensor::new(shape, values)))
    };
    tensors.into_iter().map(tensor).collect()
}

fn floats(py: Python<'_>, values: &[f32]) -> Py<PyBytes> {
    PyBytes::new(py, &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>()).unbind()
}

fn integers(py: Python<'_>, values: &[i64]) -> Py<PyBytes> {
    PyBytes::new(py, &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>()).unbind()
}
