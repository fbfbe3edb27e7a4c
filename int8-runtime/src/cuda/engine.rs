//! An engine that runs a model on a GPU.

use std::sync::Arc;
use std::time::Duration;

use swinq_cuda::ops::patch::InputForm;
use swinq_cuda::{CudaError, Nvtx, Pipeline, Stream};
use swinq_model::{Size, SwinConfig};

use super::host::write;
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
pub(crate) struct Runner {
    pub(super) packed: Arc<Packed>,
    pub(super) config: SwinConfig,
    pub(super) memory: Memory,
    pub(super) tuner: Tuner,
    pub(super) pipeline: Pipeline,
    pub(super) sizes: Sizes<Prepared>,
    /// The key of the next graph.
    pub(super) next_graph: usize,
    /// Whether no batch was prepared yet.
    pub(super) first: bool,
    pub(super) options: CudaOptions,
    /// Present if launches are marked for a profiler.
    pub(super) nvtx: Option<Nvtx>,
}

impl Runner {
    /// Allocates the buffers of `packed`, a network of the architecture `config`, for images of its own size.
    pub(crate) fn new(
        packed: &Arc<Packed>,
        config: &SwinConfig,
        options: CudaOptions,
    ) -> Result<Runner, RuntimeError> {
        let nvtx = options.nvtx.then(Nvtx::new).transpose()?;
        let tuner = Tuner::new(packed.device(), options.gemm, options.autotune)?;
        let places = Places::new(packed, packed.own.grids(), options.max_batch);
        let memory = Memory::new(packed, options.max_batch, &places)?;
        let input = options.max_batch * config.image_size.area() * config.in_chans;
        let output = memory.result_bytes(&places);
        Ok(Runner {
            pipeline: Pipeline::new(packed.device(), input, output, packed.flags())?,
            packed: Arc::clone(packed),
            config: config.clone(),
            memory,
            tuner,
            sizes: Sizes::new(),
            next_graph: 0,
            first: true,
            options,
            nvtx,
        })
    }

    /// The image size for which the network was built.
    pub(super) fn own_size(&self) -> Size {
        self.packed.own.image()
    }

    /// Values of an image of `size`.
    pub(super) fn image_values(&self, size: Size) -> usize {
        size.area() * self.config.in_chans
    }

    /// Whether images of `size` are prepared.
    pub(crate) fn has(&self, size: Size) -> bool {
        self.sizes.of_size(size).is_some()
    }

    /// Bytes of the arena and of the images, which are allocated.
    pub(crate) fn held_bytes(&self) -> usize {
        self.memory.bytes() + self.pipeline.input().bytes()
    }

    /// Resets the flags after runs that are not inferences. Repeated launches add to the stream again and
    /// again, so that it may overflow.
    fn lower_flags(&self) -> Result<(), RuntimeError> {
        self.memory.take_flag(self.pipeline.stream())?;
        Ok(())
    }

    /// What is prepared for a batch, and its images in the pipeline's input.
    ///
    /// # Panics
    /// If nothing is.
    pub(super) fn prepared(&self, batch: Batch) -> (&[Launch], Images<'_>) {
        let prepared = self.sizes.get(batch).expect("the batch is prepared");
        let (of, pixels) = (&prepared.of, self.pipeline.input());
        let images = Images { count: batch.1, of, pixels, form: InputForm::PIXELS };
        (&prepared.launches, images)
    }

    /// As [`Runner::prepared`], for `count` images of the network's own size, which are copied to the input.
    fn loaded(&self, count: usize, pixels: &[u8]) -> Result<(&[Launch], Images<'_>), CudaError> {
        self.pipeline.input().slice(0, pixels.len()).copy_from(self.pipeline.stream(), pixels)?;
        Ok(self.prepared((self.own_size(), count)))
    }

    /// Times each of `runs` forward passes of `images` images of `size` that are already on the GPU, without copies. Feature maps
    /// are written in f16, with the channels first. `None` if fewer images of that size run at a time.
    pub(crate) fn compute_times(
        &mut self,
        images: usize,
        size: Size,
        runs: usize,
    ) -> Result<Option<Vec<Duration>>, RuntimeError> {
        if self.prepare(images, size)? < images {
            return Ok(None);
        }
        self.reserve_input(images, size, InputForm::PIXELS)?;
        let _range = self.nvtx.map(|nvtx| nvtx.range(&format!("graphs of {images} images")));
        let graph = self.sizes.get((size, images)).expect("the batch is prepared").graph;
        let (launches, images) = self.prepared((size, images));
        let (regions, memory) = (self.maps_in_f16(images.count, images.of), &self.memory);
        let times = self.pipeline.time(
            self.packed.device(),
            graph,
            runs,
            |on, _| embed(&self.packed.steps, launches, memory, on, images),
            |on| write(&self.packed, memory, on, images, &regions),
        )?;
        self.lower_flags()?;
        Ok(Some(times.into_iter().map(|ms| Duration::from_secs_f64(f64::from(ms) / 1e3)).collect()))
    }

    /// Times each launch of a forward pass of the `count` images in `pixels`, which have the network's own size, by itself.
    pub(crate) fn profile(
        &mut self,
        count: usize,
        pixels: &[u8],
    ) -> Result<Vec<LaunchProfile>, RuntimeError> {
        self.prepare(count, self.own_size())?;
        let (on, (launches, images)) = (self.pipeline.stream(), self.loaded(count, pixels)?);
        let mut profiles = Vec::with_capacity(launches.len());
        for (index, choice) in launches {
            let step = &self.packed.steps[*index];
            let _range = self.nvtx.map(|nvtx| nvtx.range(&step.name));
            let ms = time_together(self.packed.device(), on, || {
                self.memory.run((*index, step), choice.as_ref(), on, images)
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
        for region in self.maps_in_f16(count, images.of) {
            let images = Images { count, ..images };
            let ms = time_together(self.packed.device(), on, || {
                write(&self.packed, &self.memory, on, images, std::slice::from_ref(&region))
            })?;
            profiles.push(region.profile(&self.packed, &self.memory, images, ms));
        }
        self.lower_flags()?;
        Ok(profiles)
    }

    /// Describes the launches for batches of `images` images of the network's own size: a line for each launch, with the chosen
    /// kernel and the reason.
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
        let (launches, _) = self.prepared((self.own_size(), images));
        Ok(launches.iter().map(line).chain(notes).collect())
    }

    /// Runs the steps one by one on the `count` images in `pixels`, which have the network's own size, and collects the output
    /// of each.
    pub(crate) fn trace(&mut self, count: usize, pixels: &[u8]) -> Result<Vec<Traced>, RuntimeError> {
        let size = self.own_size();
        let padded = self.sizes.padded((size, count), self.options.max_batch);
        self.prepare(padded, size)?;
        let (on, (launches, images)) = (self.pipeline.stream(), self.loaded(padded, pixels)?);
        let mut all = Vec::with_capacity(launches.len());
        for (index, choice) in launches {
            let step = &self.packed.steps[*index];
            self.memory.run((*index, step), choice.as_ref(), on, images)?;
            let output = self.memory.slice(step.output, Images { count, ..images });
            let mut bytes = vec![0u8; output.bytes()];
            output.copy_to(on, &mut bytes)?;
            let values = self.memory.tensors[step.output.0].traced(&bytes);
            all.push(Traced { name: step.name.clone(), tensor: step.output, values });
        }
        self.lower_flags()?;
        Ok(all)
    }
}

/// Puts the first of the `launches` of `steps` on `on`, which reads the images.
pub(super) fn embed(
    steps: &[DeviceStep],
    launches: &[Launch],
    memory: &Memory,
    on: &Stream,
    images: Images<'_>,
) -> Result<(), CudaError> {
    let (index, choice) = &launches[0];
    memory.run((*index, &steps[*index]), choice.as_ref(), on, images)
}

/// Puts the `launches` of `steps` on `on`, each in a range with its name if `nvtx` is given.
pub(super) fn run_all(
    steps: &[DeviceStep],
    launches: &[Launch],
    memory: &Memory,
    on: &Stream,
    images: Images<'_>,
    nvtx: Option<Nvtx>,
) -> Result<(), RuntimeError> {
    launches.iter().try_for_each(|(index, choice)| {
        let step = &steps[*index];
        let _range = nvtx.map(|nvtx| nvtx.range(&step.name));
        let run = memory.run((*index, step), choice.as_ref(), on, images);
        run.map_err(|error| RuntimeError::on_device(&step.name, error))
    })
}
