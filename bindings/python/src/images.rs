//! Images: data sets, files, and images that Python decoded.

use std::path::PathBuf;

use pyo3::prelude::*;
use swinq::data::preprocess;
use swinq::model::Size;
use swinq::numerics::reference::fma;
use swinq::{Batch, Error, Orientation, RgbImage, Split, Transform};

use crate::buffer::Array;
use crate::engine::Picture;
use crate::error::{raise, raise_as};
use crate::model::Model;
use crate::work;

/// Farthest that a value may lie from a whole pixel. f32 rounding moves it by 1e-4 at most.
const TOLERANCE: f32 = 0.1;

/// Images in a fixed order.
#[pyclass(frozen, module = "swinq._native")]
pub struct Images {
    pub images: swinq::Images,
}

#[pymethods]
impl Images {
    /// Opens a data set, and draws a sample of `limit` images.
    #[staticmethod]
    fn open(py: Python<'_>, path: PathBuf, split: &str, limit: Option<usize>, seed: u64) -> PyResult<Images> {
        let split: Split =
            split.parse().map_err(|problem| raise_as(py, "ArgumentError", format!("split: {problem}")))?;
        let images = work::run(py, None, move |_| swinq::Images::open(path, split, limit, seed))?;
        Ok(Images { images: images.map_err(|error| raise(py, &error))? })
    }

    /// Image files, without labels.
    #[staticmethod]
    fn from_files(py: Python<'_>, paths: Vec<PathBuf>) -> PyResult<Images> {
        let images = work::run(py, None, move |_| swinq::Images::from_files(&paths))?;
        Ok(Images { images: images.map_err(|error| raise(py, &error))? })
    }

    fn __len__(&self) -> usize {
        self.images.len()
    }

    /// A remark that names the first of the images that were turned so far as their files state; `None` if
    /// none was.
    fn turned(&self) -> Option<String> {
        self.images.turned()
    }
}

/// Collects images that Python decoded. Only preprocessed pixels stay in memory.
#[pyclass(module = "swinq._native")]
pub struct Collector {
    transform: Transform,
    /// Whether floats are what the network reads, of any size, as those of a backbone are. Otherwise they are
    /// 8-bit pixels that were normalised.
    any_values: bool,
    pixels: Vec<u8>,
    /// Batches of normalised images, with their height and width.
    values: Vec<(Size, Vec<f32>)>,
    labels: Vec<u32>,
}

#[pymethods]
impl Collector {
    /// An empty collection for `model`.
    #[new]
    fn new(model: &Model) -> Collector {
        let transform = model.model.transform().clone();
        let any_values = model.model.config().is_backbone();
        Collector { transform, any_values, pixels: Vec::new(), values: Vec::new(), labels: Vec::new() }
    }

    /// Height, width and channels of a preprocessed image.
    #[getter]
    fn image(&self) -> (usize, usize, usize) {
        (self.transform.size.height, self.transform.size.width, self.transform.channels())
    }

    /// Whether floats may be of any size, and other values than those of 8-bit pixels
    /// ([`Collector::add_values`]).
    #[getter]
    fn any_values(&self) -> bool {
        self.any_values
    }

    /// Whether images are turned as EXIF states.
    #[getter]
    fn turns(&self) -> bool {
        self.transform.orientation == Orientation::Exif
    }

    /// Adds an image that is not preprocessed yet.
    fn add_image(&mut self, py: Python<'_>, image: Picture<'_>) -> PyResult<()> {
        let index = self.pixels.len() / image_bytes(&self.transform);
        let image = image.decode(py, &format!("image {index}"), self.transform.orientation)?;
        let RgbImage { width, height, ref pixels } = image;
        let bytes = width.checked_mul(height).and_then(|area| area.checked_mul(3));
        if bytes.is_none_or(|bytes| bytes == 0 || bytes != pixels.len()) {
            let problem = format!("images: {} bytes for {width} x {height} RGB pixels", pixels.len());
            return Err(raise_as(py, "ArgumentError", problem));
        }
        let prepared = py.detach(|| preprocess(&image, &self.transform));
        self.pixels.extend(prepared);
        Ok(())
    }

    /// Adds preprocessed images, u8 `[images, height, width, channels]`.
    fn add_pixels(&mut self, pixels: &Bound<'_, PyAny>) -> PyResult<()> {
        self.pixels.extend_from_slice(Array::<u8>::of(pixels, "images")?.as_slice());
        Ok(())
    }

    /// Adds normalised images, f32 `[images, channels, height, width]`.
    fn add_normalized(&mut self, py: Python<'_>, values: &Bound<'_, PyAny>) -> PyResult<()> {
        let values = Array::<f32>::of(values, "images")?;
        let mut pixels = vec![0; values.as_slice().len()];
        denormalize(values.as_slice(), self.transform.size, &self.transform, &mut pixels)
            .map_err(|error| raise(py, &error))?;
        self.pixels.extend(pixels);
        Ok(())
    }

    /// Adds images as the network reads them, of any `height` and `width`: f32
    /// `[images, channels, height, width]`.
    fn add_values(&mut self, values: &Bound<'_, PyAny>, height: usize, width: usize) -> PyResult<()> {
        let values = Array::<f32>::of(values, "images")?;
        self.values.push((Size::new(height, width), values.as_slice().to_vec()));
        Ok(())
    }

    /// Adds the classes of images.
    fn add_labels(&mut self, labels: Vec<u32>) {
        self.labels.extend(labels);
    }

    /// The images that were added.
    fn finish(&mut self, py: Python<'_>) -> PyResult<Images> {
        let (values, channels) = (std::mem::take(&mut self.values), self.transform.channels());
        if !values.is_empty() {
            if !self.pixels.is_empty() {
                let problem = "images: 8-bit images and floats are mixed; give one kind";
                return Err(raise_as(py, "ArgumentError", problem.to_owned()));
            }
            let images = py.detach(|| swinq::Images::from_values(channels, values));
            return Ok(Images { images: images.map_err(|error| raise(py, &error))? });
        }
        let (pixels, labels) = (std::mem::take(&mut self.pixels), std::mem::take(&mut self.labels));
        let ids = (0..pixels.len() / image_bytes(&self.transform)).collect();
        let empty = Batch::empty(self.transform.size, self.transform.channels());
        let images = swinq::Images::from_batch(Batch { pixels, labels, ids, ..empty });
        Ok(Images { images: images.map_err(|error| raise(py, &error))? })
    }
}

/// Bytes of an image after the preprocessing `transform`.
fn image_bytes(transform: &Transform) -> usize {
    transform.size.area() * transform.channels()
}

/// Reverses the normalisation of `values`, f32 `[images, channels, height, width]`, and writes their
/// `pixels`, u8 `[images, height, width, channels]`. `size` is the height and width; mean and deviation are
/// those of `transform`.
///
/// # Errors
/// [`Error::Argument`] for a number of values or pixels that is not that of whole images, and for a value
/// that is not a normalised pixel.
fn denormalize(values: &[f32], size: Size, transform: &Transform, pixels: &mut [u8]) -> Result<(), Error> {
    let Transform { mean, std, .. } = transform;
    let (area, channels) = (size.area(), transform.channels());
    if values.is_empty() && pixels.is_empty() {
        return Ok(());
    }
    if values.len() != pixels.len() || !values.len().is_multiple_of(channels * area) {
        let problem = format!(
            "{} values for {} pixels are not whole images of {channels} x {} x {}",
            values.len(),
            pixels.len(),
            size.height,
            size.width
        );
        return Err(Error::Argument { argument: "images", problem });
    }
    for (image, written) in values.chunks_exact(channels * area).zip(pixels.chunks_exact_mut(channels * area))
    {
        for (channel, plane) in image.chunks_exact(area).enumerate() {
            let (scale, offset) = (255.0 * std[channel], 255.0 * mean[channel]);
            let mut farthest = 0.0f32;
            let mut valid = true;
            for (&value, byte) in plane.iter().zip(written[channel..].iter_mut().step_by(channels)) {
                let pixel = fma(value, scale, offset);
                let whole = pixel.round_ties_even();
                farthest = farthest.max((pixel - whole).abs());
                valid &= (0.0..=255.0).contains(&whole);
                *byte = whole as u8;
            }
            if !valid || farthest > TOLERANCE {
                return Err(not_pixels(transform));
            }
        }
    }
    Ok(())
}

fn not_pixels(transform: &Transform) -> Error {
    let problem = format!(
        "the values are not those of 8-bit pixels, divided by 255 and normalised with the model's mean {:?} and deviation \
         {:?}; normalise with these, or pass uint8 [images, height, width, channels]",
        transform.mean, transform.std
    );
    Error::Argument { argument: "images", problem }
}
