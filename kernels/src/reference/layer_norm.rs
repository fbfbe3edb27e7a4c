//! Layer normalisation (Ba et al., 2016).

use crate::types::Quantizer;

/// The three numbers that normalise one row, computed from its sums.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RowNorm {
    /// The mean, rounded to f32.
    pub mean: f32,
    /// `1 / sqrt(var + eps)`, rounded to f32.
    pub inverse: f32,
    /// The rounding error of the mean, normalised.
    pub shift: f32,
}

impl RowNorm {
    /// The norm of a row of `count` elements with the given sums of them and of their squares.
    ///
    /// ```text
    /// mean = sum / count                  all of this in f64
    /// var  = max(squares / count - mean * mean, 0)
    /// inverse = 1 / sqrt(var + eps)
    /// shift = (f32(mean) - mean) * inverse
    /// ```
    /// Squares of f32 are exact in f64, so the difference loses less than rounding the mean to f32 would.
    #[inline(always)]
    pub fn new([sum, squares]: [f64; 2], count: usize, eps: f32) -> RowNorm {
        let count = count as f64;
        let mean = sum / count;
        let variance = (squares / count - mean * mean).max(0.0);
        let inverse = 1.0 / (variance + f64::from(eps)).sqrt();
        let rounded = mean as f32;
        let shift = ((f64::from(rounded) - mean) * inverse) as f32;
        RowNorm { mean: rounded, inverse: inverse as f32, shift }
    }

    /// `fma(fma(x - mean, inverse, shift), gamma, beta)`, in f32.
    #[inline(always)]
    pub fn apply(self, x: f32, gamma: f32, beta: f32) -> f32 {
        (x - self.mean).mul_add(self.inverse, self.shift).mul_add(gamma, beta)
    }
}

/// The sums of `x` and of its squares in f64: sixteen partial sums each, selected by the index mod 16 and
/// summed in the order of the index with one rounding per element; then [`fold`].
pub fn moments(x: &[f32]) -> [f64; 2] {
    let (mut sums, mut squares) = ([0.0; 16], [0.0; 16]);
    for (i, &x) in x.iter().enumerate() {
        let x = f64::from(x);
        sums[i % 16] += x;
        // The product is exact, so this rounds once, as a fused multiply-add does.
        squares[i % 16] += x * x;
    }
    [fold(sums), fold(squares)]
}

/// The sum of sixteen partial sums: the upper half is added to the lower, element by element, down to one.
pub fn fold<T: Copy + std::ops::AddAssign>(mut sums: [T; 16]) -> T {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            let upper = sums[i + half];
            sums[i] += upper;
        }
    }
    sums[0]
}

/// `out = (x - mean) / sqrt(var + eps) * gamma + beta` over one row, with the biased variance: [`RowNorm`] of
/// the row's [`moments`], applied to each element.
pub fn layer_norm_row(x: &[f32], gamma: &[f32], beta: &[f32], eps: f32, out: &mut [f32]) {
    let norm = RowNorm::new(moments(x), x.len(), eps);
    for (((o, &x), &gamma), &beta) in out.iter_mut().zip(x).zip(gamma).zip(beta) {
        *o = norm.apply(x, gamma, beta);
    }
}

/// `stream = shortcut.fake(stream) + branch.fake(layer_norm(x))` over one row, where [`layer_norm_row`]
/// defines `layer_norm` and a quantizer that is `None` changes nothing.
pub fn add_layer_norm_row(
    x: &[f32],
    gamma: &[f32],
    beta: &[f32],
    eps: f32,
    [branch, shortcut]: [Option<Quantizer>; 2],
    stream: &mut [f32],
) {
    let fake = |quantizer: Option<Quantizer>, x: f32| quantizer.map_or(x, |quantizer| quantizer.fake(x));
    let norm = RowNorm::new(moments(x), x.len(), eps);
    for (((held, &x), &gamma), &beta) in stream.iter_mut().zip(x).zip(gamma).zip(beta) {
        *held = fake(shortcut, *held) + fake(branch, norm.apply(x, gamma, beta));
    }
}

/// The mean over the rows of `x`, f32 `[rows, out.len()]`: each column is summed in f32 in the order of the
/// rows, starting from 0, and then divided by their number.
pub fn mean_of_rows(x: &[f32], out: &mut [f32]) {
    out.fill(0.0);
    for row in x.chunks_exact(out.len()) {
        out.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
    }
    let rows = (x.len() / out.len()) as f32;
    out.iter_mut().for_each(|sum| *sum /= rows);
}
