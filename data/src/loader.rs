//! Batches of preprocessed images in list order, decoded on background threads ahead of the reader.

use swinq_model::{Batch, BatchSource, BoxError, Transform};

use crate::dataset::Dataset;
use crate::error::DataError;
use crate::prefetch::{Place, Prefetch, Source};
use crate::preprocess::preprocess;

/// How a loader reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoaderOptions {
    /// Images per batch; not zero.
    pub batch_size: usize,
    /// Decoding threads; 0 means one per core.
    pub threads: usize,
    /// Batches decoded ahead of the one asked for; memory holds at most this many and one more.
    pub prefetch: usize,
    /// Corrupt images that are left out before one is an error.
    pub skip_corrupt: usize,
}

impl Default for LoaderOptions {
    /// Batches of 8, a thread per core, two batches ahead, no corrupt image tolerated.
    fn default() -> LoaderOptions {
        LoaderOptions { batch_size: 8, threads: 0, prefetch: 2, skip_corrupt: 0 }
    }
}

/// A [`BatchSource`] over part of a data set: batch `i` of every epoch is the images
/// `ids[i * batch_size..(i + 1) * batch_size]` in that order, whatever was read before.
///
/// A corrupt image within the tolerance is left out of its batch (pixels, label and id) and recorded; such a batch
/// is shorter, even empty. Dropping the loader stops and joins its threads.
pub struct Loader {
    prefetch: Prefetch<InOrder>,
}

/// The same batches in every epoch.
struct InOrder {
    dataset: Dataset,
    ids: Vec<usize>,
    transform: Transform,
    batch_size: usize,
}

impl Loader {
    /// A loader over the images `ids` of `dataset`. Nothing is read before the first batch is asked for.
    ///
    /// # Panics
    /// Where `options.batch_size` is zero, an id is beyond the data set, the transform has a zero size, or the
    /// system refuses a thread.
    pub fn new(dataset: Dataset, ids: Vec<usize>, transform: Transform, options: LoaderOptions) -> Loader {
        assert!(options.batch_size > 0, "the batch size must not be zero");
        assert!(transform.size > 0, "the input size must not be zero");
        assert!(ids.iter().all(|&id| id < dataset.len()), "an id is beyond the data set's {}", dataset.len());
        let source = InOrder { dataset, ids, transform, batch_size: options.batch_size };
        Loader { prefetch: Prefetch::new(source, &options) }
    }

    /// Messages of the corrupt images left out so far, in the order their batches were asked for.
    pub fn skipped(&self) -> &[String] {
        self.prefetch.skipped()
    }
}

impl BatchSource for Loader {
    fn batches(&self) -> usize {
        self.prefetch.source().batches()
    }

    fn images(&self) -> usize {
        self.prefetch.source().ids.len()
    }

    /// Batch `index`, the same in every epoch; decoding goes on with the batches after it.
    ///
    /// # Errors
    /// An unreadable image, a corrupt one beyond the tolerance, or an index beyond the epoch.
    fn batch(&mut self, _epoch: u64, index: usize) -> Result<Batch, BoxError> {
        check_index(index, self.batches())?;
        Ok(self.prefetch.batch(Place { epoch: 0, batch: index })?)
    }
}

/// Refuses a batch beyond the epoch.
pub(crate) fn check_index(index: usize, batches: usize) -> Result<(), BoxError> {
    if index >= batches {
        return Err(format!("batch {index} of {batches}: beyond the epoch").into());
    }
    Ok(())
}

impl InOrder {
    fn batches(&self) -> usize {
        self.ids.len().div_ceil(self.batch_size)
    }
}

impl Source for InOrder {
    fn size(&self) -> usize {
        self.transform.size
    }

    fn ids(&self, place: Place) -> Vec<usize> {
        let start = place.batch * self.batch_size;
        self.ids[start..(start + self.batch_size).min(self.ids.len())].to_vec()
    }

    /// Nothing follows the epoch's last batch: most readers stop there.
    fn after(&self, place: Place) -> Option<Place> {
        let batch = place.batch + 1;
        (batch < self.batches()).then_some(Place { batch, ..place })
    }

    fn label(&self, id: usize) -> Option<u32> {
        self.dataset.label(id)
    }

    fn image(&self, _place: Place, _slot: usize, id: usize) -> Result<Vec<u8>, DataError> {
        Ok(preprocess(&self.dataset.decode(id)?, &self.transform))
    }
}
