//! Rounding of weights by the error of the layer's output, and correction of its bias.
//!
//! A layer computes `y = W x + b`. When it is rounded, its input is `x` as the quantized network before it
//! produces it, and its product should return the target `t`, the product of the float network on the same
//! images. With `m` and `n` the means of `x` and `t`, `H` the covariance of `x`, and `C` that of `t` with
//! `x`, the mean squared error of a rounded weight `V` with the bias `b + n - V m` is
//!
//! ```text
//! E|V x + n - V m - t|^2 = tr (V - W') H (V - W')^T + constant,       W' = C H^-1
//! ```
//!
//! To keep `V` close to `W` where the images say little, `lambda |V - W|^2` is added, so that `H` becomes
//! `H + lambda I` and `W'` becomes `(C + lambda W) (H + lambda I)^-1`. `lambda` is a fraction of the mean of
//! the diagonal of `H`. A layer without bias cannot correct means: there `H` and `C` are taken around zero.
//!
//! The codes that minimise this error are searched by successive rounding (GPTQ; Frantar et al. 2022) for
//! each of a list of scales, then by coordinate descent. The target of the whole float network on the input
//! of the quantized one is that of asymmetric calibration (GPTAQ; Li et al. 2025).

mod algebra;
mod codes;
mod moments;

use candle_core::Result;
use rayon::prelude::*;
use swinq_model::quantized::Int8Weight;
use swinq_model::{Granularity, HostTensor, SiteSpec};

use crate::error::CalibError;
use crate::weight::weight_scales;
use algebra::{Cholesky, TILE};
use codes::{QuadraticForm, Square, Tile};

pub use moments::{Moments, Statistics};

/// Settings of the search for codes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundingOptions {
    /// `lambda` as a fraction of the mean of the diagonal of `H`. Positive.
    pub damping: f64,
    /// Most sweeps of coordinate descent, before and after the scales are fitted.
    pub sweeps: usize,
}

impl Default for RoundingOptions {
    fn default() -> RoundingOptions {
        RoundingOptions { damping: 0.01, sweeps: 10 }
    }
}

/// A layer with chosen codes.
#[derive(Clone, Debug, PartialEq)]
pub struct Rounded {
    /// The codes and scales.
    pub weight: Int8Weight,
    /// The corrected bias, if the layer has one.
    pub bias: Option<Vec<f32>>,
}

/// Chooses the codes, scales and bias of the layer with `weight` (output channels first) and `bias`, for the
/// settings `spec` of its weight's site. `statistics` are those of its input `x` and of its target `t`,
/// without the bias.
///
/// By the error of the module's documentation, no output channel (with one scale for the tensor: no layer) is
/// worse than with the codes nearest to its weights and the corrected bias.
///
/// # Errors
/// The errors of [`weight_scales`], and [`CalibError::NotFinite`] if statistics are not finite.
///
/// # Panics
/// If the statistics are those of a layer of another size, or the damping is not positive.
pub fn round(
    weight: &HostTensor,
    bias: Option<&[f32]>,
    spec: &SiteSpec,
    statistics: &Statistics,
    options: RoundingOptions,
) -> std::result::Result<Rounded, CalibError> {
    let (channels, k) = weight.matrix();
    assert!(statistics.xx.len() == k * k && statistics.tx.len() == channels * k, "statistics of this layer");
    assert!(options.damping > 0.0, "the damping is positive");
    let scales = weight_scales(weight, spec)?;
    let problem = Problem::new(weight, statistics, bias.is_some(), options)?;
    let search = Search { problem: &problem, spec, sweeps: options.sweeps };
    let (codes, scales) = search.run(&scales)?;
    let weight =
        Int8Weight { shape: weight.shape.clone(), codes: problem.in_order_of_weight(&codes), scales };
    let bias = bias.map(|bias| corrected_bias(&weight, bias, statistics));
    Ok(Rounded { weight, bias })
}

/// The bias `b + n - V m`.
fn corrected_bias(weight: &Int8Weight, bias: &[f32], statistics: &Statistics) -> Vec<f32> {
    let (_, k) = weight.matrix();
    let correct = |(channel, bias): (usize, &f32)| {
        let codes = &weight.codes[channel * k..][..k];
        let product: f64 = codes.iter().zip(&statistics.x_mean).map(|(&q, m)| f64::from(q) * m).sum();
        let product = product * f64::from(weight.scale(channel));
        (f64::from(*bias) + statistics.t_mean[channel] - product) as f32
    };
    bias.iter().enumerate().map(correct).collect()
}

/// The quadratic form and the targets of a layer, with columns in ascending order of the diagonal of `H`.
/// Columns are decided from the last to the first, so the columns whose rounding costs most can be made up
/// for by all others.
struct Problem {
    form: QuadraticForm,
    /// `W'`, `[channels, k]`.
    targets: Vec<f32>,
    /// `W`, `[channels, k]`.
    weights: Vec<f32>,
    /// The weight's column at each place of the order.
    order: Vec<usize>,
}

impl Problem {
    fn new(
        weight: &HostTensor,
        statistics: &Statistics,
        centered: bool,
        options: RoundingOptions,
    ) -> std::result::Result<Problem, CalibError> {
        let (channels, k) = weight.matrix();
        let mean = |i: usize| if centered { 0.0 } else { statistics.x_mean[i] };
        let entry = |i: usize, j: usize| statistics.xx[i.max(j) * k + i.min(j)] + mean(i) * mean(j);
        let trace: f64 = (0..k).map(|i| entry(i, i)).sum();
        let lambda = if trace > 0.0 { options.damping * trace / k as f64 } else { 1.0 };
        let mut order: Vec<usize> = (0..k).collect();
        order.sort_by(|&a, &b| entry(a, a).total_cmp(&entry(b, b)).then(a.cmp(&b)));

        let damped = |(i, j): (usize, usize)| entry(order[i], order[j]) + if i == j { lambda } else { 0.0 };
        let matrix: Vec<f64> = (0..k * k).into_par_iter().map(|at| damped((at / k, at % k))).collect();
        let target = |(channel, i): (usize, usize)| {
            let column = order[i];
            let mean_product = if centered { 0.0 } else { statistics.t_mean[channel] * mean(column) };
            let at = channel * k + column;
            statistics.tx[at] + mean_product + lambda * f64::from(weight.data[at])
        };
        let mut targets: Vec<f64> =
            (0..channels * k).into_par_iter().map(|at| target((at / k, at % k))).collect();
        let not_finite = || CalibError::NotFinite { value: f32::NAN, index: 0 };
        let form_matrix = Square::new(matrix.par_iter().map(|&v| v as f32).collect(), k)?;
        let factor = Cholesky::new(matrix, k)?.ok_or_else(not_finite)?;
        factor.solve_rows(&mut targets)?;
        if let Some(index) = targets.iter().position(|t| !t.is_finite()) {
            return Err(CalibError::NotFinite { value: targets[index] as f32, index });
        }
        let lower = Square::new(factor.lower.into_par_iter().map(|l| l as f32).collect(), k)?;
        let form = QuadraticForm { k, matrix: form_matrix, lower };
        let weights = (0..channels * k).map(|at| weight.data[at / k * k + order[at % k]]).collect();
        Ok(Problem { form, targets: targets.into_iter().map(|t| t as f32).collect(), weights, order })
    }

    /// Codes in the order of the weight's columns.
    fn in_order_of_weight(&self, codes: &[f32]) -> Vec<i8> {
        let mut result = vec![0; codes.len()];
        for (result, codes) in result.chunks_exact_mut(self.form.k).zip(codes.chunks_exact(self.form.k)) {
            self.order.iter().zip(codes).for_each(|(&column, &code)| result[column] = code as i8);
        }
        result
    }
}

/// The search for scales and codes.
struct Search<'a> {
    problem: &'a Problem,
    spec: &'a SiteSpec,
    sweeps: usize,
}

/// The scales to try, as fractions of the scale of the weight's calibrator.
fn fractions(bits: u8) -> Vec<f32> {
    let (lowest, steps) = if bits == 4 { (0.4, 13) } else { (0.8, 5) };
    (0..steps).map(|i| 1.0 - (1.0 - lowest) * i as f32 / (steps - 1) as f32).collect()
}

impl Search<'_> {
    /// The best codes, `[channels, k]` in the problem's order, and their scales.
    fn run(&self, scales: &[f32]) -> Result<(Vec<f32>, Vec<f32>)> {
        match self.spec.granularity {
            Granularity::Channel => self.by_channel(scales),
            Granularity::Tensor => self.by_tensor(scales),
        }
    }

    fn limit(&self) -> f32 {
        f32::from(self.spec.largest_code())
    }

    fn by_channel(&self, scales: &[f32]) -> Result<(Vec<f32>, Vec<f32>)> {
        let k = self.problem.form.k;
        let tiles = self.problem.targets.par_chunks(TILE * k).zip(self.problem.weights.par_chunks(TILE * k));
        let tiles = tiles.zip(scales.par_chunks(TILE));
        let found: Vec<Tile> =
            tiles.map(|((t, w), scales)| self.tile_by_channel(t, w, scales)).collect::<Result<_>>()?;
        let scales = found.iter().flat_map(|tile| &tile.scales).copied().collect();
        Ok((found.into_iter().flat_map(|tile| tile.codes).collect(), scales))
    }

    fn tile_by_channel<'a>(&self, targets: &'a [f32], weights: &[f32], scales: &[f32]) -> Result<Tile<'a>> {
        let form = &self.problem.form;
        let nearest = Tile::nearest(weights, scales.to_vec(), self.limit());
        let mut best = Tile { targets, ..nearest };
        let mut least = best.errors(form)?;
        for fraction in fractions(self.spec.bits) {
            let scales = scales.iter().map(|s| s * fraction).collect();
            let (tile, errors) = Tile::successive(form, targets, scales, self.limit())?;
            best.keep_better(&mut least, &tile, &errors);
        }
        for fit in [true, true, false] {
            let mut tile = best.clone();
            tile.descend(form, self.sweeps)?;
            if fit {
                tile.refit(form)?;
            }
            let errors = tile.errors(form)?;
            best.keep_better(&mut least, &tile, &errors);
        }
        Ok(best)
    }

    /// One scale for all channels.
    fn by_tensor(&self, scales: &[f32]) -> Result<(Vec<f32>, Vec<f32>)> {
        let Some(&scale) = scales.first() else { return Ok((Vec::new(), Vec::new())) };
        let nearest = self.tiles(|targets, weights| {
            let channels = targets.len() / self.problem.form.k;
            let tile = Tile::nearest(weights, vec![scale; channels], self.limit());
            let mut tile = Tile { targets, ..tile };
            tile.descend(&self.problem.form, self.sweeps)?;
            Ok(tile)
        })?;
        let mut best = (nearest, scale);
        for fraction in fractions(self.spec.bits) {
            let scale = scale * fraction;
            let found = self.tiles(|targets, _| {
                let scales = vec![scale; targets.len() / self.problem.form.k];
                let (mut tile, _) = Tile::successive(&self.problem.form, targets, scales, self.limit())?;
                tile.descend(&self.problem.form, self.sweeps)?;
                Ok(tile)
            })?;
            if found.1 < best.0.1 {
                best = (found, scale);
            }
        }
        Ok((best.0.0, vec![best.1]))
    }

    /// The codes that `choose` finds for each tile from its targets and weights, and the sum of their errors.
    fn tiles<'a>(
        &'a self,
        choose: impl Fn(&'a [f32], &'a [f32]) -> Result<Tile<'a>> + Sync,
    ) -> Result<(Vec<f32>, f64)> {
        let k = self.problem.form.k;
        let tiles = self.problem.targets.par_chunks(TILE * k).zip(self.problem.weights.par_chunks(TILE * k));
        let found: Vec<Tile> =
            tiles.map(|(targets, weights)| choose(targets, weights)).collect::<Result<_>>()?;
        let mut error = 0.0;
        for tile in &found {
            error += tile.errors(&self.problem.form)?.iter().sum::<f64>();
        }
        Ok((found.into_iter().flat_map(|tile| tile.codes).collect(), error))
    }
}
