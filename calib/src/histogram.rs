//! Streaming histograms of magnitudes that take bounded memory and merge exactly.
//!
//! Bin `i` counts the values `x` with `i w <= |x| < (i + 1) w`. The width `w` is the power of two for which
//! the largest magnitude seen is in the upper half of the [`BINS`] bins, so it depends on that magnitude
//! alone. Because `floor(|x| / 2w) = floor(floor(|x| / w) / 2)`, bins of one width merge exactly into bins of
//! a larger width. A histogram therefore depends only on the values, not on their order or on how they were
//! split and merged.

use std::ops::Range;
use std::sync::OnceLock;

use swinq_float::{on_every_core, threads};

use crate::error::CalibError;

mod count;

use count::Counter;

/// Number of bins. At least half of them are below the largest magnitude seen.
pub const BINS: usize = 1 << LOG2_BINS;
/// Binary logarithm of [`BINS`].
const LOG2_BINS: i32 = 12;

/// Smallest exponent of a width: the one for the smallest normal f32 as largest magnitude. A histogram of
/// only subnormal values uses fewer bins, which does no harm: such a range is unusable because 127 / amax is
/// not finite.
const MIN_EXPONENT: i32 = f32::MIN_EXP - LOG2_BINS;

/// The most values of a histogram that is read from a file, so that sums of many histograms do not overflow.
pub const MOST_VALUES: u64 = 1 << 47;

/// Maximum number of values in 32-bit counters before they are added to the 64-bit ones.
const PIECE: usize = 1 << 30;
/// Minimum number of values per thread.
const MIN_SHARE: usize = 1 << 16;

/// Counts of magnitudes in [`BINS`] bins, the exact largest magnitude, and the number of exact zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: Vec<u64>,
    zeros: u64,
    count: u64,
    /// Bits of the largest magnitude.
    max_bits: u32,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram::new()
    }
}

impl Histogram {
    /// A histogram without values.
    pub fn new() -> Histogram {
        Histogram { counts: vec![0; BINS], zeros: 0, count: 0, max_bits: 0 }
    }

    /// Counts `values` on every core.
    ///
    /// # Errors
    /// [`CalibError::NotFinite`] for the first NaN or infinity. Nothing is counted then.
    pub fn add(&mut self, values: &[f32]) -> Result<(), CalibError> {
        // Every value is a row of one column.
        self.add_columns(values, 1, 0..1)
    }

    /// Counts the columns `columns` of `values`, rows of `width` values, on every core.
    ///
    /// # Errors
    /// [`CalibError::NotFinite`] for the first NaN or infinity, with its position in `values`. Nothing is
    /// counted then.
    ///
    /// # Panics
    /// If `columns` is empty or reaches beyond `width`, or `width` does not divide the number of values.
    pub fn add_columns(
        &mut self,
        values: &[f32],
        width: usize,
        columns: Range<usize>,
    ) -> Result<(), CalibError> {
        assert!(
            !columns.is_empty() && columns.end <= width && values.len().is_multiple_of(width),
            "columns of rows"
        );
        let mut sum = Histogram::new();
        let shares = match threads() {
            1 => 1,
            several => 2 * several,
        };
        let piece_len = PIECE / width * width;
        for (index, piece) in values.chunks(piece_len).enumerate() {
            let share = piece.len().div_ceil(shares).max(MIN_SHARE).next_multiple_of(width);
            let shares: Vec<&[f32]> = piece.chunks(share).collect();
            let parts: Vec<OnceLock<Result<Histogram, usize>>> =
                shares.iter().map(|_| OnceLock::new()).collect();
            on_every_core(shares.len(), |i| {
                parts[i].get_or_init(|| Counter::count(shares[i], width, columns.clone()));
            });
            for (i, part) in parts.into_iter().enumerate() {
                let part = part.into_inner().expect("every task has run");
                sum.merge(&part.map_err(|at| not_finite(values, at + i * share + index * piece_len))?);
            }
        }
        self.merge(&sum);
        Ok(())
    }

    /// Adds the counts of `other`. The result equals a histogram of the values of both, bit for bit.
    pub fn merge(&mut self, other: &Histogram) {
        let max_bits = self.max_bits.max(other.max_bits);
        coarsen(&mut self.counts, exponent(max_bits) - exponent(self.max_bits));
        let shift = exponent(max_bits) - exponent(other.max_bits);
        for (i, count) in other.counts[..other.used()].iter().enumerate() {
            self.counts[shifted(i, shift)] += count;
        }
        self.zeros += other.zeros;
        self.count += other.count;
        self.max_bits = max_bits;
    }

    /// The histogram with these counts ([`Histogram::counts`]), number of zeros and largest magnitude.
    ///
    /// # Errors
    /// The problem, for values that no histogram has, or more than [`MOST_VALUES`] values.
    pub fn from_counts(counts: &[u64], zeros: u64, max: f32) -> Result<Histogram, String> {
        let sum = counts.iter().try_fold(0u64, |sum, n| sum.checked_add(*n)).filter(|n| *n <= MOST_VALUES);
        let count = sum.ok_or_else(|| format!("has more than {MOST_VALUES} values"))?;
        if !(max >= 0.0 && max.is_finite()) {
            return Err(format!("has the largest magnitude {max}"));
        }
        let mut all = counts.to_vec();
        all.resize(BINS.max(counts.len()), 0);
        let histogram = Histogram { counts: all, zeros, count, max_bits: max.to_bits() };
        let (used, first) = (histogram.used(), counts.first().copied().unwrap_or(0));
        if used != counts.len() || counts.last() == Some(&0) || zeros > first || (count == 0 && max > 0.0) {
            return Err("contradicts itself".to_owned());
        }
        Ok(histogram)
    }

    /// The exact largest magnitude; 0 if there is no value.
    pub fn max(&self) -> f32 {
        f32::from_bits(self.max_bits)
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Number of values that are exactly zero. The first bin counts them, too.
    pub fn zeros(&self) -> u64 {
        self.zeros
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Width of a bin, a power of two. It is at most `max / 2048` if [`Histogram::max`] is a normal number.
    pub fn width(&self) -> f64 {
        2f64.powi(exponent(self.max_bits))
    }

    /// Counts of the bins up to the one that holds [`Histogram::max`], whose count is therefore not zero.
    /// Empty if there is no value.
    pub fn counts(&self) -> &[u64] {
        &self.counts[..self.used()]
    }

    /// Upper edge of bin `i`, but at most the largest magnitude.
    pub(crate) fn upper_edge(&self, i: usize) -> f32 {
        let edge = (i + 1) as f64 * self.width();
        if edge < f64::from(self.max()) { edge as f32 } else { self.max() }
    }

    /// Number of bins up to the one that holds the largest magnitude.
    fn used(&self) -> usize {
        match self.count {
            0 => 0,
            _ => (f64::from(self.max()) / self.width()) as usize + 1,
        }
    }
}

/// Exponent of the bin width for a largest magnitude, given by its bits.
fn exponent(max_bits: u32) -> i32 {
    let unbiased = (max_bits >> 23) as i32 - 127;
    (unbiased + 1 - LOG2_BINS).max(MIN_EXPONENT)
}

/// The bin that includes bin `i` after the width has grown by the factor `2^shift`.
fn shifted(i: usize, shift: i32) -> usize {
    i >> shift.min(LOG2_BINS)
}

/// Merges neighbouring bins so that the width grows by the factor `2^shift`.
fn coarsen<T: Copy + Default + std::ops::AddAssign>(counts: &mut [T], shift: i32) {
    if shift == 0 {
        return;
    }
    for i in 0..counts.len() {
        let count = std::mem::take(&mut counts[i]);
        counts[shifted(i, shift)] += count;
    }
}

fn not_finite(values: &[f32], index: usize) -> CalibError {
    CalibError::NotFinite { value: values[index], index }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[f32]) -> Histogram {
        let mut histogram = Histogram::new();
        histogram.add(values).unwrap();
        histogram
    }

    #[test]
    fn the_maximum_lies_in_the_upper_half_of_the_bins() {
        for max in [1e-37f32, 2.5e-20, 0.99999994, 1.0, 1.0000001, 3.9, 4095.9, 4096.0, f32::MAX] {
            let histogram = of(&[0.0, -max]);
            let used = histogram.counts().len();
            assert!(used > BINS / 2 && used <= BINS, "{max}: {used}");
            assert_eq!((histogram.max(), histogram.counts()[0], histogram.counts()[used - 1]), (max, 1, 1));
            assert!(histogram.width() <= f64::from(max) / 2048.0);
        }
    }

    #[test]
    fn histograms_of_no_values_and_of_zeros() {
        let none = of(&[]);
        assert!(none.is_empty() && none.counts().is_empty());
        assert_eq!(none, Histogram::new());
        let zeros = of(&[0.0, -0.0, 0.0]);
        assert_eq!((zeros.count(), zeros.zeros(), zeros.max(), zeros.counts()), (3, 3, 0.0, &[3][..]));
        let mut later = zeros;
        later.merge(&of(&[5.0]));
        assert_eq!(later, of(&[0.0, 5.0, 0.0, -0.0]));
        assert_eq!((later.zeros(), later.counts()[0]), (3, 3));
    }

    #[test]
    fn a_non_finite_value_is_named_and_nothing_is_counted() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN] {
            let mut histogram = of(&[1.0, 2.0]);
            let before = histogram.clone();
            let mut values = vec![0.25f32; 3 * MIN_SHARE];
            values[2 * MIN_SHARE + 7] = bad;
            values[2 * MIN_SHARE + 9] = bad;
            let error = histogram.add(&values).unwrap_err();
            assert!(
                matches!(error, CalibError::NotFinite { index, .. } if index == 2 * MIN_SHARE + 7),
                "{error}"
            );
            assert_eq!(histogram, before);
        }
    }

    #[test]
    fn columns_are_counted_as_their_values_are() {
        let mut values = swinq_testing::Rng(5).floats(7000 * 48, 3.0);
        values[47] = 99.0;
        for columns in [0..48, 0..16, 17..18, 5..47] {
            let picked: Vec<f32> =
                values.chunks_exact(48).flat_map(|row| &row[columns.clone()]).copied().collect();
            let mut histogram = Histogram::new();
            histogram.add_columns(&values, 48, columns.clone()).unwrap();
            assert_eq!(histogram, of(&picked), "{columns:?}");
        }
        values[6000 * 48 + 9] = f32::NAN;
        let mut histogram = Histogram::new();
        assert!(histogram.add_columns(&values, 48, 10..48).is_ok());
        let error = histogram.add_columns(&values, 48, 4..20).unwrap_err();
        assert!(matches!(error, CalibError::NotFinite { index, .. } if index == 6000 * 48 + 9), "{error}");
    }

    #[test]
    fn histograms_are_made_of_their_counts() {
        for values in [&[][..], &[0.0, -0.0], &[1.0, -3.5, 0.0, 1e-30], &[f32::MAX], &[f32::from_bits(3)]] {
            let histogram = of(values);
            let again = Histogram::from_counts(histogram.counts(), histogram.zeros(), histogram.max());
            assert_eq!(again.as_ref(), Ok(&histogram), "{values:?}");
        }
        let many = [MOST_VALUES, 1];
        for (counts, zeros, max) in [
            (&[1][..], 2, 0.0),
            (&[1], 0, f32::NAN),
            (&[1], 0, f32::INFINITY),
            (&[1], 0, -1.0),
            (&[1], 0, 1.0),
            (&[1, 1], 0, 0.0),
            (&[], 0, 1.0),
            (&[1; BINS + 1], 0, 1.0),
            (&many, 0, 1.0),
            (&[u64::MAX, 1], 0, 1.0),
        ] {
            Histogram::from_counts(counts, zeros, max).unwrap_err();
        }
    }

    #[test]
    fn subnormal_values_are_counted() {
        let tiny = f32::from_bits(3);
        let histogram = of(&[tiny, -tiny, 0.0]);
        assert_eq!((histogram.count(), histogram.zeros(), histogram.max()), (3, 1, tiny));
        assert_eq!(histogram.counts().iter().sum::<u64>(), 3);
    }
}
