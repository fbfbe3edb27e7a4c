//! The rule of accuracy against speed: a change must save more than the spread of the latency.

/// The least share of the latency that a change must save, however small the spread is.
const LEAST_SAVING: f64 = 0.002;

/// A recipe that keeps the limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    /// Its index among the candidates.
    pub(super) index: usize,
    /// Predicted latency.
    pub(super) ms: f64,
    /// The accuracy; more is better, and the first number that differs decides.
    pub(super) accuracy: [f64; 2],
}

/// Whether a model of `next` milliseconds saves more than the spread of a model of `ms` milliseconds;
/// `spread` is a share of the latency.
pub(super) fn saves(ms: f64, next: f64, spread: f64) -> bool {
    (ms - next) / ms > spread.max(LEAST_SAVING)
}

/// The index of the recipe to take; `None` if there is none. From the most accurate to the least, a recipe
/// takes the place of the one before if it saves more than the spread. Without such a saving the accuracy
/// decides.
pub(super) fn best(mut all: Vec<Standing>, spread: f64) -> Option<usize> {
    all.sort_by(|a, b| {
        let by_accuracy =
            b.accuracy[0].total_cmp(&a.accuracy[0]).then(b.accuracy[1].total_cmp(&a.accuracy[1]));
        by_accuracy.then(a.ms.total_cmp(&b.ms))
    });
    let taken =
        all.into_iter().reduce(|best, next| if saves(best.ms, next.ms, spread) { next } else { best });
    taken.map(|standing| standing.index)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The index of the recipe that is taken of some with these latencies and SQNRs.
    fn taken(of: &[(f64, f64)], spread: f64) -> Option<usize> {
        let standing = |(index, &(ms, db)): (usize, &(f64, f64))| Standing { index, ms, accuracy: [0.0, db] };
        best(of.iter().enumerate().map(standing).collect(), spread)
    }

    #[test]
    fn accuracy_is_given_for_more_than_the_spread_only() {
        // 0.8 % of the latency for 5.4 dB, on a machine whose times spread by 2 %.
        let found = [(31.486, 43.9), (31.240, 38.5)];
        assert_eq!(taken(&found, 0.02), Some(0));
        assert_eq!(taken(&found, 0.005), Some(1));
        assert_eq!(taken(&[(10.0, 40.0), (9.0, 35.0), (8.95, 20.0)], 0.02), Some(1));
        assert_eq!(taken(&[(10.0, 40.0), (9.99, 39.0)], 0.0), Some(0), "there is a least saving");
        assert_eq!(taken(&[], 0.02), None);
    }

    #[test]
    fn ties_go_to_accuracy() {
        assert_eq!(taken(&[(9.9, 30.0), (10.0, 31.0)], 0.02), Some(1));
        assert_eq!(taken(&[(10.0, 30.0), (9.9, 30.0)], 0.02), Some(1), "equal accuracy: the faster one");
        let standing =
            |index: usize, value: f64, db: f64| Standing { index, ms: 10.0, accuracy: [value, db] };
        assert_eq!(best(vec![standing(0, 0.46, 20.0), standing(1, 0.45, 40.0)], 0.02), Some(0));
        assert_eq!(best(vec![standing(0, 0.46, 20.0), standing(1, 0.46, 40.0)], 0.02), Some(1));
    }
}
