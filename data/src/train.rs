//! Batches for training: every epoch in another random order, every sample varied at random.

use std::sync::{Arc, Mutex, PoisonError};

use swinq_model::{Batch, BatchSource, BoxError, Draws, Transform};

use crate::augment::Augment;
use crate::dataset::Dataset;
use crate::decoded::Decoded;
use crate::error::DataError;
use crate::loader::{LoaderOptions, check_index};
use crate::prefetch::{Place, Prefetch, Source};

/// First words of the keys of random draws, which keep the order of an epoch apart from its samples.
const ORDER: u64 = 1;
const SAMPLE: u64 = 2;

/// How a [`TrainLoader`] reads.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainOptions {
    /// Batch size, threads, batches ahead, corrupt images tolerated.
    pub loader: LoaderOptions,
    /// How samples vary.
    pub augment: Augment,
    /// Seed of the orders and of the variations.
    pub seed: u64,
    /// Whether images that do not fill a batch are left out of their epoch (others in each).
    pub drop_last: bool,
    /// Whether a data set without labels is refused.
    pub labels: bool,
    /// Bytes of decoded images kept in memory, first come; 0 keeps none. It changes the speed, never a batch.
    pub cache_bytes: u64,
}

impl Default for TrainOptions {
    /// Seed 0, whole batches, labels needed, nothing kept.
    fn default() -> TrainOptions {
        TrainOptions {
            loader: LoaderOptions::default(),
            augment: Augment::default(),
            seed: 0,
            drop_last: true,
            labels: true,
            cache_bytes: 0,
        }
    }
}

/// A [`BatchSource`] that gives the images of an epoch in random order, each once and each varied by [`Augment`].
///
/// The order of epoch `e` is a function of (seed, `e`), and the variation of a sample of (seed, `e`, its position in
/// the epoch's order); so batch `(e, i)` is the same whatever was read before, with any number of threads. Reading ahead
/// goes on over the end of an epoch into the next.
///
/// A corrupt image within the tolerance is left out of its batch (pixels, label and id) and recorded, as in
/// [`Loader`](crate::Loader): such a batch is shorter, even empty, and neither its other images nor any other batch
/// change. The tolerance counts different images among the batches that this loader was asked for; after a seek it
/// counts from there, so it is not part of what the seed decides: only whether reading goes on. Dropping the loader
/// stops and joins its threads.
pub struct TrainLoader {
    prefetch: Prefetch<Shuffled>,
}

/// Seeded orders of some images, and their variations.
struct Shuffled {
    images: Decoded,
    ids: Vec<usize>,
    transform: Transform,
    options: TrainOptions,
    /// The orders of the epochs read last, newest first: at an epoch's end, reading ahead takes turns with reading.
    orders: Mutex<Vec<(u64, Arc<Vec<usize>>)>>,
}

impl TrainLoader {
    /// A loader over the images `ids` of `dataset`. Nothing is read before the first batch is asked for.
    ///
    /// # Errors
    /// [`DataError::Setting`] that names the setting for a batch size of zero or, with `drop_last`, greater than the
    /// number of images; no images; an input size of zero; or what [`Augment::validate`] refuses.
    /// [`DataError::NoLabels`] where they are needed.
    ///
    /// # Panics
    /// Where an id is beyond the data set, or the system refuses a thread.
    pub fn new(
        dataset: Dataset,
        ids: Vec<usize>,
        transform: Transform,
        options: TrainOptions,
    ) -> Result<TrainLoader, DataError> {
        assert!(ids.iter().all(|&id| id < dataset.len()), "an id is beyond the data set's {}", dataset.len());
        options.augment.validate()?;
        check(&options, ids.len(), transform.size)?;
        if options.labels && !dataset.has_labels() {
            return Err(DataError::NoLabels { data: dataset.describe() });
        }
        let loader = options.loader;
        let images = Decoded::new(dataset, options.cache_bytes);
        let source = Shuffled { images, ids, transform, options, orders: Mutex::default() };
        Ok(TrainLoader { prefetch: Prefetch::new(source, &loader) })
    }

    /// Messages of the corrupt images left out so far, in the order their batches were asked for.
    pub fn skipped(&self) -> &[String] {
        self.prefetch.skipped()
    }

    /// Bytes of decoded images kept in memory.
    pub fn cached_bytes(&self) -> u64 {
        self.prefetch.source().images.used()
    }
}

/// Refuses settings under which there is no batch.
fn check(options: &TrainOptions, images: usize, size: usize) -> Result<(), DataError> {
    let batch_size = options.loader.batch_size;
    if batch_size == 0 {
        return Err(DataError::setting("batch_size", "must not be 0"));
    }
    if size == 0 {
        return Err(DataError::setting("size", "the input size must not be 0"));
    }
    if images == 0 {
        return Err(DataError::setting("ids", "there is no image to train on"));
    }
    if options.drop_last && batch_size > images {
        let problem = format!("{batch_size} is more than the {images} images, so there is no whole batch");
        return Err(DataError::setting("batch_size", problem));
    }
    Ok(())
}

impl BatchSource for TrainLoader {
    /// Number of batches in an epoch; the last is shorter only without `drop_last`.
    fn batches(&self) -> usize {
        self.prefetch.source().batches()
    }

    /// Number of images in an epoch: with `drop_last`, those in whole batches.
    fn images(&self) -> usize {
        self.prefetch.source().used()
    }

    /// Batch `index` of `epoch`; work goes on with the batches after it.
    ///
    /// # Errors
    /// An unreadable image, a corrupt one beyond the tolerance, or an index beyond the epoch.
    fn batch(&mut self, epoch: u64, index: usize) -> Result<Batch, BoxError> {
        check_index(index, self.batches())?;
        Ok(self.prefetch.batch(Place { epoch, batch: index })?)
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

    /// Images in an epoch.
    fn used(&self) -> usize {
        self.ids.len().min(self.batches().saturating_mul(self.batch_size()))
    }

    /// The ids in the order of `epoch`.
    fn order(&self, epoch: u64) -> Arc<Vec<usize>> {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, order)) = orders.iter().find(|(of, _)| *of == epoch) {
            return Arc::clone(order);
        }
        let mut order = self.ids.clone();
        Draws::keyed(&[ORDER, self.options.seed, epoch]).shuffle(&mut order);
        let order = Arc::new(order);
        orders.insert(0, (epoch, Arc::clone(&order)));
        orders.truncate(2);
        order
    }
}

impl Source for Shuffled {
    fn size(&self) -> usize {
        self.transform.size
    }

    fn ids(&self, place: Place) -> Vec<usize> {
        let start = place.batch * self.batch_size();
        self.order(place.epoch)[start..self.used().min(start + self.batch_size())].to_vec()
    }

    fn after(&self, Place { epoch, batch }: Place) -> Option<Place> {
        if batch + 1 < self.batches() {
            return Some(Place { epoch, batch: batch + 1 });
        }
        epoch.checked_add(1).map(|epoch| Place { epoch, batch: 0 })
    }

    fn label(&self, id: usize) -> Option<u32> {
        self.images.dataset().label(id)
    }

    fn image(&self, place: Place, slot: usize, id: usize) -> Result<Vec<u8>, DataError> {
        let position = place.batch * self.batch_size() + slot;
        let image = self.images.image(id)?;
        let key = [SAMPLE, self.options.seed, place.epoch, position as u64];
        let variation = self.options.augment.draw((image.width, image.height), &key);
        Ok(variation.apply(&image, &self.transform))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::Split;
    use std::path::Path;

    fn shuffled(batch_size: usize, drop_last: bool) -> Shuffled {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../samples/cifar10");
        let images = Decoded::new(Dataset::open(&root, Split::Train).unwrap(), 0);
        let loader = LoaderOptions { batch_size, ..LoaderOptions::default() };
        let options = TrainOptions { loader, drop_last, ..TrainOptions::default() };
        let transform = Transform::microsoft(16, true);
        Shuffled { images, ids: (0..10).collect(), transform, options, orders: Mutex::default() }
    }

    #[test]
    fn an_epoch_follows_the_other() {
        let source = shuffled(4, true);
        let place = |epoch, batch| Place { epoch, batch };
        assert_eq!(source.after(place(0, 0)), Some(place(0, 1)));
        assert_eq!(source.after(place(0, 1)), Some(place(1, 0)));
        assert_eq!(source.after(place(u64::MAX, 1)), None);
        assert_eq!((source.batches(), source.used()), (2, 8));
        let whole = shuffled(4, false);
        assert_eq!((whole.batches(), whole.used(), whole.ids(place(0, 2)).len()), (3, 10, 2));
        assert_eq!(shuffled(usize::MAX, false).used(), 10);
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

    /// Orders of the first two epochs of seed 0: a run begun by one version is resumed by another.
    const ORDERS: [[usize; 10]; 2] = [[2, 3, 5, 7, 4, 6, 0, 9, 1, 8], [0, 8, 5, 2, 1, 3, 9, 7, 4, 6]];
}
