//! Engines: models that are ready to run.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use swinq::data::DataError;
use swinq::int8_runtime::RuntimeError;
use swinq::int8_runtime::cuda::StreamType;
use swinq::{
    BackendChoice, EngineOptions, Error, Images, Prediction, ReadOptions, RgbImage, decode_image,
    infer_images, predict, top_k,
};

use crate::buffer::{Array, Output};
use crate::error::{choice, raise};
use crate::images::denormalize;
use crate::model::Model;
use crate::work;

/// A model that is ready to run. Threads may share it; their calls run one after another.
#[pyclass(frozen, module = "swinq._native")]
pub struct Engine {
    engine: Arc<swinq::Engine>,
}

/// An image in memory.
#[derive(FromPyObject)]
pub enum Picture<'py> {
    /// Decoded: width, height, and u8 `[height, width, 3]`.
    Decoded(usize, usize, Bound<'py, PyAny>),
    /// The bytes of an image file.
    #[pyo3(transparent)]
    Encoded(Bound<'py, PyAny>),
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
    let backends =
        [("auto", BackendChoice::Auto), ("cpu", BackendChoice::Cpu), ("cuda", BackendChoice::Cuda)];
    let backend = choice(py, "backend", backend, &backends)?;
    let mut options = EngineOptions { backend, threads, max_batch, ..EngineOptions::default() };
    options.cuda.device = device;
    let residuals = [("f16", StreamType::F16), ("f32", StreamType::F32)];
    options.cuda.residual = choice(py, "residual", residual, &residuals)?;
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
        let model = model.model.clone();
        let engine = work::run(py, None, move |_| model.engine(&options))?;
        Ok(Engine { engine: Arc::new(engine.map_err(|error| raise(py, &error))?) })
    }

    /// Writes the logits of `pixels`, u8 `[images, size, size, 3]`, to `logits`, f32 `[images, classes]`.
    fn infer(&self, py: Python<'_>, pixels: &Bound<'_, PyAny>, logits: &Bound<'_, PyAny>) -> PyResult<()> {
        let pixels = Array::<u8>::of(pixels, "pixels")?;
        let mut logits = Output::<f32>::of(logits, "logits", &pixels)?;
        self.infer_pixels(py, pixels.as_slice(), logits.as_mut_slice())
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
        let pixels = py.detach(|| denormalize(input, self.engine.transform()));
        self.infer_pixels(py, &pixels.map_err(|error| raise(py, &error))?, output)
    }

    /// The best `k` classes of each image file.
    fn predict(&self, py: Python<'_>, paths: Vec<PathBuf>, k: usize) -> PyResult<Vec<Vec<Class>>> {
        let engine = Arc::clone(&self.engine);
        let found = work::run(py, None, move |reporter| {
            let images = Images::from_files(&paths)?;
            let check = &mut |_: usize, _: usize| reporter.check();
            let found = infer_images(&engine, &images, &ReadOptions::default(), check)?;
            top_k(&engine, &found.scores.logits, k)
        })?;
        Ok(classes(found.map_err(|error| raise(py, &error))?))
    }

    /// The best `k` classes of images in memory.
    fn classify(&self, py: Python<'_>, images: Vec<Picture<'_>>, k: usize) -> PyResult<Vec<Vec<Class>>> {
        let mut decoded = Vec::new();
        for (index, image) in images.into_iter().enumerate() {
            decoded.push(image.decode(py, &format!("image {index}"))?);
            py.check_signals()?;
        }
        let engine = Arc::clone(&self.engine);
        let found = work::run(py, None, move |_| {
            predict(&engine, &Images::from_rgb(decoded, engine.transform())?, k)
        })?;
        Ok(classes(found.map_err(|error| raise(py, &error))?))
    }

    /// Number of classes.
    #[getter]
    fn classes(&self) -> usize {
        self.engine.classes()
    }

    /// Height and width of the images in pixels.
    #[getter]
    fn input_size(&self) -> (usize, usize) {
        let size = self.engine.input_size();
        (size.height, size.width)
    }

    /// Channels of the images.
    #[getter]
    fn channels(&self) -> usize {
        self.engine.channels()
    }

    /// Number of threads, including the caller's; 1 on a GPU.
    #[getter]
    fn threads(&self) -> usize {
        self.engine.threads()
    }

    /// Name of the backend.
    #[getter]
    fn backend(&self) -> String {
        self.engine.backend().name()
    }
}

impl Engine {
    /// Writes the logits of `pixels`, and looks for signals between batches.
    fn infer_pixels(&self, py: Python<'_>, pixels: &[u8], logits: &mut [f32]) -> PyResult<()> {
        let engine = &self.engine;
        let classes = engine.classes();
        // A GPU copies the next batch while it computes one.
        let each = engine.max_batch() * if engine.device().is_some() { 32 } else { 1 };
        if logits.len() <= each * classes {
            let done = py.detach(|| engine.infer_into(pixels, logits));
            return done.map_err(|error| raise(py, &error.into()));
        }
        let parts = pixels.chunks(each * engine.image_bytes()).zip(logits.chunks_mut(each * classes));
        for (part, (pixels, logits)) in parts.enumerate() {
            let done = py.detach(|| engine.infer_into(pixels, logits));
            done.map_err(|error| raise(py, &counted_from(part * each, error).into()))?;
            py.check_signals()?;
        }
        Ok(())
    }
}

/// `error` of a part of a batch, whose first image is the batch's image `first`.
fn counted_from(first: usize, error: RuntimeError) -> RuntimeError {
    match error {
        RuntimeError::NotFinite { image, class, value } => {
            RuntimeError::NotFinite { image: first + image, class, value }
        }
        other => other,
    }
}

impl Picture<'_> {
    /// The decoded image; messages name it `name`.
    ///
    /// # Errors
    /// `DataError` for bytes that cannot be decoded; the errors of [`Array::of`].
    pub fn decode(self, py: Python<'_>, name: &str) -> PyResult<RgbImage> {
        match self {
            Picture::Decoded(width, height, pixels) => {
                let pixels = Array::<u8>::of(&pixels, name)?.as_slice().to_vec();
                Ok(RgbImage { width, height, pixels })
            }
            Picture::Encoded(bytes) => {
                let bytes = Array::<u8>::of(&bytes, name)?;
                let bytes = bytes.as_slice();
                py.detach(|| decode_image(bytes)).map_err(|source| {
                    let name = name.to_owned();
                    raise(py, &Error::Data(DataError::Image { name, offset: None, source }))
                })
            }
        }
    }
}

fn classes(predictions: Vec<Prediction>) -> Vec<Vec<Class>> {
    let class = |class: swinq::ClassScore| (class.index, class.label, class.probability);
    predictions.into_iter().map(|found| found.classes.into_iter().map(class).collect()).collect()
}
