//! Helpers of the passes on the host: slices of tensors, and sums in a fixed order.

use candle_core::{Result, Storage, Tensor, bail};
use swinq_kernels::rows_f32;

use crate::ops::host::{cpu, vectorised};
use crate::tape::Gradient;
use crate::threads::map_each;

/// Number of values in a part. It is fixed, so that sums over parts do not depend on the number of threads.
pub(super) const GRAIN: usize = 1 << 14;

/// `1 / sqrt(2 pi)`.
pub(super) const INVERSE_SQRT_TAU: f32 = 0.398_942_3;

/// Calls `f` with the values of contiguous tensors in host memory.
pub(super) fn slices<R>(tensors: &[&Tensor], f: impl FnOnce(&[&[f32]]) -> R) -> Result<R> {
    let guards: Vec<_> = tensors.iter().map(|tensor| tensor.storage_and_layout()).collect();
    let mut slices = Vec::with_capacity(guards.len());
    for (storage, layout) in &guards {
        let (Storage::Cpu(storage), Some((start, end))) = (&**storage, layout.contiguous_offsets()) else {
            bail!("the tensor must be contiguous and in host memory")
        };
        slices.push(&storage.as_slice::<f32>()?[start..end]);
    }
    Ok(f(&slices))
}

/// The sum of vectors of `len` values, added in order.
pub(super) fn sum_in_order(parts: Vec<Vec<f32>>, len: usize) -> Vec<f32> {
    let mut parts = parts.into_iter();
    let mut sum = parts.next().unwrap_or_else(|| vec![0.0; len]);
    parts.for_each(|part| add_to(&mut sum, &part));
    sum
}

/// Adds `x` to `sums`, value by value.
#[inline(always)]
pub(super) fn add_to(sums: &mut [f32], x: &[f32]) {
    for (sum, &x) in sums.iter_mut().zip(x) {
        *sum += x;
    }
}

/// The sum of `f` over all values: in sixteen partial sums, then the remainder.
#[inline(always)]
pub(super) fn lane_sum(x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut sums = [0.0; 16];
    let whole = x.chunks_exact(16);
    let rest: f32 = whole.remainder().iter().map(|&x| f(x)).sum();
    for x in whole {
        for (sum, &x) in sums.iter_mut().zip(x) {
            *sum += f(x);
        }
    }
    sums.iter().sum::<f32>() + rest
}

/// The sum of each column of `[rows, c]`.
pub(super) fn column_sums(x: &Tensor) -> Result<Tensor> {
    let (_, c) = x.dims2()?;
    let part = GRAIN.div_ceil(c) * c;
    let x = x.contiguous()?;
    let sums = slices(&[&x], |values| {
        let sum = |rows: &[f32]| {
            let mut sums = vec![0.0; c];
            vectorised(
                #[inline(always)]
                || rows.chunks_exact(c).for_each(|row| add_to(&mut sums, row)),
            );
            sums
        };
        sum_in_order(map_each(values[0].chunks(part), sum), c)
    })?;
    Tensor::from_vec(sums, c, x.device())
}

/// `grad * gelu'(x)`.
pub(super) fn gelu_gradient(x: &Tensor, grad: Gradient) -> Result<Tensor> {
    let mut grad = grad.into_values()?;
    slices(&[&x.contiguous()?], |values| {
        let parts = grad.chunks_mut(GRAIN).zip(values[0].chunks(GRAIN));
        map_each(parts, |(grad, x)| rows_f32::gelu_gradient(cpu(), x, grad));
    })?;
    Tensor::from_vec(grad, x.shape(), x.device())
}
