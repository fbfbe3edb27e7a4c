//! The engine: a model, ready to run.

use std::path::Path;
use std::time::Duration;

use swinq_kernels::{Cpu, Pool};
use swinq_model::{Batch, BoxError, Classifier, Logits, QuantizedModel};

use crate::cpu::Program;
use crate::error::RuntimeError;
use crate::plan::Plan;
use crate::trace::Traced;

/// How an engine runs.
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// Threads; 0 means one per core.
    pub threads: usize,
    /// Images run at a time; larger batches are split. Memory grows with it.
    pub max_batch: usize,
    /// Instruction set, by the token that proves it is there.
    pub cpu: Cpu,
}

impl EngineOptions {
    /// All cores, eight images at a time, the fastest instruction set (or `SWINQ_ISA`).
    ///
    /// # Errors
    /// `SWINQ_ISA` names something that cannot be had.
    pub fn detect() -> Result<EngineOptions, RuntimeError> {
        Ok(EngineOptions { threads: 0, max_batch: 8, cpu: Cpu::detect()? })
    }
}

/// Time of one launch, summed over the runs of a profile.
#[derive(Clone, Debug)]
pub struct LaunchProfile {
    /// Module path of the launch.
    pub name: String,
    /// The kernel chosen for it, where there was a choice; on a CPU `tiled` where it runs in groups of rows with the others
    /// of its block (its time is then its part of theirs).
    pub detail: String,
    /// Time per run.
    pub time: Duration,
    /// Multiply-accumulates per run.
    pub macs: u64,
    /// Bytes that a run must move, to memory or between caches: inputs, outputs and weights once, a residual stream twice.
    pub bytes: u64,
}

/// A model lowered for the CPU: packed weights, an arena, a pool of threads.
pub struct Engine {
    program: Program,
    pool: Pool,
    plan: Plan,
    cpu: Cpu,
    image_size: usize,
    classes: usize,
    max_batch: usize,
}

impl Engine {
    /// Loads a quantized checkpoint.
    ///
    /// # Errors
    /// The file cannot be read, or holds something the engine cannot run; the message names it.
    pub fn load(path: &Path, options: EngineOptions) -> Result<Engine, RuntimeError> {
        Engine::new(&QuantizedModel::load(path)?, options)
    }

    /// Prepares `model`: plans, packs its weights, places its buffers.
    ///
    /// # Errors
    /// The model does not pass [`QuantizedModel::validate`].
    pub fn new(model: &QuantizedModel, options: EngineOptions) -> Result<Engine, RuntimeError> {
        let plan = Plan::new(model)?;
        let max_batch = options.max_batch.max(1);
        let pool = Pool::new(options.threads);
        Ok(Engine {
            program: Program::new(model, &plan, options.cpu, max_batch, pool.threads()),
            pool,
            plan,
            cpu: options.cpu,
            image_size: model.config.image_size,
            classes: model.config.num_classes,
            max_batch,
        })
    }

    /// What runs, in order.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The instruction set in use.
    pub fn cpu(&self) -> Cpu {
        self.cpu
    }

    /// Images run at a time.
    pub fn max_batch(&self) -> usize {
        self.max_batch
    }

    /// Threads in use.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Scores of `logits.len() / classes` images: `pixels` is u8 `[images, size, size, 3]`, `logits` is f32
    /// `[images, classes]`. Allocates nothing once every batch size has been seen.
    ///
    /// # Errors
    /// `pixels` is not that many images, or a score is not finite.
    pub fn infer_into(&mut self, pixels: &[u8], logits: &mut [f32]) -> Result<(), RuntimeError> {
        check_batch(pixels, logits, self.image_size, self.classes)?;
        let image_bytes = self.image_size * self.image_size * 3;
        let parts =
            pixels.chunks(self.max_batch * image_bytes).zip(logits.chunks_mut(self.max_batch * self.classes));
        for (pixels, logits) in parts {
            let images = pixels.len() / image_bytes;
            self.program.run(&mut self.pool, images, pixels);
            logits.copy_from_slice(self.program.output(images));
        }
        check_finite(logits, self.classes)
    }

    /// Runs the first (at most `max_batch`) images of `pixels` `runs` times and times each launch.
    ///
    /// # Errors
    /// `pixels` holds no whole image.
    pub fn profile(&mut self, pixels: &[u8], runs: usize) -> Result<Vec<LaunchProfile>, RuntimeError> {
        let (images, pixels) = self.first_batch(pixels)?;
        let mut times = vec![Duration::ZERO; self.plan.steps.len()];
        for _ in 0..runs.max(1) {
            self.program.run_timed(&mut self.pool, images, pixels, &mut times);
        }
        let mut profiles = self.program.profiles(images, pixels.len());
        for (profile, time) in profiles.iter_mut().zip(times) {
            profile.time = time / runs.max(1) as u32;
        }
        Ok(profiles)
    }

    /// Runs the launches one by one over the first (at most `max_batch`) images of `pixels`, and collects what each wrote.
    ///
    /// # Errors
    /// `pixels` holds no whole image.
    pub fn trace(&mut self, pixels: &[u8]) -> Result<Vec<Traced>, RuntimeError> {
        let (images, pixels) = self.first_batch(pixels)?;
        Ok(self.program.trace(&self.plan, &mut self.pool, images, pixels))
    }

    /// How many images are run at once of those that `pixels` are, at most `max_batch`, and their pixels.
    fn first_batch<'a>(&self, pixels: &'a [u8]) -> Result<(usize, &'a [u8]), RuntimeError> {
        let image_bytes = self.image_size * self.image_size * 3;
        let images = (pixels.len() / image_bytes).min(self.max_batch);
        if images == 0 {
            return Err(RuntimeError::PixelCount { bytes: pixels.len(), images: 1, size: self.image_size });
        }
        Ok((images, &pixels[..images * image_bytes]))
    }
}

/// The number of images that `pixels` are and `logits` have room for.
pub(crate) fn check_batch(
    pixels: &[u8],
    logits: &[f32],
    size: usize,
    classes: usize,
) -> Result<usize, RuntimeError> {
    let images = logits.len() / classes;
    if pixels.len() != images * size * size * 3 || logits.len() != images * classes {
        return Err(RuntimeError::PixelCount { bytes: pixels.len(), images, size });
    }
    Ok(images)
}

pub(crate) fn check_finite(logits: &[f32], classes: usize) -> Result<(), RuntimeError> {
    match logits.iter().position(|v| !v.is_finite()) {
        None => Ok(()),
        Some(at) => {
            Err(RuntimeError::NotFinite { image: at / classes, class: at % classes, value: logits[at] })
        }
    }
}

/// The scores of `batch` by `infer_into` of an engine for images of `size` pixels and `classes` classes.
pub(crate) fn infer_batch(
    batch: &Batch,
    size: usize,
    classes: usize,
    infer_into: impl FnOnce(&[u8], &mut [f32]) -> Result<(), RuntimeError>,
) -> Result<Logits, BoxError> {
    if batch.size != size {
        return Err(RuntimeError::ImageSize { got: batch.size, expected: size }.into());
    }
    let mut values = vec![0.0; batch.len() * classes];
    infer_into(&batch.pixels, &mut values)?;
    Ok(Logits { values, classes })
}

impl Classifier for Engine {
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
