//! The buffers of an engine: one arena, in which tensors that are never alive at the same time share memory.

use std::ops::Range;

use swinq_cuda::{CudaError, Device, DeviceBuf, DeviceSlice, Stream};
use swinq_plan::TensorId;

use super::step::{Choice, DeviceOp, DeviceStep, DeviceTensor, Operands};
use crate::arena::Layout;
use crate::error::RuntimeError;

/// Alignment of the tensors in the arena.
const ALIGN: usize = 256;

/// All buffers of an engine.
pub(crate) struct Memory {
    pub(crate) tensors: Vec<DeviceTensor>,
    /// Offset of each tensor in the arena; `None` for the image.
    offsets: Vec<Option<usize>>,
    arena: DeviceSlice,
    /// One u32 flag per step, which a step sets if its f16 stream holds a value that is not finite; then the
    /// scores.
    results: DeviceSlice,
    flag_bytes: usize,
    scores: TensorId,
}

impl Memory {
    /// Allocates the buffers for `max_batch` images; `scores` is the tensor of the scores.
    pub(crate) fn new(
        device: &Device,
        steps: &[DeviceStep],
        tensors: Vec<DeviceTensor>,
        max_batch: usize,
        scores: TensorId,
    ) -> Result<Memory, RuntimeError> {
        let uses = uses(steps.iter().map(|step| (step.input, step.output, step.codes)));
        let flag_bytes = (4 * steps.len()).next_multiple_of(ALIGN);
        let results = DeviceBuf::zeroed(device, flag_bytes + max_batch * tensors[scores.0].bytes())?.all();
        let touched = steps.iter().flat_map(|step| {
            [step.input, step.output].into_iter().chain(step.codes).map(|tensor| (&step.images, tensor))
        });
        let images = most_images(touched, tensors.len(), max_batch);
        let mut bytes: Vec<usize> =
            tensors.iter().zip(images).map(|(tensor, images)| tensor.bytes() * images).collect();
        // The scores have their own memory, outside the arena.
        bytes[scores.0] = 0;
        let layout = Layout::new(&uses, &bytes);
        let mut begins = Vec::with_capacity(layout.bytes.len());
        let mut end = 0;
        for bytes in &layout.bytes {
            begins.push(end);
            end += bytes.next_multiple_of(ALIGN);
        }
        Ok(Memory {
            offsets: layout.slot.iter().map(|slot| slot.map(|slot| begins[slot])).collect(),
            tensors,
            arena: DeviceBuf::zeroed(device, end)?.all(),
            results,
            flag_bytes,
            scores,
        })
    }

    /// Bytes of the flags, which precede the scores.
    pub(crate) fn flag_bytes(&self) -> usize {
        self.flag_bytes
    }

    /// The flags, then the scores of `images` images.
    pub(crate) fn results(&self, images: usize) -> DeviceSlice {
        self.results.slice(0, self.flag_bytes + images * self.tensors[self.scores.0].bytes())
    }

    /// Returns the first step whose flag is set, if there is one, and resets all flags.
    pub(crate) fn take_flag(&self, on: &Stream) -> Result<Option<usize>, CudaError> {
        let flags = self.results.slice(0, self.flag_bytes);
        let mut words = vec![0_u32; self.flag_bytes / 4];
        flags.copy_to(on, &mut words)?;
        flags.fill_zero(on)?;
        Ok(words.iter().position(|&word| word != 0))
    }

    /// The tensor `id` for `images` images; `pixels` holds the images.
    pub(crate) fn slice(&self, id: TensorId, images: usize, pixels: &DeviceSlice) -> DeviceSlice {
        let bytes = images * self.tensors[id.0].bytes();
        if id == self.scores {
            return self.results.slice(self.flag_bytes, bytes);
        }
        match self.offsets[id.0] {
            Some(offset) => self.arena.slice(offset, bytes),
            None => pixels.slice(0, bytes),
        }
    }

    /// Puts step `index` on `on`, for the `images` images in `pixels`.
    pub(crate) fn run(
        &self,
        (index, step): (usize, &DeviceStep),
        choice: Option<&Choice>,
        on: &Stream,
        pixels: &DeviceSlice,
        images: usize,
    ) -> Result<(), CudaError> {
        let input = self.slice(step.input, images, pixels);
        let output = self.slice(step.output, images, pixels);
        let flag = self.results.slice(4 * index, 4);
        let codes = step.codes.map(|codes| self.slice(codes, images, pixels));
        let operands = Operands { input: &input, output: &output, codes: codes.as_ref(), flag: &flag };
        step.run(on, images, &operands, choice)
    }

    /// Minimum number of bytes that a step must read and write: its input, its output and its weights, once
    /// each.
    pub(crate) fn moved(&self, step: &DeviceStep, images: usize) -> u64 {
        let bytes = |id: TensorId| (images * self.tensors[id.0].bytes()) as u64;
        let residual = match &step.op {
            DeviceOp::Linear(linear, _) => linear.kind().is_residual(),
            DeviceOp::Norm(norm) => norm.adds(),
            _ => false,
        };
        let writes = bytes(step.output) * if residual { 2 } else { 1 };
        bytes(step.input) + writes + step.codes.map_or(0, bytes) + step.weight_bytes
    }
}

/// For each tensor, the most images, up to `max_batch`, of a batch that uses it. `touched` lists tensors with the batch
/// sizes of a step that uses them. The steps that a fused launch replaces run for small batches only.
fn most_images<'a>(
    touched: impl Iterator<Item = (&'a Range<usize>, TensorId)>,
    tensors: usize,
    max_batch: usize,
) -> Vec<usize> {
    let mut most = vec![0; tensors];
    for (images, tensor) in touched {
        most[tensor.0] = most[tensor.0].max(max_batch.min(images.end - 1));
    }
    most
}

/// What each step reads and writes, for [`Layout::new`], from the input, the output and the second output of the steps.
/// A step reads its input while it writes both outputs.
fn uses(steps: impl Iterator<Item = (TensorId, TensorId, Option<TensorId>)>) -> Vec<(TensorId, TensorId)> {
    let of_step = |(input, output, second): (TensorId, TensorId, Option<TensorId>)| {
        second.map(|second| (input, second)).into_iter().chain([(input, output)])
    };
    steps.flat_map(of_step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_of_small_batches_have_room_for_those_only() {
        let [stream, codes, hidden] = [0, 1, 2].map(TensorId);
        let (any, fused, few) = (0..usize::MAX, 3..usize::MAX, 0..3);
        let touched = [(&any, stream), (&fused, stream), (&few, codes), (&few, hidden), (&any, hidden)];
        assert_eq!(most_images(touched.into_iter(), 3, 128), [128, 2, 128]);
        assert_eq!(most_images(touched.into_iter(), 3, 1), [1, 1, 1]);
    }

    #[test]
    fn a_second_output_does_not_overwrite_the_input() {
        let [image, stream, branch, codes, hidden] = [0, 1, 2, 3, 4].map(TensorId);
        let steps = [
            (image, stream, None),
            (stream, branch, None),
            (branch, stream, Some(codes)),
            (codes, hidden, None),
        ];
        let layout = Layout::new(&uses(steps.into_iter()), &[8; 5]);
        let slot = |tensor: TensorId| layout.slot[tensor.0].unwrap();
        assert!(slot(codes) != slot(branch) && slot(codes) != slot(stream), "{layout:?}");
        assert_eq!(slot(hidden), slot(branch), "the branch is not used after its step");
    }
}
