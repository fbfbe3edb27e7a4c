//! The cost of a run of sensitivity, which is said before the first measurement.

use std::time::Duration;

/// The measurements of a run, and about the time that they take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Measurements: two for each part and one of the residual stream, for each group of images.
    pub measurements: usize,
    /// Those that the file of finished measurements has.
    pub known: usize,
    /// Images.
    pub images: usize,
    /// About the time of the others.
    pub time: Duration,
}

/// A measurement.
pub(super) struct Work {
    /// Seconds that it takes.
    pub(super) seconds: f64,
    /// Whether it is finished.
    pub(super) is_known: bool,
}

impl Cost {
    /// No measurements yet, on so many images.
    pub(super) fn new(images: usize) -> Cost {
        Cost { measurements: 0, known: 0, images, time: Duration::ZERO }
    }

    /// Adds seconds between the measurements.
    pub(super) fn wait(&mut self, seconds: f64) {
        self.time += Duration::from_secs_f64(seconds);
    }

    /// Adds a measurement.
    pub(super) fn add(&mut self, work: Work) {
        self.measurements += 1;
        match work.is_known {
            true => self.known += 1,
            false => self.time += Duration::from_secs_f64(work.seconds),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finished_measurements_take_no_time() {
        let mut cost = Cost::new(8);
        for (seconds, is_known) in [(1.5, false), (3.0, true), (0.5, false)] {
            cost.add(Work { seconds, is_known });
        }
        cost.wait(1.0);
        let time = Duration::from_secs(3);
        assert_eq!(cost, Cost { measurements: 3, known: 1, images: 8, time });
    }
}
