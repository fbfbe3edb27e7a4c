//! The sampled attention of a block, and the choice of the ranges of queries, keys and values by its error.
//!
//! The error is that of the output of attention, where the error of channel `j` counts as often as the
//! squares of column `j` of the projection sum up to, because the projection reads it. Probabilities are
//! exact.

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
    fit: WindowSet<'a>,
    held: WindowSet<'a>,
}

/// The windows to fit to, or those held out.
struct WindowSet<'a> {
    /// Queries, keys and values, `[windows * tokens, channels]`.
    rows: [&'a [f32]; 3],
    /// The same as tensors, in the layout of [`split`].
    qkv: [Tensor; 3],
    /// `[windows, heads, tokens, tokens]`.
    addend: &'a [f32],
    /// The probabilities in float, in the shape of `addend`.
    probs: Tensor,
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
        let [q, k, v] = &windows.qkv;
        let parts = || {
            let fit = WindowSet::new(windows, [&q.fit, &k.fit, &v.fit], fit)?;
            Ok((fit, WindowSet::new(windows, [&q.held, &k.held, &v.held], held)?))
        };
        let (fit, held) = parts().map_err(float_error)?;
        Ok(AttentionPath { windows, squares: column_squares(&proj.data, width), fit, held })
    }

    /// The ranges with the least error on the windows to fit: one site after the other, with the other two in
    /// float. The candidates are the largest magnitude times `2^(-i / 4)`, for `i` in `0..4`, and the range
    /// in `start`. A site that is not free keeps its range.
    pub fn search(
        &self,
        start: [Option<f32>; 3],
        free: [bool; 3],
    ) -> std::result::Result<[Option<f32>; 3], CalibError> {
        let mut found = start;
        for (site, range) in found.iter_mut().enumerate() {
            let Some(basic) = range.filter(|_| free[site]) else { continue };
            let max = f64::from(self.windows.qkv[site].max());
            let candidates = (0..4).map(|i| (max * libm::exp2(-f64::from(i) / 4.0)) as f32).chain([basic]);
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

    fn error(&self, part: &WindowSet<'_>, ranges: [Option<f32>; 3]) -> std::result::Result<f64, CalibError> {
        let width = self.squares.len();
        let rounded = |site: usize| match ranges[site] {
            Some(amax) => split(self.windows, Codes::Tensor(amax).round(part.rows[site], width)),
            None => Ok(part.qkv[site].clone()),
        };
        let output = || {
            let probs = match ranges {
                [None, None, _] => part.probs.clone(),
                _ => probabilities(self.windows, &rounded(0)?, &rounded(1)?, part.addend)?,
            };
            mix(&probs, &rounded(2)?)
        };
        let output = output().map_err(float_error)?;
        let rows = output.chunks_exact(width).zip(part.output.chunks_exact(width));
        let row = |(a, b): (&[f32], &[f32])| {
            let each = a.iter().zip(b).zip(&self.squares);
            each.map(|((a, b), square)| f64::from(a - b).powi(2) * square).sum::<f64>()
        };
        Ok(rows.map(row).sum::<f64>() / (output.len() / width).max(1) as f64)
    }
}

impl<'a> WindowSet<'a> {
    /// The attention of the queries, keys and values `rows`, with `addend` added to the logits.
    fn new(windows: &Windows, rows: [&'a [f32]; 3], addend: &'a [f32]) -> Result<WindowSet<'a>> {
        let [q, k, v] = rows;
        let qkv = [split(windows, q.to_vec())?, split(windows, k.to_vec())?, split(windows, v.to_vec())?];
        let probs = probabilities(windows, &qkv[0], &qkv[1], addend)?;
        let output = mix(&probs, &qkv[2])?;
        Ok(WindowSet { rows, qkv, addend, probs, output })
    }
}

/// The attention probabilities of queries and keys in the layout of [`split`],
/// `[windows, heads, tokens, tokens]`; `addend`, of the same shape, is added to the logits.
pub fn probabilities(windows: &Windows, q: &Tensor, k: &Tensor, addend: &[f32]) -> Result<Tensor> {
    let scores = q.matmul(&k.transpose(2, 3)?.contiguous()?)?;
    let (shape, mut logits) = (scores.shape().clone(), scores.flatten_all()?.to_vec1::<f32>()?);
    let per_head = windows.tokens * windows.tokens;
    let heads = logits.chunks_exact_mut(per_head).zip(addend.chunks_exact(per_head));
    for (index, (logits, addend)) in heads.enumerate() {
        let scale = windows.scales[index % windows.heads];
        logits.iter_mut().zip(addend).for_each(|(logit, addend)| *logit = *logit * scale + addend);
    }
    ops::softmax(&Tensor::from_vec(logits, shape, &Device::Cpu)?)
}

/// Attention of `probs` over `values`, which has the layout of [`split`]: `[windows * tokens, channels]`.
pub fn mix(probs: &Tensor, values: &Tensor) -> Result<Vec<f32>> {
    let mixed = ops::probs_times_values(probs, values)?;
    mixed.transpose(1, 2)?.contiguous()?.flatten_all()?.to_vec1::<f32>()
}

/// `[windows * tokens, channels]` to `[windows, heads, tokens, head_dim]`.
pub fn split(windows: &Windows, rows: Vec<f32>) -> Result<Tensor> {
    let (n, heads, width) = (windows.tokens, windows.heads, windows.qkv[0].width);
    let shape = (rows.len() / (n * width), n, heads, width / heads);
    Tensor::from_vec(rows, shape, &Device::Cpu)?.transpose(1, 2)?.contiguous()
}

/// The error of candle's operations.
pub fn float_error(error: candle_core::Error) -> CalibError {
    CalibError::Float(error.into())
}
