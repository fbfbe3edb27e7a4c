//! Confidence interval of the difference of two accuracies.

use serde::{Deserialize, Serialize};

use crate::accuracy::ranks;
use crate::collected::Collected;
use crate::error::EvalError;
use crate::fidelity::check_paired;

/// A difference of top-1 accuracies with its 95 % confidence interval, as fractions (0.01 is one percentage
/// point).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Accuracy of the other model minus the reference's.
    pub difference: f64,
    /// Lower limit of the interval.
    pub low: f64,
    /// Upper limit of the interval.
    pub high: f64,
}

/// 97.5 % quantile of the standard normal distribution.
pub(crate) const Z: f64 = 1.959963984540054;

/// The 2 x 2 table of a paired comparison: numbers of images by which of the two models are right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pairs {
    both: usize,
    only_reference: usize,
    only_other: usize,
    neither: usize,
}

/// Top-1 of `other` minus top-1 of `reference` on the same images, with a paired 95 % interval.
///
/// The interval is Newcombe's hybrid score interval with continuity-corrected correlation: method 10 of R. G.
/// Newcombe, "Improved confidence intervals for the difference between binomial proportions based on paired
/// data", Statistics in Medicine 17 (1998), 2635-2650. Unlike Wald's interval, it has a width even if the
/// models never differ.
///
/// # Errors
/// [`EvalError::Mismatch`] if the two have different images or labels, [`EvalError::NoLabels`], or an error
/// of [`Collected::check`].
pub fn top1_difference(reference: &Collected, other: &Collected) -> Result<Interval, EvalError> {
    check_paired(reference, other)?;
    let (a, b) = (ranks(reference)?, ranks(other)?);
    let mut pairs = Pairs::default();
    for (a, b) in a.into_iter().zip(b) {
        match (a == 0, b == 0) {
            (true, true) => pairs.both += 1,
            (true, false) => pairs.only_reference += 1,
            (false, true) => pairs.only_other += 1,
            (false, false) => pairs.neither += 1,
        }
    }
    Ok(pairs.newcombe())
}

impl Pairs {
    /// The difference and the limits of Newcombe's method 10.
    fn newcombe(self) -> Interval {
        let Pairs { both, only_reference, only_other, neither } = self;
        let n = (both + only_reference + only_other + neither) as f64;
        let right = [(both + only_other) as f64, (both + only_reference) as f64];
        let [p1, p2] = right.map(|x| x / n);
        let ([l1, u1], [l2, u2]) = (wilson(right[0], n), wilson(right[1], n));
        let phi = self.correlation();
        let width = |x: f64, y: f64| (x * x - 2.0 * phi * x * y + y * y).max(0.0).sqrt();
        let difference = (only_other as f64 - only_reference as f64) / n;
        Interval {
            difference,
            low: difference - width(p1 - l1, u2 - p2),
            high: difference + width(u1 - p1, p2 - l2),
        }
    }

    /// Correlation (phi) of the two models' successes. Newcombe's continuity correction reduces the numerator
    /// of a positive one by half the number of images, at most to 0. It is 0 if a margin of the table is
    /// empty.
    fn correlation(self) -> f64 {
        let [a, b, c, d] =
            [self.both, self.only_reference, self.only_other, self.neither].map(|count| count as f64);
        let margins = (a + b) * (c + d) * (a + c) * (b + d);
        if margins == 0.0 {
            return 0.0;
        }
        let cross = a * d - b * c;
        let corrected = if cross > 0.0 { (cross - (a + b + c + d) / 2.0).max(0.0) } else { cross };
        corrected / margins.sqrt()
    }
}

/// The 95 % interval of a share, `part` of `all` images.
pub(crate) fn of_share(part: usize, all: usize) -> [f64; 2] {
    wilson(part as f64, all as f64)
}

/// Wilson's score interval of the proportion `right / n`.
fn wilson(right: f64, n: f64) -> [f64; 2] {
    let center = 2.0 * right + Z * Z;
    let half = Z * (Z * Z + 4.0 * right * (1.0 - right / n)).sqrt();
    let scale = 2.0 * (n + Z * Z);
    [((center - half) / scale).max(0.0), ((center + half) / scale).min(1.0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(value: f64, expected: f64, tolerance: f64) {
        assert!((value - expected).abs() <= tolerance, "{value} against {expected}");
    }

    #[test]
    fn limits_equal_those_of_the_defining_equations() {
        // From tests/interval_oracle.py: [both, only the first, only the second, neither], limits of first
        // minus second.
        let cases = [
            ([36, 12, 2, 0], [0.0569295840, 0.3404276030]),
            ([20, 12, 2, 16], [0.0561564248, 0.3292069954]),
            ([0, 0, 0, 50], [-0.0713475991, 0.0713475991]),
            ([50, 0, 0, 0], [-0.0713475991, 0.0713475991]),
            ([19, 16, 1, 14], [0.1491100349, 0.4280718900]),
            ([800, 25, 40, 135], [-0.0311630047, 0.0009721553]),
            ([38000, 1200, 950, 9850], [0.0031826344, 0.0068185040]),
        ];
        for ([both, only_other, only_reference, neither], [low, high]) in cases {
            let interval = Pairs { both, only_reference, only_other, neither }.newcombe();
            close(interval.low, low, 1e-9);
            close(interval.high, high, 1e-9);
        }
    }

    #[test]
    fn swapping_the_models_mirrors_the_interval() {
        let pairs = Pairs { both: 800, only_reference: 40, only_other: 25, neither: 135 };
        let swapped = Pairs { only_reference: 25, only_other: 40, ..pairs };
        let (a, b) = (pairs.newcombe(), swapped.newcombe());
        close(a.difference, -0.015, 1e-12);
        close(a.low, -b.high, 1e-12);
        close(a.high, -b.low, 1e-12);
    }

    #[test]
    fn the_interval_covers_the_true_difference_in_95_percent_of_experiments() {
        // 4000 experiments of 400 images: p(only reference) = 0.03, p(only other) = 0.01, p(both) = 0.76.
        let mut rng = swinq_testing::Rng(1);
        let mut covered = 0;
        for _ in 0..4000 {
            let mut pairs = Pairs::default();
            for _ in 0..400 {
                match rng.unit() {
                    u if u < 0.03 => pairs.only_reference += 1,
                    u if u < 0.04 => pairs.only_other += 1,
                    u if u < 0.80 => pairs.both += 1,
                    _ => pairs.neither += 1,
                }
            }
            let interval = pairs.newcombe();
            covered += usize::from(interval.low <= -0.02 && -0.02 <= interval.high);
        }
        // The expected number is 3800 with a standard deviation of 14. The method is slightly conservative,
        // so the bounds are wider above.
        assert!((3750..=3940).contains(&covered), "{covered} of 4000");
    }
}
