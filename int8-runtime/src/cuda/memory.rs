//! The buffers of an engine: one arena, in which tensors that are never needed together share room.

use swinq_kernels::cuda::{CudaError, Device, DeviceBuf, DeviceSlice, Stream};

use super::step::{Choice, DeviceOp, DeviceStep, DeviceTensor, Operands};
use crate::arena::Layout;
use crate::error::RuntimeError;
use crate::plan::TensorId;

/// Where slots of the arena begin.
const ALIGN: usize = 256;

/// Every buffer of an engine.
pub(crate) struct Memory {
    pub(crate) tensors: Vec<DeviceTensor>,
    /// First byte of each tensor in the arena; none for the image.
    offsets: Vec<Option<usize>>,
    arena: DeviceSlice,
    /// What cuBLASLt's results need between two launches.
    pub(crate) scratch: DeviceSlice,
}

impl Memory {
    /// Room for `max_batch` images, and for the library's results if there is need of `scratch`.
    pub(crate) fn new(
        device: &Device,
        steps: &[DeviceStep],
        tensors: Vec<DeviceTensor>,
        max_batch: usize,
        scratch: bool,
    ) -> Result<Memory, RuntimeError> {
        let uses: Vec<_> = steps.iter().map(|step| (step.input, step.output)).collect();
        let bytes: Vec<usize> = tensors.iter().map(DeviceTensor::bytes).collect();
        let layout = Layout::new(&uses, &bytes);
        let mut begins = Vec::with_capacity(layout.bytes.len());
        let mut end = 0;
        for bytes in &layout.bytes {
            begins.push(end);
            end += (bytes * max_batch).next_multiple_of(ALIGN);
        }
        let scratch = if scratch { max_batch * scratch_bytes(steps) } else { 0 };
        Ok(Memory {
            offsets: layout.slot.iter().map(|slot| slot.map(|slot| begins[slot])).collect(),
            tensors,
            arena: DeviceBuf::zeroed(device, end)?.all(),
            scratch: DeviceBuf::zeroed(device, scratch.max(ALIGN))?.all(),
        })
    }

    /// The tensor `id` of `images` images; `pixels` is the image.
    pub(crate) fn slice(&self, id: TensorId, images: usize, pixels: &DeviceSlice) -> DeviceSlice {
        let bytes = images * self.tensors[id.0].bytes();
        match self.offsets[id.0] {
            Some(offset) => self.arena.slice(offset, bytes),
            None => pixels.slice(0, bytes),
        }
    }

    /// Puts `step` on `on` for the `images` images of `pixels`.
    pub(crate) fn run(
        &self,
        step: &DeviceStep,
        choice: Option<&Choice>,
        on: &Stream,
        pixels: &DeviceSlice,
        images: usize,
    ) -> Result<(), CudaError> {
        let input = self.slice(step.input, images, pixels);
        let output = self.slice(step.output, images, pixels);
        step.run(on, images, &Operands { input: &input, output: &output, scratch: &self.scratch }, choice)
    }

    /// Bytes that a step must move: its input and output once, its weights once.
    pub(crate) fn moved(&self, step: &DeviceStep, images: usize) -> u64 {
        let bytes = |id: TensorId| (images * self.tensors[id.0].bytes()) as u64;
        let residual = matches!(&step.op, DeviceOp::Linear(p, _) if p.kind().is_residual());
        let writes = bytes(step.output) * if residual { 2 } else { 1 };
        bytes(step.input) + writes + step.weight_bytes
    }
}

/// Bytes per image that the widest linear layer leaves between two launches.
fn scratch_bytes(steps: &[DeviceStep]) -> usize {
    let bytes = |step: &DeviceStep| match &step.op {
        DeviceOp::Linear(linear, _) => 4 * step.rows * linear.shape().0,
        _ => 0,
    };
    steps.iter().map(bytes).max().unwrap_or(0)
}
