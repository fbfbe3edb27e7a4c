//! The entropy calibrator, as defined in the parent module.

use crate::histogram::Histogram;

/// The range with the least Kullback-Leibler divergence. The histogram's maximum must not be zero.
pub(super) fn amax(histogram: &Histogram, largest_code: u8) -> f32 {
    let mut counts = histogram.counts().to_vec();
    if let [first, second, ..] = counts.as_mut_slice() {
        *first = *second;
    }
    let sums = Sums::new(&counts);
    let groups = usize::from(largest_code) + 1;
    let first = groups.min(sums.bins());
    let (mut best, mut least) = (histogram.max(), f64::INFINITY);
    for bins in (first..=sums.bins()).rev() {
        let divergence = sums.divergence(bins, groups);
        if divergence < least {
            (best, least) = (histogram.upper_edge(bins - 1), divergence);
        }
    }
    best
}

/// Cumulative sums: entry `i` is the sum over the first `i` bins. With them, the divergence of a candidate
/// takes one term per group instead of one per bin.
struct Sums {
    /// Sum of the counts.
    mass: Vec<u64>,
    /// Number of bins that are not empty.
    filled: Vec<u64>,
    /// Sum of `n ln n` over the counts `n`.
    entropy: Vec<f64>,
}

impl Sums {
    fn new(counts: &[u64]) -> Sums {
        let mut sums = Sums { mass: vec![0], filled: vec![0], entropy: vec![0.0] };
        let (mut mass, mut filled, mut entropy) = (0, 0, 0.0);
        for &n in counts {
            mass += n;
            filled += u64::from(n > 0);
            entropy += n_ln_n(n as f64);
            sums.mass.push(mass);
            sums.filled.push(filled);
            sums.entropy.push(entropy);
        }
        sums
    }

    /// Number of bins.
    fn bins(&self) -> usize {
        self.mass.len() - 1
    }

    /// `KL(P || R)` of the candidate that keeps the first `bins` bins. It is infinite if the last of them is
    /// empty and there are counts beyond, which P then adds to a bin that R leaves empty.
    ///
    /// Let `p_j` be the counts of P, `T` their sum, `K` the sum of the first `bins` counts, and `r_j` the
    /// mass of the group of bin `j` divided by its number of filled bins. Then
    /// `KL = (sum_j p_j ln p_j - sum_j p_j ln r_j) / T + ln(K / T)`.
    fn divergence(&self, bins: usize, groups: usize) -> f64 {
        let total = self.mass[self.bins()];
        let kept = self.mass[bins];
        let (beyond, last) = (total - kept, kept - self.mass[bins - 1]);
        if last == 0 && beyond > 0 || kept == 0 {
            return f64::INFINITY;
        }
        let mut sum = self.entropy[bins] - n_ln_n(last as f64) + n_ln_n((last + beyond) as f64);
        let mut start = 0;
        for group in 1..=groups {
            let end = (group * bins).div_ceil(groups);
            let mass = (self.mass[end] - self.mass[start]) as f64;
            let level = mass / (self.filled[end] - self.filled[start]) as f64;
            if mass > 0.0 {
                let extra = if group == groups { beyond as f64 } else { 0.0 };
                sum -= (mass + extra) * libm::log(level);
            }
            start = end;
        }
        sum / total as f64 + libm::log(kept as f64 / total as f64)
    }
}

/// `n ln n`, which is 0 for `n = 0`.
fn n_ln_n(n: f64) -> f64 {
    if n > 0.0 { n * libm::log(n) } else { 0.0 }
}
