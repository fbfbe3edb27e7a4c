//! Migration of outlier channels from a norm into the layer that follows it.
//!
//! A norm ends with `x[j] = z[j] gamma[j] + beta[j]`, and only the linear layer `y = W x + b` reads `x`. For
//! any factors `m[j] > 0` and shifts `c[j]`
//!
//! ```text
//! gamma'[j] = gamma[j] / m[j]      beta'[j] = (beta[j] - c[j]) / m[j]      W'[i][j] = W[i][j] m[j]
//! b'[i] = b[i] + sum over j of W[i][j] c[j]
//! ```
//! gives the same `y`, and `x'[j] = (x[j] - c[j]) / m[j]`. The factors are SmoothQuant's (Xiao et al., ICML
//! 2023) and the shifts RepQ-ViT's (Li et al., ICCV 2023):
//!
//! ```text
//! m[j] = max |x[j] - c[j]|^a / (max over i of |W[i][j]|)^(1 - a)       divided by their geometric mean
//! c[j] = 0, or the mean of x[j]
//! ```
//! Their strength `a` is searched for each layer.

use swinq_model::{HostTensor, SiteSpec};

use super::layer::{Codes, channel_squares, column_magnitudes, column_squares, diagonal_range, weight_error};
use super::sample::{ChannelMap, Rows};
use crate::channels::fold_factors;
use crate::error::CalibError;
use crate::weight::weight_scales;

/// The strengths that are tried.
pub const STRENGTHS: [f64; 7] = [0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0];

/// The factors of strength `strength` for channels of the largest magnitudes `x`, which multiply columns of
/// the largest magnitudes `w`. A channel whose magnitude or column is 0 has the factor 1.
pub fn factors(x: &[f32], w: &[f32], strength: f64) -> Vec<f32> {
    let log = |(x, w): (&f32, &f32)| {
        let usable = *x > 0.0 && *w > 0.0 && (x / w).is_normal();
        usable.then(|| strength * libm::log(f64::from(*x)) - (1.0 - strength) * libm::log(f64::from(*w)))
    };
    let logs: Vec<Option<f64>> = x.iter().zip(w).map(log).collect();
    let known: Vec<f64> = logs.iter().copied().flatten().collect();
    let mean = known.iter().sum::<f64>() / known.len().max(1) as f64;
    let factor = |log: f64| libm::exp((log - mean).clamp(-20.0, 20.0)) as f32;
    logs.into_iter().map(|log| log.map_or(1.0, factor)).collect()
}

/// The mean of each channel of `x` `[rows, width]`.
pub fn means(x: &[f32], width: usize) -> Vec<f32> {
    let mut sums = vec![0.0f64; width];
    for row in x.chunks_exact(width) {
        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
    }
    let rows = (x.len() / width).max(1) as f64;
    sums.into_iter().map(|sum| (sum / rows) as f32).collect()
}

/// The map whose estimated error at the output of the layer is least: the sum of the errors that rounding of
/// the input and of the weight causes, with channels taken as independent.
pub fn best_map(
    rows: &Rows,
    weight: &HostTensor,
    spec: &SiteSpec,
    may_shift: bool,
) -> Result<ChannelMap, CalibError> {
    let width = rows.width;
    let thin = rows.thin(4);
    let magnitudes = column_magnitudes(&weight.data, width);
    let mut best: Option<(f64, ChannelMap)> = None;
    let shifts = [Some(vec![0.0; width]), may_shift.then(|| means(&rows.fit, width))];
    for shift in shifts.into_iter().flatten() {
        let reach = ChannelMap::magnitudes(rows, &shift);
        for strength in STRENGTHS {
            let map = ChannelMap { factor: factors(&reach, &magnitudes, strength), shift: shift.clone() };
            let mapped = thin.mapped(&map);
            let weight = fold_factors(weight, &map.factor);
            let squares = column_squares(&weight.data, width);
            let (_, error) = diagonal_range(&Codes::Tensor(1.0), mapped.max(), &mapped.fit, &squares);
            let scales = weight_scales(&weight, spec)?;
            let error = error + weight_error(&weight, &scales, spec, &channel_squares(&mapped.fit, width));
            if best.as_ref().is_none_or(|(least, _)| error < *least) {
                best = Some((error, map));
            }
        }
    }
    Ok(best.expect("there is a strength").1)
}

/// `weight · shift`, for `weight` `[n, width]`, which is added to the layer's bias.
pub fn moved_to_bias(weight: &HostTensor, shift: &[f32]) -> Vec<f64> {
    let row = |row: &[f32]| row.iter().zip(shift).map(|(w, c)| f64::from(*w) * f64::from(*c)).sum();
    weight.data.chunks_exact(shift.len()).map(row).collect()
}
