//! Batches of images of different sizes: the images of a batch have one size, which is the batch's own.

use std::collections::HashMap;

use swinq_model::{Batch, BatchSource, BoxError, LoaderWork, Resize, Size, Transform};

use crate::dataset::Dataset;
use crate::error::{DataError, DecodeError};
use crate::loader::{LoaderOptions, check_transform};
use crate::prefetch::{BatchId, Prefetcher, Source};
use crate::preprocess::preprocess;
use crate::sizing::Sizing;

/// Images that have one size before a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfOneSize {
    /// The size to which they are resized, in pixels.
    pub size: Size,
    /// Their positions in the data set.
    pub ids: Vec<usize>,
}

impl OfOneSize {
    /// Batches of the images `images`, positions with sizes, of at most as many images as `most` gives for a size. Sizes and the
    /// images of a size stay in the order in which they come first.
    pub fn batches(
        images: impl IntoIterator<Item = (usize, Size)>,
        most: impl Fn(Size) -> usize,
    ) -> Vec<OfOneSize> {
        let (mut groups, mut places) = (Vec::<OfOneSize>::new(), HashMap::new());
        for (id, size) in images {
            let place = *places.entry((size.height, size.width)).or_insert(groups.len());
            if place == groups.len() {
                groups.push(OfOneSize { size, ids: Vec::new() });
            }
            groups[place].ids.push(id);
        }
        let of_group = |OfOneSize { size, ids }: OfOneSize| -> Vec<OfOneSize> {
            ids.chunks(most(size)).map(|ids| OfOneSize { size, ids: ids.to_vec() }).collect()
        };
        groups.into_iter().flat_map(of_group).collect()
    }
}

/// Loads batches of images whose sizes differ from batch to batch, and prefetches them on background threads. Images are
/// resized with the transform's filter and have its channels; nothing is cropped. Dropping the loader stops and joins its
/// threads.
pub struct SizedLoader {
    prefetcher: Prefetcher<BySize>,
}

struct BySize {
    dataset: Dataset,
    sizing: Sizing,
    batches: Vec<OfOneSize>,
    transform: Transform,
}

impl SizedLoader {
    /// Makes a loader of `batches` of images of `dataset`, whose sizes follow from those of the images by `sizing`. It reads
    /// nothing before the first batch is requested. The size and the resize of `transform` have no effect.
    ///
    /// # Errors
    /// [`DataError::Setting`], naming the setting: if a size is zero, the input has neither one nor three channels, an id is
    /// beyond the data set, or the system cannot start the threads.
    pub fn new(
        dataset: Dataset,
        sizing: Sizing,
        batches: Vec<OfOneSize>,
        transform: &Transform,
        options: &LoaderOptions,
    ) -> Result<SizedLoader, DataError> {
        for OfOneSize { size, ids } in &batches {
            check_transform(&of_size(transform, *size))?;
            if let Some(id) = ids.iter().find(|&&id| id >= dataset.len()) {
                let problem = format!("image {id} is beyond the data set's {}", dataset.len());
                return Err(DataError::setting("ids", problem));
            }
        }
        let source = BySize { dataset, sizing, batches, transform: transform.clone() };
        Ok(SizedLoader { prefetcher: Prefetcher::new(source, options)? })
    }

    /// The batches.
    pub fn batches(&self) -> &[OfOneSize] {
        &self.prefetcher.source().batches
    }

    /// The error messages of the corrupt images that a [`BatchSource`] has left out so far.
    pub fn skipped(&self) -> &[String] {
        self.prefetcher.skipped()
    }

    /// Batch `index` without the images that cannot be read, and these images with the reasons. The batches after it are then
    /// prefetched.
    ///
    /// # Errors
    /// [`DataError::Worker`] if a thread panicked.
    ///
    /// # Panics
    /// If `index` is beyond the batches.
    pub fn batch(&self, index: usize) -> Result<(Batch, Vec<(usize, DataError)>), DataError> {
        self.prefetcher.readable(BatchId { epoch: 0, index })
    }
}

impl BatchSource for SizedLoader {
    fn batches(&self) -> usize {
        SizedLoader::batches(self).len()
    }

    fn images(&self) -> usize {
        SizedLoader::batches(self).iter().map(|batch| batch.ids.len()).sum()
    }

    /// Batch `index`. Up to [`LoaderOptions::skip_corrupt`] corrupt images are left out.
    fn batch(&mut self, _epoch: u64, index: usize) -> Result<Batch, BoxError> {
        Ok(self.prefetcher.batch(BatchId { epoch: 0, index })?)
    }

    fn work(&self) -> Option<LoaderWork> {
        Some(self.prefetcher.work())
    }
}

/// `transform` with a direct resize to `size`.
pub(crate) fn of_size(transform: &Transform, size: Size) -> Transform {
    Transform { size, resize: Resize::Direct, ..transform.clone() }
}

impl Source for BySize {
    fn shape(&self, batch: BatchId) -> (Size, usize) {
        (self.batches[batch.index].size, self.transform.channels())
    }

    fn image_ids(&self, batch: BatchId) -> Vec<usize> {
        self.batches[batch.index].ids.clone()
    }

    fn following(&self, batch: BatchId) -> Option<BatchId> {
        let index = batch.index + 1;
        (index < self.batches.len()).then_some(BatchId { index, ..batch })
    }

    fn label(&self, id: usize) -> Option<u32> {
        self.dataset.label(id)
    }

    fn load(&self, batch: BatchId, _slot: usize, id: usize) -> Result<Vec<u8>, DataError> {
        let (held, size) = (self.dataset.decode_held(id)?, self.batches[batch.index].size);
        let own = Size::new(held.image.height, held.image.width);
        if self.sizing.apply(own) != size {
            let problem = format!("it has {own} pixels now, and had another size when its header was read");
            return Err(self.dataset.image_error(id, DecodeError::Corrupt(problem)));
        }
        Ok(preprocess(&held.image, &of_size(&self.transform, size)))
    }
}
