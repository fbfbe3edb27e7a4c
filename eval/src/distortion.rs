//! Distance of a tensor from its reference.

use serde::{Deserialize, Serialize};

use crate::collected::same_length;
use crate::error::EvalError;

/// Distance of a tensor `y` from its reference `r`, accumulated in f64 over any number of pieces.
///
/// Pieces can be added one after another ([`update`](Distortion::update)) or accumulated separately and
/// merged ([`merge`](Distortion::merge)). Counts and maxima do not depend on the choice; sums do so by
/// rounding only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Distortion {
    /// Number of elements.
    pub count: u64,
    /// Number of elements with `y == r`.
    pub exact: u64,
    /// Number of elements with `r != 0` and `y == 0`.
    pub rounded_to_zero: u64,
    /// Number of elements with `r * y < 0`.
    pub sign_flips: u64,
    /// Largest `|y - r|`.
    pub max_abs: f64,
    /// Sum of `|y - r|`.
    pub l1: f64,
    /// Sum of `r^2`.
    signal: f64,
    /// Sum of `(y - r)^2`.
    noise: f64,
    /// Sum of `y^2`.
    other: f64,
    /// Sum of `r * y`.
    dot: f64,
}

impl Distortion {
    /// Adds a piece: `reference` and `other` of equal length, element by element.
    ///
    /// # Errors
    /// [`EvalError::Length`] for different lengths, [`EvalError::NonFinite`] for NaN or infinity. Nothing is
    /// added then.
    pub fn update(&mut self, reference: &[f32], other: &[f32]) -> Result<(), EvalError> {
        same_length("reference against other", reference.len(), other.len())?;
        let mut piece = Distortion::default();
        for (index, (&r, &y)) in reference.iter().zip(other).enumerate() {
            if !(r.is_finite() && y.is_finite()) {
                return Err(EvalError::NonFinite { index, reference: r, other: y });
            }
            piece.add(r, y);
        }
        self.merge(&piece);
        Ok(())
    }

    fn add(&mut self, reference: f32, other: f32) {
        let (r, y) = (f64::from(reference), f64::from(other));
        let error = (y - r).abs();
        self.count += 1;
        self.exact += u64::from(reference == other);
        self.rounded_to_zero += u64::from(reference != 0.0 && other == 0.0);
        self.sign_flips += u64::from(r * y < 0.0);
        self.max_abs = self.max_abs.max(error);
        self.l1 += error;
        self.signal += r * r;
        self.noise += error * error;
        self.other += y * y;
        self.dot += r * y;
    }

    /// Adds the elements that `piece` has accumulated.
    pub fn merge(&mut self, piece: &Distortion) {
        self.count += piece.count;
        self.exact += piece.exact;
        self.rounded_to_zero += piece.rounded_to_zero;
        self.sign_flips += piece.sign_flips;
        self.max_abs = self.max_abs.max(piece.max_abs);
        self.l1 += piece.l1;
        self.signal += piece.signal;
        self.noise += piece.noise;
        self.other += piece.other;
        self.dot += piece.dot;
    }

    /// Number of words of [`Distortion::words`].
    pub(crate) const WORDS: usize = 10;

    /// The counts and the bits of the sums, from which [`Distortion::from_words`] makes the same distortion
    /// again.
    pub(crate) fn words(&self) -> [u64; Distortion::WORDS] {
        let sums = [self.max_abs, self.l1, self.signal, self.noise, self.other, self.dot].map(f64::to_bits);
        let [max_abs, l1, signal, noise, other, dot] = sums;
        let Distortion { count, exact, rounded_to_zero, sign_flips, .. } = *self;
        [count, exact, rounded_to_zero, sign_flips, max_abs, l1, signal, noise, other, dot]
    }

    /// The distortion of these words; `None` for sums that no tensors have.
    pub(crate) fn from_words(words: [u64; Distortion::WORDS]) -> Option<Distortion> {
        let [count, exact, rounded_to_zero, sign_flips, sums @ ..] = words;
        let sums = sums.map(f64::from_bits);
        let [max_abs, l1, signal, noise, other, dot] = sums;
        let possible = sums[..5].iter().all(|sum| (0.0..f64::INFINITY).contains(sum)) && dot.is_finite();
        possible.then_some(Distortion {
            count,
            exact,
            rounded_to_zero,
            sign_flips,
            max_abs,
            l1,
            signal,
            noise,
            other,
            dot,
        })
    }

    /// Signal to quantization noise ratio in dB:
    ///
    /// ```text
    /// 10 log10(sum r^2 / sum (y - r)^2)
    /// ```
    ///
    /// Positive infinity without noise (also for no elements), negative infinity for noise without signal.
    pub fn sqnr_db(&self) -> f64 {
        if self.noise == 0.0 { f64::INFINITY } else { 10.0 * libm::log10(self.signal / self.noise) }
    }

    /// Cosine of the angle between the tensors as vectors, in [-1, 1]. Two tensors of zeros have cosine 1;
    /// one of zeros has cosine 0 with any other.
    pub fn cosine(&self) -> f64 {
        if self.signal == 0.0 && self.other == 0.0 {
            return 1.0;
        }
        if self.signal == 0.0 || self.other == 0.0 {
            return 0.0;
        }
        (self.dot / (self.signal.sqrt() * self.other.sqrt())).clamp(-1.0, 1.0)
    }

    /// The norm of the error relative to the norm of the reference, `sqrt(sum (y - r)^2 / sum r^2)`. 0
    /// without noise, `None` for noise without signal.
    pub fn relative(&self) -> Option<f64> {
        match (self.noise, self.signal) {
            (0.0, _) => Some(0.0),
            (_, 0.0) => None,
            (noise, signal) => Some((noise / signal).sqrt()),
        }
    }

    /// Mean of `|y - r|`; 0 for no elements.
    pub fn mean_abs(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.l1 / self.count as f64 }
    }
}
