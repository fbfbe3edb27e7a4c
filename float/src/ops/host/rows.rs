//! Operations on rows: LayerNorm, gathers, sums, GELU.

use candle_core::{Result, Tensor};
use swinq_kernels::rows_f32;
use swinq_numerics::reference;

use super::{Pass, cpu, each_part, each_row, row};
use crate::ops::{Gather, Norm};

pub(in crate::ops) fn norm(x: &Tensor, norm: &Norm) -> Result<Tensor> {
    let (_, c) = x.dims2()?;
    let eps = norm.eps as f32;
    Pass::new("layer_norm", x.shape(), |arguments: &[&[f32]], out: &mut [f32]| {
        let [x, weight, bias] = [arguments[0], arguments[1], arguments[2]];
        each_part(out, c, |range, out| rows_f32::layer_norm(cpu(), &x[range], weight, bias, eps, out));
    })
    .on(&[x, &norm.weight, &norm.bias])
}

/// The source row of output row `i`, both counted over all images; `None` if it is absent.
#[inline(always)]
fn source(gather: &Gather, i: usize) -> Option<usize> {
    let per_image = gather.index.len();
    let source = gather.index[i % per_image];
    (source != Gather::ABSENT).then(|| i / per_image * gather.source_rows + source as usize)
}

pub(in crate::ops) fn norm_then_gather(x: &Tensor, norm: &Norm, gather: &Gather) -> Result<Tensor> {
    let (rows, c) = x.dims2()?;
    let eps = norm.eps as f32;
    let shape = (rows / gather.source_rows * gather.rows(), c);
    Pass::new("layer_norm_gather", shape, |arguments: &[&[f32]], out: &mut [f32]| {
        let [x, weight, bias] = [arguments[0], arguments[1], arguments[2]];
        each_part(out, c, |range, out| {
            for (i, out) in out.chunks_exact_mut(c).enumerate() {
                if let Some(from) = source(gather, range.start / c + i) {
                    rows_f32::layer_norm(cpu(), row(x, c, from), weight, bias, eps, out);
                }
            }
        });
    })
    .on(&[x, &norm.weight, &norm.bias])
}

pub(in crate::ops) fn gather(x: &Tensor, gather: &Gather) -> Result<Tensor> {
    let (rows, c) = x.dims2()?;
    let shape = (rows / gather.source_rows * gather.rows(), gather.parts * c);
    Pass::new("gather", shape, |arguments: &[&[f32]], out: &mut [f32]| {
        each_row(
            out,
            c,
            #[inline(always)]
            |i, out| {
                if let Some(from) = source(gather, i) {
                    out.copy_from_slice(row(arguments[0], c, from));
                }
            },
        );
    })
    .on(&[x])
}

#[inline(always)]
fn add_row(x: &[f32], y: &[f32], out: &mut [f32]) {
    for ((out, &x), &y) in out.iter_mut().zip(x).zip(y) {
        *out = x + y;
    }
}

pub(in crate::ops) fn mean_rows(x: &Tensor, images: usize) -> Result<Tensor> {
    let (rows, c) = x.dims2()?;
    let size = rows / images * c;
    Pass::new("mean_rows", (images, c), |arguments: &[&[f32]], out: &mut [f32]| {
        for (out, x) in out.chunks_exact_mut(c).zip(arguments[0].chunks_exact(size)) {
            reference::mean_of_rows(x, out);
        }
    })
    .on(&[x])
}

pub(in crate::ops) fn add_bias(x: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let (_, c) = x.dims2()?;
    Pass::new("add_bias", x.shape(), |arguments: &[&[f32]], out: &mut [f32]| {
        each_row(
            out,
            c,
            #[inline(always)]
            |i, out| add_row(row(arguments[0], c, i), arguments[1], out),
        );
    })
    .on(&[x, bias])
}

pub(in crate::ops) fn gelu(x: &Tensor) -> Result<Tensor> {
    let (_, c) = x.dims2()?;
    Pass::new("gelu", x.shape(), |arguments: &[&[f32]], out: &mut [f32]| {
        each_part(out, c, |range, out| {
            out.copy_from_slice(&arguments[0][range]);
            rows_f32::gelu(cpu(), out);
        });
    })
    .on(&[x])
}

pub(in crate::ops) fn add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (_, c) = a.dims2()?;
    Pass::new("add", a.shape(), |arguments: &[&[f32]], out: &mut [f32]| {
        each_row(
            out,
            c,
            #[inline(always)]
            |i, out| add_row(row(arguments[0], c, i), row(arguments[1], c, i), out),
        );
    })
    .on(&[a, b])
}
