//! How long a run is, and where in the epochs a step is.

/// Length of a run, as the job states it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    /// Passes over the training images.
    Epochs(f64),
    /// Steps of the optimizer.
    Steps(u64),
}

/// A run over a known number of images. A step takes `batch_size * accumulate` images, always all of them: batches
/// run on across the end of an epoch, so step `s` begins with image `s * batch_size * accumulate` of the stream of
/// epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Course {
    images: u64,
    images_per_step: u64,
    steps: u64,
}

impl Course {
    /// The course over `images` training images; none and empty steps count as one.
    pub fn new(length: Length, images: usize, images_per_step: usize) -> Course {
        let (images, images_per_step) = (images.max(1) as u64, images_per_step.max(1) as u64);
        let steps = match length {
            Length::Steps(steps) => steps,
            Length::Epochs(epochs) => (epochs * images as f64 / images_per_step as f64).round() as u64,
        };
        Course { images, images_per_step, steps: steps.max(1) }
    }

    /// Steps of the run: those stated, or as near to the epochs stated as whole steps get, at least 1.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Images of an epoch.
    pub fn images(&self) -> u64 {
        self.images
    }

    /// Images of a step.
    pub fn images_per_step(&self) -> u64 {
        self.images_per_step
    }

    /// Epochs passed once `done` steps are done.
    pub fn epoch(&self, done: u64) -> f64 {
        (done as f64 * self.images_per_step as f64) / self.images as f64
    }

    /// Whether an epoch ended within step number `done`, counted from 1.
    pub fn ends_epoch(&self, done: u64) -> bool {
        let whole =
            |steps: u64| u128::from(steps) * u128::from(self.images_per_step) / u128::from(self.images);
        done > 0 && whole(done) > whole(done - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_become_the_nearest_number_of_steps() {
        for (epochs, images, per_step, steps) in
            [(3.0, 50_000, 128, 1172), (0.5, 100, 10, 5), (0.001, 10, 10, 1), (1.0, 0, 0, 1)]
        {
            assert_eq!(Course::new(Length::Epochs(epochs), images, per_step).steps(), steps);
        }
        assert_eq!(Course::new(Length::Steps(7), 100, 10).steps(), 7);
    }

    #[test]
    fn an_epoch_ends_within_the_step_that_takes_its_last_image() {
        let course = Course::new(Length::Epochs(3.0), 10, 4);
        let ends: Vec<u64> = (0..=8).filter(|&done| course.ends_epoch(done)).collect();
        assert_eq!(ends, [3, 5, 8]);
        assert_eq!(course.epoch(5), 2.0);
    }

    #[test]
    fn a_step_may_hold_several_epochs() {
        let course = Course::new(Length::Steps(2), 3, 10);
        assert!(course.ends_epoch(1) && course.ends_epoch(2) && !course.ends_epoch(0));
    }
}
