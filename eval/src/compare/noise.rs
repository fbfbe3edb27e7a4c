//! Which changes of a measured figure are noise.

use crate::results::Stats;

/// Change of a median, a throughput or a memory figure that repeated runs on one machine show, as a fraction.
const OF_MEDIANS: f64 = 0.02;

/// The same for a 99th percentile.
const OF_TAILS: f64 = 0.1;

/// A figure of two runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread {
    pub(super) first: f64,
    pub(super) second: f64,
    /// The relative change that repeated runs show.
    usual: f64,
    /// Whether the confidence intervals of the two overlap.
    overlap: bool,
}

impl Spread {
    pub(super) fn new(first: f64, second: f64) -> Spread {
        Spread { first, second, usual: OF_MEDIANS, overlap: false }
    }

    /// The medians of two latencies.
    pub(super) fn of_medians(a: &Stats, b: &Stats) -> Spread {
        let overlap = match (a.median_interval, b.median_interval) {
            (Some([low, high]), Some([other_low, other_high])) => low <= other_high && other_low <= high,
            _ => false,
        };
        Spread { overlap, ..Spread::new(a.median, b.median) }
    }

    /// The 99th percentiles of two latencies.
    pub(super) fn of_tails(first: f64, second: f64) -> Spread {
        Spread { usual: OF_TAILS, ..Spread::new(first, second) }
    }

    /// Whether the two differ, but no more than repeated runs do.
    pub(super) fn is_noise(&self) -> bool {
        let relative = (self.second / self.first - 1.0).abs();
        self.first != self.second && (self.overlap || relative <= self.usual)
    }
}
