//! Operations with hand-written backward passes, noted on a [`Tape`]. On the host they are single passes over f32, on
//! CUDA (feature `cuda`) single kernels; elsewhere the same formulas in candle's operations.
//!
//! Sums over rows (gradients of biases, norms, tables, scales) are taken in parts of fixed size and added in order, so
//! they do not depend on the number of threads.

mod attention;
#[cfg(feature = "cuda")]
pub mod cuda;
mod fake_quant;
mod host;
mod norm;

use candle_core::{D, DType, Result, Tensor};

use super::{Gather, composed, fused};
use crate::packed::Packed;
use crate::tape::{Tape, Way};

pub use attention::{AttentionSites, attention};
pub use fake_quant::{Fake, FakeProbs, FakeWeight, Learned, fake_quantize, fake_quantize_weight};
pub(super) use norm::{norm, norm_then_gather};

/// The gather of [`Ops::gather`](super::Ops); each source row must be used at most once.
pub(super) fn gather(tape: &Tape, x: &Tensor, gather: &Gather) -> Result<Tensor> {
    let way = tape.way(x);
    let out = move_rows(way, x, gather)?;
    let (x, back) = (x.clone(), gather.inverse());
    tape.record(&[&x.clone()], &out, move |grad, sink| {
        let c = x.dim(1)?;
        sink.add(&x, move_rows(way, &grad.tensor().reshape(((), c))?, &back)?)
    });
    Ok(out)
}

fn move_rows(way: Way, x: &Tensor, gather: &Gather) -> Result<Tensor> {
    match way {
        Way::Host => fused::gather(x, gather),
        #[cfg(feature = "cuda")]
        Way::Cuda => cuda::gather(x, gather),
        Way::Composed => composed::gather(x, gather),
    }
}

/// The mean of the rows of each image.
pub(super) fn mean_rows(tape: &Tape, x: &Tensor, images: usize) -> Result<Tensor> {
    let (rows, c) = x.dims2()?;
    let out = if tape.way(x) == Way::Host {
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
    let way = tape.way(x);
    let out = add_bias(way, &x.reshape(folded)?, &flat)?.reshape((rows, c))?;
    let (x, addend) = (x.clone(), addend.clone());
    tape.record(&[&x.clone(), &addend.clone()], &out, move |grad, sink| {
        if sink.wants(&addend) {
            let sums = column_sums(way, &grad.tensor().reshape(folded)?)?;
            sink.add(&addend, sums.reshape(addend.shape())?)?;
        }
        sink.pass(&x, grad)
    });
    Ok(out)
}

/// The sum of each column of `[rows, c]`.
fn column_sums(way: Way, x: &Tensor) -> Result<Tensor> {
    match way {
        Way::Host => host::column_sums(x),
        #[cfg(feature = "cuda")]
        Way::Cuda => cuda::column_sums(x),
        Way::Composed => x.sum(0),
    }
}

fn add_bias(way: Way, x: &Tensor, bias: &Tensor) -> Result<Tensor> {
    match way {
        Way::Host => fused::add_bias(x, bias),
        #[cfg(feature = "cuda")]
        Way::Cuda => cuda::add_bias(x, bias),
        Way::Composed => x.broadcast_add(bias),
    }
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
    let way = tape.way(x);
    let out = match way {
        Way::Host => fused::gelu(x)?,
        #[cfg(feature = "cuda")]
        Way::Cuda => cuda::gelu(x)?,
        Way::Composed => x.gelu_erf()?,
    };
    let x = x.clone();
    tape.record(&[&x.clone()], &out, move |grad, sink| {
        let gradient = match way {
            Way::Host => host::gelu_gradient(&x, grad)?,
            #[cfg(feature = "cuda")]
            Way::Cuda => cuda::gelu_gradient(&x, grad.tensor())?,
            Way::Composed => composed_gelu_gradient(&x, grad.tensor())?,
        };
        sink.add(&x, gradient)
    });
    Ok(out)
}

fn composed_gelu_gradient(x: &Tensor, grad: &Tensor) -> Result<Tensor> {
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
    let (half, way) = (tape.products(), tape.way(x));
    let matrix = weight.flatten_from(1)?;
    // Each operand changes its type once, for all the products that it is in.
    let (rows, matrix) = (operand(x, half)?, operand(&matrix, half)?);
    let out = if way == Way::Host && half.is_none() {
        Packed::new(&tape.workers()?, &matrix, bias, None, false)?.product(x)?
    } else {
        let product = multiply(&rows, &matrix.t()?)?;
        match bias {
            Some(bias) => add_bias(way, &product, bias)?,
            None => product,
        }
    };
    let (x, weight, bias) = (x.clone(), weight.clone(), bias.cloned());
    let inputs: Vec<Tensor> = [&x, &weight].into_iter().chain(&bias).cloned().collect();
    tape.record(&inputs.iter().collect::<Vec<_>>(), &out, move |grad, sink| {
        let grad = grad.tensor();
        if let Some(bias) = bias.filter(|bias| sink.wants(bias)) {
            sink.add(&bias, column_sums(way, grad)?)?;
        }
        let grad = operand(grad, half)?;
        if sink.wants(&weight) {
            sink.add(&weight, multiply(&grad.t()?, &rows)?.reshape(weight.shape())?)?;
        }
        if sink.wants(&x) {
            sink.add(&x, multiply(&grad, &matrix)?)?;
        }
        Ok(())
    });
    Ok(out)
}

/// `x` in the type of products' operands.
fn operand(x: &Tensor, half: Option<DType>) -> Result<Tensor> {
    half.map_or_else(|| Ok(x.clone()), |half| x.to_dtype(half))
}

/// The product of two operands, in f32.
fn multiply(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    a.matmul(b)?.to_dtype(DType::F32)
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
    let way = tape.way(table);
    let out = table.index_select(index, 0)?.t()?.contiguous()?.reshape((heads, n, n))?;
    let (table, index) = (table.clone(), index.clone());
    tape.record(&[&table.clone()], &out, move |grad, sink| {
        let gradient = match way {
            #[cfg(feature = "cuda")]
            Way::Cuda => cuda::table_gradient(&table, &index, grad.tensor())?,
            _ => {
                let rows = grad.tensor().reshape((heads, n * n))?.t()?.contiguous()?;
                table.zeros_like()?.index_add(&index, &rows, 0)?
            }
        };
        sink.add(&table, gradient)
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
