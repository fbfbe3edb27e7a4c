//! Normalisation to length 1, as cosine attention needs it (Liu et al., "Swin Transformer V2", CVPR 2022).

use super::{fma, fold};

/// The smallest length that a vector is divided by.
pub const SHORTEST: f32 = 1e-12;

/// The factor that normalises `x`: the reciprocal of its length, or `1e12` for shorter vectors than
/// [`SHORTEST`].
///
/// ```text
/// s[i] = sum of x[j]^2 over j = i mod 16      f32, one fused multiply-add for each j, ascending from s[i] = 0
/// length = sqrt(fold(s))
/// factor = 1 / length                         1 / SHORTEST where length < SHORTEST
/// ```
/// Every operation is rounded to f32. A NaN in `x` makes the factor a NaN; if the sum overflows, it is 0.
#[inline(always)]
pub fn inverse_length(x: &[f32]) -> f32 {
    let mut sums = [0.0f32; 16];
    for part in x.chunks(16) {
        for (sum, &x) in sums.iter_mut().zip(part) {
            *sum = fma(x, x, *sum);
        }
    }
    let length = fold(sums).sqrt();
    1.0 / if length < SHORTEST { SHORTEST } else { length }
}

/// Normalises `x`, the queries or the keys of one token and head: each value times [`inverse_length`]. Zeros
/// stay zeros.
#[inline(always)]
pub fn normalize(x: &mut [f32]) {
    let factor = inverse_length(x);
    x.iter_mut().for_each(|x| *x *= factor);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_have_length_one_up_to_rounding() {
        for d in [1, 7, 16, 24, 32, 33, 64] {
            let x: Vec<f32> = (0..d).map(|i| ((i * 37 % 23) as f32 - 11.3) * 3.7e3).collect();
            let mut y = x.clone();
            normalize(&mut y);
            let exact = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
            for (x, y) in x.iter().zip(&y) {
                let error = (f64::from(*y) - f64::from(*x) / exact).abs();
                assert!(error <= 3.0 * f64::from(f32::EPSILON) * f64::from(y.abs()), "{d}: {error}");
            }
        }
    }

    #[test]
    fn short_vectors_and_bad_values_are_defined() {
        let of = |mut x: Vec<f32>| {
            normalize(&mut x);
            x
        };
        assert_eq!(of(vec![0.0, -0.0]), [0.0, 0.0]);
        assert_eq!(of(vec![3e-13, 0.0]), [3e-13 * 1e12, 0.0]);
        let short = of(vec![3e-11, 4e-11]);
        assert!((short[0] - 0.6).abs() < 1e-6 && (short[1] - 0.8).abs() < 1e-6, "{short:?}");
        assert_eq!(of(vec![1e30, 1.0]), [0.0, 0.0]);
        assert!(of(vec![f32::NAN, 1.0]).iter().all(|x| x.is_nan()));
    }
}
