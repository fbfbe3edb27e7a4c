//! A model lowered for a GPU.

use std::fmt;
use std::sync::Arc;

use swinq_cuda::ops::attention::check_heads;
use swinq_cuda::ops::output::{DeviceOutput, OutputWriter};
use swinq_cuda::{CudaError, Device, KeepContext};
use swinq_model::{ModelError, Stage, SwinConfig};
use swinq_plan::{Geometry, Grids, Plan, TensorId};

use super::lower::{Lowered, lower, scores_of};
use super::memory::Places;
use super::options::{CudaOptions, Gemm};
use super::step::{DeviceStep, DeviceTensor};
use crate::error::RuntimeError;

/// A model lowered for a GPU: its steps, with their weights on the device. Several engines can share it.
pub(crate) struct Packed {
    device: Device,
    pub(super) steps: Vec<DeviceStep>,
    pub(super) tensors: Vec<DeviceTensor>,
    /// The outputs, in the order of the plan.
    pub(super) outputs: Vec<PackedOutput>,
    pub(super) writer_of_outputs: OutputWriter,
    /// The tensor of the scores of a classifier, which has memory of its own.
    pub(super) scores: Option<TensorId>,
    /// The geometry for the network's own image size.
    pub(super) own: Arc<Geometry>,
}

/// An output of the network: a tensor that is alive to the end, and how it is written to the memory of its
/// reader.
pub(crate) struct PackedOutput {
    pub(super) name: String,
    pub(super) source: TensorId,
    pub(super) op: DeviceOutput,
}

/// The meaning of a flag that is set.
pub(crate) enum Meaning {
    /// A value of the images is not finite.
    Input,
    /// A value that this launch wrote to the f16 residual is not finite.
    Residual(String),
    /// A value of the output with this index and name is not finite, in the type in which it was asked for.
    Output(usize, String),
}

impl fmt::Display for Meaning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Meaning::Input => f.write_str("a value of the images is NaN or infinite"),
            Meaning::Residual(launch) => RuntimeError::ResidualOverflow { launch: launch.clone() }.fmt(f),
            Meaning::Output(_, name) => {
                write!(
                    f,
                    "a value of `{name}` is NaN, or the output's type cannot hold it (f16 ends at 65504)"
                )
            }
        }
    }
}

/// Refuses an architecture that the kernels do not support, before anything is asked of a GPU.
///
/// # Errors
/// [`CudaError::Unsupported`] for heads of more channels than the kernels'.
pub fn check_architecture(config: &SwinConfig) -> Result<(), CudaError> {
    config.stages().iter().map(Stage::head_dim).try_for_each(check_heads)
}

/// Refuses images for whose `grids` the absolute position embedding would be interpolated: each size would
/// need a table in the memory of the GPU.
///
/// # Errors
/// [`ModelError::Image`] with the reason.
pub(crate) fn check_position(config: &SwinConfig, grids: &Grids) -> Result<(), ModelError> {
    if !config.resizes_position(grids.grid(0).size) {
        return Ok(());
    }
    let problem = format!(
        "the CUDA engine interpolates no absolute position embedding (absolute_pos_embed); the CPU backend runs the image, and the \
         GPU images of {}",
        config.image_size
    );
    Err(ModelError::Image { size: grids.image(), problem })
}

/// Whether one launch may compute one branch of a block: with cuBLASLt, the library computes the products.
pub(super) fn fuses(options: &CudaOptions) -> bool {
    options.gemm != Gemm::CublasLt
}

impl Packed {
    /// Lowers `plan` for the GPU and the residual stream of `options`: packs and uploads its weights.
    pub(crate) fn new(plan: &Plan<'_>, options: &CudaOptions) -> Result<Packed, RuntimeError> {
        let device = Device::open(options.device)?;
        let _context = KeepContext::new(&device)?;
        let lowered = lower(&device, plan, options.residual(), fuses(options))?;
        let (own, Lowered { steps, tensors, outputs }) = (Arc::clone(&plan.own), lowered);
        let writer_of_outputs = OutputWriter::new(&device, options.residual());
        Ok(Packed { device, steps, tensors, outputs, writer_of_outputs, scores: scores_of(plan), own })
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Bytes on the device of one image with these grids, of its tensors and of its outputs.
    pub(crate) fn image_bytes(&self, grids: &Grids) -> usize {
        let image = self.tensors[self.steps[0].input.0].bytes(grids);
        let places = Places::new(self, grids, 1);
        places.bytes.saturating_add(places.outputs).saturating_add(image)
    }

    /// The number of flags: one for each step, then one for each output.
    pub(super) fn flags(&self) -> usize {
        self.steps.len() + self.outputs.len()
    }

    /// The meaning of the flag with this index, if it is set.
    pub(crate) fn meaning(&self, flag: usize) -> Meaning {
        match flag.checked_sub(self.steps.len()) {
            // The first step reads the images.
            None if flag == 0 => Meaning::Input,
            None => {
                let step = &self.steps[flag];
                let writer = self.writer(step.input, flag).unwrap_or(step);
                Meaning::Residual(writer.name.clone())
            }
            Some(output) => Meaning::Output(output, self.outputs[output].name.clone()),
        }
    }

    /// The last of the first `end` steps that writes `tensor`.
    pub(super) fn writer(&self, tensor: TensorId, end: usize) -> Option<&DeviceStep> {
        self.steps[..end].iter().rev().find(|step| step.output == tensor)
    }

    /// The rows and the columns of `output` for one image with these grids.
    pub(super) fn shape(&self, output: &PackedOutput, grids: &Grids) -> (usize, usize) {
        let tensor = &self.tensors[output.source.0];
        (grids.rows(tensor.rows), tensor.columns)
    }

    /// Whether a launch that adds to the residual stores its codes in the order of windows.
    pub(super) fn codes_in_windows(&self) -> bool {
        let codes = |step: &DeviceStep| step.codes.is_some_and(|codes| codes.in_windows());
        self.steps.iter().any(codes)
    }
}

#[cfg(test)]
mod tests {
    use swinq_model::{PositionSizes, Size, WindowPolicy};

    use super::*;

    #[test]
    fn images_for_which_positions_would_be_interpolated_are_refused_with_the_way_out() {
        let config = SwinConfig {
            ape: true,
            ape_sizes: PositionSizes::Bicubic,
            window_policy: WindowPolicy::Detection,
            ..SwinConfig::default()
        };
        let check =
            |height, width| check_position(&config, &Grids::new(&config, Size::new(height, width)).unwrap());
        check(224, 224).unwrap();
        // The same grid: the image is padded to whole patches.
        check(222, 223).unwrap();
        let message = check(800, 1333).unwrap_err().to_string();
        assert!(
            message.starts_with("images of 800x1333: the CUDA engine interpolates no absolute"),
            "{message}"
        );
        assert!(
            message.contains("the CPU backend runs the image, and the GPU images of 224x224"),
            "{message}"
        );
    }
}
