//! The passes on CUDA: kernels of [`swinq_cuda::training`] on candle's tensors and stream.

mod access;
mod attention;
mod columns;
mod fake_quant;
mod product;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaView};
use candle_core::cuda_backend::{CudaDType, DeviceId};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, Device, Error, Result, Shape, Storage, StorageRef, Tensor, bail};
use swinq_cuda::CudaError;
use swinq_cuda::training::{Element, NormProgram, Patches, RowIndex, Training};
use swinq_model::Size;

use crate::ops::{Gather, Norm, candle};

pub use access::{write, write_if_some};
pub(super) use attention::{attention, attention_gradient, takes_attention};
pub(super) use columns::{channels, channels_gradient, converted, converted_with_sums, hidden};
pub(super) use fake_quant::{fake_quantize, fake_quantize_gradient, fake_quantize_weight};
pub use fake_quant::{learned_scales, scales_of_weight};
pub(super) use product::product;

/// The kernels for the stream of `device`, created at their first use.
///
/// # Errors
/// The GPU is too old, or the driver fails.
pub fn training(device: &CudaDevice) -> Result<Arc<Training>> {
    static ALL: OnceLock<Mutex<HashMap<DeviceId, Arc<Training>>>> = OnceLock::new();
    let mut all = ALL.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(training) = all.get(&device.id()) {
        return Ok(Arc::clone(training));
    }
    let training = Arc::new(Training::new(&device.cuda_stream()).map_err(failed)?);
    all.insert(device.id(), Arc::clone(&training));
    Ok(training)
}

/// Converts an error of the kernels to candle's.
pub fn failed(error: CudaError) -> Error {
    Error::Cuda(Box::new(error))
}

/// The device of `x` and its kernels.
fn device_kernels(x: &Tensor) -> Result<(CudaDevice, Arc<Training>)> {
    let Device::Cuda(device) = x.device() else { bail!("the tensor must be on CUDA") };
    Ok((device.clone(), training(device)?))
}

/// A read lock on the memory of a contiguous tensor.
pub struct LockedTensor<'a> {
    storage: StorageRef<'a>,
    range: (usize, usize),
}

impl<'a> LockedTensor<'a> {
    /// Locks `x`.
    ///
    /// # Errors
    /// `x` is not contiguous.
    pub fn new(x: &'a Tensor) -> Result<LockedTensor<'a>> {
        let (storage, layout) = x.storage_and_layout();
        let Some(range) = layout.contiguous_offsets() else { bail!("the tensor must be contiguous") };
        Ok(LockedTensor { storage, range })
    }

    /// The values.
    ///
    /// # Errors
    /// They have another type or are on another device.
    pub fn view<T: CudaDType>(&self) -> Result<CudaView<'_, T>> {
        let Storage::Cuda(storage) = &*self.storage else { bail!("the tensor must be on CUDA") };
        Ok(storage.as_cuda_slice::<T>()?.slice(self.range.0..self.range.1))
    }
}

/// Calls `$run` with `$element` standing for the compute type.
macro_rules! with_element {
    ($compute_type:expr, $element:ident => $run:expr) => {
        match $compute_type.half() {
            None => {
                type $element = f32;
                $run
            }
            Some(candle_core::DType::BF16) => {
                type $element = half::bf16;
                $run
            }
            Some(_) => {
                type $element = half::f16;
                $run
            }
        }
    };
}
use with_element;

/// A tensor of the shape `shape` with a kernel's results, on the device that made them.
pub fn tensor<T: Element + CudaDType>(
    values: CudaSlice<T>,
    device: &CudaDevice,
    shape: impl Into<Shape>,
) -> Tensor {
    let storage = CudaStorage::wrap_cuda_slice(values, device.clone());
    Tensor::from_storage(Storage::Cuda(storage), shape, BackpropOp::none(), false)
}

/// Runs a kernel with one operand; the result has the shape `shape`.
fn unary<T: Element + CudaDType>(
    x: &Tensor,
    shape: impl Into<Shape>,
    run: impl FnOnce(&Training, &CudaView<'_, f32>) -> std::result::Result<CudaSlice<T>, CudaError>,
) -> Result<Tensor> {
    let x = x.contiguous()?;
    let (device, training) = device_kernels(&x)?;
    let values = LockedTensor::new(&x)?;
    Ok(tensor(run(&training, &values.view()?).map_err(failed)?, &device, shape))
}

/// Runs a kernel with two operands; the result has the shape `shape`.
fn binary(
    x: &Tensor,
    y: &Tensor,
    shape: impl Into<Shape>,
    run: impl FnOnce(
        &Training,
        &CudaView<'_, f32>,
        &CudaView<'_, f32>,
    ) -> std::result::Result<CudaSlice<f32>, CudaError>,
) -> Result<Tensor> {
    let y = y.contiguous()?;
    let held = LockedTensor::new(&y)?;
    let view = held.view()?;
    unary(x, shape, |training, x| run(training, x, &view))
}

pub(in crate::ops) fn norm(x: &Tensor, norm: &Norm) -> Result<Tensor> {
    let (_, c) = x.dims2()?;
    if c > NormProgram::MOST_COLUMNS {
        return candle::norm(x, norm);
    }
    let bias = LockedTensor::new(&norm.bias)?;
    let bias = bias.view()?;
    let run = |training: &Training, x: &CudaView<'_, f32>, weight: &CudaView<'_, f32>| {
        training.norm(x, [weight, &bias], norm.eps as f32)
    };
    binary(x, &norm.weight, x.shape(), run)
}

/// The gradients of the rows, the weight and the bias.
pub(super) fn norm_gradient(x: &Tensor, norm: &Norm, grad: &Tensor) -> Result<[Tensor; 3]> {
    let (_, c) = x.dims2()?;
    if c > NormProgram::MOST_COLUMNS {
        return super::norm::candle_gradient(x, norm, grad);
    }
    let (x, grad) = (x.contiguous()?, grad.contiguous()?);
    let (device, training) = device_kernels(&x)?;
    let held = [LockedTensor::new(&x)?, LockedTensor::new(&norm.weight)?, LockedTensor::new(&grad)?];
    let [values, weight, gradient] = &held;
    let gradients =
        training.norm_gradient(&values.view()?, &weight.view()?, norm.eps as f32, &gradient.view()?);
    let (dx, sums) = gradients.map_err(failed)?;
    let sums = tensor(sums, &device, (2, c));
    Ok([tensor(dx, &device, x.shape()), sums.get(0)?, sums.get(1)?])
}

/// The index map of a gather, in the memory of a device.
#[derive(Debug)]
pub(in crate::ops) struct Resident {
    device: DeviceId,
    index: RowIndex,
}

pub(in crate::ops) fn gather(x: &Tensor, gather: &Gather) -> Result<Tensor> {
    let (rows, c) = x.dims2()?;
    let (device, training) = device_kernels(x)?;
    let make = || {
        let index = RowIndex::new(&training, &gather.index, gather.source_rows).map_err(failed)?;
        Ok::<_, Error>(Resident { device: device.id(), index })
    };
    if gather.resident.get().is_none() {
        // Another thread may have set it in the meantime; then this copy is dropped.
        let _ = gather.resident.set(make()?);
    }
    let kept = gather.resident.get().filter(|resident| resident.device == device.id());
    let made = if kept.is_none() { Some(make()?) } else { None };
    let index = &kept.or(made.as_ref()).expect("one of them is there").index;
    let shape = (rows / gather.source_rows * gather.rows(), gather.parts * c);
    unary(x, shape, |training, x| training.gather(x, index, c))
}

pub(super) fn column_sums(x: &Tensor) -> Result<Tensor> {
    let (_, c) = x.dims2()?;
    unary(x, c, |training, x| training.column_sums(x, c))
}

pub(in crate::ops) fn add_bias(x: &Tensor, bias: &Tensor) -> Result<Tensor> {
    binary(x, bias, x.shape(), Training::add_bias)
}

pub(in crate::ops) fn gelu(x: &Tensor) -> Result<Tensor> {
    unary(x, x.shape(), Training::gelu)
}

pub(super) fn gelu_gradient(x: &Tensor, grad: &Tensor) -> Result<Tensor> {
    binary(x, grad, x.shape(), Training::gelu_gradient)
}

/// The gradient of a table whose rows `index` selected.
pub(super) fn table_gradient(table: &Tensor, index: &Tensor, grad: &Tensor) -> Result<Tensor> {
    let (rows, _) = table.dims2()?;
    let index = index.contiguous()?;
    let held = LockedTensor::new(&index)?;
    let index = held.view::<u32>()?;
    unary(grad, table.shape(), |training, grad| training.table_gradient(grad, &index, rows))
}

/// The normalised patches of `pixels`, u8 `[images, height, width, channels]`, as [`Swin`](crate::Swin)
/// gathers them for a `grid` of patches: `[images * tokens, channels * patch^2]`. `table` `[channels, 256]`
/// has the value of each byte.
///
/// # Errors
/// The kernel does not compile, or the driver fails.
pub fn patches(pixels: &Tensor, table: &Tensor, patch: usize, grid: Size) -> Result<Tensor> {
    let (images, height, width, channels) = pixels.dims4()?;
    let (device, training) = device_kernels(pixels)?;
    let (bytes, values) = (LockedTensor::new(pixels)?, LockedTensor::new(table)?);
    let grid = [grid.height, grid.width];
    let of = Patches { images, size: [height, width], channels, patch, grid };
    let found = training.patches(&bytes.view()?, &values.view()?, of).map_err(failed)?;
    Ok(tensor(found, &device, (of.count() / of.values(), of.values())))
}
