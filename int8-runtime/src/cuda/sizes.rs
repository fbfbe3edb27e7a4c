//! The batch sizes for which kernels are chosen and graphs are recorded. A batch of another size is padded to
//! one of them, because preparing a size takes far longer than an inference, and a size may occur only once,
//! such as that of the last batch of an evaluation. A size that keeps occurring is prepared if padding would
//! more than double the work.

use std::collections::BTreeMap;

/// Maximum number of prepared batch sizes.
const MOST: usize = 16;

/// Number of batches that are padded to more than twice their size before a smaller size is prepared.
const PATIENCE: usize = 3;

/// The prepared batch sizes; the most recently used one is the last.
#[derive(Default)]
pub(crate) struct Sizes {
    used: Vec<usize>,
    /// For sizes that are not prepared: the number of batches that were padded to more than twice their size.
    padded: BTreeMap<usize, usize>,
}

impl Sizes {
    /// The size at which a batch of `images` runs, which the caller then prepares: the smallest prepared size
    /// that holds it, or the next power of two, at most `most`. The latter is chosen if no prepared size is
    /// large enough, and if the batch, and [`PATIENCE`] batches before it, would leave half of the prepared
    /// size or more empty.
    pub(crate) fn padded(&mut self, images: usize, most: usize) -> usize {
        let own = images.next_power_of_two().min(most);
        let prepared = self.used.iter().copied().filter(|&size| size >= images).min();
        let Some(prepared) = prepared else { return own };
        if prepared < 2 * images || prepared <= own {
            return prepared;
        }
        let count = self.padded.entry(own).or_default();
        *count += 1;
        if *count > PATIENCE { own } else { prepared }
    }

    /// Whether no size is prepared.
    pub(crate) fn is_empty(&self) -> bool {
        self.used.is_empty()
    }

    /// Marks `images` as the most recently used size. Returns the size to remove, if there are too many.
    pub(crate) fn touch(&mut self, images: usize) -> Option<usize> {
        self.used.retain(|&size| size != images);
        self.used.push(images);
        (self.used.len() > MOST).then(|| self.used.remove(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_runs_at_the_smallest_prepared_size_that_holds_it() {
        let mut sizes = Sizes::default();
        assert_eq!(sizes.padded(3, 128), 4);
        assert_eq!(sizes.padded(100, 120), 120);
        for size in [128, 32] {
            assert_eq!(sizes.touch(size), None);
        }
        for (images, padded) in [(1, 32), (16, 32), (17, 32), (32, 32), (33, 128), (127, 128), (128, 128)] {
            assert_eq!(sizes.padded(images, 128), padded, "{images} images");
        }
    }

    #[test]
    fn a_small_batch_that_keeps_occurring_gets_its_own_size() {
        let mut sizes = Sizes::default();
        sizes.touch(32);
        assert_eq!([3; PATIENCE].map(|images| sizes.padded(images, 32)), [32; PATIENCE]);
        assert_eq!(sizes.padded(17, 32), 32, "more than half of the size is used");
        assert_eq!(sizes.padded(3, 32), 4);
        sizes.touch(4);
        assert_eq!([sizes.padded(3, 32), sizes.padded(4, 32), sizes.padded(2, 32)], [4, 4, 4]);
        assert_eq!(sizes.padded(5, 32), 32, "sizes are counted one by one");
    }

    #[test]
    fn every_order_of_batches_prepares_few_sizes() {
        let mut sizes = Sizes::default();
        for images in 1..=128 {
            let size = sizes.padded(images, 128);
            assert_eq!(sizes.touch(size), None);
        }
        assert_eq!(sizes.used, [1, 2, 4, 8, 16, 32, 64, 128]);
    }

    #[test]
    fn the_size_that_was_not_used_for_longest_is_forgotten() {
        let mut sizes = Sizes::default();
        assert!((1..=MOST).all(|size| sizes.touch(size).is_none()));
        sizes.touch(1);
        assert_eq!(sizes.touch(100), Some(2));
        assert_eq!(sizes.padded(2, 128), 3);
    }
}
