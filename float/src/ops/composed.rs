//! The operations as compositions of candle's operations. The tests compare the other families with them.

use candle_core::{D, Result, Tensor};

use super::{Gather, Norm};

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

/// `scores * scale + bias + mask`.
pub(crate) fn logits(scores: &Tensor, scale: f32, bias: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
    let (all, heads, n, _) = scores.dims4()?;
    let logits = (scores * f64::from(scale))?.broadcast_add(bias)?;
    let Some(mask) = mask else { return Ok(logits) };
    let windows = mask.dim(0)?;
    logits
        .reshape((all / windows, windows, heads, n, n))?
        .broadcast_add(&mask.unsqueeze(1)?)?
        .reshape((all, heads, n, n))
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
    let exponentials = x.broadcast_sub(&x.max_keepdim(D::Minus1)?)?.exp()?;
    exponentials.broadcast_div(&exponentials.sum_keepdim(D::Minus1)?)
}

pub(super) fn attend(logits: &Tensor, v: &Tensor) -> Result<Tensor> {
    probs_times_values(&softmax(logits)?, v)
}
