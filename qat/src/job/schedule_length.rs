//! The length of a run in iterations, and its division into epochs.

/// The length of a run, as the job gives it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    /// Passes over the training images.
    Epochs(f64),
    /// Iterations: updates by the optimizer.
    Iterations(u64),
}

/// The length of a run over a known number of images. Every iteration uses the same number of images,
/// `batch_size * accumulate` on each process, because batches cross the ends of epochs: iteration `i` starts
/// with image `i * images_per_iteration` of the concatenated epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduleLength {
    images: u64,
    images_per_iteration: u64,
    iterations: u64,
}

impl ScheduleLength {
    /// The length of a run over `images` training images. An argument of 0 counts as 1.
    pub fn new(length: Length, images: usize, images_per_iteration: usize) -> ScheduleLength {
        let (images, images_per_iteration) = (images.max(1) as u64, images_per_iteration.max(1) as u64);
        let iterations = match length {
            Length::Iterations(iterations) => iterations,
            Length::Epochs(epochs) => (epochs * images as f64 / images_per_iteration as f64).round() as u64,
        };
        ScheduleLength { images, images_per_iteration, iterations: iterations.max(1) }
    }

    /// Iterations of the run, at least 1; a length in epochs is rounded to whole iterations.
    pub fn iterations(&self) -> u64 {
        self.iterations
    }

    /// Images per epoch.
    pub fn images(&self) -> u64 {
        self.images
    }

    /// Images per iteration.
    pub fn images_per_iteration(&self) -> u64 {
        self.images_per_iteration
    }

    /// Epochs completed after `done` iterations, with the fraction of the current one.
    pub fn epoch(&self, done: u64) -> f64 {
        (done as f64 * self.images_per_iteration as f64) / self.images as f64
    }

    /// Whether an epoch ends within iteration `done`, counted from 1.
    pub fn ends_epoch(&self, done: u64) -> bool {
        let whole = |iterations: u64| {
            u128::from(iterations) * u128::from(self.images_per_iteration) / u128::from(self.images)
        };
        done > 0 && whole(done) > whole(done - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_become_the_nearest_number_of_iterations() {
        for (epochs, images, per_iteration, iterations) in
            [(3.0, 50_000, 128, 1172), (0.5, 100, 10, 5), (0.001, 10, 10, 1), (1.0, 0, 0, 1)]
        {
            assert_eq!(
                ScheduleLength::new(Length::Epochs(epochs), images, per_iteration).iterations(),
                iterations
            );
        }
        assert_eq!(ScheduleLength::new(Length::Iterations(7), 100, 10).iterations(), 7);
    }

    #[test]
    fn an_epoch_ends_within_the_iteration_that_uses_its_last_image() {
        let length = ScheduleLength::new(Length::Epochs(3.0), 10, 4);
        let ends: Vec<u64> = (0..=8).filter(|&done| length.ends_epoch(done)).collect();
        assert_eq!(ends, [3, 5, 8]);
        assert_eq!(length.epoch(5), 2.0);
    }

    #[test]
    fn an_iteration_may_contain_several_epochs() {
        let length = ScheduleLength::new(Length::Iterations(2), 3, 10);
        assert!(length.ends_epoch(1) && length.ends_epoch(2) && !length.ends_epoch(0));
    }
}
