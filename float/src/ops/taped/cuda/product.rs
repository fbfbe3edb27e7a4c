//! Matrix products on CUDA, with f32 results.

use candle_core::{Result, Tensor};
use swinq_cuda::training::{Product, Products};

use super::{LockedTensor, device_kernels, failed, tensor, with_element};
use crate::ops::ComputeType;

/// A matrix, and whether it is used transposed.
pub(in super::super) type Factor<'a> = (&'a Tensor, bool);

/// The product of two contiguous matrices in the compute type.
pub(in super::super) fn product(
    (a, at): Factor<'_>,
    (b, bt): Factor<'_>,
    compute_type: ComputeType,
) -> Result<Tensor> {
    let ((a_rows, a_columns), (b_rows, b_columns)) = (a.dims2()?, b.dims2()?);
    let (m, k) = if at { (a_columns, a_rows) } else { (a_rows, a_columns) };
    let n = if bt { b_rows } else { b_columns };
    let products = if compute_type == ComputeType::Tf32 { Products::Tf32 } else { Products::F32 };
    let of = Product { m, n, k, a_transposed: at, b_transposed: bt, products };
    let (device, training) = device_kernels(a)?;
    let (left, right) = (LockedTensor::new(a)?, LockedTensor::new(b)?);
    with_element!(compute_type, T => {
        let out = training.product::<T>(&left.view()?, &right.view()?, of).map_err(failed)?;
        Ok(tensor(out, &device, (m, n)))
    })
}
