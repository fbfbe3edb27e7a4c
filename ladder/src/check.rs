//! Comparison of a rung's results with the expected results.

/// The outcome of a comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Check {
    /// The largest difference; infinite if a result is not finite.
    pub max_abs_error: f64,
    /// The largest difference allowed.
    pub tolerance: f64,
    /// Number of results.
    pub compared: usize,
    /// Number of results that differ by more than the tolerance.
    pub wrong: usize,
    /// The first of them.
    pub first: Option<Wrong>,
}

/// A result that differs by more than the tolerance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wrong {
    /// Its index, from 0.
    pub index: usize,
    /// The result.
    pub found: f32,
    /// The expected result.
    pub expected: f64,
}

impl Check {
    /// Compares `found` with `expected`. A tolerance of 0 requires equality.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn new(found: &[f32], expected: impl ExactSizeIterator<Item = f64>, tolerance: f64) -> Check {
        assert_eq!(found.len(), expected.len(), "results and expectations");
        let mut check = Check { max_abs_error: 0.0, tolerance, compared: found.len(), wrong: 0, first: None };
        for (index, (&found, expected)) in found.iter().zip(expected).enumerate() {
            let error = (f64::from(found) - expected).abs();
            let error = if error.is_nan() { f64::INFINITY } else { error };
            check.max_abs_error = check.max_abs_error.max(error);
            if error > tolerance {
                check.wrong += 1;
                check.first.get_or_insert(Wrong { index, found, expected });
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
            compared: self.compared + other.compared,
            wrong: self.wrong + other.wrong,
            first: self.first.or(other.first),
        }
    }

    /// The check of results that begin at `index` of all results.
    pub fn beginning_at(self, index: usize) -> Check {
        let first = self.first.map(|first| Wrong { index: index + first.index, ..first });
        Check { first, ..self }
    }

    /// The error message for a failed check.
    pub fn complaint(&self) -> String {
        let Check { tolerance, compared, wrong, first, .. } = self;
        let limit = match *tolerance {
            0.0 => "differ from the expected results".to_owned(),
            tolerance => format!("are off by more than {tolerance:.2e}"),
        };
        let first = first.map_or(String::new(), |Wrong { index, found, expected }| {
            format!("; the first, at index {index}, is {found} instead of {}", expected as f32)
        });
        format!("{wrong} of {compared} results {limit}{first}")
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
        let first = Some(Wrong { index: 617, found: 54.5, expected: 54.25 });
        assert_eq!((found.wrong, found.first, found.max_abs_error), (1, first, 0.25));
        assert!(!found.passed());
        assert_eq!(
            found.beginning_at(1000).complaint(),
            "1 of 1000 results differ from the expected results; the first, at index 1617, is 54.5 instead of 54.25"
        );
        assert!(Check::against(&wrong, &right, 0.25).passed());
        assert!(!Check::against(&wrong, &right, 0.2).passed());
        assert!(!clean.and(found).passed());
    }

    #[test]
    fn what_is_no_number_is_wrong() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let check = Check::against(&[1.0, bad], &[1.0, 2.0], 1e9);
            assert_eq!((check.wrong, check.max_abs_error), (1, f64::INFINITY));
            assert_eq!(check.first.unwrap().index, 1);
            assert!(check.complaint().starts_with("1 of 2 results are off by more than 1.00e9; the first"));
        }
    }
}
