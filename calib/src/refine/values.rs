//! Migration of outlier channels of the values, through attention, into the projection.
//!
//! The rows of attention probabilities sum to 1, so the output of attention follows any factors `m[j] > 0`
//! and shifts `c[j]` of the channels of the values. With the value rows `W_v`, `b_v` of `attn.qkv` and the
//! projection `W`, `b`
//!
//! ```text
//! W_v'[j] = W_v[j] / m[j]          b_v'[j] = (b_v[j] - c[j]) / m[j]          W'[i][j] = W[i][j] m[j]
//! b'[i] = b[i] + sum over j of W[i][j] c[j]
//! ```
//! gives the same output of the projection. Padded tokens keep it, because their values are `b_v`.

use candle_core::Tensor;
use rayon::prelude::*;
use swinq_model::{HostTensor, SiteSpec};

use super::attention::{float_error, mix, probabilities, split};
use super::layer::{Codes, column_magnitudes, column_squares, diagonal_range, mean_square, product};
use super::norm::{STRENGTHS, factors, means};
use super::sample::{ChannelMap, Rows, Windows};
use crate::channels::fold_factors;
use crate::error::CalibError;
use crate::weight::{quantize_by_scales, weight_scales};

/// The sampled attention of a block, and the projection after it.
pub struct ValuePath<'a> {
    /// The windows.
    pub windows: &'a Windows,
    /// The input of the projection.
    pub mixed: &'a Rows,
    /// The projection's weight.
    pub weight: &'a HostTensor,
    /// The setting of the projection's weight.
    pub spec: &'a SiteSpec,
    /// Whether the values' site is on.
    pub values_on: bool,
    /// Whether there is a bias to take a shift.
    pub may_shift: bool,
}

/// The ranges of a map: of the values, and of the projection's input.
#[derive(Clone, Copy, Debug)]
pub struct Ranges {
    /// Range of `attn.v`.
    pub values: f32,
    /// Range of the projection's input.
    pub mixed: f32,
}

impl ValuePath<'_> {
    /// The map with the least error at the projection's output on the windows to fit, its ranges, and its
    /// error on the windows held out; and the held-out error without a map, with the ranges `basic`.
    pub fn best_map(&self, basic: Ranges) -> Result<(ChannelMap, Ranges, f64, f64), CalibError> {
        let width = self.mixed.width;
        let probs = self.probabilities()?;
        let values = &self.windows.qkv[2];
        let fitted = self.judge(&probs, true)?;
        let thin = Thin { values: values.thin(8), mixed: self.mixed.thin(4) };
        let mut best: Option<(f64, ChannelMap, Ranges)> = None;
        let shifts = [Some(vec![0.0; width]), self.may_shift.then(|| means(&values.fit, width))];
        for shift in shifts.into_iter().flatten() {
            let reach = ChannelMap::magnitudes(values, &shift);
            let magnitudes = column_magnitudes(&self.weight.data, width);
            for strength in STRENGTHS {
                let map = ChannelMap { factor: factors(&reach, &magnitudes, strength), shift: shift.clone() };
                let ranges = self.ranges(&map, &thin);
                let error = fitted.error(self, &map, ranges)?;
                if best.as_ref().is_none_or(|(least, ..)| error < *least) {
                    best = Some((error, map, ranges));
                }
            }
        }
        let (_, map, ranges) = best.expect("there is a strength");
        let held = self.judge(&probs, false)?;
        let identity = ChannelMap { shift: vec![0.0; width], factor: vec![1.0; width] };
        let (after, before) = (held.error(self, &map, ranges)?, held.error(self, &identity, basic)?);
        Ok((map, ranges, after, before))
    }

    /// The ranges with the least error for a map, estimated on some rows.
    fn ranges(&self, map: &ChannelMap, thin: &Thin) -> Ranges {
        let width = self.mixed.width;
        let squares = column_squares(&fold_factors(self.weight, &map.factor).data, width);
        let range = |rows: &Rows| {
            let mapped = rows.mapped(map);
            diagonal_range(&Codes::Tensor(1.0), mapped.max(), &mapped.fit, &squares).0
        };
        Ranges { values: range(&thin.values), mixed: range(&thin.mixed) }
    }

    /// The attention probabilities of every window.
    fn probabilities(&self) -> Result<Tensor, CalibError> {
        let [q, k, _] = &self.windows.qkv;
        let all = |rows: &Rows| split(self.windows, [rows.fit.as_slice(), rows.held.as_slice()].concat());
        let probs = || probabilities(self.windows, &all(q)?, &all(k)?, &self.windows.addend);
        probs().map_err(float_error)
    }

    /// The windows to fit, or those held out, with the projection's float output.
    fn judge(&self, probs: &Tensor, fit: bool) -> Result<Judge, CalibError> {
        let values = &self.windows.qkv[2];
        let per_window = self.windows.tokens * self.mixed.width;
        let (first, rows) =
            if fit { (0, &values.fit) } else { (values.fit.len() / per_window, &values.held) };
        let probs = probs.narrow(0, first, rows.len() / per_window).and_then(|p| p.contiguous());
        let probs = probs.map_err(float_error)?;
        let mixed = split(self.windows, rows.clone()).and_then(|values| mix(&probs, &values));
        let mixed = mixed.map_err(float_error)?;
        let y = product(mixed, &self.weight.data, self.mixed.width)?;
        Ok(Judge { probs, values: rows.clone(), y })
    }
}

/// Some rows to fit: of the values, and of the projection's input.
struct Thin {
    values: Rows,
    mixed: Rows,
}

/// Windows, and the output of the projection for them without its bias.
struct Judge {
    probs: Tensor,
    values: Vec<f32>,
    y: Vec<f32>,
}

impl Judge {
    /// The mean squared error of the projection's output with a map and ranges.
    fn error(&self, path: &ValuePath, map: &ChannelMap, ranges: Ranges) -> Result<f64, CalibError> {
        let width = path.mixed.width;
        let mut values = self.values.clone();
        values.par_chunks_exact_mut(width).for_each(|row| map.apply(row));
        if path.values_on {
            values = Codes::Tensor(ranges.values).round(&values, width);
        }
        let mixed = split(path.windows, values).and_then(|values| mix(&self.probs, &values));
        let mixed = Codes::Tensor(ranges.mixed).round(&mixed.map_err(float_error)?, width);
        let weight = fold_factors(path.weight, &map.factor);
        let scales = weight_scales(&weight, path.spec)?;
        let rounded = quantize_by_scales(&weight, scales, path.spec.largest_code()).dequantize();
        let mut output = product(mixed, &rounded.data, width)?;
        let moved = super::norm::moved_to_bias(path.weight, &map.shift);
        let add = |row: &mut [f32]| row.iter_mut().zip(&moved).for_each(|(y, b)| *y += *b as f32);
        output.par_chunks_exact_mut(moved.len()).for_each(add);
        Ok(mean_square(&output, &self.y))
    }
}
