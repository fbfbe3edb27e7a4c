//! AdamW's update as one CUDA kernel.

use candle_core::{Result, Tensor};
use swinq_cuda::training::{AdamWStep, MomentRule};
use swinq_float::ops::taped::cuda::{LockedTensor, failed, training, write};

use super::{Constants, Moments, Rule};

/// Updates `parameter` and its moments in place.
pub(super) fn update(rule: &Rule, parameter: &Tensor, gradient: &Tensor, moments: &Moments) -> Result<()> {
    let Constants { factor, keep, lr, unbias, .. } = rule.constants();
    let step = AdamWStep { moments: MomentRule::new(rule.betas, rule.eps), factor, keep, rate: lr, unbias };
    let gradient = gradient.contiguous()?;
    let all = training(gradient.device().as_cuda_device()?)?;
    let held = LockedTensor::new(&gradient)?;
    let gradient = held.view()?;
    write(parameter, |p| {
        write(&moments.first, |first| {
            write(&moments.second, |second| all.adamw([p, first, second], &gradient, step).map_err(failed))
        })
    })
}
