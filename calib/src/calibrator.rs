//! Calibrators: from a histogram of magnitudes to the range that quantization keeps.
//!
//! With `w` the width of a bin, `n_i` its count, `x_i = (i + 1/2) w` its center, `m` the largest magnitude, `z` the
//! number of exact zeros (which every symmetric scale represents exactly) and `Q` the largest code (127, or 7 for
//! 4 bits):
//!
//! - **max**: `m`, exactly.
//! - **percentile p**: the rank is `k = ceil((n - 1) p / 100)`, from 0, as in numpy's method `higher`. The range is the
//!   upper edge of the bin that holds the value of that rank, or `m` where that is less: at least that value, and above
//!   it by at most `w <= m / 2048`. It is 0 where the value of that rank is exactly zero.
//! - **mse**: the range `a` with the least `sum_i n_i (x_i - s min(Q, round(x_i / s)))^2`, `s = a / Q`, the sum without
//!   the exact zeros. The candidates are the edges `i w`, `i >= 1`, that have at most 8 significant bits (so neighbours
//!   are less than 1/128 apart from `i = 128` on), and `m`. Of equal candidates the largest wins.
//! - **entropy**: the range with the least Kullback-Leibler divergence `KL(P || R)`, over the candidates `i w` for every
//!   `i` from `Q + 1` to the last bin, and `m`. `P` is the histogram up to bin `i`, with everything beyond added to its last
//!   bin; `R` is the same histogram without what is beyond, with the bins in `Q + 1` groups (bin `j` in group
//!   `floor(j (Q + 1) / i)`), the mass of a group spread evenly over its bins that are not empty. Both are normalised to 1.
//!   The count of the first bin, zeros among it, is replaced by that of the second in both: what is nearly zero rounds to
//!   zero whatever the range. Of equal candidates the largest wins.
//!   It compares counts bin by bin, so it needs many more values than bins: on fewer (the channels of most weights) it
//!   tends to choose `m`.
//!
//! The entropy method is Migacz's ("8-bit inference with TensorRT", GTC 2017) in the form that NVIDIA's
//! pytorch-quantization gave it: 128 groups from bin 128 on, the first bin replaced by the second, the last of equal
//! minima.

use swinq_model::Calibrator;

use crate::error::CalibError;
use crate::histogram::Histogram;

mod entropy;
mod mse;

/// The range that `calibrator` chooses for 8-bit codes; 0 where all values it looks at are zero.
///
/// # Errors
/// [`CalibError::Empty`] where the histogram has no value.
pub fn amax(histogram: &Histogram, calibrator: Calibrator) -> Result<f32, CalibError> {
    amax_for_codes(histogram, calibrator, 127)
}

/// The range that `calibrator` chooses for codes in `[-largest_code, largest_code]`; 0 where all values it looks at are
/// zero.
///
/// # Errors
/// [`CalibError::Empty`] where the histogram has no value.
///
/// # Panics
/// Where `largest_code` is 0.
pub fn amax_for_codes(
    histogram: &Histogram,
    calibrator: Calibrator,
    largest_code: u8,
) -> Result<f32, CalibError> {
    assert!(largest_code > 0, "there is no grid without a code");
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

fn percentile(histogram: &Histogram, p: f64) -> f32 {
    let rank = ((histogram.count() - 1) as f64 * (p / 100.0)).ceil() as u64;
    if rank < histogram.zeros() {
        return 0.0;
    }
    let mut below = 0;
    let bin = histogram.counts().iter().position(|n| {
        below += n;
        below > rank
    });
    bin.map_or(histogram.max(), |bin| histogram.upper_edge(bin))
}
