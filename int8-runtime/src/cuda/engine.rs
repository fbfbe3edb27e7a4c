//! An engine that runs a model on a GPU.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use swinq_cuda::ops::linear::Target;
use swinq_cuda::{Device, DeviceSlice, Nvtx, Pipeline, Stream};
use swinq_plan::{Plan, TensorId};

use super::lower::lower;
use super::memory::Memory;
use super::options::{CudaOptions, Gemm};
use super::sizes::Sizes;
use super::step::{Choice, DeviceOp, DeviceStep, DeviceTensor};
use super::tune::{Trial, Tuner, time_together};
use crate::error::RuntimeError;
use crate::profile::LaunchProfile;
use crate::trace::Traced;

/// A model lowered for a GPU: its steps, with their weights on the device. Several engines can share it.
pub(crate) struct Packed {
    device: Device,
    steps: Vec<DeviceStep>,
    tensors: Vec<DeviceTensor>,
    logits: TensorId,
}

impl Packed {
    /// Lowers `plan` for the GPU and the residual stream of `options`: packs and uploads its weights.
    pub(crate) fn new(plan: &Plan<'_>, options: &CudaOptions) -> Result<Packed, RuntimeError> {
        let device = Device::open(options.device)?;
        // With cuBLASLt, the library computes the products.
        let lowered = lower(&device, plan, options.residual, options.gemm != Gemm::CublasLt)?;
        Ok(Packed { device, steps: lowered.steps, tensors: lowered.tensors, logits: plan.logits() })
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }
}

/// A step that runs for a batch size: its index, and the kernel chosen for it if it is a linear layer.
type Launch = (usize, Option<Choice>);

/// Runs a packed model on its GPU, with one arena, and one graph for each prepared batch size.
pub(crate) struct Runner {
    packed: Arc<Packed>,
    memory: Memory,
    tuner: Tuner,
    pipeline: Pipeline,
    prepared: BTreeMap<usize, Vec<Launch>>,
    sizes: Sizes,
    options: CudaOptions,
    /// Present if launches are marked for a profiler.
    nvtx: Option<Nvtx>,
    /// Bytes per image.
    image_bytes: usize,
    classes: usize,
}

impl Runner {
    /// Allocates the buffers of `packed`, a model for images of `size` pixels and `classes` classes.
    pub(crate) fn new(
        packed: &Arc<Packed>,
        options: CudaOptions,
        size: usize,
        classes: usize,
    ) -> Result<Runner, RuntimeError> {
        let nvtx = options.nvtx.then(Nvtx::new).transpose()?;
        let device = &packed.device;
        let tuner = Tuner::new(device, options.gemm, options.autotune)?;
        let (tensors, logits) = (packed.tensors.clone(), packed.logits);
        let memory = Memory::new(device, &packed.steps, tensors, options.max_batch, logits)?;
        let image_bytes = size * size * 3;
        let (input, output) = (options.max_batch * image_bytes, options.max_batch * classes * 4);
        Ok(Runner {
            pipeline: Pipeline::new(device, input, output, memory.flag_bytes())?,
            packed: Arc::clone(packed),
            memory,
            tuner,
            prepared: BTreeMap::new(),
            sizes: Sizes::default(),
            options,
            nvtx,
            image_bytes,
            classes,
        })
    }

    /// Chooses kernels for batches of `images`, at most `max_batch`, and records their graph. No-op if
    /// already prepared.
    pub(crate) fn prepare(&mut self, images: usize) -> Result<(), RuntimeError> {
        self.prepare_size(images, true)
    }

    /// As [`Runner::prepare`]; kernels are measured only if `measure`.
    fn prepare_size(&mut self, images: usize, measure: bool) -> Result<(), RuntimeError> {
        if let Some(unused) = self.sizes.touch(images) {
            self.pipeline.forget(unused);
            self.prepared.remove(&unused);
        }
        if self.pipeline.has(images) {
            return Ok(());
        }
        self.compile(images);
        let mut launches: Vec<Launch> = Vec::with_capacity(self.packed.steps.len());
        for (index, step) in self.packed.steps.iter().enumerate().filter(|(_, step)| step.runs(images)) {
            let (tuner, pipeline) = (&mut self.tuner, &self.pipeline);
            launches.push((index, choose(step, (images, measure), &self.memory, tuner, pipeline)?));
        }
        self.tuner.finish();
        let (steps, memory) = (&self.packed.steps, &self.memory);
        self.pipeline
            .record(images, |on, pixels| run_all(steps, &launches, memory, on, pixels, images, None))?;
        self.prepared.insert(images, launches);
        Ok(())
    }

    /// Writes the scores of the `images` images in `pixels`; there must be at least one. They run in batches of
    /// `each` images, at most `max_batch`. Copies overlap with computation, except with [`CudaOptions::nvtx`].
    pub(crate) fn infer(
        &mut self,
        (images, each): (usize, usize),
        pixels: &[u8],
        logits: &mut [f32],
    ) -> Result<(), RuntimeError> {
        let (max_batch, image_bytes) = (self.options.max_batch, self.image_bytes);
        let mut sizes: Vec<usize> = Vec::new();
        for part in (0..images).step_by(each).map(|first| each.min(images - first)) {
            // Later sizes are not measured, because this inference waits for them.
            let first = self.sizes.is_empty();
            let size = self.sizes.padded(part, max_batch);
            self.prepare_size(size, first)?;
            sizes.push(size);
        }
        let parts = pixels.chunks(each * image_bytes).zip(logits.chunks_mut(each * self.classes));
        let mut parts = parts.zip(sizes).map(|((pixels, logits), size)| (size, pixels, logits));
        match self.nvtx {
            None => {
                if self.pipeline.run(&self.memory.results(max_batch), parts)?.is_none() {
                    return Ok(());
                }
            }
            Some(nvtx) => parts
                .try_for_each(|(images, pixels, logits)| self.infer_marked(nvtx, images, pixels, logits))?,
        }
        self.check_stream()
    }

    /// Fails if a step has found a value in the f16 stream that is not finite.
    fn check_stream(&self) -> Result<(), RuntimeError> {
        let Some(reader) = self.memory.take_flag(self.pipeline.stream())? else { return Ok(()) };
        let steps = &self.packed.steps;
        let writer = steps[..reader].iter().rev().find(|step| step.output == steps[reader].input);
        let launch = writer.unwrap_or(&steps[reader]).name.clone();
        Err(RuntimeError::StreamOverflow { launch })
    }

    /// Resets the flags after runs that are not inferences. Repeated launches add to the stream again and
    /// again, so that it may overflow.
    fn lower_flags(&self) -> Result<(), RuntimeError> {
        self.memory.take_flag(self.pipeline.stream())?;
        Ok(())
    }

    /// Compiles the kernels for batches of `images` that can be chosen without a measurement.
    fn compile(&self, images: usize) {
        let steps = self.packed.steps.iter().filter(|step| step.runs(images));
        let programs = steps.filter_map(|step| match &step.op {
            DeviceOp::Linear(linear, _) => Some(self.tuner.programs(linear, images * step.rows)),
            _ => None,
        });
        self.packed.device.prefetch(&programs.flatten().collect::<Vec<_>>());
    }

    /// Computes the scores of a prepared number of images, launch by launch, with a profiler range around
    /// each launch and one around all.
    fn infer_marked(
        &self,
        nvtx: Nvtx,
        images: usize,
        pixels: &[u8],
        logits: &mut [f32],
    ) -> Result<(), RuntimeError> {
        let _inference = nvtx.range(&format!("inference of {images} images"));
        let (on, input) = (self.pipeline.stream(), self.pipeline.input());
        input.slice(0, pixels.len()).copy_from(on, pixels)?;
        run_all(&self.packed.steps, &self.prepared[&images], &self.memory, on, input, images, Some(nvtx))?;
        let count = logits.len() / self.classes;
        self.memory.slice(self.packed.logits, count, input).copy_to(on, logits)?;
        Ok(())
    }

    /// Times each of `runs` forward passes of `images` images that are already on the GPU, without copies.
    pub(crate) fn compute_times(
        &mut self,
        images: usize,
        runs: usize,
    ) -> Result<Vec<Duration>, RuntimeError> {
        self.prepare(images)?;
        let _range = self.nvtx.map(|nvtx| nvtx.range(&format!("graphs of {images} images")));
        let times = self.pipeline.time(&self.packed.device, images, runs)?;
        self.lower_flags()?;
        Ok(times.into_iter().map(|ms| Duration::from_secs_f64(f64::from(ms) / 1e3)).collect())
    }

    /// Times each launch of a forward pass of the `images` images in `pixels` by itself.
    pub(crate) fn profile(
        &mut self,
        images: usize,
        pixels: &[u8],
    ) -> Result<Vec<LaunchProfile>, RuntimeError> {
        self.prepare(images)?;
        let (on, input) = (self.pipeline.stream(), self.pipeline.input());
        input.slice(0, pixels.len()).copy_from(on, pixels)?;
        let launches = &self.prepared[&images];
        let mut profiles = Vec::with_capacity(launches.len());
        for (index, choice) in launches {
            let step = &self.packed.steps[*index];
            let _range = self.nvtx.map(|nvtx| nvtx.range(&step.name));
            let ms = time_together(&self.packed.device, on, || {
                self.memory.run((*index, step), choice.as_ref(), on, input, images)
            })?;
            profiles.push(LaunchProfile {
                name: step.name.clone(),
                detail: choice.as_ref().map_or(String::new(), Choice::to_string),
                time: Duration::from_secs_f64(f64::from(ms) / 1e3),
                macs: step.macs * images as u64,
                bytes: self.memory.moved(step, images),
            });
        }
        self.lower_flags()?;
        Ok(profiles)
    }

    /// Describes the launches for batches of `images`: a line for each launch, with the chosen kernel and the
    /// reason.
    pub(crate) fn launches(&mut self, images: usize) -> Result<Vec<String>, RuntimeError> {
        self.prepare(images)?;
        let line = |(index, choice): &Launch| {
            let step = &self.packed.steps[*index];
            let (reads, writes) = (self.memory.tensors[step.input.0], self.memory.tensors[step.output.0]);
            let (reads, writes) = (reads.element.name(), writes.element.name());
            let kernel = choice.as_ref().map_or(String::new(), |choice| choice.to_string());
            format!("  {:<34} {:<18} {reads:>5} -> {writes:<5} {kernel}", step.name, step.op.name())
        };
        let notes = self.tuner.notes().iter().map(|note| format!("  note: {note}"));
        Ok(self.prepared[&images].iter().map(line).chain(notes).collect())
    }

    /// Runs the steps one by one on the `images` images in `pixels`, and collects the output of each.
    pub(crate) fn trace(&mut self, images: usize, pixels: &[u8]) -> Result<Vec<Traced>, RuntimeError> {
        let size = self.sizes.padded(images, self.options.max_batch);
        self.prepare(size)?;
        let (on, input) = (self.pipeline.stream(), self.pipeline.input());
        input.slice(0, pixels.len()).copy_from(on, pixels)?;
        let launches = &self.prepared[&size];
        let mut all = Vec::with_capacity(launches.len());
        for (index, choice) in launches {
            let step = &self.packed.steps[*index];
            self.memory.run((*index, step), choice.as_ref(), on, input, size)?;
            let output = self.memory.slice(step.output, images, input);
            let mut bytes = vec![0u8; output.bytes()];
            output.copy_to(on, &mut bytes)?;
            let values = self.memory.tensors[step.output.0].traced(&bytes);
            all.push(Traced { name: step.name.clone(), tensor: step.output, values });
        }
        self.lower_flags()?;
        Ok(all)
    }
}

fn choose(
    step: &DeviceStep,
    (images, measure): (usize, bool),
    memory: &Memory,
    tuner: &mut Tuner,
    pipeline: &Pipeline,
) -> Result<Option<Choice>, RuntimeError> {
    let DeviceOp::Linear(linear, map) = &step.op else { return Ok(None) };
    let pixels = pipeline.input();
    let input = memory.slice(step.input, images, pixels);
    let output = memory.slice(step.output, images, pixels);
    let target = Target { slice: &output, map: map.as_ref() };
    let trial = Trial { name: &step.name, linear, m: images * step.rows, input: &input, target };
    let choice = tuner.choose(&trial, pipeline.stream(), measure);
    choice.map(Some).map_err(|error| RuntimeError::on_device(&step.name, error))
}

/// Puts the `launches` of `steps` on `on`, each in a range with its name if `nvtx` is given.
fn run_all(
    steps: &[DeviceStep],
    launches: &[Launch],
    memory: &Memory,
    on: &Stream,
    pixels: &DeviceSlice,
    images: usize,
    nvtx: Option<Nvtx>,
) -> Result<(), RuntimeError> {
    launches.iter().try_for_each(|(index, choice)| {
        let step = &steps[*index];
        let _range = nvtx.map(|nvtx| nvtx.range(&step.name));
        let run = memory.run((*index, step), choice.as_ref(), on, pixels, images);
        run.map_err(|error| RuntimeError::on_device(&step.name, error))
    })
}
