//! The operations as compositions of candle's operations. The tests compare the other families with them.

use candle_core::{D, Result, Tensor};
use swinq_numerics::reference::SHORTEST;

use super::exponential::exp;
use super::{Gather, Norm};
use crate::weights::PositionMlp;

/// `ln 100`.
pub(super) const LARGEST_LOGARITHM: f32 = 4.605_170_2;

pub(super) fn norm(x: &Tensor, norm: &Norm) -> Result<Tensor> {
    let centred = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
    let variance = centred.sqr()?.mean_keepdim(D::Minus1)?;
    let unit = centred.broadcast_div(&(variance + norm.eps)?.sqrt()?)?;
    unit.broadcast_mul(&norm.weight)?.broadcast_add(&norm.bias)
}

pub(super) fn gather(x: &Tensor, gather: &Gather) -> Result<Tensor> {
    let (rows, c) = x.dims2()?;
    let images = rows / gather.source_rows;
    let mut x = x.reshape((images, gather.source_rows, c))?;
    let mut index = gather.index.to_vec();
    if index.contains(&Gather::ABSENT) {
        x = Tensor::cat(&[&x, &x.zeros_like()?.narrow(1, 0, 1)?], 1)?;
        for row in index.iter_mut().filter(|row| **row == Gather::ABSENT) {
            *row = gather.source_rows as u32;
        }
    }
    let index = Tensor::new(index, x.device())?;
    x.contiguous()?.index_select(&index, 1)?.reshape((images * gather.rows(), gather.parts * c))
}

pub(super) fn split_heads(qkv: &Tensor, heads: usize, n: usize) -> Result<Tensor> {
    let (rows, width) = qkv.dims2()?;
    qkv.reshape((rows / n, n, 3, heads, width / 3 / heads))?.permute((2, 0, 3, 1, 4))?.contiguous()
}

pub(super) fn merge_heads(x: &Tensor) -> Result<Tensor> {
    let (windows, heads, n, d) = x.dims4()?;
    x.transpose(1, 2)?.contiguous()?.reshape((windows * n, heads * d))
}

/// `scores * scale + bias + mask`, with one scale or one for each head.
pub(crate) fn logits(
    scores: &Tensor,
    scales: &[f32],
    bias: &Tensor,
    mask: Option<&Tensor>,
) -> Result<Tensor> {
    let scaled = if scales.iter().all(|scale| *scale == scales[0]) {
        (scores * f64::from(scales[0]))?
    } else {
        scores.broadcast_mul(&Tensor::from_slice(scales, (scales.len(), 1, 1), scores.device())?)?
    };
    add_bias_and_mask(&scaled, bias, mask)
}

/// `scores + bias + mask`.
pub(crate) fn add_bias_and_mask(scores: &Tensor, bias: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
    let (all, heads, n, _) = scores.dims4()?;
    let logits = scores.broadcast_add(bias)?;
    let Some(mask) = mask else { return Ok(logits) };
    let windows = mask.dim(0)?;
    logits
        .reshape((all / windows, windows, heads, n, n))?
        .broadcast_add(&mask.unsqueeze(1)?)?
        .reshape((all, heads, n, n))
}

/// The reciprocals of the lengths of the vectors of the last dimension, which keeps size 1.
pub(super) fn inverse_lengths(x: &Tensor) -> Result<Tensor> {
    // The square root of 0 has no gradient, so the shortest length is enforced before it.
    x.sqr()?.sum_keepdim(D::Minus1)?.maximum(SHORTEST * SHORTEST)?.sqrt()?.recip()
}

pub(super) fn normalize(x: &Tensor) -> Result<Tensor> {
    x.broadcast_mul(&inverse_lengths(x)?)
}

/// The factors of `q k^T` in Swin V2, from their logarithms `[heads, 1, 1]`: at most 100.
pub(crate) fn clamped_exp(logarithms: &Tensor) -> Result<Tensor> {
    exp(&logarithms.minimum(LARGEST_LOGARITHM)?)
}

/// The hidden layer of the MLP of relative positions, `[rows, 512]`.
pub(super) fn hidden_positions(coordinates: &Tensor, mlp: &PositionMlp) -> Result<Tensor> {
    coordinates.matmul(&mlp.weight.t()?.contiguous()?)?.broadcast_add(&mlp.bias)?.relu()
}

/// `16 sigmoid(x)`.
pub(super) fn bounded(x: &Tensor) -> Result<Tensor> {
    (exp(&x.neg()?)? + 1.0)?.recip()? * 16.0
}

/// `q k^T`: twice `[windows, heads, n, d]` to `[windows, heads, n, n]`.
pub(crate) fn scores(q: &Tensor, k: &Tensor) -> Result<Tensor> {
    q.contiguous()?.matmul(&k.t()?.contiguous()?)
}

/// `probs` `[windows, heads, n, n]` times `v` `[windows, heads, n, d]`.
pub(crate) fn probs_times_values(probs: &Tensor, v: &Tensor) -> Result<Tensor> {
    probs.contiguous()?.matmul(&v.contiguous()?)
}

/// Rounds to whole numbers, ties to even; magnitudes must be at most 2^22. Adding 1.5 * 2^23 leaves no
/// fractional bits, so the addition rounds as IEEE 754 defines, and the subtraction is exact. These are two
/// operations of candle: a compiler that saw both might remove them.
pub(crate) fn round_ties_even(x: &Tensor) -> Result<Tensor> {
    const ROUNDER: f64 = 12_582_912.0;
    (x + ROUNDER)? - ROUNDER
}

pub(super) fn softmax(x: &Tensor) -> Result<Tensor> {
    candle_nn::ops::softmax(x, D::Minus1)
}

pub(super) fn attend(logits: &Tensor, v: &Tensor) -> Result<Tensor> {
    probs_times_values(&softmax(logits)?, v)
}
