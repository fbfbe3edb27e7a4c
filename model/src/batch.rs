//! The types that crates exchange at run time: image batches, the preprocessing that made them, logits,
//! classifiers.

use std::ops::Range;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use swinq_numerics::Size;

use crate::arch::size;
use crate::pixels::{ChannelOrder, Orientation};

/// An error of an implementation that this crate does not know, such as a data set or an engine.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The format of a [`Batch`]'s bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PixelFormat {
    /// Images after resize and crop, before normalisation: `u8`, `[n, height, width, channels]`.
    #[default]
    Bytes,
    /// The network's input: f32 in little-endian bytes, `[n, channels, height, width]`. No [`Classifier`]
    /// takes them.
    Normalised,
}

impl PixelFormat {
    /// Bytes of a value.
    pub fn bytes(self) -> usize {
        match self {
            PixelFormat::Bytes => 1,
            PixelFormat::Normalised => size_of::<f32>(),
        }
    }
}

/// Images of one size. Three channels of pixels that are no floats have the order that the network reads
/// ([`Transform::channel_order`]), one is luminance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Pixels, `n * height * width * channels` values of `format`.
    pub pixels: Vec<u8>,
    /// The format of the bytes of `pixels`.
    pub format: PixelFormat,
    /// Height and width of every image.
    pub size: Size,
    /// Channels of every image.
    pub channels: usize,
    /// Class of each image; empty where the data set has no labels.
    pub labels: Vec<u32>,
    /// Position of each image in the data set's full list.
    pub ids: Vec<usize>,
}

impl Batch {
    /// A batch of bytes without images.
    pub fn empty(size: Size, channels: usize) -> Batch {
        let format = PixelFormat::Bytes;
        Batch { pixels: Vec::new(), format, size, channels, labels: Vec::new(), ids: Vec::new() }
    }

    /// A batch without images, of the format, the size and the channels of this one.
    pub fn without_images(&self) -> Batch {
        Batch { format: self.format, ..Batch::empty(self.size, self.channels) }
    }

    /// Bytes of one image.
    pub fn image_bytes(&self) -> usize {
        self.size.area() * self.channels * self.format.bytes()
    }

    /// The bytes of the pixels of the image at `index`.
    pub fn pixels_of(&self, index: usize) -> &[u8] {
        let bytes = self.image_bytes();
        &self.pixels[index * bytes..(index + 1) * bytes]
    }

    /// The images in `range`.
    pub fn slice(&self, range: Range<usize>) -> Batch {
        let bytes = self.image_bytes();
        Batch {
            pixels: self.pixels[range.start * bytes..range.end * bytes].to_vec(),
            labels: self.labels.get(range.clone()).unwrap_or_default().to_vec(),
            ids: self.ids[range].to_vec(),
            ..self.without_images()
        }
    }

    /// The values of normalised images, f32 `[n, channels, height, width]`; `None` for bytes.
    pub fn values(&self) -> Option<Vec<f32>> {
        let values = || self.pixels.as_chunks().0.iter().map(|&value| f32::from_le_bytes(value)).collect();
        (self.format == PixelFormat::Normalised).then(values)
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether the batch has no image.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}

/// The work of a [`BatchSource`]'s threads since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoaderWork {
    /// Number of threads.
    pub threads: usize,
    /// Number of images loaded.
    pub images: u64,
    /// The time that the threads spent in loading them, added up.
    pub busy: Duration,
    /// The time that the reader waited for batches.
    pub waited: Duration,
}

impl LoaderWork {
    /// The work since `earlier`.
    pub fn since(&self, earlier: &LoaderWork) -> LoaderWork {
        LoaderWork {
            threads: self.threads,
            images: self.images - earlier.images,
            busy: self.busy - earlier.busy,
            waited: self.waited - earlier.waited,
        }
    }

    /// Images per second with all threads at work; `None` before the first image.
    pub fn images_per_second(&self) -> Option<f64> {
        let thread_seconds = self.busy.as_secs_f64();
        (thread_seconds > 0.0).then(|| (self.images * self.threads as u64) as f64 / thread_seconds)
    }
}

/// A seekable source of batches, deterministic in its seed and the position asked for.
pub trait BatchSource: Send {
    /// Number of batches in an epoch; the last may be shorter.
    fn batches(&self) -> usize;

    /// Number of images in an epoch.
    fn images(&self) -> usize;

    /// Batch `index` of `epoch`.
    ///
    /// # Errors
    /// The data set's error, naming the file.
    fn batch(&mut self, epoch: u64, index: usize) -> Result<Batch, BoxError>;

    /// The work of its threads so far; `None` if it has none.
    fn work(&self) -> Option<LoaderWork> {
        None
    }
}

/// How images were resized and cropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resize {
    /// Resize the shorter side to this many pixels and the longer side in proportion (truncated), then crop
    /// the center.
    ShorterSide(usize),
    /// Resize in proportion, so that the image just covers this size (sides are rounded to the nearest), then
    /// crop the center.
    Cover(#[serde(with = "size")] Size),
    /// Resize both sides to the input size.
    Direct,
}

impl Resize {
    /// timm's resize before a center crop of `size`: of the shorter side to `floor(size / crop_pct)`, or to
    /// cover such a size if it is not square.
    pub fn timm(size: Size, crop_pct: f64) -> Resize {
        let resized = size.map(|side| (side as f64 / crop_pct).floor() as usize);
        if size.side().is_some() { Resize::ShorterSide(resized.height) } else { Resize::Cover(resized) }
    }
}

/// Resampling filter, as Pillow defines it, with antialiasing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Filter {
    /// Bicubic, a = -0.5.
    Bicubic,
    /// Bilinear (triangle).
    Bilinear,
}

/// Preprocessing from a decoded image to the network's input. Every file and report that depends on it
/// records it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transform {
    /// Origin of the convention: `ms`, `timm`, `torchvision`, `hf`, or `custom`.
    pub family: String,
    /// Height and width of the network's input in pixels; in files a number if they are equal.
    #[serde(with = "size")]
    pub size: Size,
    /// How images are brought to that size.
    pub resize: Resize,
    /// Resampling filter.
    pub filter: Filter,
    /// Mean of each channel, of pixels in 0..1. Its length is the number of channels.
    pub mean: Vec<f32>,
    /// Standard deviation of each channel, of pixels in 0..1.
    pub std: Vec<f32>,
    /// The sides to which images of a backbone are resized are rounded up to multiples of this number of
    /// pixels; `None` for sides as they are asked for. transformers' processors of MaskFormer and Mask2Former
    /// do so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_divisor: Option<usize>,
    /// Whether images are turned as their files state it; files without this key keep their pixels as they
    /// are stored.
    #[serde(default, skip_serializing_if = "Orientation::is_default")]
    pub orientation: Orientation,
    /// The order of three channels before the network, and of `mean` and `std`. Without effect on other
    /// numbers of channels.
    #[serde(default, skip_serializing_if = "ChannelOrder::is_default")]
    pub channel_order: ChannelOrder,
}

/// The largest [`Transform::size_divisor`], in pixels.
pub(crate) const MAX_DIVISOR: usize = 4096;

/// ImageNet's channel means.
pub const IMAGENET_MEAN: [f32; 3] = [0.485, 0.456, 0.406];
/// ImageNet's channel standard deviations.
pub const IMAGENET_STD: [f32; 3] = [0.229, 0.224, 0.225];

/// ImageNet's means and standard deviations for RGB; for other channels 0 and 1, which leave pixels in 0..1.
pub(crate) fn common_statistics(channels: usize) -> (Vec<f32>, Vec<f32>) {
    match channels {
        3 => (IMAGENET_MEAN.to_vec(), IMAGENET_STD.to_vec()),
        _ => (vec![0.0; channels], vec![1.0; channels]),
    }
}

impl Transform {
    /// Microsoft's evaluation transform for images of `channels` channels. With `crop`, the shorter side is
    /// resized to `int(256 / 224 * size)`, with the longer side of `size`, and the center is cropped; without
    /// it (`TEST.CROP: False`), images are resized to `size`.
    pub fn microsoft(size: Size, channels: usize, crop: bool) -> Transform {
        let longer = size.height.max(size.width);
        let resize =
            if crop { Resize::ShorterSide((256.0 / 224.0 * longer as f64) as usize) } else { Resize::Direct };
        let (mean, std) = common_statistics(channels);
        Transform {
            family: "ms".to_owned(),
            size,
            resize,
            filter: Filter::Bicubic,
            mean,
            std,
            size_divisor: None,
            orientation: Orientation::Stored,
            channel_order: ChannelOrder::Rgb,
        }
    }

    /// The rules beside size and normalisation that a file may state, as the end of a description; empty for
    /// the usual ones.
    pub fn rules(&self) -> String {
        let mut rules = self
            .size_divisor
            .map_or(String::new(), |divisor| format!(", resized sides multiples of {divisor}"));
        if self.orientation == Orientation::Exif {
            rules += ", turned as EXIF states";
        }
        if self.channel_order == ChannelOrder::Bgr {
            rules += ", channels in the order BGR";
        }
        rules
    }

    /// Whether a file needs version 3 of the format, because version 2 cannot state this transform.
    pub(crate) fn needs_version_3(&self) -> bool {
        self.size.side().is_none() || self.channels() != 3 || matches!(self.resize, Resize::Cover(_))
    }

    /// Where the crop of `size` of `length` pixels starts, at least as many. Halves are rounded to even, as
    /// torchvision and timm do; transformers' processors (family `hf`) round them down.
    pub fn crop_start(&self, length: usize, size: usize) -> usize {
        let spare = length - size;
        if self.family == "hf" { spare / 2 } else { (spare as f64 / 2.0).round_ties_even() as usize }
    }

    /// Number of channels.
    pub fn channels(&self) -> usize {
        self.mean.len()
    }

    /// Checks that means and standard deviations are plausible for pixels in 0..1: means in -1..=2,
    /// deviations in 0.001..=10; and that the divisor of sizes is in 1..=4096.
    ///
    /// # Errors
    /// The field and the problem.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        if let Some(divisor) = self.size_divisor.filter(|divisor| !(1..=MAX_DIVISOR).contains(divisor)) {
            return Err(("size_divisor", format!("{divisor} is not in 1..={MAX_DIVISOR}")));
        }
        if self.std.len() != self.mean.len() {
            return Err(("std", format!("{} values for {} channels", self.std.len(), self.mean.len())));
        }
        let within = |name, values: &[f32], low: f32, high: f32| {
            if values.iter().all(|v| (low..=high).contains(v)) {
                return Ok(());
            }
            Err((name, format!("{values:?} are not all in {low}..={high}, which pixels in 0..1 need")))
        };
        within("mean", &self.mean, -1.0, 2.0)?;
        within("std", &self.std, 1e-3, 10.0)
    }

    /// Table of normalised pixels, `[channel][byte]`: `(byte / 255 - mean) / std` in f32. The order of
    /// operations is that of torchvision's `ToTensor` and `Normalize`.
    pub fn lookup(&self) -> Vec<[f32; 256]> {
        let mut table = vec![[0.0; 256]; self.channels()];
        for (channel, row) in table.iter_mut().enumerate() {
            for (byte, value) in row.iter_mut().enumerate() {
                *value = (byte as f32 / 255.0 - self.mean[channel]) / self.std[channel];
            }
        }
        table
    }

    /// The normalised image of `pixels`: f32 `[channels, height, width]` of `u8` `[height, width, channels]`.
    pub fn normalised(&self, pixels: &[u8]) -> Vec<f32> {
        let table = self.lookup();
        let mut values = Vec::with_capacity(pixels.len());
        for (channel, row) in table.iter().enumerate() {
            let bytes = pixels.iter().skip(channel).step_by(table.len());
            values.extend(bytes.map(|&byte| row[usize::from(byte)]));
        }
        values
    }
}

impl std::fmt::Display for Transform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (size, filter) = (self.size, if self.filter == Filter::Bicubic { "bicubic" } else { "bilinear" });
        match self.resize {
            Resize::ShorterSide(side) => {
                write!(f, "{}: shorter side to {side}, center crop {}", self.family, size.short())?
            }
            Resize::Cover(covered) => write!(f, "{}: cover {covered}, center crop {size}", self.family)?,
            Resize::Direct => write!(f, "{}: direct to {size}", self.family)?,
        }
        write!(f, ", {filter}, mean {:?}, std {:?}", self.mean, self.std)?;
        f.write_str(&self.rules())
    }
}

/// Class scores before softmax: f32 `[n, classes]`, row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct Logits {
    /// `n * classes` values.
    pub values: Vec<f32>,
    /// Number of classes.
    pub classes: usize,
}

impl Logits {
    /// The scores of each image, in order.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        self.values.chunks_exact(self.classes)
    }
}

/// A classifier that is ready to run, on any backend.
pub trait Classifier {
    /// Number of classes.
    fn classes(&self) -> usize;

    /// Height and width of the images in pixels.
    fn input_size(&self) -> Size;

    /// Channels of the images.
    fn channels(&self) -> usize;

    /// Scores of every image of `batch`.
    ///
    /// # Errors
    /// A batch of another image size, a NaN among the logits, or an error of the backend.
    fn infer(&self, batch: &Batch) -> Result<Logits, BoxError>;
}
