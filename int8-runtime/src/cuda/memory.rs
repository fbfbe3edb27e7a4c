//! The buffers of an engine: one arena, in which tensors that are never alive at the same time share memory.

use std::sync::Arc;

use swinq_cuda::ops::output::{OutputForm, WrittenOutput};
use swinq_cuda::ops::patch::InputForm;
use swinq_cuda::{CudaError, Device, DeviceBuf, DeviceSlice, Stream};
use swinq_plan::{Grids, TensorId};

use super::geometry::DeviceGeometry;
use super::packed::Packed;
use super::step::{Choice, DeviceOp, DeviceStep, DeviceTensor, Operands};
use super::when::When;
use crate::arena::Layout;

/// Alignment of the tensors in the arena.
pub(super) const ALIGN: usize = 256;

/// The places of tensors in the arena, for images of one size.
pub(crate) struct Places {
    /// Offset of each tensor in the arena; `None` for the image.
    offsets: Vec<Option<usize>>,
    /// Bytes of the arena.
    pub(crate) bytes: usize,
    /// Bytes of all outputs in f32.
    pub(crate) outputs: usize,
}

impl Places {
    /// Places for up to `most` images with these grids.
    pub(crate) fn new(packed: &Packed, grids: &Grids, most: usize) -> Places {
        let (steps, tensors) = (&packed.steps, &packed.tensors);
        let second = |step: &DeviceStep| step.codes.map(|codes| codes.tensor);
        let uses = uses(steps.iter().map(|step| (step.input, step.output, second(step))));
        let touched = steps.iter().flat_map(|step| {
            [step.input, step.output].into_iter().chain(second(step)).map(|tensor| (&step.when, tensor))
        });
        let images = most_images(touched, tensors.len(), (most, grids));
        let mut bytes: Vec<usize> = tensors
            .iter()
            .zip(images)
            .map(|(tensor, images)| tensor.bytes(grids).saturating_mul(images))
            .collect();
        // The scores have their own memory, outside the arena.
        if let Some(scores) = packed.scores {
            bytes[scores.0] = 0;
        }
        let kept: Vec<TensorId> = packed.outputs.iter().map(|output| output.source).collect();
        let layout = Layout::new(&uses, &bytes, &kept);
        let mut begins = Vec::with_capacity(layout.bytes.len());
        let mut end: usize = 0;
        for bytes in &layout.bytes {
            begins.push(end);
            end = end.saturating_add(bytes.saturating_add(ALIGN - 1) / ALIGN * ALIGN);
        }
        let outputs = packed.outputs.iter().map(|output| {
            let (rows, columns) = packed.shape(output, grids);
            most.saturating_mul(4 * rows * columns).saturating_add(ALIGN)
        });
        Places {
            offsets: layout.slot.iter().map(|slot| slot.map(|slot| begins[slot])).collect(),
            bytes: end,
            outputs: outputs.fold(0, usize::saturating_add),
        }
    }
}

/// The prepared state of a runner for an image size, whatever the number of images.
pub(crate) struct OfSize {
    pub(crate) geometry: Arc<DeviceGeometry>,
    pub(crate) places: Places,
    /// The number of images for which it was made.
    pub(crate) asked: usize,
    /// The most images at a time.
    pub(crate) most: usize,
}

/// Some images of one size on the device.
#[derive(Clone, Copy)]
pub(crate) struct Images<'a> {
    pub(crate) count: usize,
    pub(crate) of: &'a OfSize,
    /// Their values, and the form of these. Only the first step reads them.
    pub(crate) input: Option<(&'a DeviceSlice, InputForm)>,
}

/// All buffers of an engine.
pub(crate) struct Memory {
    pub(crate) tensors: Vec<DeviceTensor>,
    arena: DeviceSlice,
    /// One u32 flag for each step, which it sets if its f16 residual holds a value that is not finite, and
    /// one for each output; then the scores of a classifier, and outputs on their way to the host, for which
    /// there is room after the first of them.
    results: DeviceSlice,
    /// The number of steps, and that of flags.
    steps: usize,
    flags: usize,
    flag_bytes: usize,
    scores: Option<TensorId>,
    /// Bytes of the scores of a full batch.
    score_bytes: usize,
}

impl Memory {
    /// Allocates memory for up to `max_batch` images with these places.
    pub(crate) fn new(packed: &Packed, max_batch: usize, places: &Places) -> Result<Memory, CudaError> {
        let (device, tensors, scores) = (packed.device(), packed.tensors.clone(), packed.scores);
        let score_bytes = scores.map_or(0, |scores| max_batch * tensors[scores.0].row_bytes());
        let score_bytes = score_bytes.next_multiple_of(ALIGN);
        let flag_bytes = (4 * packed.flags()).next_multiple_of(ALIGN);
        Ok(Memory {
            tensors,
            arena: DeviceBuf::zeroed(device, places.bytes)?.all(),
            results: DeviceBuf::zeroed(device, flag_bytes + score_bytes)?.all(),
            steps: packed.steps.len(),
            flags: packed.flags(),
            flag_bytes,
            scores,
            score_bytes,
        })
    }

    /// Bytes of all buffers.
    pub(crate) fn bytes(&self) -> usize {
        self.arena.bytes() + self.results.bytes()
    }

    /// Whether the arena has room for `arena` bytes, and the results for `results` bytes.
    pub(crate) fn has_room(&self, (arena, results): (usize, usize)) -> bool {
        arena <= self.arena.bytes() && results <= self.results.bytes()
    }

    /// Makes room for `arena` bytes in the arena and for `results` bytes of results. What grows moves, and
    /// its contents are lost. It grows by half at least, where the device has so much, so that images that
    /// become larger and larger move it few times.
    ///
    /// # Errors
    /// The device has too little free memory; the memory is as before then.
    pub(crate) fn reserve(
        &mut self,
        device: &Device,
        (arena, results): (usize, usize),
    ) -> Result<(), CudaError> {
        let grown = |slice: &DeviceSlice, bytes: usize| {
            if bytes <= slice.bytes() {
                return Ok(slice.clone());
            }
            let more = bytes.max(slice.bytes() / 2 * 3);
            let grown = DeviceBuf::zeroed(device, more).or_else(|_| DeviceBuf::zeroed(device, bytes))?;
            Ok::<_, CudaError>(grown.all())
        };
        let results = grown(&self.results, results)?;
        (self.arena, self.results) = (grown(&self.arena, arena)?, results);
        Ok(())
    }

    /// All flags: those of the steps, then those of the outputs.
    pub(crate) fn flags(&self) -> DeviceSlice {
        self.results.slice(0, 4 * self.flags)
    }

    /// Bytes of the flags.
    pub(crate) fn flag_bytes(&self) -> usize {
        self.flag_bytes
    }

    /// Flags, scores, and outputs on their way to the host.
    pub(crate) fn results(&self) -> &DeviceSlice {
        &self.results
    }

    /// Where outputs on their way to the host begin in the results.
    pub(crate) fn first_output(&self) -> usize {
        self.flag_bytes + self.score_bytes
    }

    /// The scores of `images` images.
    fn scores(&self, images: usize) -> DeviceSlice {
        let row = self.scores.map_or(0, |scores| self.tensors[scores.0].row_bytes());
        self.results.slice(self.flag_bytes, images * row)
    }

    /// Puts the launches that write outputs of `images` on `stream`: for each of `written` the index of the
    /// output, its memory and its form.
    pub(crate) fn write_outputs(
        &self,
        packed: &Packed,
        stream: &Stream,
        images: Images<'_>,
        written: &[(usize, DeviceSlice, OutputForm)],
    ) -> Result<(), CudaError> {
        let of = |index: usize| &packed.outputs[index];
        let slices: Vec<[DeviceSlice; 2]> = written
            .iter()
            .map(|&(index, ..)| {
                [self.slice(of(index).source, images), self.results.slice(4 * (self.steps + index), 4)]
            })
            .collect();
        let outputs: Vec<WrittenOutput<'_>> = (written.iter().zip(&slices))
            .map(|((index, out, form), [input, raised])| {
                let rows = images.of.geometry.rows(self.tensors[of(*index).source.0].rows);
                WrittenOutput { output: &of(*index).op, rows, input, out, form: *form, raised }
            })
            .collect();
        packed.writer_of_outputs.run(stream, images.count, &outputs, &self.results.slice(0, 4 * self.steps))
    }

    /// Returns the index of the first flag that is set, if there is one, and resets all flags: those of the
    /// steps come before those of the outputs.
    pub(crate) fn take_flag(&self, stream: &Stream) -> Result<Option<usize>, CudaError> {
        let flags = self.flags();
        let mut words = vec![0_u32; self.flags];
        flags.copy_to(stream, &mut words)?;
        flags.fill_zero(stream)?;
        Ok(words.iter().position(|&word| word != 0))
    }

    /// The tensor `id` of `images`.
    pub(crate) fn slice(&self, id: TensorId, images: Images<'_>) -> DeviceSlice {
        if Some(id) == self.scores {
            return self.scores(images.count);
        }
        let bytes = self.bytes_of(id, images);
        match images.of.places.offsets[id.0] {
            Some(offset) => self.arena.slice(offset, bytes),
            None => {
                let (pixels, form) = images.input.expect("the images are on the device");
                pixels.slice(0, bytes * form.element.bytes())
            }
        }
    }

    /// Bytes of the tensor `id` of `images`.
    fn bytes_of(&self, id: TensorId, images: Images<'_>) -> usize {
        images.count * self.tensors[id.0].bytes(images.of.geometry.grids())
    }

    /// Puts step `index` on `stream`, for `images`.
    pub(crate) fn run(
        &self,
        (index, step): (usize, &DeviceStep),
        choice: Option<&Choice>,
        stream: &Stream,
        images: Images<'_>,
    ) -> Result<(), CudaError> {
        let input = self.slice(step.input, images);
        let output = self.slice(step.output, images);
        let flag = self.results.slice(4 * index, 4);
        let codes = step.codes.map(|codes| self.slice(codes.tensor, images));
        let form = images.input.map_or(InputForm::PIXELS, |(_, form)| form);
        let operands = Operands { input: &input, form, output: &output, codes: codes.as_ref(), flag: &flag };
        step.run(stream, (images.count, &images.of.geometry), &operands, choice)
    }

    /// Minimum number of bytes that a step must read and write: its input, its output and its weights, once
    /// each.
    pub(crate) fn moved(&self, step: &DeviceStep, images: Images<'_>) -> u64 {
        let bytes = |id: TensorId| self.bytes_of(id, images) as u64;
        let residual = match &step.op {
            DeviceOp::Linear(linear, _) => linear.kind().is_residual(),
            DeviceOp::Norm(norm, _) => norm.adds(),
            _ => false,
        };
        let writes = bytes(step.output) * if residual { 2 } else { 1 };
        let codes = step.codes.filter(|codes| images.of.geometry.stores_codes(codes.order));
        bytes(step.input) + writes + codes.map_or(0, |codes| bytes(codes.tensor)) + step.weight_bytes
    }
}

/// For each tensor, the most images, up to `most`, of a batch with these grids that uses it. `touched` lists
/// tensors with the batches of a step that uses them. The steps that a fused launch replaces run for small
/// batches only.
fn most_images<'a>(
    touched: impl Iterator<Item = (&'a When, TensorId)>,
    tensors: usize,
    (most, grids): (usize, &Grids),
) -> Vec<usize> {
    let mut images = vec![0; tensors];
    for (when, tensor) in touched {
        images[tensor.0] = images[tensor.0].max(when.most(most, grids));
    }
    images
}

/// The tensors that each step reads and writes, for [`Layout::new`], from the input, the output and the
/// second output of the steps. A step reads its input while it writes both outputs.
fn uses(steps: impl Iterator<Item = (TensorId, TensorId, Option<TensorId>)>) -> Vec<(TensorId, TensorId)> {
    let of_step = |(input, output, second): (TensorId, TensorId, Option<TensorId>)| {
        second.map(|second| (input, second)).into_iter().chain([(input, output)])
    };
    steps.flat_map(of_step).collect()
}

#[cfg(test)]
mod tests {
    use swinq_model::{Size, SwinConfig};
    use swinq_plan::{Geometry, Rows};

    use super::*;

    #[test]
    fn tensors_of_small_batches_have_room_for_those_only() {
        let [residual, codes, hidden] = [0, 1, 2].map(TensorId);
        // 3136 tokens in the first stage.
        let own =
            Geometry::new(&SwinConfig::official("swin_tiny_patch4_window7_224").unwrap(), Size::square(224));
        let own = own.unwrap();
        let any = When::ANY;
        let fused = When::from_rows(Rows::Tokens(0), 3 * 3136, &own);
        let few = fused.few().unwrap();
        let touched = [(&any, residual), (&fused, residual), (&few, codes), (&few, hidden), (&any, hidden)];
        let most = |images| most_images(touched.into_iter(), 3, (images, own.grids()));
        assert_eq!(most(128), [128, 2, 128]);
        assert_eq!(most(1), [1, 1, 1]);
    }

    #[test]
    fn a_second_output_does_not_overwrite_the_input() {
        let [image, residual, branch, codes, hidden] = [0, 1, 2, 3, 4].map(TensorId);
        let steps = [
            (image, residual, None),
            (residual, branch, None),
            (branch, residual, Some(codes)),
            (codes, hidden, None),
        ];
        let layout = Layout::new(&uses(steps.into_iter()), &[8; 5], &[]);
        let slot = |tensor: TensorId| layout.slot[tensor.0].unwrap();
        assert!(slot(codes) != slot(branch) && slot(codes) != slot(residual), "{layout:?}");
        assert_eq!(slot(hidden), slot(branch), "the branch is not used after its step");
    }
}
