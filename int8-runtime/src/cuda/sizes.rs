//! Batch sizes that kernels are chosen and graphs recorded for. A batch of another size runs padded to one of them, so that
//! no inference has to choose kernels for a size that comes once, such as the last batch of an evaluation.

/// Batch sizes that are kept.
const MOST: usize = 16;

/// The prepared batch sizes, the most recently used one last.
#[derive(Default)]
pub(crate) struct Sizes {
    used: Vec<usize>,
}

impl Sizes {
    /// The size that a batch of `images` runs at: the smallest prepared size that holds it. Without one, the next power of
    /// two, or `most` if that is less; the caller prepares it.
    pub(crate) fn padded(&self, images: usize, most: usize) -> usize {
        let prepared = self.used.iter().copied().filter(|&size| size >= images).min();
        prepared.unwrap_or_else(|| images.next_power_of_two().min(most))
    }

    /// Notes that `images` is in use. Returns the size to forget, if there are too many.
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
