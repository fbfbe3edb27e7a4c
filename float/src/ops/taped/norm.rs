//! LayerNorm with its backward pass.

use candle_core::{D, Result, Tensor};

#[cfg(feature = "cuda")]
use super::cuda;
use super::host::{GRAIN, add_to, lane_sum, slices, sum_in_order};
use super::moments;
use crate::ops::host::vectorised;
use crate::ops::{Compute, Gather, Norm, Ops, host};
use crate::threads::{map_each, zeros};

impl Ops {
    /// LayerNorm of the rows of `x` `[rows, c]`.
    pub(crate) fn norm(&self, x: &Tensor, norm: &Norm) -> Result<Tensor> {
        let compute = self.compute;
        let out = compute.norm(x, norm)?;
        let (x, norm) = (x.contiguous()?, norm.clone());
        let id = x.clone();
        self.record(&[&id, &norm.weight.clone(), &norm.bias.clone()], &out, move |grad, sink| {
            let [dx, weight, bias] = match compute {
                Compute::Host(_) => on_host(&x, &norm, grad.tensor())?,
                #[cfg(feature = "cuda")]
                Compute::Cuda => cuda::norm_gradient(&x, &norm, grad.tensor())?,
                Compute::Candle => candle_gradient(&x, &norm, grad.tensor())?,
            };
            sink.add(&norm.weight, weight)?;
            sink.add(&norm.bias, bias)?;
            sink.add(&x, dx)
        });
        Ok(out)
    }

    /// LayerNorm, then the gather: `[images * source_rows, c]` to `[images * rows, c]`. Absent rows are zeros
    /// after the norm; `gather.parts` must be 1.
    pub(crate) fn norm_then_gather(&self, x: &Tensor, norm: &Norm, gather: &Gather) -> Result<Tensor> {
        if !self.compute.is_host() {
            return self.gather(&self.norm(x, norm)?, gather);
        }
        let out = host::norm_then_gather(x, norm, gather)?;
        let (x, norm, gather) = (x.contiguous()?, norm.clone(), gather.clone());
        let id = x.clone();
        self.record(&[&id, &norm.weight.clone(), &norm.bias.clone()], &out, move |grad, sink| {
            let grad = host::gather(grad.tensor(), &gather.inverse())?;
            let [dx, weight, bias] = on_host(&x, &norm, &grad)?;
            sink.add(&norm.weight, weight)?;
            sink.add(&norm.bias, bias)?;
            sink.add(&x, dx)
        });
        Ok(out)
    }
}

/// The gradients of `x`, weight and bias:
///
/// ```text
/// u = (x - mean) * r      r = 1 / sqrt(variance + eps)      g = dy * weight
/// dx = r * (g - mean(g) - u * mean(g * u))
/// ```
pub(super) fn candle_gradient(x: &Tensor, norm: &Norm, grad: &Tensor) -> Result<[Tensor; 3]> {
    let (mean, r) = moments(x, norm.eps)?;
    let unit = x.broadcast_sub(&mean)?.broadcast_mul(&r)?;
    let g = grad.broadcast_mul(&norm.weight)?;
    let along = unit.broadcast_mul(&(&g * &unit)?.mean_keepdim(D::Minus1)?)?;
    let dx = (g.broadcast_sub(&g.mean_keepdim(D::Minus1)?)? - along)?.broadcast_mul(&r)?;
    Ok([dx, (grad * unit)?.sum(0)?, grad.sum(0)?])
}

fn on_host(x: &Tensor, norm: &Norm, grad: &Tensor) -> Result<[Tensor; 3]> {
    let (rows, c) = x.dims2()?;
    let mut dx = zeros(rows * c);
    let part = GRAIN.div_ceil(c) * c;
    let sums = slices(&[x, &grad.contiguous()?, &norm.weight], |values| {
        let [x, grad, weight] = [values[0], values[1], values[2]];
        let parts = dx.chunks_mut(part).zip(x.chunks(part)).zip(grad.chunks(part));
        let parts = map_each(parts, |((dx, x), grad)| {
            let mut sums = vec![0.0; 2 * c];
            vectorised(
                #[inline(always)]
                || backward(x, weight, norm.eps as f32, grad, dx, &mut sums),
            );
            sums
        });
        sum_in_order(parts, 2 * c)
    })?;
    let device = x.device();
    Ok([
        Tensor::from_vec(dx, (rows, c), device)?,
        Tensor::from_slice(&sums[..c], c, device)?,
        Tensor::from_slice(&sums[c..], c, device)?,
    ])
}

/// The backward pass of some rows: writes `dx`, and adds the gradients of weight and bias to `sums`.
#[inline(always)]
fn backward(x: &[f32], weight: &[f32], eps: f32, grad: &[f32], dx: &mut [f32], sums: &mut [f32]) {
    let c = weight.len();
    let (dweight, dbias) = sums.split_at_mut(c);
    let mut unit = vec![0.0; c];
    for ((x, grad), dx) in x.chunks_exact(c).zip(grad.chunks_exact(c)).zip(dx.chunks_exact_mut(c)) {
        let mean = lane_sum(x, |x| x) / c as f32;
        let r = 1.0 / (lane_sum(x, |x| (x - mean) * (x - mean)) / c as f32 + eps).sqrt();
        for ((unit, g), (&x, (&dy, &w))) in
            unit.iter_mut().zip(&mut *dx).zip(x.iter().zip(grad.iter().zip(weight)))
        {
            *unit = (x - mean) * r;
            *g = dy * w;
        }
        let (mean_g, mean_gu) = means(dx, &unit);
        for (dx, &unit) in dx.iter_mut().zip(&unit) {
            *dx = r * (*dx - mean_g - unit * mean_gu);
        }
        for ((dweight, &dy), &unit) in dweight.iter_mut().zip(grad).zip(&unit) {
            *dweight = dy.mul_add(unit, *dweight);
        }
        add_to(dbias, grad);
    }
}

/// The means of `g` and of `g * u`.
#[inline(always)]
fn means(g: &[f32], u: &[f32]) -> (f32, f32) {
    let mut sums = [[0.0; 16]; 2];
    let (g16, u16) = (g.chunks_exact(16), u.chunks_exact(16));
    let rest: f32 = g16.remainder().iter().sum();
    let rest_u: f32 = g16.remainder().iter().zip(u16.remainder()).map(|(g, u)| g * u).sum();
    for (g, u) in g16.zip(u16) {
        for i in 0..16 {
            sums[0][i] += g[i];
            sums[1][i] = g[i].mul_add(u[i], sums[1][i]);
        }
    }
    let [a, b] = sums.map(|lanes| lanes.iter().sum::<f32>());
    ((a + rest) / g.len() as f32, (b + rest_u) / g.len() as f32)
}
