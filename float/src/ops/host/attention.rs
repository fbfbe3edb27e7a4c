//! The parts of window attention, for inference and calibration. Each part is a separate pass, because a site
//! may lie between two parts.

use candle_core::{Result, Tensor};
use swinq_kernels::rows_f32;
use swinq_numerics::reference;

use super::{Pass, cpu, each_part, each_row, pool, row, vectorised};
use crate::ops::product::Product;

pub(in crate::ops) fn split_heads(qkv: &Tensor, heads: usize, n: usize) -> Result<Tensor> {
    let (rows, width) = qkv.dims2()?;
    let d = width / 3 / heads;
    let windows = rows / n;
    Pass::new("split_heads", (3, windows, heads, n, d), |arguments: &[&[f32]], out: &mut [f32]| {
        each_row(
            out,
            d,
            #[inline(always)]
            |i, out| {
                let (token, head) = (i % n, i / n % heads);
                let (window, which) = (i / (n * heads) % windows, i / (n * heads * windows));
                let column = (which * heads + head) * d;
                out.copy_from_slice(&arguments[0][(window * n + token) * width + column..][..d]);
            },
        );
    })
    .on(&[qkv])
}

pub(in crate::ops) fn merge_heads(x: &Tensor) -> Result<Tensor> {
    let (windows, heads, n, d) = x.dims4()?;
    Pass::new("merge_heads", (windows * n, heads * d), |arguments: &[&[f32]], out: &mut [f32]| {
        each_row(
            out,
            d,
            #[inline(always)]
            |i, out| {
                let (head, token, window) = (i % heads, i / heads % n, i / (heads * n));
                out.copy_from_slice(row(arguments[0], d, (window * heads + head) * n + token));
            },
        );
    })
    .on(&[x])
}

/// Calls `f(index, matrix, scratch)` for the matrix of every head, which are `size` values of `out`; the
/// heads are spread over the cores.
fn each_head(out: &mut [f32], size: usize, f: impl Fn(usize, &mut [f32], &mut [Vec<f32>; 2]) + Sync) {
    const HEADS: usize = 4;
    pool().run_parts(out, HEADS * size, &|part, out| {
        let mut scratch = [Vec::new(), Vec::new()];
        for (head, out) in out.chunks_exact_mut(size).enumerate() {
            f(HEADS * part + head, out, &mut scratch);
        }
    });
}

pub(in crate::ops) fn scores(q: &Tensor, k: &Tensor) -> Result<Tensor> {
    let (windows, heads, n, d) = q.dims4()?;
    Pass::new("scores", (windows, heads, n, n), |arguments: &[&[f32]], out: &mut [f32]| {
        each_head(out, n * n, |head, out, [packed, _]| {
            let [a, b] = [row(arguments[0], n * d, head), row(arguments[1], n * d, head)];
            pulp::Arch::new().dispatch(Product { a, b, transposed: true, n, k: d, out, packed });
        });
    })
    .on(&[q, k])
}

pub(in crate::ops) fn normalize(x: &Tensor) -> Result<Tensor> {
    let d = x.dim(candle_core::D::Minus1)?;
    Pass::new("normalize", x.shape(), |arguments: &[&[f32]], out: &mut [f32]| {
        each_row(
            out,
            d,
            #[inline(always)]
            |i, out| {
                out.copy_from_slice(row(arguments[0], d, i));
                reference::normalize(out);
            },
        );
    })
    .on(&[x])
}

pub(in crate::ops) fn logits(
    scores: &Tensor,
    scales: &[f32],
    bias: &Tensor,
    mask: Option<&Tensor>,
) -> Result<Tensor> {
    let (_, heads, n, _) = scores.dims4()?;
    let size = n * n;
    let run = |arguments: &[&[f32]], out: &mut [f32]| {
        let [x, bias] = [arguments[0], arguments[1]];
        let mask = arguments.get(2);
        let windows = mask.map_or(1, |mask| mask.len() / size);
        each_row(
            out,
            size,
            #[inline(always)]
            |i, out| {
                let (x, bias) = (row(x, size, i), row(bias, size, i % heads));
                let scale = scales[i % heads % scales.len()];
                out.copy_from_slice(bias);
                if let Some(mask) = mask {
                    for (out, &m) in out.iter_mut().zip(row(mask, size, i / heads % windows)) {
                        *out += m;
                    }
                }
                for (out, &x) in out.iter_mut().zip(x) {
                    *out = x.mul_add(scale, *out);
                }
            },
        );
    };
    let pass = Pass::new("logits", scores.shape(), run);
    match mask {
        Some(mask) => pass.on(&[scores, bias, mask]),
        None => pass.on(&[scores, bias]),
    }
}

/// Multiplies each row of `width` values by the reciprocal of its total.
fn scale_rows(out: &mut [f32], width: usize, totals: &[f32]) {
    vectorised(
        #[inline(always)]
        || {
            for (row, total) in out.chunks_exact_mut(width).zip(totals) {
                let factor = 1.0 / total;
                row.iter_mut().for_each(|x| *x *= factor);
            }
        },
    );
}

/// Softmax over the last dimension.
///
/// # Errors
/// The tensor is not in host memory, or is a scalar.
pub fn softmax(x: &Tensor) -> Result<Tensor> {
    let n = x.dim(candle_core::D::Minus1)?;
    Pass::new("softmax", x.shape(), |arguments: &[&[f32]], out: &mut [f32]| {
        each_part(out, n, |range, out| {
            let mut totals = vec![0.0; out.len() / n];
            out.copy_from_slice(&arguments[0][range]);
            rows_f32::exp_minus_max(cpu(), n, out, &mut totals);
            scale_rows(out, n, &totals);
        });
    })
    .on(&[x])
}

/// `probs` `[windows, heads, n, n]` times `v` `[windows, heads, n, d]`.
///
/// # Errors
/// The tensors are not in host memory, or their shapes do not fit.
pub fn probs_times_values(probs: &Tensor, v: &Tensor) -> Result<Tensor> {
    let (_, _, n, d) = v.dims4()?;
    Pass::new("probs_times_values", v.shape(), |arguments: &[&[f32]], out: &mut [f32]| {
        each_head(out, n * d, |head, out, [packed, _]| {
            let [a, b] = [row(arguments[0], n * n, head), row(arguments[1], n * d, head)];
            pulp::Arch::new().dispatch(Product { a, b, transposed: false, n: d, k: n, out, packed });
        });
    })
    .on(&[probs, v])
}

pub(in crate::ops) fn attend(logits: &Tensor, v: &Tensor) -> Result<Tensor> {
    let (_, _, n, d) = v.dims4()?;
    Pass::new("attend", v.shape(), |arguments: &[&[f32]], out: &mut [f32]| {
        each_head(out, n * d, |head, out, [packed, scratch]| {
            let [x, b] = [row(arguments[0], n * n, head), row(arguments[1], n * d, head)];
            scratch.resize(n * n + n, 0.0);
            let (weights, totals) = scratch.split_at_mut(n * n);
            weights.copy_from_slice(x);
            rows_f32::exp_minus_max(cpu(), n, weights, totals);
            pulp::Arch::new().dispatch(Product { a: weights, b, transposed: false, n: d, k: n, out, packed });
            scale_rows(out, d, totals);
        });
    })
    .on(&[logits, v])
}
