//! Calibrators: they choose the range `amax` that quantization keeps, from a histogram of magnitudes.
//!
//! Notation: a histogram of `n` values has bins `0..B` of width `w` with counts `n_i`. Bin `i` holds the
//! magnitudes in `[i w, (i + 1) w)`, its center is `x_i = (i + 1/2) w`, and bin `B - 1` holds the largest
//! magnitude `m`. `Q` is the largest code: 127 for 8 bits, 7 for 4. A range `a` has the scale `s = a / Q`.
//! The range that keeps the first `i` bins is `a_i = min(i w, m)`, so that `a_B = m`.
//!
//! If all values are zero, every calibrator chooses 0. Otherwise:
//!
//! **max** chooses `m`, exactly.
//!
//! **percentile `p`**: let `v` be the magnitude of rank `k = ceil((n - 1) p / 100)`, where ranks count from 0
//! in ascending order (numpy's method `higher`). The range is 0 if `v` is exactly zero. Otherwise it is
//! `a_(i + 1)`, the upper edge of the bin `i` that holds `v`, which exceeds `v` by at most `w` (at most
//! `m / 2048` for a normal `m`).
//!
//! **mse** minimises the squared quantization error of the bin centers,
//!
//! ```text
//! E(a) = sum_i n_i (x_i - s min(Q, round(x_i / s)))^2        s = a / Q, ties round to even
//! ```
//!
//! where exact zeros are not counted, because every scale represents them exactly. The candidates are `m` and
//! those `a_i` with `1 <= i < B` for which `i` has at most 8 significant bits. From `i = 128` on,
//! neighbouring candidates thus differ by at most 1/128. If several candidates have the least error, the
//! largest range is chosen.
//!
//! **entropy** minimises the Kullback-Leibler divergence
//!
//! ```text
//! KL(P_i || R_i) = sum_j P_i(j) ln(P_i(j) / R_i(j))          infinite if R_i(j) = 0 < P_i(j) for some j
//! ```
//!
//! over the candidates `a_i` with `Q + 1 <= i <= B` (only `m` if `B <= Q`). Both distributions are over the
//! bins `0..i` and are normalised to 1. First `n_0`, which includes the exact zeros, is replaced by `n_1`,
//! because values near zero round to zero for every range.
//!
//! - `P_i` has the counts of the first `i` bins; the sum of the counts of all other bins is added to its last
//!   bin.
//! - `R_i` has the same counts without that addition. Its bins form `Q + 1` groups, with bin `j` in group
//!   `floor(j (Q + 1) / i)`. The sum of a group is distributed evenly over its non-empty bins.
//!
//! If several candidates have the least divergence, the largest range is chosen. The method compares single
//! counts, so it needs many more values than bins. With fewer values, as in the channels of most weights, it
//! tends to choose `m`.
//!
//! The entropy method is Migacz's ("8-bit inference with TensorRT", GTC 2017) in the variant of NVIDIA's
//! pytorch-quantization: 128 groups, candidates from bin 128 on, the first count replaced by the second, the
//! last of equal minimums.

use swinq_model::Calibrator;

use crate::error::CalibError;
use crate::histogram::Histogram;

mod entropy;
mod mse;

/// The range that `calibrator` chooses for 8-bit codes. It is 0 if all values are zero, or if the percentile
/// falls on an exact zero.
///
/// # Errors
/// [`CalibError::Empty`] if the histogram has no value.
pub fn amax(histogram: &Histogram, calibrator: Calibrator) -> Result<f32, CalibError> {
    amax_for_codes(histogram, calibrator, 127)
}

/// The range that `calibrator` chooses for codes in `[-largest_code, largest_code]`. It is 0 in the cases of
/// [`amax`].
///
/// # Errors
/// [`CalibError::Empty`] if the histogram has no value.
///
/// # Panics
/// If `largest_code` is 0.
pub fn amax_for_codes(
    histogram: &Histogram,
    calibrator: Calibrator,
    largest_code: u8,
) -> Result<f32, CalibError> {
    assert!(largest_code > 0, "the largest code must not be 0");
    if histogram.is_empty() {
        return Err(CalibError::Empty);
    }
    Ok(match calibrator {
        _ if histogram.max() == 0.0 => 0.0,
        Calibrator::Max => histogram.max(),
        Calibrator::Percentile(p) => percentile(histogram, p),
        Calibrator::Mse => mse::amax(histogram, largest_code),
        Calibrator::Entropy => entropy::amax(histogram, largest_code),
    })
}

/// The percentile calibrator; `p` is in percent.
fn percentile(histogram: &Histogram, p: f64) -> f32 {
    let rank = ((histogram.count() - 1) as f64 * (p / 100.0)).ceil() as u64;
    if rank < histogram.zeros() {
        return 0.0;
    }
    let mut cumulative = 0;
    let bin = histogram.counts().iter().position(|n| {
        cumulative += n;
        cumulative > rank
    });
    bin.map_or(histogram.max(), |bin| histogram.upper_edge(bin))
}
