//! An engine that runs a model on a GPU.

use std::sync::Arc;
use std::time::Duration;

use swinq_cuda::ops::output::OutputType;
use swinq_cuda::ops::patch::InputForm;
use swinq_cuda::{CudaError, DeviceSlice, Event, KeepContext, Nvtx, Pipeline, Stream};
use swinq_model::{Size, SwinConfig};

use super::host::{profile_of_maps, write};
use super::memory::{Images, Memory, Places};
use super::options::CudaOptions;
use super::packed::Packed;
use super::prepare::{Launch, Prepared};
use super::sizes::{Batch, Sizes};
use super::step::{Choice, DeviceStep};
use super::tune::{Tuner, time_together};
use crate::error::RuntimeError;
use crate::profile::LaunchProfile;
use crate::trace::Traced;

/// Runs a packed model on its GPU, with one arena, and one graph for each prepared batch.
pub(crate) struct CudaRunner {
    pub(super) packed: Arc<Packed>,
    pub(super) config: SwinConfig,
    pub(super) memory: Memory,
    pub(super) tuner: Tuner,
    /// The stream of measurements, and of inference from host memory.
    pub(super) stream: Arc<Stream>,
    /// Buffers of inference from host memory, which its first call allocates.
    pub(super) pipeline: Option<Pipeline>,
    /// The end of the work that streams of callers do with this arena.
    pub(super) last: Event,
    pub(super) sizes: Sizes<Prepared>,
    /// Whether no batch was prepared yet.
    pub(super) first: bool,
    pub(super) options: CudaOptions,
    /// Present if launches are marked for a profiler.
    pub(super) nvtx: Option<Nvtx>,
}

impl CudaRunner {
    /// Allocates the arena of `packed`, a network of the architecture `config`, for images of its own size.
    pub(crate) fn new(
        packed: &Arc<Packed>,
        config: &SwinConfig,
        options: CudaOptions,
    ) -> Result<CudaRunner, RuntimeError> {
        let (device, nvtx) = (packed.device(), options.nvtx.then(Nvtx::new).transpose()?);
        let places = Places::new(packed, packed.own.grids(), options.max_batch);
        Ok(CudaRunner {
            memory: Memory::new(packed, options.max_batch, &places)?,
            tuner: Tuner::new(device, options.gemm, options.autotune)?,
            stream: Arc::new(Stream::new(device)?),
            pipeline: None,
            last: Event::untimed(device)?,
            packed: Arc::clone(packed),
            config: config.clone(),
            sizes: Sizes::new(),
            first: true,
            options,
            nvtx,
        })
    }

    /// The network's own image size.
    pub(super) fn own_size(&self) -> Size {
        self.packed.own.image()
    }

    /// Whether images of `size` are prepared.
    pub(crate) fn has(&self, size: Size) -> bool {
        self.sizes.of_size(size).is_some()
    }

    /// Bytes of the arena and of the images, which are allocated.
    pub(crate) fn held_bytes(&self) -> usize {
        self.memory.bytes() + self.pipeline.as_ref().map_or(0, |pipeline| pipeline.input().bytes())
    }

    /// Resets the flags after runs that are not inferences. Repeated launches add to the residual again and
    /// again, so that it may overflow.
    fn lower_flags(&self) -> Result<(), RuntimeError> {
        self.memory.take_flag(&self.stream)?;
        Ok(())
    }

    /// The prepared state for `count` images of `size`, whose values are in `pixels`.
    ///
    /// # Panics
    /// If nothing is.
    fn prepared<'a>(&'a self, (size, count): Batch, pixels: &'a DeviceSlice) -> (&'a Prepared, Images<'a>) {
        let prepared = self.sizes.get((size, count)).expect("the batch is prepared");
        (prepared, Images { count, of: &prepared.of, input: Some((pixels, InputForm::PIXELS)) })
    }

    /// Copies `pixels` to the device, and returns where they are there.
    fn load(&mut self, pixels: &[u8], bytes: usize) -> Result<DeviceSlice, RuntimeError> {
        self.reserve_pipeline(bytes.max(pixels.len()), 0)?;
        let input = self.pipeline.as_ref().expect("it is reserved").input().clone();
        input.slice(0, pixels.len()).copy_from(&self.stream, pixels)?;
        Ok(input)
    }

    /// Times each of `runs` forward passes of `images` images of `size` that are already on the GPU, without
    /// copies. Feature maps are written in f16, with the channels first. `None` if fewer images of that size
    /// run at a time.
    pub(crate) fn compute_times(
        &mut self,
        images: usize,
        size: Size,
        runs: usize,
    ) -> Result<Option<Vec<Duration>>, RuntimeError> {
        let of = self.of_size(size, images)?;
        if of.most < images {
            return Ok(None);
        }
        self.prepare_for(images, &of, OutputType::F16)?;
        let pixels = self.load(&[], images * size.area() * self.config.in_chans)?;
        let _range = self.nvtx.map(|nvtx| nvtx.range(&format!("graphs of {images} images")));
        let (prepared, images) = self.prepared((size, images), &pixels);
        let (regions, stream) = (self.maps_in_f16(images.count, images.of), &self.stream);
        let marks: Vec<Event> =
            (0..=runs).map(|_| Event::new(self.packed.device())).collect::<Result<_, _>>()?;
        marks[0].record(stream)?;
        for mark in &marks[1..] {
            embed(&self.packed.steps, &prepared.launches, &self.memory, stream, images)?;
            prepared.graph.launch(stream)?;
            write(&self.packed, &self.memory, stream, images, &regions)?;
            mark.record(stream)?;
        }
        stream.synchronize()?;
        let time = |pair: &[Event]| {
            let ms = Event::elapsed_ms(&pair[0], &pair[1])?;
            Ok::<_, CudaError>(Duration::from_secs_f64(f64::from(ms) / 1e3))
        };
        let times = marks.windows(2).map(time).collect::<Result<_, _>>()?;
        self.lower_flags()?;
        Ok(Some(times))
    }

    /// Times each launch of a forward pass of the `count` images of `size` in `pixels` by itself.
    pub(crate) fn profile(
        &mut self,
        size: Size,
        count: usize,
        pixels: &[u8],
    ) -> Result<Vec<LaunchProfile>, RuntimeError> {
        self.prepare(count, size)?;
        let pixels = self.load(pixels, 0)?;
        let (stream, (prepared, images)) = (&*self.stream, self.prepared((size, count), &pixels));
        let mut profiles = Vec::with_capacity(prepared.launches.len());
        for (index, choice) in &prepared.launches {
            let step = &self.packed.steps[*index];
            let _range = self.nvtx.map(|nvtx| nvtx.range(&step.name));
            let ms = time_together(self.packed.device(), stream, || {
                self.memory.run((*index, step), choice.as_ref(), stream, images)
            })?;
            let rows = count * images.of.geometry.rows(step.rows);
            profiles.push(LaunchProfile {
                name: step.name.clone(),
                detail: choice.as_ref().map_or(String::new(), Choice::to_string),
                time: Duration::from_secs_f64(f64::from(ms) / 1e3),
                macs: step.macs_per_row * rows as u64,
                bytes: self.memory.moved(step, images),
            });
        }
        let maps = self.maps_in_f16(count, images.of);
        if !maps.is_empty() {
            let ms = time_together(self.packed.device(), stream, || {
                write(&self.packed, &self.memory, stream, images, &maps)
            })?;
            profiles.push(profile_of_maps(&self.packed, &self.memory, images, &maps, ms));
        }
        self.lower_flags()?;
        Ok(profiles)
    }

    /// Describes the launches for batches of `images` images of the network's own size: a line for each
    /// launch, with the chosen kernel and the reason.
    pub(crate) fn launches(&mut self, images: usize) -> Result<Vec<String>, RuntimeError> {
        self.prepare(images, self.own_size())?;
        let line = |(index, choice): &Launch| {
            let step = &self.packed.steps[*index];
            let (reads, writes) = (self.memory.tensors[step.input.0], self.memory.tensors[step.output.0]);
            let (reads, writes) = (reads.element.name(), writes.element.name());
            let kernel = choice.as_ref().map_or(String::new(), |choice| choice.to_string());
            format!("  {:<34} {:<18} {reads:>5} -> {writes:<5} {kernel}", step.name, step.op.name())
        };
        let notes = self.tuner.notes().iter().map(|note| format!("  note: {note}"));
        let prepared = self.sizes.get((self.own_size(), images)).expect("the batch is prepared");
        Ok(prepared.launches.iter().map(line).chain(notes).collect())
    }

    /// Runs the steps one by one on the `count` images in `pixels`, which have the network's own size, and
    /// collects the output of each.
    pub(crate) fn trace(&mut self, count: usize, pixels: &[u8]) -> Result<Vec<Traced>, RuntimeError> {
        let size = self.own_size();
        let padded = self.sizes.padded((size, count), self.options.max_batch);
        self.prepare(padded, size)?;
        let pixels = self.load(pixels, padded * size.area() * self.config.in_chans)?;
        let (stream, (prepared, images)) = (&*self.stream, self.prepared((size, padded), &pixels));
        let mut all = Vec::with_capacity(prepared.launches.len());
        for (index, choice) in &prepared.launches {
            let step = &self.packed.steps[*index];
            self.memory.run((*index, step), choice.as_ref(), stream, images)?;
            let output = self.memory.slice(step.output, Images { count, ..images });
            let mut bytes = vec![0u8; output.bytes()];
            output.copy_to(stream, &mut bytes)?;
            let values = self.memory.tensors[step.output.0].traced(&bytes);
            all.push(Traced { name: step.name.clone(), tensor: step.output, values });
        }
        self.lower_flags()?;
        Ok(all)
    }
}

impl Drop for CudaRunner {
    fn drop(&mut self) {
        let _context = KeepContext::new(self.packed.device());
        // Graphs, kernels and memory live until the work that streams of callers do with them is done.
        let _ = self.last.synchronize();
    }
}

/// Puts the first of the `launches` of `steps` on `stream`, which reads the images.
pub(super) fn embed(
    steps: &[DeviceStep],
    launches: &[Launch],
    memory: &Memory,
    stream: &Stream,
    images: Images<'_>,
) -> Result<(), CudaError> {
    let (index, choice) = &launches[0];
    memory.run((*index, &steps[*index]), choice.as_ref(), stream, images)
}

/// As [`embed`], for a batch that is prepared for `number` images. The rows of those that are missing are
/// copies of the first image's, so that they hold nothing that is not in the batch.
pub(super) fn embed_in(
    number: usize,
    packed: &Packed,
    launches: &[Launch],
    memory: &Memory,
    stream: &Stream,
    images: Images<'_>,
) -> Result<(), CudaError> {
    embed(&packed.steps, launches, memory, stream, images)?;
    if images.count == number {
        return Ok(());
    }
    let written = packed.steps[launches[0].0].output;
    let rows = memory.slice(written, Images { count: number, ..images });
    let image = rows.bytes() / number;
    let rest = rows.slice(images.count * image, (number - images.count) * image);
    rest.fill_with(stream, &rows.slice(0, image))
}

/// Puts the `launches` of `steps` on `stream`, each in a range with its name if `nvtx` is given.
pub(super) fn run_all(
    steps: &[DeviceStep],
    launches: &[Launch],
    memory: &Memory,
    stream: &Stream,
    images: Images<'_>,
    nvtx: Option<Nvtx>,
) -> Result<(), RuntimeError> {
    launches.iter().try_for_each(|(index, choice)| {
        let step = &steps[*index];
        let _range = nvtx.map(|nvtx| nvtx.range(&step.name));
        let run = memory.run((*index, step), choice.as_ref(), stream, images);
        run.map_err(|error| RuntimeError::on_device(&step.name, error))
    })
}
