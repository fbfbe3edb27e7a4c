//! The CPU backend. Each step of the plan is one launch of a prepared kernel; the launches of a block may run
//! as one.

mod division;
mod fingerprint;
mod fused;
mod lanes;
mod launch;
mod lower;
mod options;
mod outputs;
mod place;
mod positions;
mod runner;
#[cfg(test)]
mod tests;
mod variants;

use std::sync::Arc;
use std::time::{Duration, Instant};

use swinq_kernels::memory::give_back_freed_memory;
use swinq_kernels::{Cpu, Pool};
use swinq_numerics::Images as Input;
use swinq_plan::{Geometry, Grids, Outline, Plan};

use crate::arena::Layout;
use crate::profile::LaunchProfile;
use fused::{LaunchGroup, groups, most_images, parts};
pub(crate) use lanes::Lanes;
use launch::Launch;
use lower::lower;
pub use options::CpuOptions;
use place::{Arena, Images, Place, tensor_bytes};
pub(crate) use runner::CpuRunner;
pub use variants::{Position, Start, Variant, VariantRunner};

/// The detail that a profile shows for launches that run as one fused block.
const FUSED: &str = "fused";

/// A model lowered for one kind of CPU: its launches with their packed weights.
pub(crate) struct Packed {
    plan: Arc<Outline>,
    cpu: Cpu,
    /// One launch for each step of the plan.
    launches: Vec<Arc<Launch>>,
    /// All launches in order, divided into groups.
    groups: Vec<LaunchGroup>,
}

impl Packed {
    /// Lowers `plan`, whose outline is `outline`, for the kernels of `cpu`.
    pub(crate) fn new(plan: &Plan<'_>, outline: &Arc<Outline>, cpu: Cpu) -> Packed {
        // INT8 weights are packed into new memory, so what the reading of the model has left is not used
        // again.
        give_back_freed_memory();
        let launches = lower(plan, cpu);
        Packed { plan: Arc::clone(outline), cpu, groups: groups(&launches, cpu), launches }
    }

    /// The places of tensors for batches of up to `images` on one thread, and for single images on up to
    /// `threads` threads.
    fn layout(&self, images: Images<'_>, threads: usize) -> Layout {
        let tensors = self.plan.tensors.len();
        let most = most_images(&self.groups, &self.launches, tensors, images, threads);
        Layout::of_plan(
            &self.plan,
            |tensor| tensor_bytes(tensor, images.geometry.grids()),
            |tensor| most[tensor.0],
        )
    }

    /// The number of threads, at most `threads`, on which one image of `geometry` is fastest.
    fn threads_of_one_image(&self, geometry: &Geometry, threads: usize) -> usize {
        let one = Images { count: 1, geometry };
        let macs: u64 = self.launches.iter().map(|launch| launch.macs(one)).sum();
        division::threads_of_one_image(
            macs as f64 / self.cpu.macs_per_ns() as f64,
            self.launches.len(),
            threads,
        )
    }

    /// The bytes of the tensors of one image with these grids, if no launches run as one.
    pub(crate) fn image_bytes(&self, grids: &Grids) -> usize {
        Layout::of_plan(&self.plan, |tensor| tensor_bytes(tensor, grids), |_| 1).total()
    }

    /// Runs all launches over `images`. Returns whether all values of `input` are finite.
    fn run(&self, pool: &mut Pool, arena: &mut Arena<'_>, images: Images<'_>, input: Input<'_>) -> bool {
        let mut finite = true;
        for part in parts(&self.groups, images.geometry) {
            let launches = &self.launches[part.launches.clone()];
            match part.fused(images, pool.threads()) {
                Some(fused) => {
                    fused.block.run(pool, images.count, fused.rows, launches[0].residual_mut(images, arena));
                }
                None => {
                    for launch in launches {
                        finite &= launch.run(pool, images, input, arena);
                    }
                }
            }
        }
        finite
    }

    /// The median time of each launch in `runs` forwards (at least one) of `images`.
    fn profile(
        &self,
        pool: &mut Pool,
        arena: &mut Arena<'_>,
        images: Images<'_>,
        input: Input<'_>,
        runs: u32,
    ) -> Vec<LaunchProfile> {
        let mut all = vec![Vec::with_capacity(runs as usize); self.launches.len()];
        for _ in 0..runs {
            let mut times = vec![Duration::ZERO; self.launches.len()];
            self.run_timed(pool, arena, images, input, &mut times);
            all.iter_mut().zip(times).for_each(|(all, time)| all.push(time));
        }
        let mut profiles = Vec::with_capacity(all.len());
        for part in parts(&self.groups, images.geometry) {
            let fused = part.fused(images, pool.threads()).is_some();
            for index in part.launches.clone() {
                let launch = &self.launches[index];
                profiles.push(LaunchProfile {
                    name: launch.name.clone(),
                    detail: if fused { FUSED.to_owned() } else { String::new() },
                    time: median(&mut all[index]),
                    macs: launch.macs(images),
                    bytes: launch.bytes(images, input.pixels.len()),
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
        input: Input<'_>,
        times: &mut [Duration],
    ) {
        for part in parts(&self.groups, images.geometry) {
            let launches = &self.launches[part.launches.clone()];
            let times = &mut times[part.launches.clone()];
            if let Some(fused) = part.fused(images, pool.threads()) {
                let residual = launches[0].residual_mut(images, arena);
                let ops = fused.block.run_timed(pool, images.count, fused.rows, residual);
                times.iter_mut().zip(ops).for_each(|(time, op)| *time += op);
                continue;
            }
            for (launch, time) in launches.iter().zip(times) {
                let start = Instant::now();
                launch.run(pool, images, input, arena);
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

/// The median of at least one time.
fn median(times: &mut [Duration]) -> Duration {
    let middle = times.len() / 2;
    *times.select_nth_unstable(middle).1
}
