//! Preprocessed images in memory.

use std::sync::Arc;

use swinq_model::{Batch, BatchSource, BoxError};

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
        let bytes = all.size.checked_mul(all.size).and_then(|area| area.checked_mul(3 * count));
        if all.size == 0 || bytes != Some(all.pixels.len()) {
            return refuse(format!(
                "{} bytes of pixels for {count} images of {1} x {1} x 3",
                all.pixels.len(),
                all.size
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
        let (all, bytes) = (&self.all, 3 * self.all.size * self.all.size);
        let chosen: Vec<usize> = positions.collect();
        let part = Batch {
            pixels: chosen.iter().flat_map(|&i| &all.pixels[i * bytes..(i + 1) * bytes]).copied().collect(),
            size: all.size,
            labels: chosen.iter().filter_map(|&i| all.labels.get(i)).copied().collect(),
            ids: chosen.iter().map(|&i| all.ids[i]).collect(),
        };
        Prepared { all: Arc::new(part), count: chosen.len() }
    }

    /// The pixels.
    #[cfg(feature = "float")]
    pub(crate) fn pixels(&self) -> &[u8] {
        &self.all.pixels[..self.count * 3 * self.all.size * self.all.size]
    }

    /// The images in batches of `batch_size`, for a model whose input size is `size` pixels.
    pub(crate) fn batches(&self, batch_size: usize, size: usize) -> Result<PreparedBatches, Error> {
        if self.all.size != size {
            let problem = format!(
                "the images in memory have {0} x {0} pixels and the model takes {size} x {size}; prepare them with the \
                 model's own transform",
                self.all.size
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
        let (all, bytes) = (&self.images.all, self.images.all.size * self.images.all.size * 3);
        Ok(Batch {
            pixels: all.pixels[range.start * bytes..range.end * bytes].to_vec(),
            size: all.size,
            labels: all.labels.get(range.clone()).unwrap_or_default().to_vec(),
            ids: all.ids[range].to_vec(),
        })
    }
}
