//! The operations of a network ([`Ops`]) with hand-written backward passes, which are recorded if there is a
//! tape. On the host an operation is a single pass over f32, and on CUDA (feature `cuda`) a single kernel;
//! otherwise it is the same formula in candle's operations.
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

use super::{Compute, ComputeType, Gather, Ops};
use crate::packed::{PackedLinear, product_over_rows};
use crate::tape::{Gradient, Gradients};

pub use attention::{AttentionSites, attention};
pub use channels::{FakeChannels, fake_quantize_channels, resident_columns, scale_columns};
pub(crate) use cosine::cosine;
pub use fake_quant::{
    EDGE, FakeActivation, FakeProbs, FakeWeight, LearnedScale, WeightScales, fake_quantize,
    fake_quantize_operand, fake_quantize_weight,
};
pub use hidden::{FakeHidden, hidden};
pub use maps::relative_errors;
pub(crate) use position::{position_table, without_key_gradient};

impl Ops {
    /// Records an operation on the tape, if there is one ([`Tape::record`](crate::tape::Tape::record)).
    fn record(
        &self,
        inputs: &[&Tensor],
        output: &Tensor,
        backward: impl FnOnce(Gradient, &mut Gradients) -> Result<()> + Send + 'static,
    ) {
        if let Some(tape) = &self.tape {
            tape.record(inputs, output, backward);
        }
    }

    /// The gather: `[images * source_rows, c]` to `[images * rows, parts * c]`. For a backward pass it uses
    /// each source row at most once.
    pub(crate) fn gather(&self, x: &Tensor, gather: &Gather) -> Result<Tensor> {
        let compute = self.compute;
        let out = compute.gather(x, gather)?;
        let (x, gather) = (x.clone(), gather.clone());
        self.record(&[&x.clone()], &out, move |grad, sink| {
            let rows = grad.tensor().reshape(((), x.dim(1)?))?;
            sink.add(&x, compute.gather(&rows, &gather.inverse())?)
        });
        Ok(out)
    }

    /// The mean of the rows of each of `images` images: `[images * rows, c]` to `[images, c]`.
    pub(crate) fn mean_rows(&self, x: &Tensor, images: usize) -> Result<Tensor> {
        let (rows, c) = x.dims2()?;
        let out = self.compute.mean_rows(x, images)?;
        let x = x.clone();
        self.record(&[&x.clone()], &out, move |grad, sink| {
            let each = (grad.tensor() / (rows / images) as f64)?.unsqueeze(1)?;
            sink.add(&x, each.broadcast_as((images, rows / images, c))?.reshape((rows, c))?)
        });
        Ok(out)
    }

    /// `x` `[rows, c]` plus `addend` of `c` or `period * c` values, which is repeated along the rows.
    pub(crate) fn add_rows(&self, x: &Tensor, addend: &Tensor) -> Result<Tensor> {
        let (rows, c) = x.dims2()?;
        let period = addend.elem_count() / c;
        let folded = (rows / period, period * c);
        let compute = self.compute;
        let out = compute.add_bias(&x.reshape(folded)?, &addend.flatten_all()?)?.reshape((rows, c))?;
        let (x, addend) = (x.clone(), addend.clone());
        self.record(&[&x.clone(), &addend.clone()], &out, move |grad, sink| {
            if sink.wants(&addend) {
                let sums = column_sums(compute, &grad.tensor().reshape(folded)?)?;
                sink.add(&addend, sums.reshape(addend.shape())?)?;
            }
            sink.pass(&x, grad)
        });
        Ok(out)
    }

    /// The sum of two tensors `[rows, c]`.
    pub(crate) fn add(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let out = self.compute.add(a, b)?;
        let (a, b) = (a.clone(), b.clone());
        self.record(&[&a.clone(), &b.clone()], &out, move |grad, sink| sink.pass_both([&a, &b], grad));
        Ok(out)
    }

    /// GELU, defined by the error function, of `x` `[rows, c]`.
    pub(crate) fn gelu(&self, x: &Tensor) -> Result<Tensor> {
        let compute = self.compute;
        let out = compute.gelu(x)?;
        let x = x.clone();
        self.record(&[&x.clone()], &out, move |grad, sink| {
            let gradient = match compute {
                Compute::Host(_) => host::gelu_gradient(&x, grad)?,
                #[cfg(feature = "cuda")]
                Compute::Cuda => cuda::gelu_gradient(&x, grad.tensor())?,
                Compute::Candle => candle_gelu_gradient(&x, grad.tensor())?,
            };
            sink.add(&x, gradient)
        });
        Ok(out)
    }
}

/// The sum of each column of `[rows, c]`.
fn column_sums(compute: Compute, x: &Tensor) -> Result<Tensor> {
    match compute {
        Compute::Host(_) => host::column_sums(x),
        #[cfg(feature = "cuda")]
        Compute::Cuda => cuda::column_sums(x),
        Compute::Candle => x.sum(0),
    }
}

fn candle_gelu_gradient(x: &Tensor, grad: &Tensor) -> Result<Tensor> {
    let density = ((x.sqr()? * -0.5)?.exp()? * f64::from(host::INVERSE_SQRT_TAU))?;
    let cumulative = (((x * std::f64::consts::FRAC_1_SQRT_2)?.erf()? + 1.0)? * 0.5)?;
    grad * (cumulative + (x * density)?)?
}

/// The linear layer `x W^T + bias`: `x` `[rows, in]`, `weight` `[out, ...]` of `out * in` values, `bias`
/// `[out]`. Results and gradients are f32, whatever the compute type.
///
/// # Errors
/// Shapes that do not fit.
pub fn linear(ops: &Ops, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let &Ops { compute, compute_type, .. } = ops;
    let matrix = weight.flatten_from(1)?;
    // Each operand is converted once, for all products that use it.
    let (rows, matrix) = (operand(compute, x, compute_type)?, operand(compute, &matrix, compute_type)?);
    let cpu = match compute {
        Compute::Host(cpu) if compute_type == ComputeType::F32 => Some(cpu),
        _ => None,
    };
    let product = move |a: (&Tensor, bool), b: (&Tensor, bool)| multiply(compute, a, b, compute_type);
    let out = if let Some(cpu) = cpu {
        PackedLinear::new(cpu, &matrix, bias, None, None)?.run(x)?
    } else {
        let product = product((&rows, false), (&matrix, true))?;
        match bias {
            Some(bias) => compute.add_bias(&product, bias)?,
            None => product,
        }
    };
    let (x, weight, bias) = (x.clone(), weight.clone(), bias.cloned());
    let inputs: Vec<Tensor> = [&x, &weight].into_iter().chain(&bias).cloned().collect();
    ops.record(&inputs.iter().collect::<Vec<_>>(), &out, move |grad, sink| {
        let grad = with_bias_gradient(compute, grad.tensor(), compute_type, bias.as_ref(), sink)?;
        if sink.wants(&weight) {
            let gradient = match cpu {
                Some(cpu) => product_over_rows(cpu, &grad, &rows)?,
                None => product((&grad, true), (&rows, false))?,
            };
            sink.add(&weight, gradient.reshape(weight.shape())?)?;
        }
        if sink.wants(&x) {
            let gradient = match cpu {
                Some(cpu) => PackedLinear::by_inputs(cpu, &matrix)?.run(&grad)?,
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
    compute: Compute,
    grad: &Tensor,
    compute_type: ComputeType,
    bias: Option<&Tensor>,
    sink: &mut Gradients,
) -> Result<Tensor> {
    let Some(bias) = bias.filter(|bias| sink.wants(bias)) else {
        return operand(compute, grad, compute_type);
    };
    #[cfg(feature = "cuda")]
    if compute.is_cuda() && compute_type.half().is_some() {
        let (grad, sums) = cuda::converted_with_sums(&grad.contiguous()?, compute_type)?;
        sink.add(bias, sums)?;
        return Ok(grad);
    }
    sink.add(bias, column_sums(compute, grad)?)?;
    operand(compute, grad, compute_type)
}

/// `x` in the compute type.
fn operand(compute: Compute, x: &Tensor, compute_type: ComputeType) -> Result<Tensor> {
    match compute {
        #[cfg(feature = "cuda")]
        Compute::Cuda => cuda::converted(x, compute_type),
        _ => compute_type.half().map_or_else(|| Ok(x.clone()), |half| x.to_dtype(half)),
    }
}

/// The product of two operands in f32; each may be used transposed.
fn multiply(
    compute: Compute,
    (a, at): (&Tensor, bool),
    (b, bt): (&Tensor, bool),
    compute_type: ComputeType,
) -> Result<Tensor> {
    match compute {
        #[cfg(feature = "cuda")]
        Compute::Cuda => cuda::product((a, at), (b, bt), compute_type),
        _ => {
            assert!(compute_type != ComputeType::Tf32, "TF32 is for CUDA");
            let turned = |x: &Tensor, transposed: bool| if transposed { x.t() } else { Ok(x.clone()) };
            turned(a, at)?.matmul(&turned(b, bt)?)?.to_dtype(DType::F32)
        }
    }
}

/// Multiplies the rows of each image by the image's factor: `x` `[images * rows, c]`, `factors` `[images]`.
/// For DropPath (Huang et al., "Deep Networks with Stochastic Depth", ECCV 2016) a factor is 0 or the
/// reciprocal of the fraction kept.
///
/// # Errors
/// The number of rows is not a multiple of the number of images.
pub fn scale_images(ops: &Ops, x: &Tensor, factors: &Tensor) -> Result<Tensor> {
    let out = scaled(x, factors)?;
    let (x, factors) = (x.clone(), factors.clone());
    ops.record(&[&x.clone()], &out, move |grad, sink| sink.add(&x, scaled(grad.tensor(), &factors)?));
    Ok(out)
}

fn scaled(x: &Tensor, factors: &Tensor) -> Result<Tensor> {
    let (rows, c) = x.dims2()?;
    let images = factors.elem_count();
    x.reshape((images, rows / images * c))?.broadcast_mul(&factors.reshape((images, 1))?)?.reshape((rows, c))
}

/// Relative position bias: selects rows of `table` `[rows, heads]` by `index` `[n * n]`, `[heads, n, n]`.
pub(crate) fn relative_bias(ops: &Ops, table: &Tensor, index: &Tensor, n: usize) -> Result<Tensor> {
    let heads = table.dim(1)?;
    let compute = ops.compute;
    let out = table.index_select(index, 0)?.t()?.contiguous()?.reshape((heads, n, n))?;
    let (table, index) = (table.clone(), index.clone());
    ops.record(&[&table.clone()], &out, move |grad, sink| {
        let gradient = match compute {
            #[cfg(feature = "cuda")]
            Compute::Cuda => cuda::table_gradient(&table, &index, grad.tensor())?,
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
