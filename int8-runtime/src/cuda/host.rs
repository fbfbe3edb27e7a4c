//! Inference from host memory to host memory: batches in parts, whose outputs travel through the results.

use std::sync::Arc;
use std::time::Duration;

use swinq_cuda::ops::output::{OutputForm as DeviceForm, OutputType};
use swinq_cuda::ops::patch::{InputForm, InputType};
use swinq_cuda::{CudaError, DeviceSlice, Nvtx, Pipeline, Stream, Transfer};
use swinq_model::Size;
use swinq_numerics::{ImageLayout, Images as Input, Pixels};

use super::engine::{CudaRunner, embed_in, run_all};
use super::launches::name_of_maps;
use super::memory::{ALIGN, Images, Memory, OfSize};
use super::options::ResidualType;
use super::packed::{Meaning, Packed};
use super::tune::Effort;
use crate::engine::{Finite, MOST_OUTPUTS, OutputBytes, OutputElement, OutputForm, OutputLayout};
use crate::error::RuntimeError;
use crate::profile::LaunchProfile;

/// An output that is asked for.
pub(super) struct Asked {
    /// Its index among the outputs of the network.
    index: usize,
    form: DeviceForm,
    /// Bytes of an image.
    bytes: usize,
}

/// The place of an output in the results.
pub(super) struct Region {
    index: usize,
    form: DeviceForm,
    begin: usize,
    bytes: usize,
    /// Whether an op writes it; f32 scores are there without one.
    written: bool,
}

/// The profile of the launch that writes the maps of `images` to `regions` in `ms` milliseconds.
pub(super) fn profile_of_maps(
    packed: &Packed,
    memory: &Memory,
    images: Images<'_>,
    regions: &[Region],
    ms: f32,
) -> LaunchProfile {
    let names = regions.iter().map(|region| packed.outputs[region.index].name.as_str());
    let read = |region: &Region| memory.slice(packed.outputs[region.index].source, images).bytes();
    LaunchProfile {
        name: name_of_maps(names),
        detail: "f16, channels first".to_owned(),
        time: Duration::from_secs_f64(f64::from(ms) / 1e3),
        macs: 0,
        bytes: regions.iter().map(|region| (read(region) + region.bytes) as u64).sum(),
    }
}

/// A part of a batch.
struct HostPart {
    /// Number of its images, and that of the prepared batch in which they run.
    count: usize,
    number: usize,
    regions: Vec<Region>,
}

impl From<OutputForm> for DeviceForm {
    fn from(form: OutputForm) -> DeviceForm {
        let element = match form.element {
            OutputElement::F32 => OutputType::F32,
            OutputElement::F16 => OutputType::F16,
        };
        DeviceForm { element, channels_first: form.layout == OutputLayout::ChannelsFirst }
    }
}

impl CudaRunner {
    /// Computes the outputs of the `images` images of `input`; there must be at least one. They run in
    /// batches of `each` images, at most `max_batch`, or fewer if they are larger than the network's own.
    /// `outputs` has memory for each output of the plan in these `forms`, or `None` for one that is not asked
    /// for. Copies overlap with computation, except with [`CudaOptions::nvtx`](super::CudaOptions::nvtx).
    pub(crate) fn infer(
        &mut self,
        (images, each): (usize, usize),
        input: Input<'_>,
        outputs: &mut OutputBytes<'_>,
        forms: &[OutputForm; MOST_OUTPUTS],
    ) -> Result<Finite, RuntimeError> {
        let (size, (bytes, form)) = (input.size, bytes_and_form(input));
        let (mut asked, mut memory) = (Vec::new(), Vec::new());
        for (index, (bytes, form)) in outputs.iter_mut().zip(forms).enumerate() {
            let Some(bytes) = bytes.as_deref_mut() else { continue };
            asked.push(Asked { index, form: (*form).into(), bytes: bytes.len() / images });
            memory.push(bytes);
        }
        let (each, image) = (each.min(self.at_a_time(size)), bytes.len() / images);
        let of = self.of_size(size, each.min(images))?;
        let results = self.reserve_results(&asked, each.min(images))?;
        self.reserve_pipeline(each.min(images) * image, results)?;
        let (mut parts, mut transfers) = (Vec::new(), Vec::new());
        let numbers = self.prepare_parts((images, each), &of)?;
        for ((part, number), input) in numbers.into_iter().enumerate().zip(bytes.chunks(each * image)) {
            let count = each.min(images - part * each);
            let regions = regions(&self.packed, &self.memory, &asked, count);
            let outputs = regions.iter().zip(&mut memory).map(|(region, memory)| {
                let (now, later) = std::mem::take(memory).split_at_mut(region.bytes);
                *memory = later;
                (region.begin, now)
            });
            transfers.push(Transfer { input, outputs: outputs.collect() });
            parts.push(HostPart { count, number, regions });
        }
        let known = parts.iter().all(|part| part.regions.iter().all(|region| region.written));
        self.stream.wait(&self.last)?;
        if let Some(nvtx) = self.nvtx {
            let all = parts.iter().zip(transfers);
            all.into_iter()
                .try_for_each(|(part, transfer)| self.infer_marked(nvtx, part, (&of, form), transfer))?;
            return self.check_flags(&asked, known);
        }
        let (packed, memory, sizes) = (&self.packed, &self.memory, &self.sizes);
        let work = |index: usize, stream: &Stream, pixels: &DeviceSlice| {
            let HostPart { count, number, regions } = &parts[index];
            let prepared = sizes.get((size, *number)).expect("the batch is prepared");
            let images = Images { count: *count, of: &of, input: Some((pixels, form)) };
            embed_in(*number, packed, &prepared.launches, memory, stream, images)?;
            prepared.graph.launch(stream)?;
            write(packed, memory, stream, images, regions)
        };
        let pipeline = self.pipeline.as_mut().expect("it is reserved");
        match pipeline.run(memory.results(), transfers.into_iter(), work)? {
            None => Ok(Finite { input: true, outputs: known }),
            Some(_) => self.check_flags(&asked, known),
        }
    }

    /// Makes room for `input` bytes of images and `output` bytes of results in page-locked memory.
    pub(super) fn reserve_pipeline(&mut self, input: usize, output: usize) -> Result<(), RuntimeError> {
        let device = self.packed.device();
        match &mut self.pipeline {
            Some(pipeline) => pipeline.reserve(device, input, output)?,
            none => {
                *none = Some(Pipeline::new(device, &self.stream, (input, output), self.packed.flags())?);
            }
        }
        Ok(())
    }

    /// Makes room for the results of `count` images, and returns the bytes up to the end of the last.
    fn reserve_results(&mut self, asked: &[Asked], count: usize) -> Result<usize, RuntimeError> {
        let regions = regions(&self.packed, &self.memory, asked, count);
        let end = regions.iter().map(|region| (region.begin + region.bytes).next_multiple_of(ALIGN)).max();
        let end = end.unwrap_or(0);
        self.reserve((0, end))?;
        Ok(end)
    }

    /// Chooses kernels for batches of `images` images of `size`, or as many as run at a time, records their
    /// graph, and makes room for all outputs in f32. No-op if already prepared. Returns the number of images.
    pub(crate) fn prepare(&mut self, images: usize, size: Size) -> Result<usize, RuntimeError> {
        let images = images.min(self.at_a_time(size));
        let of = self.of_size(size, images)?;
        self.prepare_for(images, &of, OutputType::F32)?;
        Ok(images)
    }

    /// Prepares a batch of `images` images, with room for all outputs in the type `element`.
    pub(super) fn prepare_for(
        &mut self,
        images: usize,
        of: &Arc<OfSize>,
        element: OutputType,
    ) -> Result<(), RuntimeError> {
        self.reserve_results(&self.asked_for_all(of, DeviceForm { element, channels_first: false }), images)?;
        self.prepare_batch(images, of, Effort::Measure)
    }

    /// Resets all flags, and returns their meaning. `known` is whether all outputs that are asked for have a
    /// flag.
    ///
    /// # Errors
    /// [`RuntimeError::ResidualOverflow`] if a value in the f16 residual is not finite.
    fn check_flags(&self, asked: &[Asked], known: bool) -> Result<Finite, RuntimeError> {
        let Some(flag) = self.memory.take_flag(&self.stream)? else {
            return Ok(Finite { input: true, outputs: known });
        };
        match self.packed.meaning(flag) {
            Meaning::Input => Ok(Finite { input: false, outputs: false }),
            Meaning::Residual(launch) => Err(RuntimeError::ResidualOverflow { launch }),
            Meaning::Output(output, _) => {
                // A value of a feature map that is not finite in f32 was not finite in the residual.
                let in_f32 =
                    asked.iter().any(|asked| asked.index == output && asked.form.element == OutputType::F32);
                let f16_residual = self.options.residual() == ResidualType::F16 && in_f32;
                let source = self.packed.outputs[output].source;
                match self.packed.writer(source, self.packed.steps.len()).filter(|_| f16_residual) {
                    Some(writer) => Err(RuntimeError::ResidualOverflow { launch: writer.name.clone() }),
                    None => Ok(Finite { input: true, outputs: false }),
                }
            }
        }
    }

    /// Computes the outputs of a part, launch by launch, with a profiler range around each launch and one
    /// around all.
    fn infer_marked(
        &self,
        nvtx: Nvtx,
        part: &HostPart,
        (of, form): (&OfSize, InputForm),
        transfer: Transfer<'_>,
    ) -> Result<(), RuntimeError> {
        let HostPart { count, number, regions } = part;
        let _inference = nvtx.range(&format!("inference of {number} images"));
        let (stream, size) = (&*self.stream, of.geometry.grids().image());
        let input = self.pipeline.as_ref().expect("it is reserved").input();
        let prepared = self.sizes.get((size, *number)).expect("the batch is prepared");
        input.slice(0, transfer.input.len()).copy_from(stream, transfer.input)?;
        let images = Images { count: *count, of, input: Some((input, form)) };
        {
            let _range = nvtx.range(&self.packed.steps[prepared.launches[0].0].name);
            embed_in(*number, &self.packed, &prepared.launches, &self.memory, stream, images)?;
        }
        let all = Images { count: *number, ..images };
        run_all(&self.packed.steps, &prepared.launches[1..], &self.memory, stream, all, Some(nvtx))?;
        write(&self.packed, &self.memory, stream, images, regions)?;
        for (begin, to) in transfer.outputs {
            self.memory.results().slice(begin, to.len()).copy_to(stream, to)?;
        }
        Ok(())
    }

    /// The places of the feature maps of `count` images of the geometry `of`, in f16 with the channels first,
    /// as most programs read them; none for a classifier.
    pub(super) fn maps_in_f16(&self, count: usize, of: &OfSize) -> Vec<Region> {
        let form = DeviceForm { element: OutputType::F16, channels_first: true };
        match self.packed.scores {
            Some(_) => Vec::new(),
            None => regions(&self.packed, &self.memory, &self.asked_for_all(of, form), count),
        }
    }

    /// All outputs in one form.
    fn asked_for_all(&self, of: &OfSize, form: DeviceForm) -> Vec<Asked> {
        let asked = |(index, output)| {
            let (rows, columns) = self.packed.shape(output, of.geometry.grids());
            Asked { index, form, bytes: rows * columns * form.element.bytes() }
        };
        self.packed.outputs.iter().enumerate().map(asked).collect()
    }
}

/// The bytes of `images`, and their form.
fn bytes_and_form(images: Input<'_>) -> (&[u8], InputForm) {
    let (bytes, element) = match images.pixels {
        Pixels::U8(values) => (values, InputType::U8),
        Pixels::F32(values) => (bytemuck::cast_slice(values), InputType::F32),
        Pixels::F16(values) => (bytemuck::cast_slice(values), InputType::F16),
    };
    (bytes, InputForm { element, channels_first: images.layout == ImageLayout::ChannelsFirst })
}

/// The places in the results of the outputs that are asked for, of `count` images.
fn regions(packed: &Packed, memory: &Memory, asked: &[Asked], count: usize) -> Vec<Region> {
    let mut end = memory.first_output();
    let place = |&Asked { index, form, bytes }: &Asked| {
        let bytes = count * bytes;
        let scores = packed.scores == Some(packed.outputs[index].source) && form.element == OutputType::F32;
        if scores {
            return Region { index, form, begin: memory.flag_bytes(), bytes, written: false };
        }
        let begin = end;
        end += bytes.next_multiple_of(ALIGN);
        Region { index, form, begin, bytes, written: true }
    };
    asked.iter().map(place).collect()
}

/// Puts the ops that write outputs of `images` to `regions` on `stream`.
pub(super) fn write(
    packed: &Packed,
    memory: &Memory,
    stream: &Stream,
    images: Images<'_>,
    regions: &[Region],
) -> Result<(), CudaError> {
    let out = |region: &Region| memory.results().slice(region.begin, region.bytes);
    let asked = regions.iter().filter(|region| region.written);
    let written: Vec<_> = asked.map(|region| (region.index, out(region), region.form)).collect();
    memory.write_outputs(packed, stream, images, &written)
}
