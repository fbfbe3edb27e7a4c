//! Operations with hand-written backward passes, recorded on a [`Tape`]. On the host an operation is a single
//! pass over f32, and on CUDA (feature `cuda`) a single kernel; on other devices it is the same formula in
//! candle's operations.
//!
//! Sums over rows (gradients of biases, norms, tables and scales) are taken in parts of fixed size and added
//! in order, so that they do not depend on the number of threads.

mod attention;
mod channels;
mod cosine;
#[cfg(feature = "cuda")]
pub mod cuda;
mod fake_quant;
mod hidden;
mod host;
mod maps;
mod norm;
mod position;

use candle_core::{D, DType, Result, Tensor};

use super::{Gather, composed, fused};
use crate::packed::{PackedLinear, product_over_rows};
use crate::tape::{Gradients, Implementation, Operands, Tape};

pub use attention::{AttentionSites, attention};
pub use channels::{FakeChannels, fake_quantize_channels, resident_columns, scale_columns};
pub(crate) use cosine::cosine;
pub use fake_quant::{
    FakeActivation, FakeProbs, FakeWeight, LearnedScale, WeightScales, fake_quantize, fake_quantize_operand,
    fake_quantize_weight,
};
pub use hidden::{FakeHidden, hidden};
pub use maps::relative_errors;
pub(super) use norm::{norm, norm_then_gather};
pub(crate) use position::{position_table, without_key_gradient};

/// [`Ops::gather`](super::Ops), for a gather that uses each source row at most once.
pub(super) fn gather(tape: &Tape, x: &Tensor, gather: &Gather) -> Result<Tensor> {
    let implementation = tape.implementation(x);
    let out = move_rows(implementation, x, gather)?;
    let (x, back) = (x.clone(), gather.inverse());
    tape.record(&[&x.clone()], &out, move |grad, sink| {
        let c = x.dim(1)?;
        sink.add(&x, move_rows(implementation, &grad.tensor().reshape(((), c))?, &back)?)
    });
    Ok(out)
}

fn move_rows(implementation: Implementation, x: &Tensor, gather: &Gather) -> Result<Tensor> {
    match implementation {
        Implementation::Host => fused::gather(x, gather),
        #[cfg(feature = "cuda")]
        Implementation::Cuda => cuda::gather(x, gather),
        Implementation::Composed => composed::gather(x, gather),
    }
}

/// The mean of the rows of each image.
pub(super) fn mean_rows(tape: &Tape, x: &Tensor, images: usize) -> Result<Tensor> {
    let (rows, c) = x.dims2()?;
    let out = if tape.implementation(x) == Implementation::Host {
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

/// `x` `[rows, c]` plus `addend` `[c]` or `[period, c]`, which is repeated along the rows.
pub(crate) fn add_rows(tape: &Tape, x: &Tensor, addend: &Tensor) -> Result<Tensor> {
    let (rows, c) = x.dims2()?;
    let period = addend.elem_count() / c;
    let folded = (rows / period, period * c);
    let flat = addend.flatten_all()?;
    let implementation = tape.implementation(x);
    let out = add_bias(implementation, &x.reshape(folded)?, &flat)?.reshape((rows, c))?;
    let (x, addend) = (x.clone(), addend.clone());
    tape.record(&[&x.clone(), &addend.clone()], &out, move |grad, sink| {
        if sink.wants(&addend) {
            let sums = column_sums(implementation, &grad.tensor().reshape(folded)?)?;
            sink.add(&addend, sums.reshape(addend.shape())?)?;
        }
        sink.pass(&x, grad)
    });
    Ok(out)
}

/// The sum of each column of `[rows, c]`.
fn column_sums(implementation: Implementation, x: &Tensor) -> Result<Tensor> {
    match implementation {
        Implementation::Host => host::column_sums(x),
        #[cfg(feature = "cuda")]
        Implementation::Cuda => cuda::column_sums(x),
        Implementation::Composed => x.sum(0),
    }
}

fn add_bias(implementation: Implementation, x: &Tensor, bias: &Tensor) -> Result<Tensor> {
    match implementation {
        Implementation::Host => fused::add_bias(x, bias),
        #[cfg(feature = "cuda")]
        Implementation::Cuda => cuda::add_bias(x, bias),
        Implementation::Composed => x.broadcast_add(bias),
    }
}

/// The sum of two tensors of one shape.
pub(super) fn add(tape: &Tape, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let out = super::sum(a, b)?;
    let (a, b) = (a.clone(), b.clone());
    tape.record(&[&a.clone(), &b.clone()], &out, move |grad, sink| sink.pass_both([&a, &b], grad));
    Ok(out)
}

/// GELU, defined by the error function.
pub(super) fn gelu(tape: &Tape, x: &Tensor) -> Result<Tensor> {
    let implementation = tape.implementation(x);
    let out = match implementation {
        Implementation::Host => fused::gelu(x)?,
        #[cfg(feature = "cuda")]
        Implementation::Cuda => cuda::gelu(x)?,
        Implementation::Composed => x.gelu_erf()?,
    };
    let x = x.clone();
    tape.record(&[&x.clone()], &out, move |grad, sink| {
        let gradient = match implementation {
            Implementation::Host => host::gelu_gradient(&x, grad)?,
            #[cfg(feature = "cuda")]
            Implementation::Cuda => cuda::gelu_gradient(&x, grad.tensor())?,
            Implementation::Composed => composed_gelu_gradient(&x, grad.tensor())?,
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

/// The linear layer `x W^T + bias`: `x` `[rows, in]`, `weight` `[out, ...]` of `out * in` values, `bias`
/// `[out]`. Results and gradients are f32, whatever the tape's operands.
///
/// # Errors
/// Shapes that do not fit.
pub fn linear(tape: &Tape, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let (operands, implementation) = (tape.operands(), tape.implementation(x));
    let to_operand = move |x: &Tensor| operand(implementation, x, operands);
    let matrix = weight.flatten_from(1)?;
    // Each operand is converted once, for all products that use it.
    let (rows, matrix) = (to_operand(x)?, to_operand(&matrix)?);
    let packed = implementation == Implementation::Host && operands == Operands::F32;
    let workers = packed.then(|| tape.workers()).transpose()?;
    let product = move |a: (&Tensor, bool), b: (&Tensor, bool)| multiply(implementation, a, b, operands);
    let out = if let Some(workers) = &workers {
        PackedLinear::new(workers, &matrix, bias, None, None)?.run(x)?
    } else {
        let product = product((&rows, false), (&matrix, true))?;
        match bias {
            Some(bias) => add_bias(implementation, &product, bias)?,
            None => product,
        }
    };
    let (x, weight, bias) = (x.clone(), weight.clone(), bias.cloned());
    let inputs: Vec<Tensor> = [&x, &weight].into_iter().chain(&bias).cloned().collect();
    tape.record(&inputs.iter().collect::<Vec<_>>(), &out, move |grad, sink| {
        let grad = with_bias_gradient(implementation, grad.tensor(), operands, bias.as_ref(), sink)?;
        if sink.wants(&weight) {
            let gradient = match &workers {
                Some(workers) => product_over_rows(workers, &grad, &rows)?,
                None => product((&grad, true), (&rows, false))?,
            };
            sink.add(&weight, gradient.reshape(weight.shape())?)?;
        }
        if sink.wants(&x) {
            let gradient = match &workers {
                Some(workers) => PackedLinear::by_inputs(workers, &matrix)?.run(&grad)?,
                None => product((&grad, false), (&matrix, false))?,
            };
            sink.add(&x, gradient)?;
        }
        Ok(())
    });
    Ok(out)
}

/// `grad` as an operand. Adds the gradient of `bias`, if there is one.
fn with_bias_gradient(
    implementation: Implementation,
    grad: &Tensor,
    operands: Operands,
    bias: Option<&Tensor>,
    sink: &mut Gradients,
) -> Result<Tensor> {
    let Some(bias) = bias.filter(|bias| sink.wants(bias)) else {
        return operand(implementation, grad, operands);
    };
    #[cfg(feature = "cuda")]
    if implementation == Implementation::Cuda && operands.half().is_some() {
        let (grad, sums) = cuda::converted_with_sums(&grad.contiguous()?, operands)?;
        sink.add(bias, sums)?;
        return Ok(grad);
    }
    sink.add(bias, column_sums(implementation, grad)?)?;
    operand(implementation, grad, operands)
}

/// `x` in the type of operands.
fn operand(implementation: Implementation, x: &Tensor, operands: Operands) -> Result<Tensor> {
    match implementation {
        #[cfg(feature = "cuda")]
        Implementation::Cuda => cuda::converted(x, operands),
        _ => operands.half().map_or_else(|| Ok(x.clone()), |half| x.to_dtype(half)),
    }
}

/// The product of two operands, each of which may be used transposed, in f32.
fn multiply(
    implementation: Implementation,
    (a, at): (&Tensor, bool),
    (b, bt): (&Tensor, bool),
    operands: Operands,
) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if implementation == Implementation::Cuda {
        return cuda::product((a, at), (b, bt), operands);
    }
    assert!(matches!(implementation, Implementation::Host | Implementation::Composed));
    let turned = |x: &Tensor, transposed: bool| if transposed { x.t() } else { Ok(x.clone()) };
    assert!(operands != Operands::Tf32, "TF32 is for CUDA");
    turned(a, at)?.matmul(&turned(b, bt)?)?.to_dtype(DType::F32)
}

/// Multiplies the rows of each image by the image's factor: `x` `[images * rows, c]`, `factors` `[images]`.
/// For DropPath (Huang et al., "Deep Networks with Stochastic Depth", ECCV 2016) a factor is 0 or the
/// reciprocal of the fraction kept.
///
/// # Errors
/// The number of rows is not a multiple of the number of images.
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

/// Relative position bias: selects rows of `table` `[rows, heads]` by `index` `[n * n]`, `[heads, n, n]`.
pub(crate) fn relative_bias(tape: &Tape, table: &Tensor, index: &Tensor, n: usize) -> Result<Tensor> {
    let heads = table.dim(1)?;
    let implementation = tape.implementation(table);
    let out = table.index_select(index, 0)?.t()?.contiguous()?.reshape((heads, n, n))?;
    let (table, index) = (table.clone(), index.clone());
    tape.record(&[&table.clone()], &out, move |grad, sink| {
        let gradient = match implementation {
            #[cfg(feature = "cuda")]
            Implementation::Cuda => cuda::table_gradient(&table, &index, grad.tensor())?,
            _ => {
                let rows = grad.tensor().reshape((heads, n * n))?.t()?.contiguous()?;
                table.zeros_like()?.index_add(&index, &rows, 0)?
            }
        };
        sink.add(&table, gradient)
    });
    Ok(out)
}

/// The mean squared difference of two tensors of one shape, and its gradient with respect to `x`; the feature
/// loss.
///
/// # Errors
/// Shapes that differ.
pub fn squared_difference(x: &Tensor, target: &Tensor) -> Result<(f32, Tensor)> {
    let difference = (x - target)?;
    let mean = difference.sqr()?.mean_all()?.to_scalar::<f32>()?;
    let gradient = (difference * (2.0 / x.elem_count() as f64))?;
    Ok((mean, gradient))
}

/// Mean and reciprocal standard deviation of each row, in candle's operations: `[rows, 1]` each.
fn moments(x: &Tensor, eps: f64) -> Result<(Tensor, Tensor)> {
    let mean = x.mean_keepdim(D::Minus1)?;
    let variance = x.broadcast_sub(&mean)?.sqr()?.mean_keepdim(D::Minus1)?;
    Ok((mean, (variance + eps)?.sqrt()?.recip()?))
}

#[cfg(test)]
mod tests;
