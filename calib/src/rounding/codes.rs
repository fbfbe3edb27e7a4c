//! Choice of codes for given scales: by the error of the layer's output, for a tile of output channels.
//!
//! The error of channel `c` is `|(q s - t) l|^2`, with codes `q`, scale `s`, target `t` and the Cholesky
//! factor `l` of the matrix of the quadratic form. Columns are in the order of [`QuadraticForm`], in which
//! the last column is decided first.

use std::ops::Range;

use candle_core::{Result, Tensor};

use super::algebra::{blocks, matrix, part, product};
use crate::weight::round;

/// A quadratic form of the differences between rounded weights and targets.
pub(super) struct QuadraticForm {
    /// Number of columns.
    pub k: usize,
    /// The matrix.
    pub matrix: Square,
    /// Its Cholesky factor, lower triangular.
    pub lower: Square,
}

/// A matrix `[k, k]`.
pub(super) struct Square {
    /// Row-major.
    values: Vec<f32>,
    tensor: Tensor,
    k: usize,
}

impl Square {
    pub fn new(values: Vec<f32>, k: usize) -> Result<Square> {
        Ok(Square { tensor: matrix(&values, k, k)?, values, k })
    }

    /// The product of the columns `inner` of `a` `[rows, k]` with the rows `inner` and the columns `columns`
    /// of this matrix.
    fn multiply(&self, a: &[f32], inner: Range<usize>, columns: Range<usize>) -> Result<Vec<f32>> {
        let rows = a.len() / self.k;
        product(
            &part(&matrix(a, rows, self.k)?, 0..rows, inner.clone())?,
            &part(&self.tensor, inner, columns)?,
        )
    }

    /// The values of one row in the given columns.
    fn row(&self, row: usize, columns: &Range<usize>) -> &[f32] {
        &self.values[row * self.k..][columns.clone()]
    }
}

/// The output channels of a tile.
#[derive(Clone)]
pub(super) struct Tile<'a> {
    /// The weights to approximate, `[channels, k]`.
    pub targets: &'a [f32],
    /// Scale of each channel.
    pub scales: Vec<f32>,
    /// The codes, `[channels, k]`; whole numbers.
    pub codes: Vec<f32>,
    /// The largest code.
    pub limit: f32,
}

impl<'a> Tile<'a> {
    /// The codes nearest to the targets.
    pub fn nearest(targets: &'a [f32], scales: Vec<f32>, limit: f32) -> Tile<'a> {
        let k = targets.len() / scales.len();
        let code = |(i, &t): (usize, &f32)| nearest_code(t, scales[i / k], limit);
        let codes = targets.iter().enumerate().map(code).collect();
        Tile { targets, scales, codes, limit }
    }

    /// Successive rounding (GPTQ; Frantar et al. 2022), in the form of Babai's nearest plane: from the last
    /// column to the first, each column is rounded to the code that is best if the columns before it could
    /// take any real value. Returns the codes, and the error of every channel.
    pub fn successive(
        form: &QuadraticForm,
        targets: &'a [f32],
        scales: Vec<f32>,
        limit: f32,
    ) -> Result<(Tile<'a>, Vec<f64>)> {
        let (k, channels) = (form.k, scales.len());
        let mut tile = Tile { targets, scales, codes: vec![0.0; targets.len()], limit };
        let mut deltas = vec![0f32; targets.len()];
        let mut errors = vec![0f64; channels];
        for block in blocks(k).rev() {
            let mut carry = form.lower.multiply(&deltas, block.end..k, block.clone())?;
            for (channel, carry) in carry.chunks_exact_mut(block.len()).enumerate() {
                let delta = &mut deltas[channel * k..][block.clone()];
                errors[channel] += tile.round_block(form, channel, &block, carry, delta);
            }
        }
        Ok((tile, errors))
    }

    /// Rounds the columns `block` of one channel. `carry` is the effect of the columns after the block.
    fn round_block(
        &mut self,
        form: &QuadraticForm,
        channel: usize,
        block: &Range<usize>,
        carry: &mut [f32],
        delta: &mut [f32],
    ) -> f64 {
        let (scale, first, mut error) = (self.scales[channel], block.start, 0.0);
        for column in block.clone().rev() {
            let row = form.lower.row(column, block);
            let (here, at) = (column - first, channel * form.k + column);
            let (carried, diagonal, target) = (carry[here], row[here], self.targets[at]);
            let code = nearest_code(target - carried / diagonal, scale, self.limit);
            delta[here] = code * scale - target;
            self.codes[at] = code;
            error += f64::from(delta[here] * diagonal + carried).powi(2);
            carry[..here].iter_mut().zip(row).for_each(|(carry, l)| *carry += delta[here] * l);
        }
        error
    }

    /// Coordinate descent: sweeps over the columns and sets each code to the best one for the present codes
    /// of all other columns, until no code changes or `sweeps` are done.
    pub fn descend(&mut self, form: &QuadraticForm, sweeps: usize) -> Result<()> {
        let k = form.k;
        let mut deltas = self.deltas(k);
        for _ in 0..sweeps {
            let mut changed = false;
            for block in blocks(k).rev() {
                let mut gradient = form.matrix.multiply(&deltas, 0..k, block.clone())?;
                for (channel, gradient) in gradient.chunks_exact_mut(block.len()).enumerate() {
                    let delta = &mut deltas[channel * k..][block.clone()];
                    changed |= self.descend_block(form, channel, &block, gradient, delta);
                }
            }
            if !changed {
                break;
            }
        }
        Ok(())
    }

    /// One sweep over the columns `block` of one channel. `gradient` is `delta` times the matrix.
    fn descend_block(
        &mut self,
        form: &QuadraticForm,
        channel: usize,
        block: &Range<usize>,
        gradient: &mut [f32],
        delta: &mut [f32],
    ) -> bool {
        let (scale, mut changed) = (self.scales[channel], false);
        for column in block.clone().rev() {
            let row = form.matrix.row(column, block);
            let (here, at) = (column - block.start, channel * form.k + column);
            let old = self.codes[at];
            let code = nearest_code(old * scale - gradient[here] / row[here], scale, self.limit);
            if code != old {
                let step = (code - old) * scale;
                changed = true;
                self.codes[at] = code;
                delta[here] = code * scale - self.targets[at];
                gradient.iter_mut().zip(row).for_each(|(gradient, h)| *gradient += step * h);
            }
        }
        changed
    }

    /// The scales with the least error for the present codes. A scale that would not be positive stays.
    pub fn refit(&mut self, form: &QuadraticForm) -> Result<()> {
        let k = form.k;
        let products = form.matrix.multiply(&self.codes, 0..k, 0..k)?;
        let rows = self.codes.chunks_exact(k).zip(self.targets.chunks_exact(k)).zip(products.chunks_exact(k));
        for (scale, ((codes, targets), products)) in self.scales.iter_mut().zip(rows) {
            let best = (dot(products, targets) / dot(products, codes)) as f32;
            if best > 0.0 && best.recip().is_finite() {
                *scale = best;
            }
        }
        Ok(())
    }

    /// The error of every channel.
    pub fn errors(&self, form: &QuadraticForm) -> Result<Vec<f64>> {
        let k = form.k;
        let products = form.lower.multiply(&self.deltas(k), 0..k, 0..k)?;
        Ok(products.chunks_exact(k).map(|row| dot(row, row)).collect())
    }

    /// Takes over the channels of `other` whose errors are less than `least`, which are the errors of the
    /// channels here.
    pub fn keep_better(&mut self, least: &mut [f64], other: &Tile, errors: &[f64]) {
        let k = self.codes.len() / self.scales.len();
        for (channel, (least, &error)) in least.iter_mut().zip(errors).enumerate() {
            if error < *least {
                *least = error;
                self.scales[channel] = other.scales[channel];
                let row = channel * k..(channel + 1) * k;
                self.codes[row.clone()].copy_from_slice(&other.codes[row]);
            }
        }
    }

    /// The differences between the rounded weights and the targets.
    fn deltas(&self, k: usize) -> Vec<f32> {
        let pairs = self.codes.iter().zip(self.targets).enumerate();
        pairs.map(|(i, (code, target))| code * self.scales[i / k] - target).collect()
    }
}

fn nearest_code(value: f32, scale: f32, limit: f32) -> f32 {
    round((value / scale).clamp(-limit, limit))
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}
