//! Images in memory: preprocessed pixels, or normalised floats.

use std::sync::Arc;

use swinq_data::{OfOneSize, Padding};
use swinq_model::{Batch, BatchSource, BoxError, PixelFormat, Size, SwinConfig, Transform};

use crate::Error;
use crate::features::most_images;

/// Some of the images in memory, in their order. A clone shares the pixels.
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    /// The images of each size, of one format and with one number of channels.
    groups: Arc<Vec<Batch>>,
    /// The images in use, in their order.
    order: Vec<Place>,
}

/// The place of an image.
#[derive(Clone, Copy, Debug)]
struct Place {
    group: usize,
    image: usize,
}

impl Prepared {
    /// Checks that pixels, labels and ids of `all` belong to the same number of images.
    pub(crate) fn new(all: Batch) -> Result<Prepared, Error> {
        let refuse = |problem: String| Err(Error::argument("images", problem));
        let count = all.len();
        if count == 0 {
            return refuse("there is no image".to_owned());
        }
        let Batch { size, channels, .. } = all;
        let bytes = size.image_bytes(channels, count).map(|values| values * all.format.bytes());
        if bytes.is_none_or(|bytes| bytes == 0 || bytes != all.pixels.len()) {
            return refuse(format!(
                "{} bytes of pixels for {count} images of {} x {} x {channels}",
                all.pixels.len(),
                size.height,
                size.width
            ));
        }
        if !all.labels.is_empty() && all.labels.len() != count {
            return refuse(format!("{} labels for {count} images", all.labels.len()));
        }
        let order = (0..count).map(|image| Place { group: 0, image }).collect();
        Ok(Prepared { groups: Arc::new(vec![all]), order })
    }

    /// Normalised images: each of `batches` is a height and width, and images of it, f32
    /// `[images, channels, height, width]`.
    pub(crate) fn of_values(
        channels: usize,
        batches: impl IntoIterator<Item = (Size, impl AsRef<[f32]>)>,
    ) -> Result<Prepared, Error> {
        let (mut groups, mut order) = (Vec::<Batch>::new(), Vec::<Place>::new());
        for (size, values) in batches {
            let values = values.as_ref();
            let each = size.image_bytes(channels, 1).unwrap_or(0);
            check_values(values, size, channels, each, order.len())?;
            let known = groups.iter().position(|group| group.size == size);
            let group = known.unwrap_or_else(|| {
                groups.push(Batch { format: PixelFormat::Normalised, ..Batch::empty(size, channels) });
                groups.len() - 1
            });
            for image in values.chunks_exact(each) {
                let place = Place { group, image: groups[group].len() };
                groups[group].pixels.extend(image.iter().flat_map(|value| value.to_le_bytes()));
                groups[group].ids.push(order.len());
                order.push(place);
            }
        }
        if order.is_empty() {
            return Err(Error::argument("images", "there is no image"));
        }
        Ok(Prepared { groups: Arc::new(groups), order })
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    pub(crate) fn has_labels(&self) -> bool {
        self.groups.iter().any(|group| !group.labels.is_empty())
    }

    /// One line for a log.
    pub(crate) fn describe(&self) -> String {
        let images = if self.len() == 1 { "image" } else { "images" };
        let labels = if self.has_labels() { "" } else { ", no labels" };
        format!("{} {images} in memory{labels}", self.len())
    }

    /// The first `count` images, or all if there are fewer.
    pub(crate) fn first(&self, count: usize) -> Prepared {
        self.chosen(0..count.min(self.len()))
    }

    /// Every second image, from `first` on.
    pub(crate) fn every_second(&self, first: usize) -> Prepared {
        self.chosen((first..self.len()).step_by(2))
    }

    /// The images at `positions`.
    pub(crate) fn chosen(&self, positions: impl Iterator<Item = usize>) -> Prepared {
        let order = positions.map(|position| self.order[position]).collect();
        Prepared { groups: Arc::clone(&self.groups), order }
    }

    /// The bytes of the pixels of each image, in the order of the images.
    #[cfg(feature = "float")]
    pub(crate) fn pixels(&self) -> impl Iterator<Item = &[u8]> {
        self.order.iter().map(|place| self.groups[place.group].pixels_of(place.image))
    }

    /// The images in batches of `batch_size`, for a model that takes the pixels that `transform` gives.
    pub(crate) fn batches(&self, batch_size: usize, transform: &Transform) -> Result<PreparedBatches, Error> {
        let taken = (transform.size, transform.channels());
        for group in self.groups.iter() {
            if group.format != PixelFormat::Bytes {
                let problem = "normalised floats serve for calibration alone; give 8-bit pixels";
                return Err(Error::argument("images", problem));
            }
            let own = (group.size, group.channels);
            if own != taken {
                let shape = |(Size { height, width }, channels): (Size, usize)| {
                    format!("{height} x {width} pixels of {channels} channels")
                };
                let problem = format!(
                    "the images in memory have {} and the model takes {}; prepare them with the model's own transform",
                    shape(own),
                    shape(taken)
                );
                return Err(Error::argument("images", problem));
            }
        }
        Ok(self.of_one_size(|_| batch_size))
    }

    /// The images in batches of at most `batch_size` images of one size, for a model of the architecture
    /// `config`.
    pub(crate) fn batches_by_size(
        &self,
        batch_size: usize,
        config: &SwinConfig,
    ) -> Result<PreparedBatches, Error> {
        for group in self.groups.iter() {
            let refuse = |problem: String| Err(Error::argument("images", problem));
            if group.channels != config.in_chans {
                let (own, taken) = (group.channels, config.in_chans);
                return refuse(format!(
                    "the images in memory have {own} channels, and the model takes {taken}"
                ));
            }
            if let Err(error) = config.grids(group.size) {
                return refuse(format!("image {}: {error}", group.ids[0]));
            }
        }
        Ok(self.of_one_size(|size| most_images(config, size, batch_size)))
    }

    fn of_one_size(&self, most: impl Fn(Size) -> usize) -> PreparedBatches {
        let sizes =
            self.order.iter().enumerate().map(|(position, place)| (position, self.groups[place.group].size));
        PreparedBatches { batches: OfOneSize::batches(sizes, Padding::default(), most), images: self.clone() }
    }

    /// Whether the images are normalised floats.
    pub(crate) fn is_normalised(&self) -> bool {
        self.groups.iter().any(|group| group.format == PixelFormat::Normalised)
    }

    /// The images at `positions`, which have one size.
    fn gather(&self, positions: &[usize]) -> Batch {
        let places: Vec<Place> = positions.iter().map(|&position| self.order[position]).collect();
        let all = &self.groups[places[0].group];
        Batch {
            pixels: places.iter().flat_map(|place| all.pixels_of(place.image)).copied().collect(),
            labels: places.iter().filter_map(|place| all.labels.get(place.image)).copied().collect(),
            ids: places.iter().map(|place| all.ids[place.image]).collect(),
            ..all.without_images()
        }
    }
}

/// Refuses values that are not whole images of `each` values, and values that are not finite. `first` is the
/// number of the first image.
fn check_values(values: &[f32], size: Size, channels: usize, each: usize, first: usize) -> Result<(), Error> {
    if each == 0 || values.is_empty() || !values.len().is_multiple_of(each) {
        let problem =
            format!("{} values are not whole images of {channels} channels of {size}", values.len());
        return Err(Error::argument("images", problem));
    }
    let Some(index) = values.iter().position(|value| !value.is_finite()) else { return Ok(()) };
    let (image, rest, area) = (first + index / each, index % each, size.area());
    let (channel, row, column) = (rest / area, rest % area / size.width, rest % size.width);
    let problem = format!(
        "image {image} holds {} (channel {channel}, row {row}, column {column}); the values must be finite",
        values[index]
    );
    Err(Error::argument("images", problem))
}

/// Batches of images in memory. Sizes, and the images of a size, stay in the order of the images.
pub(crate) struct PreparedBatches {
    images: Prepared,
    batches: Vec<OfOneSize>,
}

impl BatchSource for PreparedBatches {
    fn batches(&self) -> usize {
        self.batches.len()
    }

    fn images(&self) -> usize {
        self.images.len()
    }

    fn batch(&mut self, _epoch: u64, index: usize) -> Result<Batch, BoxError> {
        let batch = self.batches.get(index);
        let batch =
            batch.ok_or_else(|| format!("batch {index} of {}: beyond the epoch", self.batches.len()))?;
        Ok(self.images.gather(&batch.ids))
    }
}
