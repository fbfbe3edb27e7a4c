//! A model lowered for a GPU.

use std::sync::Arc;

use swinq_cuda::Device;
use swinq_model::ModelError;
use swinq_plan::{Geometry, Grids, OutputKind, Plan, TensorId};

use super::lower::lower;
use super::memory::Places;
use super::options::{CudaOptions, Gemm};
use super::step::{DeviceStep, DeviceTensor};
use crate::error::RuntimeError;

/// A model lowered for a GPU: its steps, with their weights on the device. Several engines can share it.
pub(crate) struct Packed {
    device: Device,
    pub(super) steps: Vec<DeviceStep>,
    pub(super) tensors: Vec<DeviceTensor>,
    /// The tensor of the scores, and its place among the outputs of the plan.
    pub(super) scores: TensorId,
    pub(super) output: usize,
    /// The geometry for the network's own image size.
    pub(super) own: Arc<Geometry>,
}

impl Packed {
    /// Lowers `plan` for the GPU and the residual stream of `options`: packs and uploads its weights.
    pub(crate) fn new(plan: &Plan<'_>, options: &CudaOptions) -> Result<Packed, RuntimeError> {
        let device = Device::open(options.device)?;
        let output = plan.outputs.iter().position(|output| output.kind == OutputKind::Logits);
        let unable = "the network is a backbone, which the CUDA backend does not run yet; use the CPU";
        let output = output.ok_or_else(|| ModelError::config("outputs", unable))?;
        let scores = plan.outputs[output].tensor;
        // With cuBLASLt, the library computes the products.
        let lowered = lower(&device, (plan, scores), options.residual, options.gemm != Gemm::CublasLt)?;
        let own = Arc::clone(&plan.own);
        Ok(Packed { device, steps: lowered.steps, tensors: lowered.tensors, scores, output, own })
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Bytes on the device of one image with these grids and of its tensors.
    pub(crate) fn image_bytes(&self, grids: &Grids) -> usize {
        let image = self.tensors[self.steps[0].input.0].bytes(grids);
        Places::new(self, grids, 1).bytes.saturating_add(image)
    }

    /// Whether a launch that adds to the stream stores its codes in the order of windows.
    pub(super) fn codes_in_windows(&self) -> bool {
        let codes = |step: &DeviceStep| step.codes.is_some_and(|codes| codes.in_windows());
        self.steps.iter().any(codes)
    }
}
