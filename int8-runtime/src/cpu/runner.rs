//! Runs a packed model for many callers: memory for each group of threads, and the prepared state of each
//! image size.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use swinq_kernels::Pool;
use swinq_model::{Size, SwinConfig};
use swinq_numerics::Images as Input;
use swinq_plan::Geometry;

use super::division::{Bounds, Division, first};
use super::fused::LaunchRange;
use super::lanes::{Lanes, Room, lanes_in, lock};
use super::place::{Images, Memory, tensor_bytes};
use super::{CpuOptions, FUSED, Packed, outputs, parts};
use crate::arena::Layout;
use crate::engine::{MOST_OUTPUTS, OutputBytes, OutputForm};
use crate::error::RuntimeError;
use crate::memory::images_at_a_time;
use crate::profile::LaunchProfile;
use crate::trace::Traced;

/// The prepared state of a runner for one image size.
struct Prepared {
    geometry: Arc<Geometry>,
    /// The most images that one thread runs at a time.
    most: usize,
    /// Threads that work on one image.
    threads: usize,
    /// The memory of a group of threads.
    layout: Layout,
    /// Groups that have memory.
    lanes: usize,
}

/// Number of image sizes that a runner keeps prepared, beside the network's own.
const SIZES: usize = 16;

/// A large batch is divided into parts in which every thread runs as many images at a time as it may, so many
/// times.
const ROUNDS: usize = 4;

/// Runs a packed model on its own threads, with memory for tensors.
pub(crate) struct CpuRunner {
    packed: Arc<Packed>,
    config: SwinConfig,
    lanes: Arc<Lanes>,
    /// See [`CpuOptions::image_threads`].
    image_threads: usize,
    max_batch: usize,
    /// The most bytes for the tensors of all groups of threads.
    max_memory: usize,
    /// For the network's own image size, then for other sizes, the last used first.
    prepared: Mutex<Vec<Arc<Prepared>>>,
}

impl CpuRunner {
    /// A runner of `packed`, a network of the architecture `config`, with `options`; on the threads and in
    /// the memory `shared`, if another runner has them.
    pub(crate) fn new(
        packed: &Arc<Packed>,
        config: &SwinConfig,
        options: &CpuOptions,
        shared: Option<Arc<Lanes>>,
    ) -> Result<CpuRunner, RuntimeError> {
        let lanes = shared.map_or_else(|| Lanes::new(options.threads).map(Arc::new), Ok)?;
        let runner = CpuRunner {
            packed: Arc::clone(packed),
            config: config.clone(),
            lanes,
            image_threads: options.image_threads,
            max_batch: options.max_batch,
            max_memory: options.most_memory(),
            prepared: Mutex::new(Vec::with_capacity(2 + SIZES)),
        };
        let own = runner.prepare(Arc::clone(&packed.plan.own), options.max_batch);
        runner.lanes.reserve(0, CpuRunner::room(&own))?;
        lock(&runner.prepared).push(own);
        Ok(runner)
    }

    /// Its groups of threads, for another runner.
    pub(crate) fn shared_lanes(&self) -> Arc<Lanes> {
        Arc::clone(&self.lanes)
    }

    pub(crate) fn threads(&self) -> usize {
        self.lanes.crew().threads()
    }

    /// Groups of threads that can run images of the network's own size side by side.
    pub(crate) fn lanes(&self) -> usize {
        lock(&self.prepared)[0].lanes
    }

    /// The most bytes that a group of threads has for tensors.
    pub(crate) fn held_bytes(&self) -> usize {
        self.lanes.held_bytes()
    }

    /// Whether images of `size` are prepared.
    pub(crate) fn has(&self, size: Size) -> bool {
        lock(&self.prepared).iter().any(|prepared| prepared.geometry.image() == size)
    }

    /// The prepared state for images of `size`.
    fn prepared_for(&self, size: Size) -> Result<Arc<Prepared>, RuntimeError> {
        let mut all = lock(&self.prepared);
        match all.iter().position(|prepared| prepared.geometry.image() == size) {
            Some(0) => return Ok(Arc::clone(&all[0])),
            Some(at) => all[1..=at].rotate_right(1),
            None => {
                let geometry = Arc::new(Geometry::new(&self.config, size)?);
                let most = images_at_a_time(self.max_batch, self.packed.plan.own.image(), size);
                all.insert(1, self.prepare(geometry, most));
                all.truncate(1 + SIZES);
            }
        }
        Ok(Arc::clone(&all[1]))
    }

    fn prepare(&self, geometry: Arc<Geometry>, most: usize) -> Arc<Prepared> {
        let threads = match self.image_threads {
            0 => self.packed.threads_of_one_image(&geometry, self.threads()),
            some => some.min(self.threads()),
        };
        let layout = self.packed.layout(Images { count: most, geometry: &geometry }, threads);
        let lanes = lanes_in(self.max_memory, layout.total(), self.threads());
        Arc::new(Prepared { geometry, most, threads, layout, lanes })
    }

    /// The memory of a lane for a prepared state.
    fn room(prepared: &Prepared) -> Room<'_> {
        let Prepared { geometry, most, layout, lanes, .. } = prepared;
        Room { layout, images: *most, size: geometry.image(), lanes: *lanes }
    }

    /// How `images` images are divided among `threads` threads, at most `each` at a time on one.
    fn divide(&self, images: usize, each: usize, threads: usize, prepared: &Prepared) -> [Division; 2] {
        let most = prepared.most.min(each);
        let bounds = Bounds { threads, lanes: prepared.lanes, helpful: prepared.threads, most };
        bounds.divide(images)
    }

    /// Threads that work on one image of the network's own size.
    pub(crate) fn image_threads(&self) -> usize {
        lock(&self.prepared)[0].threads
    }

    /// Computes the outputs of `images` images, `input`; there must be at least one. A thread runs at most
    /// `each` images at a time, and `max_batch`, or fewer if they are larger than the network's own.
    /// `outputs` has memory for each output of the plan, in these `forms`, or `None` for one that is not
    /// asked for. Returns whether all values that are read and written are finite. Calls from several threads
    /// share the threads of the runner.
    pub(crate) fn infer(
        &self,
        (images, each): (usize, usize),
        input: Input<'_>,
        outputs: &mut OutputBytes<'_>,
        forms: &[OutputForm; MOST_OUTPUTS],
    ) -> Result<bool, RuntimeError> {
        let prepared = self.prepared_for(input.size)?;
        let values = input.pixels.len() / images;
        let finite = AtomicBool::new(true);
        let (mut first, some) = (0, ROUNDS.saturating_mul(prepared.lanes * prepared.most));
        while first < images {
            // Other callers have their turns between the parts of a large batch.
            let part = some.min(images - first);
            let turn = self.lanes.crew().turn(part.min(prepared.lanes).saturating_mul(prepared.threads));
            for division in self.divide(part, each, turn.threads(), &prepared) {
                let end = first + division.images;
                let input = input.of_values(first * values..end * values);
                let mut outputs = outputs.each_mut().map(|output| {
                    let bytes = output.as_ref().map_or(0, |output| output.len() / images);
                    output.as_deref_mut().map(|output| &mut output[first * bytes..end * bytes])
                });
                self.run(division, &prepared, input, (&mut outputs, forms), &finite)?;
                first = end;
            }
        }
        Ok(finite.into_inner())
    }

    /// Computes the outputs of the images `input`, divided by `division`. `finite` becomes false if a value
    /// is not.
    fn run(
        &self,
        division: Division,
        prepared: &Prepared,
        input: Input<'_>,
        (outputs, forms): (&mut OutputBytes<'_>, &[OutputForm; MOST_OUTPUTS]),
        finite: &AtomicBool,
    ) -> Result<(), RuntimeError> {
        let values = input.pixels.len() / division.images.max(1);
        self.lanes.run(division, CpuRunner::room(prepared), outputs, &|pool, arena, group, outputs| {
            let batch = Images { count: group.len(), geometry: &prepared.geometry };
            let input = input.of_values(group.start * values..group.end * values);
            if !self.packed.run(pool, arena, batch, input) {
                finite.store(false, Ordering::Relaxed);
            }
            for ((place, output), form) in self.packed.outputs().zip(outputs).zip(forms) {
                let Some(output) = output else { continue };
                let shape = (batch.geometry.rows(place.spec.rows), place.spec.columns);
                if !outputs::copy(pool, place.f32(batch, arena.buffer(&place)), shape, output, *form) {
                    finite.store(false, Ordering::Relaxed);
                }
            }
        })
    }

    /// The first division of `count` images among all threads.
    fn first_division(&self, count: usize, prepared: &Prepared) -> Division {
        first(&self.divide(count, usize::MAX, self.threads(), prepared))
    }

    /// The median time of each launch in `runs` forwards (at least one) of the images of one group of
    /// threads, when `count` images, `input`, are inferred.
    pub(crate) fn profile(
        &self,
        count: usize,
        input: Input<'_>,
        runs: u32,
    ) -> Result<Vec<LaunchProfile>, RuntimeError> {
        let prepared = self.prepared_for(input.size)?;
        let turn = self.lanes.crew().turn(self.threads());
        let Division { threads, each, .. } = self.first_division(count, &prepared);
        let batch = Images { count: each, geometry: &prepared.geometry };
        let input = input.of_values(0..each * (input.pixels.len() / count));
        self.lanes.with_one(threads.min(turn.threads()), CpuRunner::room(&prepared), |pool, arena| {
            self.packed.profile(pool, arena, batch, input, runs)
        })
    }

    /// Runs launch by launch, in memory of its own, and collects the result of each launch.
    pub(crate) fn trace(&self, count: usize, input: Input<'_>) -> Result<Vec<Traced>, RuntimeError> {
        let prepared = self.prepared_for(input.size)?;
        let geometry = &prepared.geometry;
        let (plan, images) = (&self.packed.plan, Images { count, geometry });
        let layout = Layout::of_plan(plan, |tensor| tensor_bytes(tensor, geometry.grids()), |_| count);
        let mut memory = Memory::default();
        memory.reserve(&layout, count, input.size)?;
        let mut arena = memory.arena(&layout);
        let turn = self.lanes.crew().turn(prepared.threads);
        let mut pool = Pool::of(self.lanes.crew());
        pool.borrow(turn.threads());
        let mut traced = Vec::with_capacity(plan.steps.len());
        for (launch, step) in self.packed.launches.iter().zip(&plan.steps) {
            launch.run(&mut pool, images, input, &mut arena);
            let values = launch.output.traced(images, &arena);
            traced.push(Traced { name: launch.name.clone(), tensor: step.output, values });
        }
        Ok(traced)
    }

    /// A line for each launch of one group of threads, when `count` images of the network's own size are
    /// inferred.
    pub(crate) fn launches(&self, count: usize) -> Vec<String> {
        let prepared = Arc::clone(&lock(&self.prepared)[0]);
        let Division { threads, each, .. } = self.first_division(count, &prepared);
        let images = Images { count: each, geometry: &prepared.geometry };
        let lines = |part: &LaunchRange| {
            let fused = part.fused(images, threads).is_some();
            let launches = self.packed.launches[part.launches.clone()].iter();
            launches.map(|l| l.describe(if fused { FUSED } else { "" })).collect::<Vec<_>>()
        };
        parts(&self.packed.groups, images.geometry).flat_map(lines).collect()
    }
}
