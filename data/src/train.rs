//! Batches for training: every epoch has its own random order, and every sample is augmented at random.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};

use swinq_model::{Batch, BatchSource, BoxError, Draws, LoaderWork, Transform};

use crate::augment::Augment;
use crate::dataset::{Dataset, Ids};
use crate::decoded_cache::DecodedCache;
use crate::error::DataError;
use crate::loader::{LoaderOptions, check_index, check_transform};
use crate::prefetch::{BatchId, Prefetcher, Source};
use crate::sized::of_size;

/// First word of the key that draws the order of an epoch.
const ORDER_KEY: u64 = 1;
/// First word of the key that draws the variation of a sample.
const SAMPLE_KEY: u64 = 2;
/// First word of the key that draws the size of batches. The mixing of images in training has the word
/// before.
const SIZE_KEY: u64 = 4;

/// Options of a [`TrainLoader`].
#[derive(Clone, Debug, PartialEq)]
pub struct TrainOptions {
    /// Batch size, threads, number of batches to prefetch, number of corrupt images to leave out.
    pub loader: LoaderOptions,
    /// Augmentation of the samples.
    pub augment: Augment,
    /// Seed of the orders and of the augmentation.
    pub seed: u64,
    /// Whether to leave out the last batch of an epoch if it is incomplete. Every epoch leaves out different
    /// images.
    pub drop_last: bool,
    /// Whether to refuse a data set without labels.
    pub require_labels: bool,
    /// Maximum bytes of decoded images cached in memory; 0 disables the cache. It affects the speed, never a
    /// batch.
    pub cache_bytes: u64,
    /// The batches that will be requested. It affects the speed, never a batch.
    pub stride: Stride,
    /// Number of batches in a row, numbered across epochs, for which one of [`Augment::sizes`] is drawn; at
    /// least 1.
    pub batches_of_one_size: u64,
}

/// The batches that one of several processes reads: `run` batches in a row out of every `of`, from batch
/// `first` on. Batches are numbered across epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stride {
    /// The first batch.
    pub first: u64,
    /// Batches in a row, at least 1.
    pub run: u64,
    /// Batches from the start of one run to that of the next, at least `run`.
    pub of: u64,
}

impl Default for Stride {
    /// Every batch.
    fn default() -> Stride {
        Stride { first: 0, run: 1, of: 1 }
    }
}

impl Stride {
    /// The batch to read after `batch`.
    fn after(self, batch: u64) -> Option<u64> {
        let of = self.of.max(1);
        let position = (batch % of + of - self.first % of) % of;
        batch.checked_add(if position + 1 < self.run { 1 } else { of - position })
    }
}

impl Default for TrainOptions {
    /// Seed 0, complete batches only, labels required, no cache, every batch, a size for each batch.
    fn default() -> TrainOptions {
        TrainOptions {
            loader: LoaderOptions::default(),
            augment: Augment::default(),
            seed: 0,
            drop_last: true,
            require_labels: true,
            cache_bytes: 0,
            stride: Stride::default(),
            batches_of_one_size: 1,
        }
    }
}

/// A [`BatchSource`] that returns the images of an epoch in random order, each of them once and augmented by
/// [`Augment`].
///
/// The order of epoch `e` depends only on the seed and `e`. The variation of a sample depends only on the
/// settings, the image's size, the seed, `e` and the sample's position in the order. Hence batch `(e, i)`
/// does not depend on earlier reads or on the number of threads. With [`Augment::sizes`], the images of a
/// batch have one of these sizes, which depends only on the sizes, the seed and the number of the batch, and
/// a whole image is resized to it without a crop. Prefetching continues from the end of an epoch into the
/// next.
///
/// Up to [`LoaderOptions::skip_corrupt`] corrupt images are left out of their batches and recorded, as in
/// [`Loader`](crate::Loader). Such a batch is shorter and may be empty; its other images and the other
/// batches do not change. The limit counts distinct images in the batches that were requested from this
/// loader. It therefore depends on the batch at which reading began, but it decides only whether reading
/// fails, never the content of a batch.
///
/// Dropping the loader stops and joins its threads.
pub struct TrainLoader {
    prefetcher: Prefetcher<Shuffled>,
}

/// The source of a [`TrainLoader`]: shuffles the images of every epoch and augments them.
struct Shuffled {
    cache: DecodedCache,
    ids: Ids,
    transform: Transform,
    options: TrainOptions,
    /// The orders of the last two epochs used, newest first. Near the end of an epoch, reads and prefetching
    /// alternate between two epochs.
    orders: Mutex<Vec<(u64, Arc<Vec<usize>>)>>,
}

impl TrainLoader {
    /// Makes a loader over the images at positions `ids` of `dataset`. It reads nothing before the first
    /// batch is requested.
    ///
    /// # Errors
    /// - [`DataError::Setting`], naming the setting: if the batch size is zero or, with `drop_last`, greater
    ///   than the number of images; if there is no image; if the input size is zero; if the input has neither
    ///   one nor three channels; if [`Augment::validate`] refuses the augmentation.
    /// - [`DataError::Setting`] if the system cannot start the threads.
    /// - [`DataError::NoLabels`] if labels are required and the data set has none.
    ///
    /// # Panics
    /// If an id is beyond the data set.
    pub fn new(
        dataset: Dataset,
        ids: impl Into<Ids>,
        transform: Transform,
        options: TrainOptions,
    ) -> Result<TrainLoader, DataError> {
        let ids = ids.into();
        assert!(ids.iter().all(|id| id < dataset.len()), "an id is beyond the data set's {}", dataset.len());
        options.augment.validate()?;
        check_options(&options, ids.len())?;
        check_transform(&transform)?;
        options.augment.sizes.iter().try_for_each(|&size| check_transform(&of_size(&transform, size)))?;
        if options.require_labels && !dataset.has_labels() {
            return Err(DataError::NoLabels { data: dataset.describe() });
        }
        let loader = options.loader;
        let cache = DecodedCache::new(dataset, options.cache_bytes, transform.orientation);
        let source = Shuffled { cache, ids, transform, options, orders: Mutex::default() };
        Ok(TrainLoader { prefetcher: Prefetcher::new(source, &loader)? })
    }

    /// The error messages of the corrupt images left out so far, in the order in which their batches were
    /// requested.
    pub fn skipped(&self) -> &[String] {
        self.prefetcher.skipped()
    }

    /// Bytes of decoded images in the cache.
    pub fn cached_bytes(&self) -> u64 {
        self.prefetcher.source().cache.used()
    }
}

/// Refuses options that leave no batch to read.
fn check_options(options: &TrainOptions, images: usize) -> Result<(), DataError> {
    let batch_size = options.loader.batch_size;
    if batch_size == 0 {
        return Err(DataError::setting("batch_size", "must not be 0"));
    }
    if images == 0 {
        return Err(DataError::setting("ids", "there is no image to train on"));
    }
    if options.drop_last && batch_size > images {
        let problem = format!("{batch_size} is more than the {images} images, so there is no complete batch");
        return Err(DataError::setting("batch_size", problem));
    }
    Ok(())
}

impl BatchSource for TrainLoader {
    /// Number of batches in an epoch. The last one may be shorter, but only without `drop_last`.
    fn batches(&self) -> usize {
        self.prefetcher.source().batches()
    }

    /// Number of images in an epoch; with `drop_last`, only those in complete batches.
    fn images(&self) -> usize {
        self.prefetcher.source().epoch_images()
    }

    /// Returns batch `index` of `epoch`. The batches after it are then prefetched.
    ///
    /// # Errors
    /// If an image cannot be read, more images are corrupt than allowed, or `index` is beyond the epoch.
    fn batch(&mut self, epoch: u64, index: usize) -> Result<Batch, BoxError> {
        check_index(index, self.batches())?;
        Ok(self.prefetcher.batch(BatchId { epoch, index })?)
    }

    fn work(&self) -> Option<LoaderWork> {
        Some(self.prefetcher.work())
    }
}

impl Shuffled {
    fn batch_size(&self) -> usize {
        self.options.loader.batch_size
    }

    fn batches(&self) -> usize {
        let (images, size) = (self.ids.len(), self.batch_size());
        if self.options.drop_last { images / size } else { images.div_ceil(size) }
    }

    /// The preprocessing of the images of `batch`.
    fn transform(&self, batch: BatchId) -> Cow<'_, Transform> {
        let sizes = &self.options.augment.sizes;
        if sizes.is_empty() {
            return Cow::Borrowed(&self.transform);
        }
        let number = batch.epoch.wrapping_mul(self.batches() as u64).wrapping_add(batch.index as u64);
        let together = number / self.options.batches_of_one_size.max(1);
        let drawn = Draws::keyed(&[SIZE_KEY, self.options.seed, together]).below(sizes.len());
        Cow::Owned(of_size(&self.transform, sizes[drawn]))
    }

    /// Number of images in an epoch.
    fn epoch_images(&self) -> usize {
        self.ids.len().min(self.batches().saturating_mul(self.batch_size()))
    }

    /// The ids in the order of `epoch`.
    fn order(&self, epoch: u64) -> Arc<Vec<usize>> {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, order)) = orders.iter().find(|(of, _)| *of == epoch) {
            return Arc::clone(order);
        }
        let mut order = self.ids.slice(0..self.ids.len());
        Draws::keyed(&[ORDER_KEY, self.options.seed, epoch]).shuffle(&mut order);
        let order = Arc::new(order);
        orders.insert(0, (epoch, Arc::clone(&order)));
        orders.truncate(2);
        order
    }
}

impl Source for Shuffled {
    fn without_images(&self, batch: BatchId) -> Batch {
        Batch::empty(self.transform(batch).size, self.transform.channels())
    }

    fn image_ids(&self, batch: BatchId) -> Vec<usize> {
        let start = batch.index * self.batch_size();
        self.order(batch.epoch)[start..self.epoch_images().min(start + self.batch_size())].to_vec()
    }

    fn following(&self, BatchId { epoch, index }: BatchId) -> Option<BatchId> {
        let batches = self.batches().max(1) as u64;
        let next = self.options.stride.after(epoch.checked_mul(batches)?.checked_add(index as u64)?)?;
        Some(BatchId { epoch: next / batches, index: (next % batches) as usize })
    }

    fn label(&self, id: usize) -> Option<u32> {
        self.cache.dataset().label(id)
    }

    fn load(&self, batch: BatchId, slot: usize, id: usize) -> Result<Vec<u8>, DataError> {
        let position = batch.index * self.batch_size() + slot;
        let (image, _permit) = self.cache.image(id)?;
        let key = [SAMPLE_KEY, self.options.seed, batch.epoch, position as u64];
        let transform = self.transform(batch);
        let variation = self.options.augment.draw((image.width, image.height), transform.size, &key);
        Ok(variation.apply(&image, &transform))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::Split;
    use std::path::Path;
    use swinq_model::{Orientation, Size};

    fn shuffled(batch_size: usize, drop_last: bool) -> Shuffled {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../samples/cifar10");
        let cache = DecodedCache::new(Dataset::open(&root, Split::Train).unwrap(), 0, Orientation::Stored);
        let loader = LoaderOptions { batch_size, ..LoaderOptions::default() };
        let options = TrainOptions { loader, drop_last, ..TrainOptions::default() };
        let transform = Transform::microsoft(Size::square(16), 3, true);
        Shuffled { cache, ids: (0..10).collect(), transform, options, orders: Mutex::default() }
    }

    #[test]
    fn the_next_epoch_follows_the_last_batch() {
        let source = shuffled(4, true);
        let batch = |epoch, index| BatchId { epoch, index };
        assert_eq!(source.following(batch(0, 0)), Some(batch(0, 1)));
        assert_eq!(source.following(batch(0, 1)), Some(batch(1, 0)));
        assert_eq!(source.following(batch(u64::MAX, 1)), None);
        assert_eq!((source.batches(), source.epoch_images()), (2, 8));
        let all = shuffled(4, false);
        assert_eq!((all.batches(), all.epoch_images(), all.image_ids(batch(0, 2)).len()), (3, 10, 2));
        assert_eq!(shuffled(usize::MAX, false).epoch_images(), 10);
    }

    #[test]
    fn a_process_prefetches_its_own_batches() {
        let read = |stride: Stride, first| {
            let batches = std::iter::successors(Some(first), |&batch| stride.after(batch));
            batches.take(5).collect::<Vec<u64>>()
        };
        assert_eq!(read(Stride::default(), 3), [3, 4, 5, 6, 7]);
        assert_eq!(read(Stride { first: 1, run: 1, of: 3 }, 4), [4, 7, 10, 13, 16]);
        assert_eq!(read(Stride { first: 2, run: 2, of: 4 }, 2), [2, 3, 6, 7, 10]);
        assert_eq!(read(Stride { first: 4, run: 2, of: 6 }, 5), [5, 10, 11, 16, 17]);
        assert_eq!(Stride::default().after(u64::MAX), None);
        // Ten images in batches of 4: two batches in an epoch.
        let mut source = shuffled(4, true);
        source.options.stride = Stride { first: 0, run: 1, of: 3 };
        let batch = |epoch, index| BatchId { epoch, index };
        assert_eq!(source.following(batch(0, 0)), Some(batch(1, 1)));
        assert_eq!(source.following(batch(1, 1)), Some(batch(3, 0)));
    }

    #[test]
    fn orders_are_fixed_across_versions() {
        let source = shuffled(5, true);
        let order = |epoch| source.order(epoch).to_vec();
        assert_eq!(order(0), ORDERS[0]);
        assert_eq!(order(1), ORDERS[1]);
        assert_eq!([order(7), order(0)], [order(7), ORDERS[0].to_vec()]);
        assert_eq!(source.orders.lock().unwrap().len(), 2);
    }

    /// The orders of the first two epochs of seed 0. They must not change, because a later version may resume
    /// a training run.
    const ORDERS: [[usize; 10]; 2] = [[2, 3, 5, 7, 4, 6, 0, 9, 1, 8], [0, 8, 5, 2, 1, 3, 9, 7, 4, 6]];
}
