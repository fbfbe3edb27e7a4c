//! Layer normalisation (Ba et al., 2016).

/// `out = (x - mean) / sqrt(var + eps) * gamma + beta` over one row, with the biased variance, in two passes with
/// f32 results and f64 sums.
pub fn layer_norm_row(x: &[f32], gamma: &[f32], beta: &[f32], eps: f32, out: &mut [f32]) {
    let n = x.len() as f64;
    let mean = x.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
    let variance = x.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
    let inverse = 1.0 / (variance + f64::from(eps)).sqrt();
    for (((o, &v), &g), &b) in out.iter_mut().zip(x).zip(gamma).zip(beta) {
        *o = ((f64::from(v) - mean) * inverse) as f32 * g + b;
    }
}
