//! Comparison of a rung's results with the expected results.

/// The outcome of a comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Check {
    /// The largest difference; infinite if a result is not finite.
    pub max_abs_error: f64,
    /// The largest difference allowed.
    pub tolerance: f64,
    /// Number of results that differ by more than the tolerance.
    pub wrong: usize,
    /// Index of the first such result.
    pub first: Option<usize>,
}

impl Check {
    /// Compares `found` with `expected`. A tolerance of 0 requires equality.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn new(found: &[f32], expected: impl ExactSizeIterator<Item = f64>, tolerance: f64) -> Check {
        assert_eq!(found.len(), expected.len(), "results and expectations");
        let mut check = Check { max_abs_error: 0.0, tolerance, wrong: 0, first: None };
        for (index, (&found, expected)) in found.iter().zip(expected).enumerate() {
            let error = (f64::from(found) - expected).abs();
            let error = if error.is_nan() { f64::INFINITY } else { error };
            check.max_abs_error = check.max_abs_error.max(error);
            if error > tolerance {
                check.wrong += 1;
                check.first.get_or_insert(index);
            }
        }
        check
    }

    /// Compares `found` with `expected` of the same precision.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn against(found: &[f32], expected: &[f32], tolerance: f64) -> Check {
        Check::new(found, expected.iter().map(|&x| f64::from(x)), tolerance)
    }

    /// Whether every result is within the tolerance.
    pub fn passed(&self) -> bool {
        self.wrong == 0
    }

    /// Combines this check with another check of the same rung.
    pub fn and(self, other: Check) -> Check {
        Check {
            max_abs_error: self.max_abs_error.max(other.max_abs_error),
            tolerance: self.tolerance.max(other.tolerance),
            wrong: self.wrong + other.wrong,
            first: self.first.or(other.first),
        }
    }

    /// The error message for a failed check.
    pub fn complaint(&self) -> String {
        let first = self.first.map_or(String::new(), |first| format!(", the first is number {first}"));
        format!("{} results are off by more than {:.2e}{first}", self.wrong, self.tolerance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_planted_error_is_found() {
        let right: Vec<f32> = (0..1000).map(|i| i as f32 * 0.25 - 100.0).collect();
        let clean = Check::against(&right, &right, 0.0);
        assert!(clean.passed() && clean.max_abs_error == 0.0);
        let mut wrong = right.clone();
        wrong[617] += 0.25;
        let found = Check::against(&wrong, &right, 0.0);
        assert_eq!((found.wrong, found.first, found.max_abs_error), (1, Some(617), 0.25));
        assert!(!found.passed() && found.complaint().contains("617"), "{}", found.complaint());
        assert!(Check::against(&wrong, &right, 0.25).passed());
        assert!(!Check::against(&wrong, &right, 0.2).passed());
        assert!(!clean.and(found).passed());
    }

    #[test]
    fn what_is_no_number_is_wrong() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let check = Check::against(&[1.0, bad], &[1.0, 2.0], 1e9);
            assert_eq!((check.wrong, check.first, check.max_abs_error), (1, Some(1), f64::INFINITY));
        }
    }
}
