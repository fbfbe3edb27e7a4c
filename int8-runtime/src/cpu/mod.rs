//! The CPU backend: each step of the plan is one launch of a prepared kernel, or blocks are one launch each.

mod launch;
mod lower;
mod place;
mod tile;

use std::time::{Duration, Instant};

use swinq_kernels::{Cpu, Pool};
use swinq_model::QuantizedModel;

use crate::arena::Layout;
use crate::engine::LaunchProfile;
use crate::plan::{Plan, Step};
use crate::trace::Traced;
use launch::Launch;
use lower::lower;
use place::Arena;
use tile::{Section, sections};

/// The detail in a profile of launches that run with others of their block, group of rows by group of rows.
const TILED: &str = "tiled";

/// A plan lowered for the CPU.
pub(crate) struct Program {
    /// One for each step.
    launches: Vec<Launch>,
    /// All launches, in order.
    sections: Vec<Section>,
    arena: Arena,
}

impl Program {
    /// `plan` of `model` for at most `images` images at a time and `threads` threads.
    pub(crate) fn new(
        model: &QuantizedModel,
        plan: &Plan,
        cpu: Cpu,
        images: usize,
        threads: usize,
    ) -> Program {
        let launches = lower(model, plan, cpu);
        let sections = sections(&launches, threads, cpu);
        let mut most = vec![images; plan.tensors.len()];
        for section in &sections {
            section.inner(&launches).for_each(|tensor| most[tensor.0] = section.most_apart(images));
        }
        let arena = Arena::new(Layout::of_plan(plan, |tensor| most[tensor.0]));
        Program { launches, sections, arena }
    }

    /// Runs all over `images` images, at least one.
    pub(crate) fn run(&mut self, pool: &mut Pool, images: usize, pixels: &[u8]) {
        for section in &self.sections {
            let launches = &self.launches[section.launches.clone()];
            match section.chain(images) {
                Some(chain) => chain.run(pool, images, launches[0].stream_mut(images, &mut self.arena)),
                None => launches.iter().for_each(|launch| launch.run(pool, images, pixels, &mut self.arena)),
            }
        }
    }

    /// As [`Program::run`], and adds the time of each launch to `times`.
    pub(crate) fn run_timed(
        &mut self,
        pool: &mut Pool,
        images: usize,
        pixels: &[u8],
        times: &mut [Duration],
    ) {
        for section in &self.sections {
            let launches = &self.launches[section.launches.clone()];
            let times = &mut times[section.launches.clone()];
            if let Some(chain) = section.chain(images) {
                let parts = chain.run_timed(pool, images, launches[0].stream_mut(images, &mut self.arena));
                times.iter_mut().zip(parts).for_each(|(time, part)| *time += part);
                continue;
            }
            for (launch, time) in launches.iter().zip(times) {
                let start = Instant::now();
                launch.run(pool, images, pixels, &mut self.arena);
                *time += start.elapsed();
            }
        }
    }

    /// Runs launch by launch, in memory of its own, and collects what each wrote.
    pub(crate) fn trace(&self, plan: &Plan, pool: &mut Pool, images: usize, pixels: &[u8]) -> Vec<Traced> {
        let mut arena = Arena::new(Layout::of_plan(plan, |_| images));
        let trace = |(launch, step): (&Launch, &Step)| {
            launch.run(pool, images, pixels, &mut arena);
            let values = launch.output.traced(images, &arena);
            Traced { name: launch.name.clone(), tensor: step.output, values }
        };
        self.launches.iter().zip(&plan.steps).map(trace).collect()
    }

    /// What the last launch wrote, f32.
    pub(crate) fn output(&self, images: usize) -> &[f32] {
        let place = &self.launches.last().expect("a plan has steps").output;
        place.f32(images, self.arena.buffer(place))
    }

    /// The launches, one for each step, without their times, over `images` images.
    pub(crate) fn profiles(&self, images: usize, pixels: usize) -> Vec<LaunchProfile> {
        let profile = |launch: &Launch, detail: &str| LaunchProfile {
            name: launch.name.clone(),
            detail: detail.to_owned(),
            time: Duration::ZERO,
            macs: launch.macs * images as u64,
            bytes: launch.bytes(images, pixels),
        };
        let section = |section: &Section| {
            let detail = if section.chain(images).is_some() { TILED } else { "" };
            let launches = &self.launches[section.launches.clone()];
            launches.iter().map(move |launch| profile(launch, detail)).collect::<Vec<_>>()
        };
        self.sections.iter().flat_map(section).collect()
    }
}
