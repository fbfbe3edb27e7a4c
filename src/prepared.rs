//! Preprocessed images in memory.

use std::sync::Arc;

use swinq_model::{Batch, BatchSource, BoxError, Size, Transform};

use crate::Error;

/// Some of the images of a batch in memory. A clone shares the pixels.
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    all: Arc<Batch>,
    /// Number of images in use, counted from the first.
    count: usize,
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
        if size.image_bytes(channels, count).is_none_or(|bytes| bytes == 0 || bytes != all.pixels.len()) {
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
        Ok(Prepared { all: Arc::new(all), count })
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn has_labels(&self) -> bool {
        !self.all.labels.is_empty()
    }

    /// One line for a log.
    pub(crate) fn describe(&self) -> String {
        let images = if self.count == 1 { "image" } else { "images" };
        let labels = if self.has_labels() { "" } else { ", no labels" };
        format!("{} {images} in memory{labels}", self.count)
    }

    /// The first `count` images, or all if there are fewer.
    pub(crate) fn first(&self, count: usize) -> Prepared {
        Prepared { all: Arc::clone(&self.all), count: count.min(self.count) }
    }

    /// Every second image, from `first` on.
    pub(crate) fn every_second(&self, first: usize) -> Prepared {
        self.chosen((first..self.count).step_by(2))
    }

    /// The images at `positions`.
    pub(crate) fn chosen(&self, positions: impl Iterator<Item = usize>) -> Prepared {
        let (all, bytes) = (&self.all, self.all.image_bytes());
        let chosen: Vec<usize> = positions.collect();
        let part = Batch {
            pixels: chosen.iter().flat_map(|&i| &all.pixels[i * bytes..(i + 1) * bytes]).copied().collect(),
            labels: chosen.iter().filter_map(|&i| all.labels.get(i)).copied().collect(),
            ids: chosen.iter().map(|&i| all.ids[i]).collect(),
            ..Batch::empty(all.size, all.channels)
        };
        Prepared { all: Arc::new(part), count: chosen.len() }
    }

    /// The pixels.
    #[cfg(feature = "float")]
    pub(crate) fn pixels(&self) -> &[u8] {
        &self.all.pixels[..self.count * self.all.image_bytes()]
    }

    /// The images in batches of `batch_size`, for a model with the preprocessing `transform`.
    pub(crate) fn batches(&self, batch_size: usize, transform: &Transform) -> Result<PreparedBatches, Error> {
        let (own, taken) = ((self.all.size, self.all.channels), (transform.size, transform.channels()));
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
        Ok(PreparedBatches { images: self.clone(), batch_size })
    }
}

/// Batches of images in memory, in order.
pub(crate) struct PreparedBatches {
    images: Prepared,
    batch_size: usize,
}

impl BatchSource for PreparedBatches {
    fn batches(&self) -> usize {
        self.images.count.div_ceil(self.batch_size)
    }

    fn images(&self) -> usize {
        self.images.count
    }

    fn batch(&mut self, _epoch: u64, index: usize) -> Result<Batch, BoxError> {
        if index >= self.batches() {
            return Err(format!("batch {index} of {}: beyond the epoch", self.batches()).into());
        }
        let first = index * self.batch_size;
        let range = first..(first + self.batch_size).min(self.images.count);
        Ok(self.images.all.slice(range))
    }
}
