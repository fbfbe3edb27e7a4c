//! Engines: models that are ready to run.

use std::path::PathBuf;

use pyo3::prelude::*;
use swinq::int8_runtime::cuda::StreamType;
use swinq::{BackendChoice, EngineOptions, Prediction, RgbImage};

use crate::buffer::{Array, Output};
use crate::error::{raise, raise_as};
use crate::images::denormalize;
use crate::model::Model;

/// A model that is ready to run. Threads may share it; their calls run one after another.
#[pyclass(frozen, module = "swinq._native")]
pub struct Engine {
    engine: swinq::Engine,
}

/// One class of a prediction: index, name, probability.
type Class = (usize, Option<String>, f64);

/// The options of an engine.
pub fn options(
    py: Python<'_>,
    backend: &str,
    threads: usize,
    max_batch: usize,
    device: usize,
    residual: &str,
) -> PyResult<EngineOptions> {
    let argument = |problem: String| raise_as(py, "ArgumentError", problem);
    let backend = match backend {
        "auto" => BackendChoice::Auto,
        "cpu" => BackendChoice::Cpu,
        "cuda" => BackendChoice::Cuda,
        other => return Err(argument(format!("backend: `{other}` is none of auto, cpu, cuda"))),
    };
    let mut options = EngineOptions { backend, threads, max_batch, ..EngineOptions::default() };
    options.cuda.device = device;
    options.cuda.residual = match residual {
        "f16" => StreamType::F16,
        "f32" => StreamType::F32,
        other => return Err(argument(format!("residual: `{other}` is neither f16 nor f32"))),
    };
    Ok(options)
}

#[pymethods]
impl Engine {
    /// Prepares `model`. The arguments are those of [`options`].
    #[new]
    fn new(
        py: Python<'_>,
        model: &Model,
        backend: &str,
        threads: usize,
        max_batch: usize,
        device: usize,
        residual: &str,
    ) -> PyResult<Engine> {
        let options = options(py, backend, threads, max_batch, device, residual)?;
        let engine = py.detach(|| swinq::Engine::new(&model.model, &options));
        Ok(Engine { engine: engine.map_err(|error| raise(py, &error))? })
    }

    /// Writes the logits of `pixels`, u8 `[images, size, size, 3]`, to `logits`, f32 `[images, classes]`.
    fn infer(&self, py: Python<'_>, pixels: &Bound<'_, PyAny>, logits: &Bound<'_, PyAny>) -> PyResult<()> {
        let pixels = Array::<u8>::of(pixels, "pixels")?;
        let mut logits = Output::<f32>::of(logits, "logits", &pixels)?;
        let (input, output) = (pixels.as_slice(), logits.as_mut_slice());
        let done = py.detach(|| self.engine.runtime().infer_into(input, output));
        done.map_err(|error| raise(py, &error.into()))
    }

    /// Writes the logits of `values`, f32 `[images, 3, size, size]`, normalised with the model's mean and deviation.
    fn infer_normalized(
        &self,
        py: Python<'_>,
        values: &Bound<'_, PyAny>,
        logits: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let values = Array::<f32>::of(values, "images")?;
        let mut logits = Output::<f32>::of(logits, "logits", &values)?;
        let (input, output) = (values.as_slice(), logits.as_mut_slice());
        let done = py.detach(|| {
            let pixels = denormalize(input, self.engine.transform())?;
            Ok(self.engine.runtime().infer_into(&pixels, output)?)
        });
        done.map_err(|error| raise(py, &error))
    }

    /// The best `k` classes of each image file.
    fn predict(&self, py: Python<'_>, paths: Vec<PathBuf>, k: usize) -> PyResult<Vec<Vec<Class>>> {
        let found = py.detach(|| self.engine.predict(&paths, k));
        Ok(classes(found.map_err(|error| raise(py, &error))?))
    }

    /// The best `k` classes of decoded images: width, height, and u8 `[height, width, 3]`.
    fn classify(
        &self,
        py: Python<'_>,
        images: Vec<(usize, usize, Bound<'_, PyAny>)>,
        k: usize,
    ) -> PyResult<Vec<Vec<Class>>> {
        let mut decoded = Vec::new();
        for (width, height, pixels) in images {
            let pixels = Array::<u8>::of(&pixels, "image")?.as_slice().to_vec();
            decoded.push(RgbImage { width, height, pixels });
        }
        let found = py.detach(|| self.engine.classify(&decoded, k));
        Ok(classes(found.map_err(|error| raise(py, &error))?))
    }

    /// Number of classes.
    #[getter]
    fn classes(&self) -> usize {
        self.engine.classes()
    }

    /// Side of the input images in pixels.
    #[getter]
    fn input_size(&self) -> usize {
        self.engine.input_size()
    }

    /// Number of threads, including the caller's; 1 on a GPU.
    #[getter]
    fn threads(&self) -> usize {
        self.engine.threads()
    }

    /// Name of the backend.
    #[getter]
    fn backend(&self) -> String {
        self.engine.backend_name()
    }
}

fn classes(predictions: Vec<Prediction>) -> Vec<Vec<Class>> {
    let class = |class: swinq::ClassScore| (class.index, class.label, class.probability);
    predictions.into_iter().map(|found| found.classes.into_iter().map(class).collect()).collect()
}
