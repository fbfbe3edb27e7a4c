//! Batches of preprocessed images in list order, prefetched on background threads.

use swinq_model::{Batch, BatchSource, BoxError, LoaderWork, Transform};

use crate::dataset::{Dataset, Ids};
use crate::error::DataError;
use crate::prefetch::{BatchId, Prefetcher, Source};
use crate::preprocess::preprocess;

/// Options of a loader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoaderOptions {
    /// Images per batch; not zero.
    pub batch_size: usize,
    /// Number of decoding threads; 0 means one per core.
    pub threads: usize,
    /// Number of batches to prefetch after the requested one. Memory holds at most this many batches and one
    /// more.
    pub prefetch: usize,
    /// Number of corrupt images that are left out; any further one is an error.
    pub skip_corrupt: usize,
}

impl Default for LoaderOptions {
    /// Batches of 8, one thread per core, two prefetched batches; every corrupt image is an error.
    fn default() -> LoaderOptions {
        LoaderOptions { batch_size: 8, threads: 0, prefetch: 2, skip_corrupt: 0 }
    }
}

/// A [`BatchSource`] over chosen images of a data set. Batch `i` of every epoch holds the images
/// `ids[i * batch_size..(i + 1) * batch_size]` in that order, independent of earlier reads.
///
/// Up to [`LoaderOptions::skip_corrupt`] corrupt images are left out of their batches (pixels, label and id)
/// and recorded in [`Loader::skipped`]. Such a batch is shorter and may be empty. Dropping the loader stops
/// and joins its threads.
pub struct Loader {
    prefetcher: Prefetcher<InOrder>,
}

/// The source of a [`Loader`]: the same batches in every epoch.
struct InOrder {
    dataset: Dataset,
    ids: Ids,
    transform: Transform,
    batch_size: usize,
}

impl Loader {
    /// Makes a loader over the images at positions `ids` of `dataset`. It reads nothing before the first
    /// batch is requested.
    ///
    /// # Errors
    /// [`DataError::Setting`], naming the setting: if the batch size is zero, the input size is zero, the
    /// input has neither one nor three channels, an id is beyond the data set, or the system cannot start the
    /// threads.
    pub fn new(
        dataset: Dataset,
        ids: impl Into<Ids>,
        transform: Transform,
        options: LoaderOptions,
    ) -> Result<Loader, DataError> {
        if options.batch_size == 0 {
            return Err(DataError::setting("batch_size", "must not be 0"));
        }
        check_transform(&transform)?;
        let ids = ids.into();
        if let Some(id) = ids.iter().find(|&id| id >= dataset.len()) {
            let problem = format!("image {id} is beyond the data set's {}", dataset.len());
            return Err(DataError::setting("ids", problem));
        }
        let source = InOrder { dataset, ids, transform, batch_size: options.batch_size };
        Ok(Loader { prefetcher: Prefetcher::new(source, &options)? })
    }

    /// The error messages of the corrupt images left out so far, in the order in which their batches were
    /// requested.
    pub fn skipped(&self) -> &[String] {
        self.prefetcher.skipped()
    }
}

impl BatchSource for Loader {
    fn batches(&self) -> usize {
        self.prefetcher.source().batches()
    }

    fn images(&self) -> usize {
        self.prefetcher.source().ids.len()
    }

    /// Returns batch `index`, which is the same in every epoch. The batches after it are then prefetched.
    ///
    /// # Errors
    /// If an image cannot be read, more images are corrupt than allowed, or `index` is beyond the epoch.
    fn batch(&mut self, _epoch: u64, index: usize) -> Result<Batch, BoxError> {
        check_index(index, self.batches())?;
        Ok(self.prefetcher.batch(BatchId { epoch: 0, index })?)
    }

    fn work(&self) -> Option<LoaderWork> {
        Some(self.prefetcher.work())
    }
}

/// Refuses a transform that makes no images of files.
pub(crate) fn check_transform(transform: &Transform) -> Result<(), DataError> {
    if transform.size.area() == 0 {
        return Err(DataError::setting("size", "the input size must not be 0"));
    }
    match transform.channels() {
        1 | 3 => Ok(()),
        channels => {
            let problem = format!(
                "the model takes {channels}, and image files give 1 or 3; pass arrays (a stack of blocks takes tokens)"
            );
            Err(DataError::setting("channels", problem))
        }
    }
}

/// Refuses a batch index beyond the epoch.
pub(crate) fn check_index(index: usize, batches: usize) -> Result<(), BoxError> {
    if index >= batches {
        return Err(format!("batch {index} is beyond the epoch, which has {batches} batches").into());
    }
    Ok(())
}

impl InOrder {
    fn batches(&self) -> usize {
        self.ids.len().div_ceil(self.batch_size)
    }
}

impl Source for InOrder {
    fn without_images(&self, _batch: BatchId) -> Batch {
        Batch::empty(self.transform.size, self.transform.channels())
    }

    fn image_ids(&self, batch: BatchId) -> Vec<usize> {
        let start = batch.index * self.batch_size;
        self.ids.slice(start..(start + self.batch_size).min(self.ids.len()))
    }

    /// No batch is prefetched after the last one of an epoch, because most readers stop there.
    fn following(&self, batch: BatchId) -> Option<BatchId> {
        let index = batch.index + 1;
        (index < self.batches()).then_some(BatchId { index, ..batch })
    }

    fn label(&self, id: usize) -> Option<u32> {
        self.dataset.label(id)
    }

    fn load(&self, _batch: BatchId, _slot: usize, id: usize) -> Result<Vec<u8>, DataError> {
        let held = self.dataset.decode_held(id, self.transform.orientation)?;
        Ok(preprocess(&held.image, &self.transform))
    }
}
