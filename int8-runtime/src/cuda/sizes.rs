//! The batch sizes for which kernels are chosen and graphs are recorded. A batch of another size is padded to
//! one of them. So no inference has to choose kernels for a size that occurs only once, such as the last
//! batch of an evaluation.

/// Maximum number of prepared batch sizes.
const MOST: usize = 16;

/// The prepared batch sizes; the most recently used one is the last.
#[derive(Default)]
pub(crate) struct Sizes {
    used: Vec<usize>,
}

impl Sizes {
    /// The size to which a batch of `images` is padded: the smallest prepared size that is large enough. If
    /// there is none, the next power of two, at most `most`, which the caller then prepares.
    pub(crate) fn padded(&self, images: usize, most: usize) -> usize {
        let prepared = self.used.iter().copied().filter(|&size| size >= images).min();
        prepared.unwrap_or_else(|| images.next_power_of_two().min(most))
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
        for (images, padded) in [(1, 32), (32, 32), (33, 128), (127, 128), (128, 128)] {
            assert_eq!(sizes.padded(images, 128), padded, "{images} images");
        }
    }

    #[test]
    fn every_order_of_batches_prepares_few_sizes() {
        let mut sizes = Sizes::default();
        for images in 1..=128 {
            assert_eq!(sizes.touch(sizes.padded(images, 128)), None);
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
