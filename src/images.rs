//! Images: a sample of a data set, files, or pixels in memory.

use std::borrow::Borrow;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use swinq_data::{
    DataError, Dataset, Ids, Loader, LoaderOptions, OfOneSize, Padding, RgbImage, SizedLoader, Sizing, Split,
    preprocess,
};
use swinq_eval::DataInfo;
use swinq_model::part::Shard;
use swinq_model::{Batch, Resize, Size, SwinConfig, Transform};

use crate::Error;
#[cfg(feature = "float")]
use crate::Model;
use crate::batches::{ImageBatches, Reader};
use crate::class_numbers;
#[cfg(feature = "float")]
use crate::class_order::ordered_names;
use crate::features::most_images;
use crate::hex::hex;
use crate::limits::{check_batch_size, check_threads};
use crate::prepared::Prepared;

/// Paths that are neither images nor folders of images, with the reasons.
type Unreadable = Vec<(PathBuf, Error)>;

/// Number of turned images that a remark names.
const NAMED: usize = 3;

/// Number of batches that are decoded before the model needs them.
const PREFETCH: usize = 2;

/// How images are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadOptions {
    /// Images per batch, at least 1.
    pub batch_size: usize,
    /// Decoding threads; 0 is one per core.
    pub threads: usize,
    /// Number of corrupt images that are left out; one more is an error.
    pub skip_corrupt: usize,
}

impl Default for ReadOptions {
    /// Batches of 8, one thread per core; every corrupt image is an error.
    fn default() -> ReadOptions {
        ReadOptions { batch_size: 8, threads: 0, skip_corrupt: 0 }
    }
}

/// Images for calibration, evaluation or classification, in a fixed order.
#[derive(Clone, Debug)]
pub struct Images {
    source: Source,
}

#[derive(Clone, Debug)]
enum Source {
    Sample(Sample),
    Prepared(Prepared),
}

/// Some of the images of a data set.
#[derive(Clone, Debug)]
struct Sample {
    dataset: Dataset,
    /// Positions in the data set's list, in the order of use.
    ids: Ids,
    /// The path and the split that were opened; `None` for individual files.
    opened: Option<(PathBuf, Split)>,
    limit: Option<usize>,
    seed: u64,
}

impl Images {
    /// Opens a data set ([`Dataset::open`] lists the layouts) and draws a seeded sample of `limit` images,
    /// spread over the classes; `None` takes all images in list order.
    ///
    /// # Errors
    /// The errors of [`Dataset::open`], and an error for a `limit` of 0.
    pub fn open(
        path: impl AsRef<Path>,
        split: Split,
        limit: Option<usize>,
        seed: u64,
    ) -> Result<Images, Error> {
        if limit == Some(0) {
            return Err(Error::argument("limit", "is 0; it must be at least 1"));
        }
        let path = path.as_ref();
        let dataset = Dataset::open(path, split.clone())?;
        let ids = dataset.sample(limit, seed);
        let opened = Some((path.to_owned(), split));
        Ok(Images { source: Source::Sample(Sample { dataset, ids, opened, limit, seed }) })
    }

    /// The image files `paths`, in this order, without labels.
    ///
    /// # Errors
    /// An error for an empty list, and for a file that cannot be read or is not an image.
    pub fn from_files(paths: &[impl AsRef<Path>]) -> Result<Images, Error> {
        let paths: Vec<PathBuf> = paths.iter().map(|path| path.as_ref().to_owned()).collect();
        let dataset = Dataset::from_files(&paths)?;
        let ids = Ids::all(dataset.len());
        Ok(Images { source: Source::Sample(Sample { dataset, ids, opened: None, limit: None, seed: 0 }) })
    }

    /// The image files that `paths` name: files, and folders for the images directly in them, in sorted
    /// order. Returns the images, or `None` if there is none, and each path that is neither, or that has a
    /// link to nothing, with the reason.
    ///
    /// # Errors
    /// Those of [`Images::from_files`].
    pub fn find(paths: &[impl AsRef<Path>]) -> Result<(Option<Images>, Unreadable), Error> {
        let (mut files, mut errors) = (Vec::new(), Vec::new());
        for path in paths.iter().map(AsRef::as_ref) {
            for found in swinq_data::image_files(path) {
                match found {
                    Ok(file) => files.push(file),
                    Err(error) => {
                        let named = match &error {
                            DataError::DanglingLink { path, .. } => path,
                            _ => path,
                        };
                        errors.push((named.to_owned(), Error::Data(error)));
                    }
                }
            }
        }
        let images = if files.is_empty() { None } else { Some(Images::from_files(&files)?) };
        Ok((images, errors))
    }

    /// Decoded images. They are preprocessed at once with `transform`, which should be the model's
    /// ([`Model::transform`](crate::Model::transform)). Only the preprocessed pixels stay in memory:
    /// `height * width * channels` bytes per image.
    ///
    /// # Errors
    /// [`Error::Argument`] for an empty list, for an image without pixels or whose pixels are not `width *
    /// height * 3` bytes, and for a transform whose size is 0 or
    /// that has neither one nor three channels.
    pub fn from_rgb(
        images: impl IntoIterator<Item = impl Borrow<RgbImage>>,
        transform: &Transform,
    ) -> Result<Images, Error> {
        check_transform(transform)?;
        let mut pixels = Vec::new();
        let mut count = 0;
        for image in images {
            check_image(image.borrow(), count)?;
            pixels.extend_from_slice(&preprocess(image.borrow(), transform));
            count += 1;
        }
        let empty = Batch::empty(transform.size, transform.channels());
        Images::from_batch(Batch { pixels, ids: (0..count).collect(), ..empty })
    }

    /// Images that are already preprocessed, with their labels if there are any.
    ///
    /// # Errors
    /// [`Error::Argument`] for an empty batch, or if the number of pixels or labels contradicts the number of
    /// ids.
    pub fn from_batch(batch: Batch) -> Result<Images, Error> {
        Ok(Images { source: Source::Prepared(Prepared::new(batch)?) })
    }

    /// Normalised images for a calibration: what the network reads, f32 with the channels first. Each of
    /// `batches` is a height and width, and any number of images of it, `[images, channels, height, width]`.
    /// Images of one size run together.
    ///
    /// The images have no labels, and serve for calibration alone.
    ///
    /// # Errors
    /// [`Error::Argument`] for no image, for values that are not whole images, and for a value that is not
    /// finite.
    pub fn from_values(
        channels: usize,
        batches: impl IntoIterator<Item = (Size, impl AsRef<[f32]>)>,
    ) -> Result<Images, Error> {
        Ok(Images { source: Source::Prepared(Prepared::of_values(channels, batches)?) })
    }

    /// The first `count` images, or all if there are fewer.
    pub fn first(&self, count: usize) -> Images {
        let source = match &self.source {
            Source::Sample(sample) => {
                let ids = sample.ids.iter().take(count).collect();
                Source::Sample(Sample { ids, ..sample.clone() })
            }
            Source::Prepared(prepared) => Source::Prepared(prepared.first(count)),
        };
        Images { source }
    }

    /// Every second image, from the first and from the second.
    pub fn halves(&self) -> [Images; 2] {
        [0, 1].map(|first| match &self.source {
            Source::Sample(sample) => {
                let ids = sample.ids.iter().skip(first).step_by(2).collect();
                Images { source: Source::Sample(Sample { ids, ..sample.clone() }) }
            }
            Source::Prepared(prepared) => Images { source: Source::Prepared(prepared.every_second(first)) },
        })
    }

    /// The images of one shard of a run that reads these images in batches of `batch_size`: those of the
    /// shard's batches ([`Shard::batches`]), so that all shards together read the same batches as one run.
    ///
    /// # Errors
    /// [`Error::Argument`] if there are more shards than batches.
    pub fn shard(&self, shard: Shard, batch_size: usize) -> Result<Images, Error> {
        let (count, size) = (self.len(), batch_size.max(1));
        let batches = shard.batches(count.div_ceil(size));
        if shard.count > count.div_ceil(size) {
            let problem = format!(
                "{shard}: {count} images in batches of {size} are {} batches, which shards do not divide further; use at \
                 most {} shards, or smaller batches",
                count.div_ceil(size),
                count.div_ceil(size)
            );
            return Err(Error::argument("shard", problem));
        }
        let range = batches.start * size..batches.end.saturating_mul(size).min(count);
        let source = match &self.source {
            Source::Sample(sample) => {
                let ids = sample.ids.slice(range).into_iter().collect();
                Source::Sample(Sample { ids, ..sample.clone() })
            }
            Source::Prepared(prepared) => Source::Prepared(prepared.chosen(range)),
        };
        Ok(Images { source })
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        match &self.source {
            Source::Sample(sample) => sample.ids.len(),
            Source::Prepared(prepared) => prepared.len(),
        }
    }

    /// Whether the images have labels.
    pub fn has_labels(&self) -> bool {
        match &self.source {
            Source::Sample(sample) => sample.dataset.has_labels(),
            Source::Prepared(prepared) => prepared.has_labels(),
        }
    }

    /// Whether the images are normalised floats ([`Images::from_values`]).
    pub fn is_normalised(&self) -> bool {
        matches!(&self.source, Source::Prepared(prepared) if prepared.is_normalised())
    }

    /// Whether there is no image.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The data set that contains the images; `None` for images in memory.
    pub fn dataset(&self) -> Option<&Dataset> {
        match &self.source {
            Source::Sample(sample) => Some(&sample.dataset),
            Source::Prepared(_) => None,
        }
    }

    /// Positions of the images in the data set's list, in the order of use; empty for images in memory.
    pub(crate) fn ids(&self) -> Ids {
        match &self.source {
            Source::Sample(sample) => sample.ids.clone(),
            Source::Prepared(_) => Ids::all(0),
        }
    }

    /// Seed of the sample.
    pub(crate) fn seed(&self) -> u64 {
        match &self.source {
            Source::Sample(sample) => sample.seed,
            Source::Prepared(_) => 0,
        }
    }

    /// One line for a log: path, layout, images, classes.
    pub fn describe(&self) -> String {
        match &self.source {
            Source::Sample(sample) => sample.dataset.describe(),
            Source::Prepared(prepared) => prepared.describe(),
        }
    }

    /// Name of the image whose id in a batch is `id` ([`Batch::ids`]).
    pub fn name_of(&self, id: usize) -> String {
        match self.dataset() {
            Some(dataset) if id < dataset.len() => dataset.name(id),
            _ => format!("image {id}"),
        }
    }

    /// A remark that names the first of the images that were turned so far as their files state; `None` if
    /// none was, and for images in memory.
    pub fn turned(&self) -> Option<String> {
        self.dataset().and_then(turned)
    }

    /// The images with their classes numbered as a model with the architecture `config` and the class names
    /// `labels` numbers them, and a remark for the reader if that changes the numbers or if the model cannot
    /// confirm them. Class folders, and class names in a list without `classes.txt`, take the numbers of the
    /// same names in the model; if the model has none of these names, they have the numbers of their order in
    /// the library whose naming convention `dialect` is.
    ///
    /// # Errors
    /// [`Error::Labels`] for images without labels, and for labels that cannot be the model's classes.
    pub fn numbered_for(
        &self,
        config: &SwinConfig,
        labels: Option<&[String]>,
        dialect: &str,
    ) -> Result<(Images, Option<String>), Error> {
        let Source::Sample(sample) = &self.source else { return Ok((self.clone(), None)) };
        let numbered = class_numbers::numbered_for(&sample.dataset, config, labels, dialect);
        Ok(match numbered.map_err(|problem| Error::Labels { problem })? {
            None => (self.clone(), None),
            Some((dataset, remark)) => {
                (Images { source: Source::Sample(Sample { dataset, ..sample.clone() }) }, Some(remark))
            }
        })
    }

    /// The class names of the images in the order in which calibration gives them to `model`, if it has none
    /// and the data set numbers its classes by their names.
    #[cfg(feature = "float")]
    pub fn names_for(&self, model: &Model) -> Option<Vec<String>> {
        let dataset = self.dataset().filter(|data| data.numbered_by_name() && model.labels().is_none())?;
        ordered_names(dataset, model.dialect()).filter(|names| names.len() == model.config().num_classes)
    }

    /// SHA-256 of the names of the images, one per line, hexadecimal; `None` for images in memory.
    pub fn list_sha256(&self) -> Option<String> {
        let dataset = self.dataset()?;
        let mut hash = Sha256::new();
        for id in self.ids().iter() {
            hash.update(dataset.name(id));
            hash.update("\n");
        }
        Some(hex(hash.finalize()))
    }

    /// SHA-256 of the labels of the images, one per line, hexadecimal; `None` for images without labels, and
    /// in memory.
    #[cfg(feature = "float")]
    pub(crate) fn labels_sha256(&self) -> Option<String> {
        let dataset = self.dataset().filter(|dataset| dataset.has_labels())?;
        let mut hash = Sha256::new();
        for id in self.ids().iter() {
            hash.update(format!("{:?}\n", dataset.label(id)));
        }
        Some(hex(hash.finalize()))
    }

    /// SHA-256 of the pixels of images in memory, hexadecimal; `None` for a data set.
    #[cfg(feature = "float")]
    pub(crate) fn pixels_sha256(&self) -> Option<String> {
        match &self.source {
            Source::Sample(_) => None,
            Source::Prepared(prepared) => {
                let mut hash = Sha256::new();
                prepared.pixels().for_each(|image| hash.update(image));
                Some(hex(hash.finalize()))
            }
        }
    }

    /// The description of the images for a results file; `transform` is the first model's.
    pub(crate) fn info(&self, transform: &Transform) -> DataInfo {
        let sample = match &self.source {
            Source::Sample(sample) => Some(sample),
            Source::Prepared(_) => None,
        };
        let opened = sample.and_then(|sample| sample.opened.as_ref());
        let limit = sample.and_then(|sample| sample.limit);
        DataInfo {
            path: opened.map_or_else(|| self.describe(), |(path, _)| path.display().to_string()),
            split: opened.map(|(_, split)| split.to_string()),
            total: self.dataset().map(Dataset::len),
            limit,
            seed: limit.map(|_| self.seed()),
            sha256: self.list_sha256(),
            skipped: None,
            transform: Some(transform.clone()),
            sizing: None,
            class_names: self.dataset().and_then(Dataset::class_names).map(<[String]>::to_vec),
        }
    }

    /// The images in batches, preprocessed with `transform`. Images that are already preprocessed are not
    /// changed.
    ///
    /// # Errors
    /// [`Error::Argument`] for a batch size of 0, too many threads, a transform whose size is 0, images in
    /// memory whose size is not the transform's, or normalised images.
    pub fn batches(&self, transform: &Transform, options: &ReadOptions) -> Result<ImageBatches, Error> {
        check_batch_size(options.batch_size)?;
        check_transform(transform)?;
        let batch_size = options.batch_size.min(self.len().max(1));
        let reader = match &self.source {
            Source::Sample(sample) => {
                let options = LoaderOptions {
                    batch_size,
                    threads: check_threads(options.threads)?,
                    prefetch: PREFETCH,
                    skip_corrupt: options.skip_corrupt,
                };
                let (dataset, ids) = (sample.dataset.clone(), sample.ids.clone());
                Reader::Loader(Loader::new(dataset, ids, transform.clone(), options)?)
            }
            Source::Prepared(prepared) => Reader::Prepared(prepared.batches(batch_size, transform)?),
        };
        Ok(ImageBatches { reader })
    }

    /// Batches of the images for a network of the architecture `config`, with the channels, the filter, the
    /// mean and the deviation of `transform`: files get the size that `sizing` says and are padded by
    /// `padding`, images in memory stay as they are, and the images of a batch have one size. Batches of
    /// large images have fewer than the options state, so that their pixels and feature maps fit in memory,
    /// unless they are padded to a common size.
    ///
    /// # Errors
    /// Those of [`Images::batches`]; an image that cannot be read, unless it may be left out;
    /// [`Error::Argument`] naming an image that the network cannot process, or for a padding of images in
    /// memory ([`pad`](crate::pad) pads them); [`Error::Data`] for a padding that is not possible.
    pub fn batches_by_size(
        &self,
        config: &SwinConfig,
        transform: &Transform,
        options: &ReadOptions,
        sizing: Sizing,
        padding: Padding,
    ) -> Result<ImageBatches, Error> {
        check_batch_size(options.batch_size)?;
        padding.check()?;
        let Sample { dataset, ids, .. } = match &self.source {
            Source::Sample(sample) => sample,
            Source::Prepared(_) if padding != Padding::default() => {
                let problem = "images in memory are not padded; pad them before they become images";
                return Err(Error::argument("padding", problem));
            }
            Source::Prepared(prepared) => {
                let batches = prepared.batches_by_size(options.batch_size, config)?;
                return Ok(ImageBatches { reader: Reader::Prepared(batches) });
            }
        };
        let mut sizes = Vec::with_capacity(ids.len());
        for id in ids.slice(0..ids.len()) {
            // The loader finds out why a header cannot be read, and whether the image may be left out.
            let Ok(size) = dataset
                .image_size(id, transform.orientation)
                .map(|own| sizing.apply(own, transform.size_divisor))
            else {
                sizes.push((id, Size::square(1)));
                continue;
            };
            let refused = |e| Error::argument("images", format!("{}: {e}", self.name_of(id)));
            config.grids(padding.size_of([size])).map_err(refused)?;
            sizes.push((id, size));
        }
        let most = |size| match padding.to_common {
            true => options.batch_size,
            false => most_images(config, size, options.batch_size),
        };
        let batches = OfOneSize::batches(sizes, padding, most);
        // A common size may be too large although no image is.
        for batch in batches.iter().filter(|batch| padding.to_common && batch.is_padded()) {
            let refused = |e| Error::argument("padding", format!("{}: {e}", self.name_of(batch.ids[0])));
            config.grids(batch.size).map_err(refused)?;
        }
        let loading = LoaderOptions {
            batch_size: options.batch_size,
            threads: check_threads(options.threads)?,
            prefetch: PREFETCH,
            skip_corrupt: options.skip_corrupt,
        };
        let loader = SizedLoader::new(dataset.clone(), sizing, batches, transform, &loading)?;
        Ok(ImageBatches { reader: Reader::Sized(loader) })
    }
}

/// A remark that names the first of the images of `dataset` that were turned so far as their files state;
/// `None` if none was.
pub fn turned(dataset: &Dataset) -> Option<String> {
    let ids = dataset.turned();
    let shown: Vec<String> = ids.iter().take(NAMED).map(|&id| dataset.name(id)).collect();
    let more = if ids.len() > shown.len() { ", ..." } else { "" };
    let count = match ids.len() {
        0 => return None,
        1 => "1 image was".to_owned(),
        count => format!("{count} images were"),
    };
    Some(format!("{count} turned as the orientation in the file states: {}{more}", shown.join(", ")))
}

fn check_transform(transform: &Transform) -> Result<(), Error> {
    let is_empty = match transform.resize {
        Resize::ShorterSide(side) => side == 0,
        Resize::Cover(size) => size.area() == 0,
        Resize::Direct => false,
    };
    if is_empty || transform.size.area() == 0 {
        return Err(Error::argument("transform", format!("{transform}: the image size is 0")));
    }
    match transform.channels() {
        1 | 3 => Ok(()),
        channels => {
            let problem =
                format!("the model takes {channels} channels, and pictures give 1 or 3; pass arrays");
            Err(Error::argument("transform", problem))
        }
    }
}

fn check_image(image: &RgbImage, index: usize) -> Result<(), Error> {
    let RgbImage { width, height, pixels } = image;
    let bytes = width.checked_mul(*height).and_then(|area| area.checked_mul(3));
    if bytes.is_none_or(|bytes| bytes == 0 || bytes != pixels.len()) {
        let problem =
            format!("image {index} claims {width} x {height} RGB pixels and has {} bytes", pixels.len());
        return Err(Error::argument("images", problem));
    }
    Ok(())
}
