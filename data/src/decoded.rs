//! Decoded images kept in memory, for data sets small enough that decoding them again every epoch would be most of the
//! work.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::dataset::Dataset;
use crate::decode::RgbImage;
use crate::error::DataError;

/// A data set whose decoded images stay, first come, until their pixels reach a limit; the others are decoded each time.
///
/// Nothing is thrown out: epochs read every image once in random order, where replacing images would only lower the
/// share of those found.
pub(crate) struct Decoded {
    dataset: Dataset,
    /// One per image of the data set; none where nothing may be kept.
    slots: Vec<OnceLock<Arc<RgbImage>>>,
    /// Bytes of pixels that may be kept, and that are.
    limit: u64,
    used: AtomicU64,
}

impl Decoded {
    /// At most `limit` bytes of pixels of `dataset`; 0 keeps nothing.
    pub(crate) fn new(dataset: Dataset, limit: u64) -> Decoded {
        let slots = if limit == 0 { 0 } else { dataset.len() };
        let slots = (0..slots).map(|_| OnceLock::new()).collect();
        Decoded { dataset, slots, limit, used: AtomicU64::new(0) }
    }

    pub(crate) fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    /// Bytes of pixels kept.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// The pixels of image `id`; errors are not remembered.
    pub(crate) fn image(&self, id: usize) -> Result<Arc<RgbImage>, DataError> {
        let slot = self.slots.get(id);
        if let Some(image) = slot.and_then(OnceLock::get) {
            return Ok(Arc::clone(image));
        }
        let image = Arc::new(self.dataset.decode(id)?);
        if let Some(slot) = slot {
            self.keep(slot, &image);
        }
        Ok(image)
    }

    /// Keeps `image` where there is room, unless another thread was faster.
    fn keep(&self, slot: &OnceLock<Arc<RgbImage>>, image: &Arc<RgbImage>) {
        let bytes = image.pixels.len() as u64;
        let room = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= self.limit);
        if self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok()
            && slot.set(Arc::clone(image)).is_err()
        {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}
