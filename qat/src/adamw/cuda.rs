//! AdamW's update as one CUDA kernel.

use std::sync::Mutex;

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::CudaViewMut;
use candle_core::{CpuStorage, CudaStorage, InplaceOp1, Layout, Result, Storage, Tensor, bail};
use swinq_float::ops::taped::cuda::{failed, training};
use swinq_kernels::cuda::training::AdamWStep;

use super::{Constants, Moments, Rule};

/// Updates `parameter` and its moments in place.
pub(super) fn update(rule: &Rule, parameter: &Tensor, gradient: &Tensor, moments: &Moments) -> Result<()> {
    let Constants { betas, rest, factor, keep, lr, unbias, eps } = rule.constants();
    let step = AdamWStep {
        factor,
        keep_first: betas[0],
        add_first: rest[0],
        keep_second: betas[1],
        add_second: rest[1],
        keep,
        rate: lr,
        unbias,
        epsilon: eps,
    };
    let gradient = gradient.contiguous()?;
    with_values(parameter, |p| {
        with_values(&moments.first, |first| {
            with_values(&moments.second, |second| {
                let (storage, layout) = gradient.storage_and_layout();
                let (Storage::Cuda(storage), Some((start, end))) = (&*storage, layout.contiguous_offsets())
                else {
                    bail!("the gradient must be contiguous and on CUDA")
                };
                let grad = storage.as_cuda_slice::<f32>()?.slice(start..end);
                let all = training(storage.device())?;
                all.adamw([p, first, second], &grad, step).map_err(failed)
            })
        })
    })
}

/// Calls `run` with the mutable values of a contiguous tensor on CUDA.
fn with_values(x: &Tensor, run: impl FnOnce(CudaViewMut<'_, f32>) -> Result<()>) -> Result<()> {
    x.inplace_op1(&Change(Mutex::new(Some(run))))
}

/// A change of a tensor's values, applied once.
struct Change<F>(Mutex<Option<F>>);

impl<F: FnOnce(CudaViewMut<'_, f32>) -> Result<()>> InplaceOp1 for Change<F> {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
        bail!("the tensor must be on CUDA")
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let Some((start, end)) = layout.contiguous_offsets() else { bail!("a parameter is not contiguous") };
        let run = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        let run = run.expect("an operation in place runs once");
        run(storage.as_cuda_slice_mut::<f32>()?.slice_mut(start..end))
    }
}
