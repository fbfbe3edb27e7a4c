//! The sampled attention of a block, and the choice of the ranges of queries, keys and values by its error.
//!
//! The error is that of the output of attention, where the error of channel `j` counts as often as the squares of
//! column `j` of the projection sum up to, because the projection reads it. Probabilities are exact.

use candle_core::{Device, Result, Tensor};
use swinq_float::ops;
use swinq_model::HostTensor;

use super::layer::{Codes, column_squares, least};
use super::sample::Windows;
use crate::error::CalibError;

/// The windows of a block, and the weights of the error's channels.
pub struct AttentionPath<'a> {
    windows: &'a Windows,
    squares: Vec<f64>,
    fit: Part,
    held: Part,
}

/// The windows to fit to, or those held out.
struct Part {
    /// Queries, keys and values, `[windows * tokens, channels]`.
    qkv: [Vec<f32>; 3],
    /// `[windows, heads, tokens, tokens]`.
    addend: Vec<f32>,
    /// The output of attention in float, `[windows * tokens, channels]`.
    output: Vec<f32>,
}

impl<'a> AttentionPath<'a> {
    /// The attention of `windows`, followed by a projection of the weight `proj`.
    pub fn new(
        windows: &'a Windows,
        proj: &HostTensor,
    ) -> std::result::Result<AttentionPath<'a>, CalibError> {
        let width = windows.qkv[0].width;
        let held: usize = windows.qkv[0].held.len() / (windows.tokens * width);
        let per_window = windows.heads * windows.tokens * windows.tokens;
        let (fit, held) = windows.addend.split_at(windows.addend.len() - held * per_window);
        let part = |qkv: [&Vec<f32>; 3], addend: &[f32]| -> Result<Part> {
            let qkv = qkv.map(Vec::clone);
            let output = mix(windows, &probabilities(windows, &qkv[0], &qkv[1], addend)?, &qkv[2])?;
            Ok(Part { qkv, addend: addend.to_vec(), output })
        };
        let [q, k, v] = &windows.qkv;
        let parts = || Ok((part([&q.fit, &k.fit, &v.fit], fit)?, part([&q.held, &k.held, &v.held], held)?));
        let (fit, held) = parts().map_err(float_error)?;
        Ok(AttentionPath { windows, squares: column_squares(&proj.data, width), fit, held })
    }

    /// The ranges with the least error on the windows to fit: one site after the other, with the other two in
    /// float. The candidates are the largest magnitude times `2^(-i / 4)`, for `i` in `0..4`, and the range in
    /// `start`. A site that is not free keeps its range.
    pub fn search(
        &self,
        start: [Option<f32>; 3],
        free: [bool; 3],
    ) -> std::result::Result<[Option<f32>; 3], CalibError> {
        let mut found = start;
        for (site, range) in found.iter_mut().enumerate() {
            let Some(basic) = range.filter(|_| free[site]) else { continue };
            let max = f64::from(self.windows.qkv[site].max());
            let candidates = (0..4).map(|i| (max * (-f64::from(i) / 4.0).exp2()) as f32).chain([basic]);
            let mut errors = Vec::new();
            for amax in candidates {
                let mut one = [None; 3];
                one[site] = Some(amax);
                errors.push((amax, self.error(&self.fit, one)?));
            }
            *range = Some(least(errors).0);
        }
        Ok(found)
    }

    /// The error on the windows held out, with these ranges; a site without one is in float.
    pub fn held_error(&self, ranges: [Option<f32>; 3]) -> std::result::Result<f64, CalibError> {
        self.error(&self.held, ranges)
    }

    fn error(&self, part: &Part, ranges: [Option<f32>; 3]) -> std::result::Result<f64, CalibError> {
        let width = self.squares.len();
        let round = |site: usize| match ranges[site] {
            Some(amax) => Codes::Tensor(amax).round(&part.qkv[site], width),
            None => part.qkv[site].clone(),
        };
        let [q, k, v] = [0, 1, 2].map(round);
        let output = || mix(self.windows, &probabilities(self.windows, &q, &k, &part.addend)?, &v);
        let output = output().map_err(float_error)?;
        let rows = output.chunks_exact(width).zip(part.output.chunks_exact(width));
        let row = |(a, b): (&[f32], &[f32])| {
            let each = a.iter().zip(b).zip(&self.squares);
            each.map(|((a, b), square)| f64::from(a - b).powi(2) * square).sum::<f64>()
        };
        Ok(rows.map(row).sum::<f64>() / (output.len() / width).max(1) as f64)
    }
}

/// The attention probabilities of queries and keys `[windows * tokens, channels]`:
/// `[windows, heads, tokens, tokens]`, the shape of `addend`.
pub fn probabilities(windows: &Windows, q: &[f32], k: &[f32], addend: &[f32]) -> Result<Tensor> {
    let (n, heads) = (windows.tokens, windows.heads);
    let (q, k) = (split(windows, q)?, split(windows, k)?);
    let addend = Tensor::from_slice(addend, (q.dim(0)?, heads, n, n), &Device::Cpu)?;
    let scores = q.matmul(&k.transpose(2, 3)?.contiguous()?)?;
    let scaled = match windows.scales.as_slice() {
        [first, rest @ ..] if rest.iter().all(|scale| scale == first) => {
            scores.affine(f64::from(*first), 0.0)?
        }
        scales => scores.broadcast_mul(&Tensor::from_slice(scales, (heads, 1, 1), &Device::Cpu)?)?,
    };
    ops::softmax(&(scaled + addend)?)
}

/// Attention of `probs` over `values` `[windows * tokens, channels]`, in the layout of `values`.
pub fn mix(windows: &Windows, probs: &Tensor, values: &[f32]) -> Result<Vec<f32>> {
    let mixed = ops::probs_times_values(probs, &split(windows, values)?)?;
    mixed.transpose(1, 2)?.contiguous()?.flatten_all()?.to_vec1::<f32>()
}

/// `[windows * tokens, channels]` to `[windows, heads, tokens, head_dim]`.
fn split(windows: &Windows, rows: &[f32]) -> Result<Tensor> {
    let (n, heads, width) = (windows.tokens, windows.heads, windows.qkv[0].width);
    let shape = (rows.len() / (n * width), n, heads, width / heads);
    Tensor::from_slice(rows, shape, &Device::Cpu)?.transpose(1, 2)?.contiguous()
}

/// The error of candle's operations.
pub fn float_error(error: candle_core::Error) -> CalibError {
    CalibError::Float(error.into())
}
