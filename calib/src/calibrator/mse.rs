//! The mse calibrator, as defined in the parent module.

use crate::histogram::Histogram;

/// The range with the least squared quantization error. The histogram's maximum must not be zero.
pub(super) fn amax(histogram: &Histogram, largest_code: u8) -> f32 {
    let mut counts = histogram.counts().to_vec();
    counts[0] -= histogram.zeros();
    let occupied = counts.iter().enumerate().filter(|(_, n)| **n > 0);
    let (centers, weights): (Vec<f64>, Vec<f64>) =
        occupied.map(|(i, &n)| ((i as f64 + 0.5) * histogram.width(), n as f64)).unzip();
    let (mut best, mut least) = (histogram.max(), f64::INFINITY);
    for bin in candidates(counts.len()).rev() {
        let amax = f64::from(histogram.upper_edge(bin));
        // The clipping error alone is a lower bound, and it only grows for the smaller ranges that follow.
        if clipping_error(&centers, &weights, amax) > least {
            break;
        }
        let error = squared_error(&centers, &weights, amax, f64::from(largest_code));
        if error < least {
            (best, least) = (histogram.upper_edge(bin), error);
        }
    }
    best
}

/// The error of clipping: the sum of `weight (x - amax)^2` over the centers `x > amax`.
fn clipping_error(centers: &[f64], weights: &[f64], amax: f64) -> f64 {
    let beyond = centers.partition_point(|x| *x <= amax);
    centers[beyond..].iter().zip(&weights[beyond..]).map(|(x, weight)| weight * (x - amax).powi(2)).sum()
}

/// The bins whose upper edge is a candidate: the last one, and those whose upper edge, in units of the bin
/// width, has at most 8 significant bits.
fn candidates(bins: usize) -> impl DoubleEndedIterator<Item = usize> {
    (1..=bins).filter(move |&edge| edge == bins || (edge >> edge.trailing_zeros()) < 256).map(|edge| edge - 1)
}

/// The quantization error: the sum of `weight (x - s min(Q, round(x / s)))^2` over the centers `x`, with `s =
/// amax / Q`.
fn squared_error(centers: &[f64], weights: &[f64], amax: f64, largest_code: f64) -> f64 {
    // Adding and subtracting 1.5 * 2^52 rounds a small f64 to an integer, ties to even. Every target has
    // vector instructions for that.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    let (scale, inverse) = (amax / largest_code, largest_code / amax);
    let mut sums = [0.0; 4];
    for (centers, weights) in centers.chunks(4).zip(weights.chunks(4)) {
        for ((sum, &x), &weight) in sums.iter_mut().zip(centers).zip(weights) {
            let code = ((x * inverse).min(largest_code) + ROUND) - ROUND;
            let error = x - code * scale;
            *sum += weight * error * error;
        }
    }
    sums.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_candidates_differ_by_at_most_one_128th() {
        let edges: Vec<usize> = candidates(3001).map(|bin| bin + 1).collect();
        assert!(edges.starts_with(&(1..=256).collect::<Vec<_>>()));
        assert_eq!(edges[256..259], [258, 260, 262]);
        assert_eq!(edges[edges.len() - 3..], [2976, 2992, 3001]);
        assert!(edges.windows(2).all(|pair| pair[0] < 128 || (pair[1] - pair[0]) * 128 <= pair[0]));
    }
}
