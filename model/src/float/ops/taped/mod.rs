//! Operations with hand-written backward passes, noted on a [`Tape`]. On the host they are single passes over f32; on
//! other devices the same formulas in candle's operations.
//!
//! Sums over rows (gradients of biases, norms, tables, scales) are taken in parts of fixed size and added in order, so
//! they do not depend on the number of threads.

mod attention;
mod fake_quant;
mod host;
mod norm;

use candle_core::{D, DType, Result, Tensor};

use super::{Gather, composed, fused};
use crate::float::packed::Packed;
use crate::float::tape::Tape;

pub use attention::{AttentionSites, attention};
pub use fake_quant::{Fake, FakeProbs, FakeWeight, Learned, fake_quantize, fake_quantize_weight};
pub(super) use norm::{norm, norm_then_gather};

/// The gather of [`Ops::gather`](super::Ops); each source row must be used at most once.
pub(super) fn gather(tape: &Tape, x: &Tensor, gather: &Gather) -> Result<Tensor> {
    let host = tape.fuses(x);
    let out = move_rows(host, x, gather)?;
    let (x, back) = (x.clone(), gather.inverse());
    tape.record(&[&x.clone()], &out, move |grad, sink| {
        let c = x.dim(1)?;
        sink.add(&x, move_rows(host, &grad.tensor().reshape(((), c))?, &back)?)
    });
    Ok(out)
}

fn move_rows(host: bool, x: &Tensor, gather: &Gather) -> Result<Tensor> {
    if host { fused::gather(x, gather) } else { composed::gather(x, gather) }
}

/// The mean of the rows of each image.
pub(super) fn mean_rows(tape: &Tape, x: &Tensor, images: usize) -> Result<Tensor> {
    let (rows, c) = x.dims2()?;
    let out = if tape.fuses(x) {
        fused::mean_rows(x, images)?
    } else {
        x.reshape((images, rows / images, c))?.mean(1)?
    };
    let x = x.clone();
    tape.record(&[&x.clone()], &out, move |grad, sink| {
        let each = (grad.tensor() / (rows / images) as f64)?.unsqueeze(1)?;
        sink.add(&x, each.broadcast_as((images, rows / images, c))?.reshape((rows, c))?)
    });
    Ok(out)
}

/// `x` `[rows, c]` plus `addend`, `[c]` or `[period, c]`, which repeats down the rows.
pub(crate) fn add_rows(tape: &Tape, x: &Tensor, addend: &Tensor) -> Result<Tensor> {
    let (rows, c) = x.dims2()?;
    let period = addend.elem_count() / c;
    let folded = (rows / period, period * c);
    let flat = addend.flatten_all()?;
    let host = tape.fuses(x);
    let out = if host {
        fused::add_bias(&x.reshape(folded)?, &flat)?.reshape((rows, c))?
    } else {
        x.reshape(folded)?.broadcast_add(&flat)?.reshape((rows, c))?
    };
    let (x, addend) = (x.clone(), addend.clone());
    tape.record(&[&x.clone(), &addend.clone()], &out, move |grad, sink| {
        if sink.wants(&addend) {
            let sums = column_sums(host, &grad.tensor().reshape(folded)?)?;
            sink.add(&addend, sums.reshape(addend.shape())?)?;
        }
        sink.pass(&x, grad)
    });
    Ok(out)
}

/// The sum of each column of `[rows, c]`.
fn column_sums(host: bool, x: &Tensor) -> Result<Tensor> {
    if host { host::column_sums(x) } else { x.sum(0) }
}

/// The sum of two tensors of one shape.
pub(super) fn add(tape: &Tape, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let out = super::sum(a, b)?;
    let (a, b) = (a.clone(), b.clone());
    tape.record(&[&a.clone(), &b.clone()], &out, move |grad, sink| sink.pass_both([&a, &b], grad));
    Ok(out)
}

/// GELU by the error function.
pub(super) fn gelu(tape: &Tape, x: &Tensor) -> Result<Tensor> {
    let host = tape.fuses(x);
    let out = if host { fused::gelu(x)? } else { x.gelu_erf()? };
    let x = x.clone();
    tape.record(&[&x.clone()], &out, move |grad, sink| {
        let dx = if host { host::gelu_gradient(&x, grad)? } else { gelu_gradient(&x, grad.tensor())? };
        sink.add(&x, dx)
    });
    Ok(out)
}

fn gelu_gradient(x: &Tensor, grad: &Tensor) -> Result<Tensor> {
    let density = ((x.sqr()? * -0.5)?.exp()? * f64::from(host::INVERSE_SQRT_TAU))?;
    let cumulative = (((x * std::f64::consts::FRAC_1_SQRT_2)?.erf()? + 1.0)? * 0.5)?;
    grad * (cumulative + (x * density)?)?
}

/// The product of `x` `[rows, in]` with `weight` `[out, ...]` of `out * in` values, plus `bias` `[out]`, where there is one.
/// Results and gradients are f32, whatever type the tape gives the operands.
///
/// # Errors
/// Shapes that do not fit.
pub fn linear(tape: &Tape, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let (half, host) = (tape.products(), tape.fuses(x));
    let matrix = weight.flatten_from(1)?;
    let out = if host && half.is_none() {
        Packed::new(&tape.workers()?, &matrix, bias, None, false)?.product(x)?
    } else {
        let product = multiply(x, &matrix.t()?, half)?;
        match bias {
            Some(bias) => product.broadcast_add(bias)?,
            None => product,
        }
    };
    let (x, weight, bias) = (x.clone(), weight.clone(), bias.cloned());
    let inputs: Vec<Tensor> = [&x, &weight].into_iter().chain(&bias).cloned().collect();
    tape.record(&inputs.iter().collect::<Vec<_>>(), &out, move |grad, sink| {
        let grad = grad.tensor();
        if let Some(bias) = bias.filter(|bias| sink.wants(bias)) {
            sink.add(&bias, column_sums(host, grad)?)?;
        }
        if sink.wants(&weight) {
            sink.add(&weight, multiply(&grad.t()?, &x, half)?.reshape(weight.shape())?)?;
        }
        if sink.wants(&x) {
            sink.add(&x, multiply(grad, &matrix, half)?)?;
        }
        Ok(())
    });
    Ok(out)
}

fn multiply(a: &Tensor, b: &Tensor, half: Option<DType>) -> Result<Tensor> {
    match half {
        Some(half) => a.to_dtype(half)?.matmul(&b.to_dtype(half)?)?.to_dtype(DType::F32),
        None => a.matmul(b),
    }
}

/// Multiplies the rows of each image by its factor: `x` `[images * rows, c]`, one factor an image. DropPath's
/// (Huang et al., "Deep Networks with Stochastic Depth", ECCV 2016) factors are 0 or the reciprocal of the share kept.
///
/// # Errors
/// Rows that the images do not divide.
pub fn scale_images(tape: &Tape, x: &Tensor, factors: &Tensor) -> Result<Tensor> {
    let out = scaled(x, factors)?;
    let (x, factors) = (x.clone(), factors.clone());
    tape.record(&[&x.clone()], &out, move |grad, sink| sink.add(&x, scaled(grad.tensor(), &factors)?));
    Ok(out)
}

fn scaled(x: &Tensor, factors: &Tensor) -> Result<Tensor> {
    let (rows, c) = x.dims2()?;
    let images = factors.elem_count();
    x.reshape((images, rows / images * c))?.broadcast_mul(&factors.reshape((images, 1))?)?.reshape((rows, c))
}

/// The rows of `table` that `index` names: `[rows, heads]` to `[heads, n, n]`.
pub(crate) fn relative_bias(tape: &Tape, table: &Tensor, index: &Tensor, n: usize) -> Result<Tensor> {
    let heads = table.dim(1)?;
    let out = table.index_select(index, 0)?.t()?.contiguous()?.reshape((heads, n, n))?;
    let (table, index) = (table.clone(), index.clone());
    tape.record(&[&table.clone()], &out, move |grad, sink| {
        let rows = grad.tensor().reshape((heads, n * n))?.t()?.contiguous()?;
        sink.add(&table, table.zeros_like()?.index_add(&index, &rows, 0)?)
    });
    Ok(out)
}

/// The mean squared difference of two tensors of one shape, and its gradient with respect to `x`: the loss on features
/// of a teacher.
///
/// # Errors
/// Shapes that differ.
pub fn squared_difference(x: &Tensor, target: &Tensor) -> Result<(f32, Tensor)> {
    let difference = (x - target)?;
    let mean = difference.sqr()?.mean_all()?.to_scalar::<f32>()?;
    let gradient = (difference * (2.0 / x.elem_count() as f64))?;
    Ok((mean, gradient))
}

/// The variance's reciprocal root of rows, in candle's operations: `[rows, 1]` means and factors.
fn moments(x: &Tensor, eps: f64) -> Result<(Tensor, Tensor)> {
    let mean = x.mean_keepdim(D::Minus1)?;
    let variance = x.broadcast_sub(&mean)?.sqr()?.mean_keepdim(D::Minus1)?;
    Ok((mean, (variance + eps)?.sqrt()?.recip()?))
}

#[cfg(test)]
mod tests;
