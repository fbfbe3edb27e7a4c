//! The time of a search.

use std::time::{Duration, Instant};

/// The time that a search may take, from the timing of launches on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    begin: Instant,
    /// `None` is unlimited.
    most: Option<Duration>,
}

impl Budget {
    /// A budget of `most` from now on; `None` is unlimited.
    pub(super) fn start(most: Option<Duration>) -> Budget {
        Budget { begin: Instant::now(), most }
    }

    /// Whether the time is used up.
    pub(super) fn is_over(&self) -> bool {
        !self.allows(Duration::ZERO)
    }

    /// Whether work that takes as long as `work` would end in time.
    pub(super) fn allows(&self, work: Duration) -> bool {
        allows(self.most, self.begin.elapsed(), work)
    }
}

/// Whether `work` ends within `most` after `elapsed`.
fn allows(most: Option<Duration>, elapsed: Duration, work: Duration) -> bool {
    most.is_none_or(|most| elapsed < most && elapsed.saturating_add(work) <= most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_begins_only_if_it_ends_in_time() {
        let [zero, one, two, three] = [0, 1, 2, 3].map(Duration::from_secs);
        assert!(allows(None, three, Duration::MAX), "unlimited");
        assert!(allows(Some(three), one, two) && !allows(Some(three), two, two));
        assert!(allows(Some(three), two, zero) && !allows(Some(three), three, zero));
        assert!(!Budget::start(None).is_over() && Budget::start(Some(zero)).is_over());
    }
}
