//! The batches for which kernels are chosen: numbers of images of a size in pixels. A batch of another number
//! of images is padded to one of them, because preparing a batch takes far longer than an inference, and a
//! number may occur only once, such as that of the last batch of an evaluation. A number that keeps occurring
//! is prepared if padding would more than double the work.

use std::collections::HashMap;

use swinq_model::Size;

/// Maximum number of prepared batches. Detectors see hundreds of sizes; what a batch holds on the device is
/// about 2 MB for images of 800 x 1333 pixels.
const MOST: usize = 256;

/// Number of batches that are padded to more than twice their size before a smaller batch is prepared.
const PATIENCE: usize = 3;

/// A size in pixels, and a number of images.
pub(crate) type Batch = (Size, usize);

/// The prepared batches; the most recently used one is the last.
pub(crate) struct Sizes<T> {
    used: Vec<(Batch, T)>,
    /// For batches that are not prepared, of sizes that are: the number of batches that were padded to more
    /// than twice their number of images.
    padded: HashMap<Batch, usize>,
}

impl<T> Sizes<T> {
    /// No batches.
    pub(crate) fn new() -> Sizes<T> {
        Sizes { used: Vec::new(), padded: HashMap::new() }
    }

    /// The number of images at which a batch runs, which the caller then prepares: the smallest prepared
    /// number that holds it, or the next power of two, at most `most`. The latter is chosen if no prepared
    /// number is large enough, and if the batch, and [`PATIENCE`] batches before it, would leave half of the
    /// prepared batch or more empty.
    pub(crate) fn padded(&mut self, (size, images): Batch, most: usize) -> usize {
        let own = images.next_power_of_two().min(most);
        let Some(prepared) = self.holding((size, images)) else { return own };
        if prepared < 2 * images || prepared <= own {
            return prepared;
        }
        let count = self.padded.entry((size, own)).or_default();
        *count += 1;
        if *count > PATIENCE { own } else { prepared }
    }

    /// The prepared state of the batch, which becomes the most recently used one.
    pub(crate) fn touch(&mut self, batch: Batch) -> Option<&mut T> {
        let at = self.used.iter().position(|(used, _)| *used == batch)?;
        self.used[at..].rotate_left(1);
        self.used.last_mut().map(|(_, prepared)| prepared)
    }

    /// The prepared state of the batch.
    pub(crate) fn get(&self, batch: Batch) -> Option<&T> {
        self.used.iter().find(|(used, _)| *used == batch).map(|(_, prepared)| prepared)
    }

    /// The prepared state of a batch of images of `size`.
    pub(crate) fn of_size(&self, size: Size) -> Option<&T> {
        self.used.iter().find(|((of, _), _)| *of == size).map(|(_, prepared)| prepared)
    }

    /// The smallest prepared number of images that holds the batch.
    pub(crate) fn holding(&self, (size, images): Batch) -> Option<usize> {
        let numbers = self.used.iter().filter(|((of, _), _)| *of == size).map(|((_, images), _)| *images);
        numbers.filter(|&prepared| prepared >= images).min()
    }

    /// Whether there is room for another batch.
    pub(crate) fn has_room(&self) -> bool {
        self.used.len() < MOST
    }

    /// Removes the batch that was not used for longest, if there is no room for another one.
    pub(crate) fn make_room(&mut self) -> Option<T> {
        if self.has_room() {
            return None;
        }
        let ((size, _), prepared) = self.used.remove(0);
        if self.of_size(size).is_none() {
            self.padded.retain(|(of, _), _| *of != size);
        }
        Some(prepared)
    }

    /// Adds a batch as the most recently used one. There must be room for it.
    pub(crate) fn insert(&mut self, batch: Batch, prepared: T) {
        self.used.push((batch, prepared));
    }

    /// Removes all batches of images of `size`.
    pub(crate) fn forget(&mut self, size: Size) {
        self.used.retain(|((of, _), _)| *of != size);
        self.padded.retain(|(of, _), _| *of != size);
    }

    /// Removes all batches.
    pub(crate) fn clear(&mut self) {
        *self = Sizes::new();
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    const OWN: Size = Size::square(224);
    const WIDE: Size = Size::new(224, 448);

    fn prepare<T>(sizes: &mut Sizes<T>, batch: Batch, prepared: T) -> Option<T> {
        let removed = sizes.make_room();
        sizes.insert(batch, prepared);
        removed
    }

    fn of(numbers: &[usize]) -> Sizes<()> {
        let mut sizes = Sizes::new();
        numbers.iter().for_each(|&images| assert_eq!(prepare(&mut sizes, (OWN, images), ()), None));
        sizes
    }

    #[test]
    fn a_batch_runs_at_the_smallest_prepared_number_that_holds_it() {
        let mut sizes = of(&[]);
        assert_eq!(sizes.padded((OWN, 3), 128), 4);
        assert_eq!(sizes.padded((OWN, 100), 120), 120);
        let mut sizes = of(&[128, 32]);
        for (images, padded) in [(1, 32), (16, 32), (17, 32), (32, 32), (33, 128), (127, 128), (128, 128)] {
            assert_eq!(sizes.padded((OWN, images), 128), padded, "{images} images");
        }
    }

    #[test]
    fn a_small_batch_that_keeps_occurring_gets_its_own_number() {
        let mut sizes = of(&[32]);
        assert_eq!([3; PATIENCE].map(|images| sizes.padded((OWN, images), 32)), [32; PATIENCE]);
        assert_eq!(sizes.padded((OWN, 17), 32), 32, "more than half of the batch is used");
        assert_eq!(sizes.padded((OWN, 3), 32), 4);
        prepare(&mut sizes, (OWN, 4), ());
        assert_eq!([3, 4, 2].map(|images| sizes.padded((OWN, images), 32)), [4, 4, 4]);
        assert_eq!(sizes.padded((OWN, 5), 32), 32, "numbers are counted one by one");
    }

    #[test]
    fn every_order_of_batches_prepares_few_numbers() {
        let mut sizes = of(&[]);
        for images in 1..=128 {
            let batch = (OWN, sizes.padded((OWN, images), 128));
            if sizes.touch(batch).is_none() {
                assert_eq!(prepare(&mut sizes, batch, ()), None);
            }
        }
        let numbers: Vec<usize> = sizes.used.iter().map(|((_, images), ())| *images).collect();
        assert_eq!(numbers, [1, 2, 4, 8, 16, 32, 64, 128]);
    }

    #[test]
    fn batches_are_padded_to_those_of_their_own_size() {
        let mut sizes = of(&[32]);
        assert_eq!(sizes.padded((WIDE, 3), 16), 4);
        prepare(&mut sizes, (WIDE, 16), ());
        for _ in 0..PATIENCE {
            assert_eq!((sizes.padded((WIDE, 3), 16), sizes.padded((OWN, 3), 32)), (16, 32));
        }
        assert_eq!((sizes.padded((WIDE, 3), 16), sizes.padded((OWN, 3), 32)), (4, 4));
        assert!(sizes.get((OWN, 16)).is_none() && sizes.get((WIDE, 16)).is_some());
    }

    #[test]
    fn the_batch_that_was_not_used_for_longest_is_forgotten_and_with_it_what_only_its_size_needs() {
        let (mut sizes, wide, own) = (Sizes::new(), Rc::new(()), Rc::new(()));
        prepare(&mut sizes, (WIDE, 2), Rc::clone(&wide));
        for images in 1..MOST {
            assert!(prepare(&mut sizes, (OWN, images), Rc::clone(&own)).is_none());
        }
        assert_eq!(sizes.padded((WIDE, 1), 2), 2);
        assert!(sizes.touch((OWN, 1)).is_some() && sizes.touch((OWN, MOST)).is_none());
        assert!(sizes.of_size(WIDE).is_some());
        assert!(
            prepare(&mut sizes, (OWN, 1000), Rc::clone(&own))
                .is_some_and(|removed| Rc::ptr_eq(&removed, &wide))
        );
        assert!(sizes.of_size(WIDE).is_none() && Rc::strong_count(&wide) == 1);
        assert!(sizes.padded.is_empty(), "batches of a forgotten size are not counted");
        assert!(prepare(&mut sizes, (OWN, 1001), own).is_some());
        assert!(sizes.get((OWN, 2)).is_none() && sizes.get((OWN, 1)).is_some());
        assert_eq!(sizes.padded((OWN, 2), 128), 3);
        sizes.insert((WIDE, 4), wide);
        sizes.forget(OWN);
        assert!(sizes.of_size(OWN).is_none() && sizes.of_size(WIDE).is_some());
        sizes.clear();
        assert!(sizes.of_size(WIDE).is_none());
    }
}
