//! A cache of decoded images. If images are small, decoding them again in every epoch would be most of a
//! loader's work.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use swinq_model::Orientation;

use crate::dataset::Dataset;
use crate::decode::{DecodedImage, Permit, RgbImage};
use crate::error::DataError;

/// A data set that caches its decoded images. Every decoded image is added until the cached pixels reach the
/// limit; the other images are decoded on every read.
///
/// Images are never evicted: an epoch reads every image once in random order, so that eviction would only
/// lower the hit rate.
pub(crate) struct DecodedCache {
    dataset: Dataset,
    orientation: Orientation,
    /// One slot per image of the data set; no slots if the limit is 0.
    slots: Vec<OnceLock<Arc<RgbImage>>>,
    /// Maximum bytes of cached pixels.
    limit: u64,
    /// Bytes of cached pixels.
    used: AtomicU64,
}

impl DecodedCache {
    /// Caches at most `limit` bytes of pixels of `dataset`, turned by the rule `orientation`; 0 disables the
    /// cache.
    pub(crate) fn new(dataset: Dataset, limit: u64, orientation: Orientation) -> DecodedCache {
        let slots = if limit == 0 { 0 } else { dataset.len() };
        let slots = (0..slots).map(|_| OnceLock::new()).collect();
        DecodedCache { dataset, orientation, slots, limit, used: AtomicU64::new(0) }
    }

    pub(crate) fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    /// Bytes of cached pixels.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// The decoded image `id`, and its share of the memory for decoding if it was decoded now, to be kept
    /// until the image has been used. Errors are not cached.
    pub(crate) fn image(&self, id: usize) -> Result<(Arc<RgbImage>, Option<Permit>), DataError> {
        let slot = self.slots.get(id);
        if let Some(image) = slot.and_then(OnceLock::get) {
            return Ok((Arc::clone(image), None));
        }
        let DecodedImage { image, permit, .. } = self.dataset.decode_held(id, self.orientation)?;
        let image = Arc::new(image);
        if let Some(slot) = slot {
            self.add(slot, &image);
        }
        Ok((image, Some(permit)))
    }

    /// Adds `image` to the cache, unless there is no room or another thread has already added it.
    fn add(&self, slot: &OnceLock<Arc<RgbImage>>, image: &Arc<RgbImage>) {
        let bytes = image.pixels.len() as u64;
        let reserve = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= self.limit);
        if self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, reserve).is_ok()
            && slot.set(Arc::clone(image)).is_err()
        {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}
