//! The CPU backend. Each step of the plan is one launch of a prepared kernel; the launches of a block may run
//! as one.

mod fingerprint;
mod fused;
mod launch;
mod lower;
mod options;
mod place;
#[cfg(test)]
mod tests;
mod variants;

use std::sync::Arc;
use std::time::{Duration, Instant};

use swinq_kernels::memory::give_back_freed_memory;
use swinq_kernels::{Cpu, Pool, Simulation};
use swinq_plan::{Outline, Plan};

use crate::arena::Layout;
use crate::error::RuntimeError;
use crate::profile::LaunchProfile;
use crate::trace::Traced;
use fused::{Segment, segments};
use launch::Launch;
use lower::lower;
pub use options::CpuOptions;
use place::{Arena, tensor_bytes};
pub use variants::{Position, Start, Variant, VariantRunner};

/// The detail that a profile shows for launches that run as one fused block.
const FUSED: &str = "fused";

/// A model lowered for one kind of CPU: its launches with their packed weights.
pub(crate) struct Packed {
    plan: Arc<Outline>,
    /// One launch for each step of the plan.
    launches: Vec<Arc<Launch>>,
    /// All launches in order, divided into segments.
    segments: Vec<Segment>,
}

impl Packed {
    /// Lowers `plan`, whose outline is `outline`, for the kernels of `cpu`.
    pub(crate) fn new(plan: &Plan<'_>, outline: &Arc<Outline>, cpu: Cpu) -> Packed {
        // INT8 weights are packed into new memory, so what the reading of the model has left is not used again.
        give_back_freed_memory();
        let launches = lower(plan, cpu);
        Packed { plan: Arc::clone(outline), segments: segments(&launches, cpu), launches }
    }

    /// Memory for batches of up to `images` images on `threads` threads. Tensors inside a fused block need
    /// memory only for the batches that run launch by launch.
    fn arena(&self, images: usize, threads: usize) -> Result<Arena, RuntimeError> {
        let mut most = vec![images; self.plan.tensors.len()];
        for segment in &self.segments {
            segment
                .inner(&self.launches)
                .for_each(|tensor| most[tensor.0] = segment.most_unfused(images, threads));
        }
        Arena::new(Layout::of_plan(&self.plan, tensor_bytes, |tensor| most[tensor.0]), images)
    }

    /// Runs all launches over `images` images.
    fn run(&self, pool: &mut Pool, arena: &mut Arena, images: usize, pixels: &[u8]) {
        for segment in &self.segments {
            let launches = &self.launches[segment.launches.clone()];
            match segment.fused(images, pool.threads()) {
                Some(block) => block.run(pool, images, launches[0].stream_mut(images, arena)),
                None => launches.iter().for_each(|launch| launch.run(pool, images, pixels, arena)),
            }
        }
    }

    /// How `threads` threads would run `images` images, from the times of the tasks on this thread.
    pub(crate) fn simulate(
        &self,
        threads: usize,
        images: usize,
        pixels: &[u8],
    ) -> Result<Simulation, RuntimeError> {
        let mut arena = self.arena(images, threads)?;
        // In the first run memory is new.
        self.run(&mut Pool::simulated(threads), &mut arena, images, pixels);
        let mut pool = Pool::simulated(threads);
        self.run(&mut pool, &mut arena, images, pixels);
        Ok(pool.simulation().expect("the pool is simulated"))
    }

    /// The median time of each launch in `runs` forwards (at least one) of `images` images.
    fn profile(
        &self,
        pool: &mut Pool,
        arena: &mut Arena,
        images: usize,
        pixels: &[u8],
        runs: u32,
    ) -> Vec<LaunchProfile> {
        let mut all = vec![Vec::with_capacity(runs as usize); self.launches.len()];
        for _ in 0..runs {
            let mut times = vec![Duration::ZERO; self.launches.len()];
            self.run_timed(pool, arena, images, pixels, &mut times);
            all.iter_mut().zip(times).for_each(|(all, time)| all.push(time));
        }
        let mut profiles = Vec::with_capacity(all.len());
        for segment in &self.segments {
            let fused = segment.fused(images, pool.threads()).is_some();
            for index in segment.launches.clone() {
                let launch = &self.launches[index];
                profiles.push(LaunchProfile {
                    name: launch.name.clone(),
                    detail: if fused { FUSED.to_owned() } else { String::new() },
                    time: median(&mut all[index]),
                    macs: launch.macs * images as u64,
                    bytes: launch.bytes(images, pixels.len()),
                });
            }
        }
        profiles
    }

    /// Runs all launches and adds the time of each to `times`.
    fn run_timed(
        &self,
        pool: &mut Pool,
        arena: &mut Arena,
        images: usize,
        pixels: &[u8],
        times: &mut [Duration],
    ) {
        for segment in &self.segments {
            let launches = &self.launches[segment.launches.clone()];
            let times = &mut times[segment.launches.clone()];
            if let Some(block) = segment.fused(images, pool.threads()) {
                let parts = block.run_timed(pool, images, launches[0].stream_mut(images, arena));
                times.iter_mut().zip(parts).for_each(|(time, part)| *time += part);
                continue;
            }
            for (launch, time) in launches.iter().zip(times) {
                let start = Instant::now();
                launch.run(pool, images, pixels, arena);
                *time += start.elapsed();
            }
        }
    }
}

/// Runs a packed model on its own threads, with memory for the tensors of a batch.
pub(crate) struct Runner {
    packed: Arc<Packed>,
    pool: Pool,
    arena: Arena,
}

impl Runner {
    /// A runner of `packed` with `options`.
    pub(crate) fn new(packed: &Arc<Packed>, options: &CpuOptions) -> Result<Runner, RuntimeError> {
        let threads = options.threads;
        let pool = Pool::try_new(threads).map_err(|source| RuntimeError::StartThreads { threads, source })?;
        let arena = packed.arena(options.max_batch, pool.threads())?;
        Ok(Runner { packed: Arc::clone(packed), pool, arena })
    }

    pub(crate) fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Writes the scores of `images` images, from 1 to `max_batch`, to `logits`. `pixels` holds the images.
    pub(crate) fn infer(&mut self, images: usize, pixels: &[u8], logits: &mut [f32]) {
        let Runner { packed, pool, arena } = self;
        packed.run(pool, arena, images, pixels);
        let output = &packed.launches.last().expect("a plan has steps").output;
        logits.copy_from_slice(output.f32(images, arena.buffer(output)));
    }

    /// The median time of each launch in `runs` forwards (at least one) of `images` images.
    pub(crate) fn profile(&mut self, images: usize, pixels: &[u8], runs: u32) -> Vec<LaunchProfile> {
        self.packed.profile(&mut self.pool, &mut self.arena, images, pixels, runs)
    }

    /// Runs launch by launch, in a separate arena, and collects the result of each launch.
    pub(crate) fn trace(&mut self, images: usize, pixels: &[u8]) -> Result<Vec<Traced>, RuntimeError> {
        let plan = &self.packed.plan;
        let mut arena = Arena::new(Layout::of_plan(plan, tensor_bytes, |_| images), images)?;
        let mut traced = Vec::with_capacity(plan.steps.len());
        for (launch, step) in self.packed.launches.iter().zip(&plan.steps) {
            launch.run(&mut self.pool, images, pixels, &mut arena);
            let values = launch.output.traced(images, &arena);
            traced.push(Traced { name: launch.name.clone(), tensor: step.output, values });
        }
        Ok(traced)
    }

    /// A line for each launch over `images` images.
    pub(crate) fn launches(&self, images: usize) -> Vec<String> {
        let lines = |segment: &Segment| {
            let fused = segment.fused(images, self.pool.threads()).is_some();
            let launches = self.packed.launches[segment.launches.clone()].iter();
            launches.map(|l| l.describe(if fused { FUSED } else { "" })).collect::<Vec<_>>()
        };
        self.packed.segments.iter().flat_map(lines).collect()
    }
}

/// The median of at least one time.
fn median(times: &mut [Duration]) -> Duration {
    let middle = times.len() / 2;
    *times.select_nth_unstable(middle).1
}
