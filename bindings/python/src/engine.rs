//! Engines: models that are ready to run.

use std::ffi::CString;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use half::f16;
use half::slice::HalfBitsSliceExt;
use pyo3::exceptions::{PyUserWarning, PyValueError};
use pyo3::prelude::*;
use swinq::data::DataError;
use swinq::int8_runtime::cuda::ResidualType;
use swinq::int8_runtime::{
    Backend, ImageLayout, Images as Input, OutputLayout, OutputMut, OutputValues, Pixels, RuntimeError,
};
use swinq::model::Size;
use swinq::{
    BackendChoice, EngineOptions, Error, Images, Orientation, Prediction, ReadOptions, RgbImage,
    decode_oriented, infer_images, predict, top_k,
};

use crate::buffer::{Array, Output};
use crate::error::{choice, raise, raise_run};
use crate::model::Model;
use crate::work;

/// A model that is ready to run. Threads may share it.
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

/// The names of layouts, of images and of feature maps.
pub const LAYOUTS: [(&str, ImageLayout); 2] =
    [("NHWC", ImageLayout::ChannelsLast), ("NCHW", ImageLayout::ChannelsFirst)];
pub const OUT_LAYOUTS: [(&str, OutputLayout); 2] =
    [("NHWC", OutputLayout::Rows), ("NCHW", OutputLayout::ChannelsFirst)];

/// An output: its name, and the array to write.
type NamedArray<'py> = (String, Bound<'py, PyAny>);

/// One class of a prediction.
#[pyclass(frozen, get_all, module = "swinq._native")]
pub struct ClassRow {
    index: usize,
    label: Option<String>,
    probability: f64,
}

/// The numbers among the options of an engine, by the names of the keyword arguments in Python.
#[derive(Default, FromPyObject)]
#[pyo3(from_item_all)]
pub struct Numbers {
    pub threads: usize,
    pub image_threads: usize,
    pub max_batch: usize,
    pub max_memory: usize,
    pub max_pixels: usize,
    pub max_streams: usize,
    pub device: usize,
}

/// An engine by its arguments.
#[derive(FromPyObject)]
pub struct EngineChoice {
    backend: String,
    numbers: Numbers,
    residual: String,
}

impl EngineChoice {
    /// The options of the library.
    pub fn options(&self, py: Python<'_>) -> PyResult<EngineOptions> {
        options(py, &self.backend, &self.numbers, &self.residual)
    }
}

/// Refuses options of an engine that none can have.
#[pyfunction]
pub fn check_engine(py: Python<'_>, engine: EngineChoice) -> PyResult<()> {
    engine.options(py).map(|_| ())
}

/// Refuses a machine without a GPU that engines can run on.
#[pyfunction]
pub fn check_gpu(py: Python<'_>) -> PyResult<()> {
    swinq::usable_gpu(0).map(|_| ()).map_err(|error| raise(py, &RuntimeError::from(error).into()))
}

/// The options of an engine.
pub fn options(py: Python<'_>, backend: &str, numbers: &Numbers, residual: &str) -> PyResult<EngineOptions> {
    let backends =
        [("auto", BackendChoice::Auto), ("cpu", BackendChoice::Cpu), ("cuda", BackendChoice::Cuda)];
    let &Numbers { threads, image_threads, max_batch, max_memory, max_pixels, max_streams, device } = numbers;
    let mut options = EngineOptions {
        backend: choice(py, "backend", backend, &backends)?,
        threads,
        image_threads,
        max_batch,
        max_memory,
        max_pixels,
        ..EngineOptions::default()
    };
    options.cuda.device = device;
    if max_streams > 0 {
        options.cuda.max_streams = max_streams;
    }
    let residuals = [("auto", None), ("f16", Some(ResidualType::F16)), ("f32", Some(ResidualType::F32))];
    options.cuda.residual = choice(py, "residual", residual, &residuals)?;
    Ok(options)
}

#[pymethods]
impl Engine {
    /// Prepares `model`. The arguments are those of [`options`]. `other` is the engine of another part of the
    /// same program: on a CPU both share threads and memory.
    #[new]
    #[pyo3(signature = (model, backend, numbers, residual, other=None))]
    fn new(
        py: Python<'_>,
        model: &Model,
        backend: &str,
        numbers: Numbers,
        residual: &str,
        other: Option<PyRef<'_, Engine>>,
    ) -> PyResult<Engine> {
        let options = options(py, backend, &numbers, residual)?;
        let (model, other) = (model.model.clone(), other.map(|other| Arc::clone(&other.engine)));
        let engine = work::run(py, None, move |_| match other {
            Some(other) => model.engine_beside(&options, &other),
            None => model.engine(&options),
        })?;
        Ok(Engine { engine: Arc::new(engine.map_err(|error| raise(py, &error))?) })
    }

    /// Writes outputs of `images` to `outputs`, each a name and an array of the shape `[images, ...]`
    /// ([`Engine::output_shape`]): `float32`, or the bits of `float16` as `uint16`. `images` are `uint8`,
    /// `float32`, or the bits of `float16` as `uint16`; `layout` and `out_layout` are `NHWC` or `NCHW`.
    fn run(
        &self,
        py: Python<'_>,
        images: &Bound<'_, PyAny>,
        layout: &str,
        outputs: Vec<NamedArray<'_>>,
        out_layout: &str,
    ) -> PyResult<()> {
        let layout = choice(py, "layout", layout, &LAYOUTS)?;
        let out_layout = choice(py, "out_layout", out_layout, &OUT_LAYOUTS)?;
        let images = Given::of(images)?;
        let (shape, addresses) = images.place();
        let [count, a, b, c] = four(shape)?;
        let size = match layout {
            ImageLayout::ChannelsLast => Size::new(a, b),
            ImageLayout::ChannelsFirst => Size::new(b, c),
        };
        let mut outputs = held(&outputs, count, addresses)?;
        let input = Input { size, pixels: images.pixels(), layout };
        self.run_images(py, count, input, (&mut outputs, out_layout))
    }

    /// The names of the outputs, in the order in which the network computes them.
    #[getter]
    fn outputs(&self) -> Vec<&str> {
        self.engine.outputs().iter().map(|output| &output.name[..]).collect()
    }

    /// The shape of the output `name` for one image of `height` and `width`: that of a feature map has the
    /// channels first.
    fn output_shape(&self, py: Python<'_>, name: &str, height: usize, width: usize) -> PyResult<Vec<usize>> {
        let (engine, size) = (&self.engine, Size::new(height, width));
        let shape = || {
            let output = engine.output(name)?;
            engine.check_size(size)?;
            let shape = engine.output_shape(output, size);
            Ok(match shape.grid {
                None => vec![shape.columns],
                Some(grid) => vec![shape.columns, grid.height, grid.width],
            })
        };
        shape().map_err(|error| raise_run(py, error))
    }

    /// The best `k` classes of each image file.
    fn predict(&self, py: Python<'_>, paths: Vec<PathBuf>, k: usize) -> PyResult<Vec<Vec<ClassRow>>> {
        let engine = Arc::clone(&self.engine);
        let found = work::run(py, None, move |reporter| {
            let images = Images::from_files(&paths)?;
            let check = &mut |_: usize, _: usize| reporter.check();
            let found = infer_images(&engine, &images, &ReadOptions::default(), check)?;
            Ok((top_k(&engine, &found.scores.logits, k)?, images.turned()))
        })?;
        let (found, turned) = found.map_err(|error: Error| raise(py, &error))?;
        if let Some(remark) = turned {
            let text = CString::new(remark.replace('\0', " ")).expect("no byte is 0");
            PyErr::warn(py, &py.get_type::<PyUserWarning>(), &text, 2)?;
        }
        Ok(classes(found))
    }

    /// The best `k` classes of images in memory.
    fn classify(&self, py: Python<'_>, images: Vec<Picture<'_>>, k: usize) -> PyResult<Vec<Vec<ClassRow>>> {
        let mut decoded = Vec::new();
        for (index, image) in images.into_iter().enumerate() {
            decoded.push(image.decode(py, &format!("image {index}"), self.engine.transform().orientation)?);
            py.check_signals()?;
        }
        let engine = Arc::clone(&self.engine);
        let found = work::run(py, None, move |_| {
            predict(&engine, &Images::from_rgb(decoded, engine.transform())?, k)
        })?;
        Ok(classes(found.map_err(|error| raise(py, &error))?))
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

    /// Ordinal of the GPU; `None` on a CPU.
    #[getter]
    fn gpu(&self) -> Option<usize> {
        match self.engine.backend() {
            Backend::Cuda(options) => Some(options.device),
            Backend::Cpu(_) => None,
        }
    }

    /// Name of the backend.
    #[getter]
    fn backend(&self) -> String {
        self.engine.backend().name()
    }
}

impl Engine {
    /// The engine.
    pub fn engine(&self) -> &swinq::Engine {
        &self.engine
    }

    /// Writes `outputs` of the `images` images of `input`, and looks for signals between batches.
    fn run_images(
        &self,
        py: Python<'_>,
        images: usize,
        input: Input<'_>,
        (outputs, layout): (&mut [(String, OutputArray)], OutputLayout),
    ) -> PyResult<()> {
        let (each, values) = (self.images_between_signals(input.size), input.pixels.len() / images.max(1));
        let mut rest: Vec<OutputMut<'_>> = outputs
            .iter_mut()
            .map(|(name, array)| OutputMut::new(name, array.values()).in_layout(layout))
            .collect();
        let mut first = 0;
        loop {
            let (left, count) = (images - first, each.min(images - first));
            let mut part: Vec<OutputMut<'_>> =
                rest.iter_mut().map(|output| take_images(output, count, left)).collect();
            let some = input.of_values(first * values..(first + count) * values);
            let done = py.detach(|| self.engine.run(some, &mut part));
            done.map_err(|error| raise_run(py, counted_from(first, error)))?;
            first += count;
            if first == images {
                return Ok(());
            }
            py.check_signals()?;
        }
    }

    /// The images of `size` that run before the next look for signals: a batch, or as many on a GPU as let it
    /// copy one while it computes another.
    fn images_between_signals(&self, size: Size) -> usize {
        let batches = if self.engine.device().is_some() { 32 } else { 1 };
        let (own, area) = (self.engine.input_size().area(), size.area().max(1));
        (self.engine.max_batch() * batches * own / area).max(1)
    }
}

/// The images of a call, in the caller's memory.
enum Given {
    U8(Array<u8>),
    F32(Array<f32>),
    /// The bits of f16.
    F16(Array<u16>),
}

impl Given {
    /// The images of `object`, whose type is that of its elements.
    ///
    /// # Errors
    /// The errors of [`Array::of`].
    fn of(object: &Bound<'_, PyAny>) -> PyResult<Given> {
        let what = "images";
        Array::of(object, what)
            .map(Given::U8)
            .or_else(|_| Array::of(object, what).map(Given::F32))
            .or_else(|_| Array::of(object, what).map(Given::F16))
    }

    /// The extents and the addresses.
    fn place(&self) -> (&[usize], Range<usize>) {
        match self {
            Given::U8(array) => (array.shape(), array.addresses()),
            Given::F32(array) => (array.shape(), array.addresses()),
            Given::F16(array) => (array.shape(), array.addresses()),
        }
    }

    fn pixels(&self) -> Pixels<'_> {
        match self {
            Given::U8(array) => Pixels::U8(array.as_slice()),
            Given::F32(array) => Pixels::F32(array.as_slice()),
            Given::F16(array) => Pixels::F16(array.as_slice().reinterpret_cast()),
        }
    }
}

/// The memory of an output.
enum OutputArray {
    F32(Output<f32>),
    /// The bits of f16.
    F16(Output<u16>),
}

impl OutputArray {
    /// The memory `object` of the output `name`, whose type is that of its elements.
    ///
    /// # Errors
    /// The errors of [`Output::of`].
    fn of(object: &Bound<'_, PyAny>, name: &str, taken: &mut Vec<Range<usize>>) -> PyResult<OutputArray> {
        match Array::<u16>::of(object, name) {
            Ok(_) => Output::of(object, name, taken).map(OutputArray::F16),
            Err(_) => Output::of(object, name, taken).map(OutputArray::F32),
        }
    }

    fn shape(&self) -> &[usize] {
        match self {
            OutputArray::F32(output) => output.shape(),
            OutputArray::F16(output) => output.shape(),
        }
    }

    fn values(&mut self) -> OutputValues<'_> {
        match self {
            OutputArray::F32(output) => output.as_mut_slice().into(),
            OutputArray::F16(output) => output.as_mut_slice().reinterpret_cast_mut::<f16>().into(),
        }
    }
}

/// The four extents of an array of images.
fn four(shape: &[usize]) -> PyResult<[usize; 4]> {
    shape.try_into().map_err(|_| PyValueError::new_err(format!("images: {shape:?} has not four dimensions")))
}

/// The arrays of outputs of `images` images, whose own memory lies at `taken`.
fn held(
    outputs: &[NamedArray<'_>],
    images: usize,
    taken: Range<usize>,
) -> PyResult<Vec<(String, OutputArray)>> {
    let mut taken = vec![taken];
    let array = |(name, array): &NamedArray<'_>| {
        let output = OutputArray::of(array, name, &mut taken)?;
        if output.shape().first() != Some(&images) {
            let problem = format!("{name}: {:?} is not the shape of {images} images", output.shape());
            return Err(PyValueError::new_err(problem));
        }
        Ok((name.clone(), output))
    };
    outputs.iter().map(array).collect()
}

/// The memory of the next `count` of the `left` images of `rest`, which keeps that of the others.
fn take_images<'a>(rest: &mut OutputMut<'a>, count: usize, left: usize) -> OutputMut<'a> {
    let values = std::mem::take(&mut rest.values);
    let each = values.len() / left.max(1);
    let (values, others) = values.split_at(each * count);
    rest.values = others;
    OutputMut { name: rest.name, values, layout: rest.layout }
}

/// `error` of a part of a batch, whose first image is the batch's image `first`.
fn counted_from(first: usize, error: RuntimeError) -> RuntimeError {
    match error {
        RuntimeError::NotFinite { image, class, value } => {
            RuntimeError::NotFinite { image: first + image, class, value }
        }
        RuntimeError::OutputOverflow { name, image } => {
            RuntimeError::OutputOverflow { name, image: first + image }
        }
        RuntimeError::MapNotFinite { name, image, value } => {
            RuntimeError::MapNotFinite { name, image: first + image, value }
        }
        RuntimeError::InputNotFinite { image, row, column, channel, value } => {
            RuntimeError::InputNotFinite { image: first + image, row, column, channel, value }
        }
        other => other,
    }
}

impl Picture<'_> {
    /// The decoded image, turned by the rule `orientation` if it is the bytes of a file; messages name it
    /// `name`.
    ///
    /// # Errors
    /// `DataError` for bytes that cannot be decoded; the errors of [`Array::of`].
    pub fn decode(self, py: Python<'_>, name: &str, orientation: Orientation) -> PyResult<RgbImage> {
        match self {
            Picture::Decoded(width, height, pixels) => {
                let pixels = Array::<u8>::of(&pixels, name)?.as_slice().to_vec();
                Ok(RgbImage { width, height, pixels })
            }
            Picture::Encoded(bytes) => {
                let bytes = Array::<u8>::of(&bytes, name)?;
                let bytes = bytes.as_slice();
                py.detach(|| decode_oriented(bytes, orientation)).map_err(|source| {
                    let name = name.to_owned();
                    raise(py, &Error::Data(DataError::Image { name, offset: None, source }))
                })
            }
        }
    }
}

fn classes(predictions: Vec<Prediction>) -> Vec<Vec<ClassRow>> {
    let class = |class: swinq::ClassScore| {
        let swinq::ClassScore { index, label, score } = class;
        ClassRow { index, label, probability: score }
    };
    predictions.into_iter().map(|found| found.classes.into_iter().map(class).collect()).collect()
}
