//! Models: opened from files and from tensors in memory.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

use pyo3::prelude::*;
use swinq::model::quantized::SiteState;
use swinq::model::{Granularity, StoredParameter, Task, WindowPolicy};
use swinq::{
    ChannelOrder, Dialect, Documents, ElementType, Family, InMemory, LoadOptions, OpenOptions, Orientation,
    Site, TensorView, Transform,
};

use crate::buffer::Array;
use crate::error::{choice, in_python, json, raise, raise_as};
use crate::work;

/// A model, float or quantized.
#[pyclass(frozen, module = "swinq._native")]
pub struct Model {
    pub model: swinq::Model,
    /// The tensors of a state dictionary that are its parameters.
    pub stored: Vec<StoredParameter>,
}

impl From<swinq::Model> for Model {
    fn from(model: swinq::Model) -> Model {
        Model { model, stored: Vec::new() }
    }
}

/// How a model is read, as the fields of [`OpenOptions`]; `family` is that of the preprocessing. Outputs are
/// numbers of stages, from 0.
#[derive(FromPyObject)]
struct Reading {
    cfg: Option<String>,
    opts: Vec<(String, String)>,
    dialect: Option<String>,
    weights: Option<String>,
    prefix: Option<String>,
    family: Option<String>,
    labels: Option<PathBuf>,
    task: Option<String>,
    outputs: Option<Vec<usize>>,
    orientation: Option<String>,
    channels: Option<String>,
}

/// A tensor of a state dictionary.
#[derive(FromPyObject)]
struct StoredTensor<'py> {
    name: String,
    element: String,
    shape: Vec<usize>,
    bytes: Bound<'py, PyAny>,
}

/// A model in memory: its tensors, and what is known of it. `config` and `preprocessor` are the JSON
/// documents of its library, `transform` is a preprocessing in JSON, `windows` the name of the rule for
/// windows.
#[derive(FromPyObject)]
struct Source<'py> {
    name: String,
    tensors: Vec<StoredTensor<'py>>,
    config: Option<String>,
    preprocessor: Option<String>,
    transform: Option<String>,
    windows: Option<String>,
}

/// A row of the table of sites.
#[pyclass(frozen, get_all, module = "swinq._native")]
pub struct SiteRow {
    name: String,
    quantized: bool,
    bits: u8,
    kind: String,
    granularity: String,
    amax: Option<f32>,
    scale: Option<f32>,
}

impl Reading {
    fn options(self, py: Python<'_>) -> PyResult<OpenOptions> {
        let Reading {
            cfg,
            opts,
            dialect,
            weights,
            prefix,
            family,
            labels,
            task,
            outputs,
            orientation,
            channels,
        } = self;
        let orientation = parsed::<Orientation>(py, "orientation", orientation)?;
        let channel_order = parsed::<ChannelOrder>(py, "channels", channels)?;
        let dialect = dialect.map(|name| name.parse::<Dialect>()).transpose();
        let dialect = dialect.map_err(|error| raise(py, &error.into()))?;
        let transform = family.map(|name| choice(py, "preprocessing", &name, &FAMILIES)).transpose()?;
        let task = task.map(|name| choice(py, "task", &name, &TASKS)).transpose()?;
        let reading = LoadOptions { opts, dialect, weights, prefix, task, outputs, ..LoadOptions::default() };
        Ok(OpenOptions { cfg, reading, transform, orientation, channel_order, labels })
    }
}

/// The value of the argument `name`, if it is given.
fn parsed<T: FromStr<Err = String>>(
    py: Python<'_>,
    name: &str,
    value: Option<String>,
) -> PyResult<Option<T>> {
    let parsed = value.map(|text| text.parse()).transpose();
    parsed.map_err(|problem: String| raise_as(py, "ArgumentError", format!("{name}: {problem}")))
}

/// The rules for windows that the code of a live module may have, by names.
const WINDOWS: [(&str, WindowPolicy); 7] = [
    ("detection", WindowPolicy::Detection),
    ("hf", WindowPolicy::HuggingFace),
    ("microsoft", WindowPolicy::Microsoft),
    ("mmpretrain", WindowPolicy::Mmpretrain),
    ("restoration", WindowPolicy::Restoration),
    ("timm_always_partition", WindowPolicy::TimmAlwaysPartition),
    ("timm_any_size", WindowPolicy::TimmAnySize),
];

/// The tasks as which a network is read, by names.
const TASKS: [(&str, Task); 2] = [("classification", Task::Classification), ("features", Task::Features)];

/// The families of preprocessing by their names.
const FAMILIES: [(&str, Family); 4] = [
    ("ms", Family::Microsoft),
    ("timm", Family::Timm),
    ("torchvision", Family::Torchvision),
    ("hf", Family::HuggingFace),
];

fn element(name: &str) -> ElementType {
    match name {
        "float16" => ElementType::F16,
        "bfloat16" => ElementType::Bf16,
        "float32" => ElementType::F32,
        "float64" => ElementType::F64,
        _ => ElementType::Other,
    }
}

#[pymethods]
impl Model {
    /// Opens the model at `path`.
    #[staticmethod]
    fn open(py: Python<'_>, path: PathBuf, reading: Reading) -> PyResult<Model> {
        let options = reading.options(py)?;
        let model = work::run(py, None, move |_| swinq::Model::open_with(path, &options))?;
        Ok(model.map_err(|error| raise(py, &error))?.into())
    }

    /// A float model of the tensors of another library.
    #[staticmethod]
    fn from_memory(py: Python<'_>, source: Source<'_>, reading: Reading) -> PyResult<Model> {
        let Source { name, tensors, config, preprocessor, transform, windows } = source;
        let options = reading.options(py)?;
        let window_policy = windows.map(|name| choice(py, "windows", &name, &WINDOWS)).transpose()?;
        let transform = transform.map(|text| serde_json::from_str::<Transform>(&text)).transpose();
        let transform =
            transform.map_err(|error| raise_as(py, "ArgumentError", format!("preprocessing: {error}")))?;
        let mut held: Vec<(String, ElementType, Vec<usize>, Array<u8>)> = Vec::new();
        for StoredTensor { name, element: dtype, shape, bytes } in tensors {
            let array = Array::of(&bytes, &name)?;
            held.push((name, element(&dtype), shape, array));
        }
        let tensors: BTreeMap<String, TensorView<'_>> = held
            .iter()
            .map(|(name, element, shape, array)| {
                (name.clone(), TensorView { element: *element, shape, bytes: array.as_slice() })
            })
            .collect();
        let documents = config.map(|config| Documents { config, preprocessor });
        let memory = InMemory { name, tensors, documents, transform, window_policy };
        let opened = py.detach(|| swinq::Model::from_memory_with_names(&memory, &options));
        let (model, stored) = opened.map_err(|error| raise(py, &error))?;
        Ok(Model { model, stored })
    }

    /// Writes the model to a checkpoint in swinq's format.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| self.model.save(path)).map_err(|error| raise(py, &error))
    }

    /// Refuses an architecture that no GPU runs.
    fn check_cuda(&self, py: Python<'_>) -> PyResult<()> {
        self.model.check_cuda().map_err(|error| raise(py, &error))
    }

    /// Whether any site is quantized.
    #[getter]
    fn is_quantized(&self) -> bool {
        self.model.is_quantized()
    }

    /// The architecture, in JSON.
    #[getter]
    fn config(&self) -> PyResult<String> {
        json(self.model.config())
    }

    /// The preprocessing, in JSON.
    #[getter]
    fn transform(&self) -> PyResult<String> {
        json(self.model.transform())
    }

    /// Name of the recipe.
    #[getter]
    fn recipe(&self) -> String {
        self.model.as_quantized().recipe.name.clone()
    }

    /// Class names by class index.
    #[getter]
    fn labels(&self) -> Option<Vec<String>> {
        self.model.labels().map(<[String]>::to_vec)
    }

    /// Findings about the model's file that are suspicious but not errors.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.model.warnings().iter().map(|warning| in_python(warning)).collect()
    }

    /// Number of bytes of the parameters.
    #[getter]
    fn size_bytes(&self) -> u64 {
        self.model.as_quantized().size_bytes()
    }

    /// The sites, in the order of the model.
    fn sites(&self) -> Vec<SiteRow> {
        let model = self.model.as_quantized();
        self.model.sites().into_iter().map(|site| row(site, model.site(site))).collect()
    }
}

fn row(site: Site, state: &SiteState) -> SiteRow {
    let spec = &state.spec;
    // Recipes state the granularity of weights. An activation has one scale, or the scales of its channels.
    let granularity = match &state.channels {
        _ if site.is_weight() => spec.granularity,
        Some(_) => Granularity::Channel,
        None => Granularity::Tensor,
    };
    SiteRow {
        name: site.to_string(),
        quantized: spec.enabled,
        bits: spec.bits,
        kind: text(&spec.kind),
        granularity: text(&granularity),
        amax: state.amax,
        scale: state.scale(),
    }
}

/// The name of a value as recipes write it.
pub fn text(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}
