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
use crate::model::{Model, text};

/// A float tensor: name, sizes, values in f32.
type Float<'py> = (String, Vec<usize>, Bound<'py, PyBytes>);

/// A quantized site: name, kind of codes, bits, whether the scales of a weight are those of its largest values, range, factors and zero points of channels, scales of a
/// weight.
type SiteRow<'py> = (
    String,
    String,
    u8,
    bool,
    Option<f32>,
    Option<Bound<'py, PyBytes>>,
    Option<Bound<'py, PyBytes>>,
    Option<Bound<'py, PyBytes>>,
);

/// A stage: blocks, channels, heads, hidden width, sides of the window, the row of the bias table for each query and key, and the
/// region of each token under each mask.
type StageRow<'py> = (usize, usize, usize, usize, [usize; 2], Bound<'py, PyBytes>, Bound<'py, PyBytes>);

/// A stage for one image: sides of its grid; tokens in the order of windows, -1 for padding, without and with the shift; the mask
/// of each shifted window; the sources of patch merging, -1 for padding.
type GridRow<'py> =
    ([usize; 2], Bound<'py, PyBytes>, Bound<'py, PyBytes>, Bound<'py, PyBytes>, Bound<'py, PyBytes>);

/// The tensors of the state dictionary that are parameters: name, parameter, and how its values become the parameter's.
#[pyfunction]
pub fn stored_parameters(model: &Model) -> Vec<(String, String, String)> {
    let values = |values| match values {
        Values::Whole => "whole".to_owned(),
        Values::Third(index) => format!("third {index}"),
        Values::Unfolded => "unfolded".to_owned(),
        Values::Map => "map".to_owned(),
    };
    model.stored.iter().map(|s| (s.name.clone(), s.parameter.clone(), values(s.values))).collect()
}

/// The coefficients of the GELU of quantized models (docs/inference.md, section 2): `[3, 32]` in f32, by powers.
#[pyfunction]
pub fn gelu_table(py: Python<'_>) -> Bound<'_, PyBytes> {
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
pub fn parameters<'py>(py: Python<'py>, model: &Model) -> Vec<Float<'py>> {
    let tensors = py.detach(|| model.model.as_quantized().float_tensors());
    let row = |(name, tensor): (String, HostTensor)| {
        let values = floats(py, &tensor.data);
        (name, tensor.shape, values)
    };
    tensors.into_iter().map(row).collect()
}

/// The sites that are on.
#[pyfunction]
pub fn quantized_sites<'py>(py: Python<'py>, model: &Model) -> Vec<SiteRow<'py>> {
    let model = model.model.as_quantized();
    let on = model.sites.iter().filter(|(_, state)| state.spec.enabled);
    on.map(|(&site, state)| site_row(py, model, site, state)).collect()
}

fn site_row<'py>(py: Python<'py>, model: &QuantizedModel, site: Site, state: &SiteState) -> SiteRow<'py> {
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
    // Reconstruction chooses codes for scales that it keeps, and the largest code that it leaves may be a smaller one.
    let largest = site.is_weight() && spec.calibrator == Calibrator::Max && spec.ptq != Ptq::Reconstruct;
    (site.to_string(), text(&spec.kind), spec.bits, largest, state.amax, factors, zero_points, scales)
}

/// The stages of a model.
#[pyfunction]
pub fn stages<'py>(py: Python<'py>, model: &Model) -> Vec<StageRow<'py>> {
    let stages = model.model.config().stages();
    let row = |stage: &swinq::model::Stage| {
        let index: Vec<i64> = stage.relative_position_index().into_iter().map(|i| i as i64).collect();
        let Size { height, width } = stage.window;
        let regions = PyBytes::new(py, &stage.mask_regions());
        (stage.depth, stage.dim, stage.heads, stage.hidden, [height, width], integers(py, &index), regions)
    };
    stages.iter().map(row).collect()
}

/// The stages of a model for images of `height` x `width` pixels.
#[pyfunction]
pub fn grids<'py>(
    py: Python<'py>,
    model: &Model,
    height: usize,
    width: usize,
) -> PyResult<Vec<GridRow<'py>>> {
    let found = model.model.config().grids(Size::new(height, width));
    let grids = found.map_err(|error| raise(py, &error.into()))?;
    let rows = |rows: Vec<Option<usize>>| {
        let rows: Vec<i64> = rows.into_iter().map(|row| row.map_or(-1, |row| row as i64)).collect();
        integers(py, &rows)
    };
    let row = |grid: &swinq::model::Grid| {
        let Size { height, width } = grid.size;
        let masks = PyBytes::new(py, &grid.masks(true));
        (
            [height, width],
            rows(grid.partition(false)),
            rows(grid.partition(true)),
            masks,
            rows(grid.merge_sources()),
        )
    };
    Ok(grids.iter().map(row).collect())
}

/// The quantized model with trained parameters (name, sizes, values), ranges by site, factors and zero points of channels by
/// site, and scales of weights by site.
#[pyfunction]
pub fn trained(
    py: Python<'_>,
    model: &Model,
    tensors: Vec<(String, Vec<usize>, Bound<'_, PyAny>)>,
    ranges: BTreeMap<String, f32>,
    channels: BTreeMap<String, (Vec<f32>, Vec<i8>)>,
    weight_scales: BTreeMap<String, Vec<f32>>,
) -> PyResult<Model> {
    let site = |name: &str| {
        name.parse::<Site>().map_err(|problem| raise_as(py, "ArgumentError", problem.to_string()))
    };
    let mut trained = TrainedParameters { tensors: held(tensors)?, ..TrainedParameters::default() };
    for (name, amax) in ranges {
        trained.ranges.insert(site(&name)?, amax);
    }
    for (name, (factors, zero_points)) in channels {
        trained.channels.insert(site(&name)?, ChannelCodes { factors, zero_points });
    }
    for (name, scales) in weight_scales {
        trained.weight_scales.insert(site(&name)?, scales);
    }
    let found = py.detach(|| model.model.trained(trained));
    Ok(found.map_err(|error| raise(py, &error))?.into())
}

/// The tensors of arrays `float32`.
fn held(tensors: Vec<(String, Vec<usize>, Bound<'_, PyAny>)>) -> PyResult<StateDict> {
    let tensor = |(name, shape, values): (String, Vec<usize>, Bound<'_, PyAny>)| {
        let values = Array::<f32>::of(&values, &name)?.as_slice().to_vec();
        Ok((name, HostTensor::new(shape, values)))
    };
    tensors.into_iter().map(tensor).collect()
}

fn floats<'py>(py: Python<'py>, values: &[f32]) -> Bound<'py, PyBytes> {
    PyBytes::new(py, &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())
}

fn integers<'py>(py: Python<'py>, values: &[i64]) -> Bound<'py, PyBytes> {
    PyBytes::new(py, &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())
}
