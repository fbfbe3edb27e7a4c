//! Layer normalisation (Ba et al., 2016).

use super::fma;
use crate::quantizer::Quantizer;

/// The three numbers that normalise one row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RowNorm {
    /// The mean.
    pub mean: f32,
    /// `1 / sqrt(var + eps)`.
    pub inverse: f32,
    /// The rounding error of the mean, normalised.
    pub shift: f32,
}

impl RowNorm {
    /// The norm of the row `x`, in f32:
    ///
    /// ```text
    /// mean = sum16(x) / n             d = x - mean, for each element
    /// rest = sum16(d) / n
    /// var  = sum16(d * d) / n         each square and its addition are one fma
    /// inverse = 1 / sqrt(var + eps)
    /// shift = -(rest * inverse)
    /// ```
    /// `sum16` has sixteen partial sums, selected by the index mod 16 and summed in the order of the index
    /// from 0 on; then [`fold`]. `rest` is most of the rounding error of the mean, which would dominate the
    /// errors of rows whose mean is large compared with their spread.
    #[inline]
    pub fn of(x: &[f32], eps: f32) -> RowNorm {
        let count = x.len() as f32;
        let [mut sums, mut rests, mut squares] = [[0.0; 16]; 3];
        x.iter().enumerate().for_each(|(i, x)| sums[i % 16] += x);
        let mean = fold(sums) / count;
        for (i, x) in x.iter().enumerate() {
            let d = x - mean;
            rests[i % 16] += d;
            squares[i % 16] = fma(d, d, squares[i % 16]);
        }
        let variance = fold(squares) / count;
        let inverse = 1.0 / (variance + eps).sqrt();
        RowNorm { mean, inverse, shift: -(fold(rests) / count * inverse) }
    }

    /// `fma(fma(x - mean, inverse, shift), gamma, beta)`.
    #[inline(always)]
    pub fn apply(self, x: f32, gamma: f32, beta: f32) -> f32 {
        fma(fma(x - self.mean, self.inverse, self.shift), gamma, beta)
    }
}

/// The sum of sixteen partial sums: the upper half is added to the lower, element by element, down to one.
#[inline]
pub fn fold(mut sums: [f32; 16]) -> f32 {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            let upper = sums[i + half];
            sums[i] += upper;
        }
    }
    sums[0]
}

/// `out = (x - mean) / sqrt(var + eps) * gamma + beta` over one row, with the biased variance: the row's
/// [`RowNorm`], applied to each element.
#[inline]
pub fn layer_norm_row(x: &[f32], gamma: &[f32], beta: &[f32], eps: f32, out: &mut [f32]) {
    let norm = RowNorm::of(x, eps);
    for (((o, &x), &gamma), &beta) in out.iter_mut().zip(x).zip(gamma).zip(beta) {
        *o = norm.apply(x, gamma, beta);
    }
}

/// `residual = shortcut.fake(residual) + branch.fake(layer_norm(x))` over one row, where [`layer_norm_row`]
/// defines `layer_norm` and a quantizer that is `None` changes nothing.
#[inline]
pub fn add_layer_norm_row(
    x: &[f32],
    gamma: &[f32],
    beta: &[f32],
    eps: f32,
    [branch, shortcut]: [Option<Quantizer>; 2],
    residual: &mut [f32],
) {
    let fake = |quantizer: Option<Quantizer>, x: f32| quantizer.map_or(x, |quantizer| quantizer.fake(x));
    let norm = RowNorm::of(x, eps);
    for (((held, &x), &gamma), &beta) in residual.iter_mut().zip(x).zip(gamma).zip(beta) {
        *held = fake(shortcut, *held) + fake(branch, norm.apply(x, gamma, beta));
    }
}

/// The mean over the rows of `x`, f32 `[rows, out.len()]`: each column is summed in f32 in the order of the
/// rows, starting from 0, and then divided by their number.
#[inline]
pub fn mean_of_rows(x: &[f32], out: &mut [f32]) {
    out.fill(0.0);
    for row in x.chunks_exact(out.len()) {
        out.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
    }
    let rows = (x.len() / out.len()) as f32;
    out.iter_mut().for_each(|sum| *sum /= rows);
}
