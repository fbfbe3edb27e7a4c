//! Changes of tensors on CUDA in place.

use std::sync::Mutex;

use candle_core::cuda_backend::CudaDType;
use candle_core::cuda_backend::cudarc::driver::{CudaViewMut, DeviceRepr};
use candle_core::{CpuStorage, CudaStorage, InplaceOp1, Layout, Result, Tensor, bail};

/// Calls `run` with the values of a contiguous tensor, to overwrite them in place.
///
/// # Errors
/// A tensor of another type or on another device, and the errors of `run`.
pub fn write<T: CudaDType + DeviceRepr>(
    x: &Tensor,
    run: impl FnOnce(CudaViewMut<'_, T>) -> Result<()>,
) -> Result<()> {
    x.inplace_op1(&Change { run: Mutex::new(Some(run)), kind: std::marker::PhantomData::<T> })
}

/// [`write`], if there is a tensor; otherwise calls `run` with `None`.
///
/// # Errors
/// As [`write`].
pub fn write_if_some<T: CudaDType + DeviceRepr>(
    x: Option<&Tensor>,
    run: impl FnOnce(Option<CudaViewMut<'_, T>>) -> Result<()>,
) -> Result<()> {
    match x {
        Some(x) => write(x, |values| run(Some(values))),
        None => run(None),
    }
}

/// A change of a tensor's values, applied once.
struct Change<F, T> {
    run: Mutex<Option<F>>,
    kind: std::marker::PhantomData<T>,
}

impl<T, F> InplaceOp1 for Change<F, T>
where
    T: CudaDType + DeviceRepr,
    F: FnOnce(CudaViewMut<'_, T>) -> Result<()>,
{
    fn name(&self) -> &'static str {
        "change"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
        bail!("the tensor must be on CUDA")
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let Some((start, end)) = layout.contiguous_offsets() else { bail!("the tensor is not contiguous") };
        let run = self.run.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        let run = run.expect("an operation in place runs once");
        run(storage.as_cuda_slice_mut::<T>()?.slice_mut(start..end))
    }
}
