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
use swinq_model::{Size, SwinConfig};
use swinq_plan::{Geometry, Grids, Outline, Plan};

use crate::arena::Layout;
use crate::error::RuntimeError;
use crate::memory::images_at_a_time;
use crate::profile::LaunchProfile;
use crate::trace::Traced;
use fused::{Part, Segment, most_images, parts, segments};
use launch::Launch;
use lower::lower;
pub use options::CpuOptions;
use place::{Arena, Images, Memory, Place, tensor_bytes};
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

    /// The places of tensors for batches of up to `images` on `threads` threads.
    fn layout(&self, images: Images<'_>, threads: usize) -> Layout {
        let tensors = self.plan.tensors.len();
        let most = most_images(&self.segments, &self.launches, tensors, images, threads);
        Layout::of_plan(
            &self.plan,
            |tensor| tensor_bytes(tensor, images.geometry.grids()),
            |tensor| most[tensor.0],
        )
    }

    /// The bytes of the tensors of one image with these grids, if no launches run as one.
    pub(crate) fn image_bytes(&self, grids: &Grids) -> usize {
        Layout::of_plan(&self.plan, |tensor| tensor_bytes(tensor, grids), |_| 1).total()
    }

    /// Runs all launches over `images`.
    fn run(&self, pool: &mut Pool, arena: &mut Arena<'_>, images: Images<'_>, pixels: &[u8]) {
        for part in parts(&self.segments, images.geometry) {
            let launches = &self.launches[part.launches.clone()];
            match part.fused(images, pool.threads()) {
                Some(fused) => {
                    fused.block.run(pool, images.count, fused.rows, launches[0].stream_mut(images, arena));
                }
                None => launches.iter().for_each(|launch| launch.run(pool, images, pixels, arena)),
            }
        }
    }

    /// How `threads` threads would run `count` images of the network's own size, from the times of the tasks on this thread.
    pub(crate) fn simulate(
        &self,
        threads: usize,
        count: usize,
        pixels: &[u8],
    ) -> Result<Simulation, RuntimeError> {
        let images = Images { count, geometry: &self.plan.own };
        let (layout, mut memory) = (self.layout(images, threads), Memory::default());
        memory.reserve(&layout, count, images.geometry.image())?;
        // In the first run memory is new.
        self.run(&mut Pool::simulated(threads), &mut memory.arena(&layout), images, pixels);
        let mut pool = Pool::simulated(threads);
        self.run(&mut pool, &mut memory.arena(&layout), images, pixels);
        Ok(pool.simulation().expect("the pool is simulated"))
    }

    /// The median time of each launch in `runs` forwards (at least one) of `images`.
    fn profile(
        &self,
        pool: &mut Pool,
        arena: &mut Arena<'_>,
        images: Images<'_>,
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
        for part in parts(&self.segments, images.geometry) {
            let fused = part.fused(images, pool.threads()).is_some();
            for index in part.launches.clone() {
                let launch = &self.launches[index];
                profiles.push(LaunchProfile {
                    name: launch.name.clone(),
                    detail: if fused { FUSED.to_owned() } else { String::new() },
                    time: median(&mut all[index]),
                    macs: launch.macs(images),
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
        arena: &mut Arena<'_>,
        images: Images<'_>,
        pixels: &[u8],
        times: &mut [Duration],
    ) {
        for part in parts(&self.segments, images.geometry) {
            let launches = &self.launches[part.launches.clone()];
            let times = &mut times[part.launches.clone()];
            if let Some(fused) = part.fused(images, pool.threads()) {
                let stream = launches[0].stream_mut(images, arena);
                let ops = fused.block.run_timed(pool, images.count, fused.rows, stream);
                times.iter_mut().zip(ops).for_each(|(time, op)| *time += op);
                continue;
            }
            for (launch, time) in launches.iter().zip(times) {
                let start = Instant::now();
                launch.run(pool, images, pixels, arena);
                *time += start.elapsed();
            }
        }
    }

    /// The places of the outputs, in the order of the plan.
    fn outputs(&self) -> impl Iterator<Item = Place> {
        self.plan.outputs.iter().map(|output| Place {
            tensor: output.tensor,
            spec: *self.plan.tensor(output.tensor),
            residual: false,
        })
    }
}

/// What a runner prepares for one image size.
struct Prepared {
    geometry: Arc<Geometry>,
    /// The most images at a time.
    most: usize,
    layout: Layout,
}

/// Number of image sizes that a runner keeps prepared, beside the network's own.
const SIZES: usize = 16;

/// Runs a packed model on its own threads, with memory for the tensors of a batch.
pub(crate) struct Runner {
    packed: Arc<Packed>,
    config: SwinConfig,
    pool: Pool,
    max_batch: usize,
    memory: Memory,
    /// For the network's own image size, then for other sizes, the last used first.
    prepared: Vec<Prepared>,
}

impl Runner {
    /// A runner of `packed`, a network of the architecture `config`, with `options`.
    pub(crate) fn new(
        packed: &Arc<Packed>,
        config: &SwinConfig,
        options: &CpuOptions,
    ) -> Result<Runner, RuntimeError> {
        let threads = options.threads;
        let pool = Pool::try_new(threads).map_err(|source| RuntimeError::StartThreads { threads, source })?;
        let mut runner = Runner {
            packed: Arc::clone(packed),
            config: config.clone(),
            pool,
            max_batch: options.max_batch,
            memory: Memory::default(),
            prepared: Vec::new(),
        };
        runner.add(0, Arc::clone(&packed.plan.own), options.max_batch)?;
        Ok(runner)
    }

    pub(crate) fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Bytes of the memory for tensors.
    pub(crate) fn held_bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Whether images of `size` are prepared.
    pub(crate) fn has(&self, size: Size) -> bool {
        self.prepared.iter().any(|prepared| prepared.geometry.image() == size)
    }

    /// Prepares images of `size`, unless they are.
    fn prepared_for(&mut self, size: Size) -> Result<&Prepared, RuntimeError> {
        match self.prepared.iter().position(|prepared| prepared.geometry.image() == size) {
            Some(0) => return Ok(&self.prepared[0]),
            Some(at) => self.prepared[1..=at].rotate_right(1),
            None => {
                let geometry = Arc::new(Geometry::new(&self.config, size)?);
                let most = images_at_a_time(self.max_batch, self.packed.plan.own.image(), size);
                self.add(1, geometry, most)?;
                self.prepared.truncate(1 + SIZES);
            }
        }
        Ok(&self.prepared[1])
    }

    /// Prepares at most `most` images of `geometry` at a time, as number `at` of the prepared sizes.
    fn add(&mut self, at: usize, geometry: Arc<Geometry>, most: usize) -> Result<(), RuntimeError> {
        let images = Images { count: most, geometry: &geometry };
        let layout = self.packed.layout(images, self.pool.threads());
        self.memory.reserve(&layout, most, geometry.image())?;
        self.prepared.insert(at, Prepared { geometry, most, layout });
        Ok(())
    }

    /// Computes the outputs of the `images` images of `size` in `pixels`; there must be at least one. They run in batches of
    /// `each` images, at most `max_batch`, or fewer if they are larger than the network's own. `outputs` has memory for each
    /// output of the plan, or `None` for one that is not asked for.
    pub(crate) fn infer(
        &mut self,
        (images, each): (usize, usize),
        size: Size,
        pixels: &[u8],
        outputs: &mut [Option<&mut [f32]>],
    ) -> Result<(), RuntimeError> {
        self.prepared_for(size)?;
        let Runner { packed, pool, memory, prepared, .. } = self;
        let Prepared { geometry, most, layout } = of_size(prepared, size);
        let (each, image_bytes) = (each.min(*most), pixels.len() / images);
        let mut arena = memory.arena(layout);
        for (part, pixels) in pixels.chunks(each * image_bytes).enumerate() {
            let batch = Images { count: pixels.len() / image_bytes, geometry };
            packed.run(pool, &mut arena, batch, pixels);
            for (place, output) in packed.outputs().zip(&mut *outputs) {
                let Some(output) = output else { continue };
                let first = part * each * (output.len() / images);
                let values = place.f32(batch, arena.buffer(&place));
                output[first..first + values.len()].copy_from_slice(values);
            }
        }
        Ok(())
    }

    /// The median time of each launch in `runs` forwards (at least one) of `count` images of `size`.
    pub(crate) fn profile(
        &mut self,
        count: usize,
        size: Size,
        pixels: &[u8],
        runs: u32,
    ) -> Result<Vec<LaunchProfile>, RuntimeError> {
        self.prepared_for(size)?;
        let Runner { packed, pool, memory, prepared, .. } = self;
        let prepared = of_size(prepared, size);
        let images = Images { count, geometry: &prepared.geometry };
        Ok(packed.profile(pool, &mut memory.arena(&prepared.layout), images, pixels, runs))
    }

    /// Runs launch by launch, in memory of its own, and collects the result of each launch.
    pub(crate) fn trace(
        &mut self,
        count: usize,
        size: Size,
        pixels: &[u8],
    ) -> Result<Vec<Traced>, RuntimeError> {
        let geometry = Arc::clone(&self.prepared_for(size)?.geometry);
        let (plan, images) = (&self.packed.plan, Images { count, geometry: &geometry });
        let layout = Layout::of_plan(plan, |tensor| tensor_bytes(tensor, geometry.grids()), |_| count);
        let mut memory = Memory::default();
        memory.reserve(&layout, count, size)?;
        let mut arena = memory.arena(&layout);
        let mut traced = Vec::with_capacity(plan.steps.len());
        for (launch, step) in self.packed.launches.iter().zip(&plan.steps) {
            launch.run(&mut self.pool, images, pixels, &mut arena);
            let values = launch.output.traced(images, &arena);
            traced.push(Traced { name: launch.name.clone(), tensor: step.output, values });
        }
        Ok(traced)
    }

    /// A line for each launch over `count` images of the network's own size.
    pub(crate) fn launches(&self, count: usize) -> Vec<String> {
        let images = Images { count, geometry: &self.packed.plan.own };
        let lines = |part: &Part| {
            let fused = part.fused(images, self.pool.threads()).is_some();
            let launches = self.packed.launches[part.launches.clone()].iter();
            launches.map(|l| l.describe(if fused { FUSED } else { "" })).collect::<Vec<_>>()
        };
        parts(&self.packed.segments, images.geometry).flat_map(lines).collect()
    }
}

/// What is prepared for images of `size`.
fn of_size(prepared: &[Prepared], size: Size) -> &Prepared {
    let of_size = |prepared: &&Prepared| prepared.geometry.image() == size;
    prepared.iter().find(of_size).expect("the size is prepared")
}

/// The median of at least one time.
fn median(times: &mut [Duration]) -> Duration {
    let middle = times.len() / 2;
    *times.select_nth_unstable(middle).1
}
