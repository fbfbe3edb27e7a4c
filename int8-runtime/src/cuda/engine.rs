//! A model ready to run on a GPU.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use swinq_kernels::cuda::ops::linear::Target;
use swinq_kernels::cuda::{Device, DeviceSlice, Nvtx, Pipeline, Stream};
use swinq_model::{Batch, BoxError, Classifier, Logits, QuantizedModel};

use super::lower::lower;
use super::memory::Memory;
use super::options::CudaOptions;
use super::step::{Choice, DeviceOp, DeviceStep};
use super::tune::{Trial, Tuner, time_together};
use crate::engine::{LaunchProfile, check_batch, check_finite, infer_batch};
use crate::error::RuntimeError;
use crate::plan::Plan;
use crate::trace::Traced;

/// A model lowered for a GPU: packed weights, one arena, and one graph for each batch size that was seen.
pub struct CudaEngine {
    device: Device,
    plan: Plan,
    steps: Vec<DeviceStep>,
    memory: Memory,
    tuner: Tuner,
    pipeline: Pipeline,
    prepared: BTreeMap<usize, Vec<Option<Choice>>>,
    options: CudaOptions,
    /// There if launches are marked.
    nvtx: Option<Nvtx>,
    image_size: usize,
    classes: usize,
}

impl CudaEngine {
    /// Loads a quantized checkpoint.
    ///
    /// # Errors
    /// The file cannot be read, or holds something that this backend cannot run; there is no GPU, or too little memory
    /// on it.
    pub fn load(path: &Path, options: CudaOptions) -> Result<CudaEngine, RuntimeError> {
        CudaEngine::new(&QuantizedModel::load(path)?, options)
    }

    /// Prepares `model`: plans, packs its weights, places its buffers, compiles its kernels (or finds them on disk).
    ///
    /// # Errors
    /// As [`CudaEngine::load`].
    pub fn new(model: &QuantizedModel, options: CudaOptions) -> Result<CudaEngine, RuntimeError> {
        let options = CudaOptions { max_batch: options.max_batch.max(1), ..options };
        let nvtx = options.nvtx.then(Nvtx::new).transpose()?;
        let device = Device::open(options.device)?;
        let plan = Plan::new(model)?;
        let lowered = lower(&device, model, &plan, options.residual)?;
        let tuner = Tuner::new(&device, options.gemm, options.autotune)?;
        let (steps, scratch) = (lowered.steps, tuner.uses_library());
        let memory = Memory::new(&device, &steps, lowered.tensors, options.max_batch, scratch)?;
        let (size, classes) = (model.config.image_size, model.config.num_classes);
        let (input, output) = (options.max_batch * size * size * 3, options.max_batch * classes * 4);
        Ok(CudaEngine {
            pipeline: Pipeline::new(&device, input, output)?,
            plan,
            steps,
            memory,
            tuner,
            prepared: BTreeMap::new(),
            options,
            nvtx,
            image_size: size,
            classes,
            device,
        })
    }

    /// The network as logical ops.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The GPU in use.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// How it runs.
    pub fn options(&self) -> &CudaOptions {
        &self.options
    }

    /// Chooses kernels for batches of `images` and records their graph, unless that was done. The first inference of a
    /// batch size does it otherwise.
    ///
    /// # Errors
    /// A kernel does not compile, or the driver fails.
    ///
    /// # Panics
    /// For more images than the engine was made for.
    pub fn prepare(&mut self, images: usize) -> Result<(), RuntimeError> {
        assert!(images <= self.options.max_batch, "an engine for {} images", self.options.max_batch);
        if self.pipeline.has(images) {
            return Ok(());
        }
        let mut choices = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            choices.push(choose(step, images, &self.memory, &mut self.tuner, &self.pipeline)?);
        }
        self.tuner.save();
        let (steps, memory) = (&self.steps, &self.memory);
        self.pipeline
            .record(images, |on, pixels| run_all(steps, &choices, memory, on, pixels, images, None))?;
        self.prepared.insert(images, choices);
        Ok(())
    }

    /// Scores of `logits.len() / classes` images: `pixels` is u8 `[images, size, size, 3]`, `logits` is f32
    /// `[images, classes]`. Larger batches than the engine was made for are split; copies overlap with work (not with
    /// [`CudaOptions::nvtx`]).
    ///
    /// # Errors
    /// `pixels` is not that many images, a score is not finite, or the GPU fails.
    pub fn infer_into(&mut self, pixels: &[u8], logits: &mut [f32]) -> Result<(), RuntimeError> {
        let images = check_batch(pixels, logits, self.image_size, self.classes)?;
        if images == 0 {
            return Ok(());
        }
        let (each, image_bytes) = (self.options.max_batch, self.image_size * self.image_size * 3);
        self.prepare(images.min(each))?;
        if images > each && !images.is_multiple_of(each) {
            self.prepare(images % each)?;
        }
        let parts = pixels.chunks(each * image_bytes).zip(logits.chunks_mut(each * self.classes));
        let parts = parts.map(|(pixels, logits)| (pixels.len() / image_bytes, pixels, logits));
        match self.nvtx {
            None => {
                let output = self.memory.slice(self.plan.logits(), each, self.pipeline.input());
                self.pipeline.run(&output, parts)?;
            }
            Some(nvtx) => parts
                .into_iter()
                .try_for_each(|(images, pixels, logits)| self.infer_marked(nvtx, images, pixels, logits))?,
        }
        check_finite(logits, self.classes)
    }

    /// Scores of a prepared number of images, launch by launch, with a range around each and one around all.
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
        run_all(&self.steps, &self.prepared[&images], &self.memory, on, input, images, Some(nvtx))?;
        self.memory.slice(self.plan.logits(), images, input).copy_to(on, logits)?;
        Ok(())
    }

    /// Time of each of `runs` forwards of `images` images that are on the GPU already: no copies.
    ///
    /// # Errors
    /// The GPU fails.
    pub fn compute_times(&mut self, images: usize, runs: usize) -> Result<Vec<Duration>, RuntimeError> {
        self.prepare(images)?;
        let _range = self.nvtx.map(|nvtx| nvtx.range(&format!("graphs of {images} images")));
        let times = self.pipeline.time(&self.device, images, runs)?;
        Ok(times.into_iter().map(|ms| Duration::from_secs_f64(f64::from(ms) / 1e3)).collect())
    }

    /// Times each launch of a forward of `images` images by itself.
    ///
    /// # Errors
    /// The GPU fails.
    pub fn profile(&mut self, images: usize) -> Result<Vec<LaunchProfile>, RuntimeError> {
        self.prepare(images)?;
        let (on, pixels) = (self.pipeline.stream(), self.pipeline.input());
        let mut profiles = Vec::with_capacity(self.steps.len());
        for (step, choice) in self.steps.iter().zip(&self.prepared[&images]) {
            let _range = self.nvtx.map(|nvtx| nvtx.range(&step.name));
            let ms = time_together(&self.device, on, || {
                self.memory.run(step, choice.as_ref(), on, pixels, images)
            })?;
            profiles.push(LaunchProfile {
                name: step.name.clone(),
                detail: choice.as_ref().map_or(String::new(), Choice::to_string),
                time: Duration::from_secs_f64(f64::from(ms) / 1e3),
                macs: step.macs * images as u64,
                bytes: self.memory.moved(step, images),
            });
        }
        Ok(profiles)
    }

    /// What runs for batches of `images`: a line for each launch, with the kernel chosen for it and why.
    ///
    /// # Errors
    /// As [`CudaEngine::prepare`].
    pub fn launches(&mut self, images: usize) -> Result<Vec<String>, RuntimeError> {
        self.prepare(images)?;
        let line = |(step, choice): (&DeviceStep, &Option<Choice>)| {
            let (reads, writes) = (self.memory.tensors[step.input.0], self.memory.tensors[step.output.0]);
            let (reads, writes) = (reads.element.name(), writes.element.name());
            let kernel = choice.as_ref().map_or(String::new(), |choice| choice.to_string());
            format!("  {:<34} {:<18} {reads:>5} -> {writes:<5} {kernel}", step.name, step.op.name())
        };
        Ok(self.steps.iter().zip(&self.prepared[&images]).map(line).collect())
    }

    /// Runs the steps one by one over the images of `pixels` and collects what each wrote.
    ///
    /// # Errors
    /// The GPU fails, or `pixels` are not whole images, at least one and at most as many as the engine was made for.
    pub fn trace(&mut self, pixels: &[u8]) -> Result<Vec<Traced>, RuntimeError> {
        let image_bytes = self.image_size * self.image_size * 3;
        let images = pixels.len() / image_bytes;
        if !pixels.len().is_multiple_of(image_bytes) || !(1..=self.options.max_batch).contains(&images) {
            return Err(RuntimeError::PixelCount { bytes: pixels.len(), images, size: self.image_size });
        }
        self.prepare(images)?;
        let (on, input) = (self.pipeline.stream(), self.pipeline.input());
        input.slice(0, pixels.len()).copy_from(on, pixels)?;
        let mut all = Vec::with_capacity(self.steps.len());
        for (step, choice) in self.steps.iter().zip(&self.prepared[&images]) {
            self.memory.run(step, choice.as_ref(), on, input, images)?;
            let output = self.memory.slice(step.output, images, input);
            let mut bytes = vec![0u8; output.bytes()];
            output.copy_to(on, &mut bytes)?;
            let values = self.memory.tensors[step.output.0].traced(&bytes);
            all.push(Traced { name: step.name.clone(), tensor: step.output, values });
        }
        Ok(all)
    }
}

fn choose(
    step: &DeviceStep,
    images: usize,
    memory: &Memory,
    tuner: &mut Tuner,
    pipeline: &Pipeline,
) -> Result<Option<Choice>, RuntimeError> {
    let DeviceOp::Linear(linear, map) = &step.op else { return Ok(None) };
    let pixels = pipeline.input();
    let input = memory.slice(step.input, images, pixels);
    let output = memory.slice(step.output, images, pixels);
    let target = Target { slice: &output, map: map.as_ref() };
    let trial = Trial { linear, m: images * step.rows, input: &input, target };
    let choice = tuner.choose(&trial, pipeline.stream(), &memory.scratch);
    choice.map(Some).map_err(|error| RuntimeError::on_device(&step.name, error))
}

/// Puts every step on `on`, in a range of its name if there is `nvtx`.
fn run_all(
    steps: &[DeviceStep],
    choices: &[Option<Choice>],
    memory: &Memory,
    on: &Stream,
    pixels: &DeviceSlice,
    images: usize,
    nvtx: Option<Nvtx>,
) -> Result<(), RuntimeError> {
    steps.iter().zip(choices).try_for_each(|(step, choice)| {
        let _range = nvtx.map(|nvtx| nvtx.range(&step.name));
        let run = memory.run(step, choice.as_ref(), on, pixels, images);
        run.map_err(|error| RuntimeError::on_device(&step.name, error))
    })
}

impl Classifier for CudaEngine {
    fn classes(&self) -> usize {
        self.classes
    }

    fn input_size(&self) -> usize {
        self.image_size
    }

    fn infer(&mut self, batch: &Batch) -> Result<Logits, BoxError> {
        let (size, classes) = (self.image_size, self.classes);
        infer_batch(batch, size, classes, |pixels, logits| self.infer_into(pixels, logits))
    }
}
