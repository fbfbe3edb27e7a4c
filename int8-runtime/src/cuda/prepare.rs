//! The prepared state of a batch: the geometry of its images on the device, the kernels of its launches, and
//! their graph.
//!
//! To record a graph takes the host little longer than to put its launches on a stream once, and each run
//! with it saves most of that time. So every batch has one from its first run on.

use std::sync::Arc;

use swinq_cuda::Graph;
use swinq_cuda::ops::linear::Target;
use swinq_model::Size;
use swinq_plan::{Geometry, Grids};

use super::engine::{CudaRunner, run_all};
use super::geometry::DeviceGeometry;
use super::memory::{Images, OfSize, Places};
use super::packed::check_position;
use super::sizes::Batch;
use super::step::{Choice, DeviceOp, DeviceStep};
use super::tune::{Effort, Trial};
use crate::error::RuntimeError;
use crate::memory::images_at_a_time;

/// A step that runs for a batch: its index, and the kernel chosen for it if it is a linear layer.
pub(super) type Launch = (usize, Option<Choice>);

/// The prepared state of a runner for a number of images of one size.
pub(super) struct Prepared {
    /// All launches but the first, which reads the images.
    pub(super) graph: Graph,
    pub(super) of: Arc<OfSize>,
    pub(super) launches: Vec<Launch>,
}

impl CudaRunner {
    /// Prepares for `images` images of the size of `of`, `each` at a time. Returns the prepared number of
    /// images of each part.
    pub(super) fn prepare_parts(
        &mut self,
        (images, each): (usize, usize),
        of: &Arc<OfSize>,
    ) -> Result<Vec<usize>, RuntimeError> {
        let (size, mut parts) = (of.geometry.grids().image(), Vec::new());
        for part in (0..images).step_by(each).map(|first| each.min(images - first)) {
            let padded = self.sizes.padded((size, part), of.most);
            self.prepare_batch(padded, of, self.effort(size))?;
            parts.push(padded);
        }
        Ok(parts)
    }

    /// How kernels are chosen for images of `size`, for which an inference waits: only the first batch is
    /// measured, and a new size compiles nothing where a kernel is compiled already.
    fn effort(&self, size: Size) -> Effort {
        if self.first {
            Effort::Measure
        } else if size == self.own_size() || self.has(size) {
            Effort::Compile
        } else {
            Effort::Reuse
        }
    }

    /// The state that all batches of up to `images` images of `size` share. It lives as long as a batch of
    /// that size is prepared. More images than before need other places, so that the batches of that size are
    /// prepared anew.
    pub(super) fn of_size(&mut self, size: Size, images: usize) -> Result<Arc<OfSize>, RuntimeError> {
        let asked = images.min(self.options.max_batch);
        let known = self.sizes.of_size(size).map(|prepared| Arc::clone(&prepared.of));
        if let Some(of) = known.as_ref().filter(|of| of.asked.max(of.most) >= asked) {
            return Ok(Arc::clone(of));
        }
        let (packed, own) = (Arc::clone(&self.packed), self.own_size());
        let geometry = match (&known, size == own) {
            (Some(of), _) => Arc::clone(&of.geometry),
            (None, true) => self.on_device(&packed.own)?,
            (None, false) => {
                let geometry = Geometry::new(&self.config, size)?;
                check_position(&self.config, geometry.grids())?;
                self.on_device(&geometry)?
            }
        };
        let (places, most) = self.places(geometry.grids(), asked)?;
        if known.is_some() {
            self.last.synchronize()?;
            self.sizes.forget(size);
        }
        self.reserve((places.bytes, 0))?;
        Ok(Arc::new(OfSize { geometry, places, asked, most }))
    }

    fn on_device(&self, geometry: &Geometry) -> Result<Arc<DeviceGeometry>, RuntimeError> {
        let packed = &self.packed;
        let geometry =
            DeviceGeometry::new(packed.device(), &self.stream, geometry, packed.codes_in_windows())?;
        Ok(Arc::new(geometry))
    }

    /// The most images of `size` at a time in inference from host memory: as many as take the memory of a
    /// full batch of images of the network's own size. Copies overlap with the computation of small parts.
    pub(super) fn at_a_time(&self, size: Size) -> usize {
        images_at_a_time(self.options.max_batch, self.own_size(), size)
    }

    /// Places for `asked` images at a time, or for fewer, if half of the free memory does not hold them, but
    /// at least for as many as inference from host memory runs; and that number.
    fn places(&self, grids: &Grids, asked: usize) -> Result<(Places, usize), RuntimeError> {
        let least = self.at_a_time(grids.image());
        let mut most = asked.next_power_of_two().min(self.options.max_batch).max(least);
        let mut places = Places::new(&self.packed, grids, most);
        if most == least || self.memory.has_room((places.bytes, 0)) {
            return Ok((places, most));
        }
        let room = self.packed.device().memory()?.0 / 2;
        while most > least && places.bytes > room {
            most = (most / 2).max(least);
            places = Places::new(&self.packed, grids, most);
        }
        Ok((places, most))
    }

    /// Makes room for so many bytes of the arena and of the results. If memory grows, all graphs are dropped,
    /// because they hold its addresses.
    pub(super) fn reserve(&mut self, bytes: (usize, usize)) -> Result<(), RuntimeError> {
        if self.memory.has_room(bytes) {
            return Ok(());
        }
        self.last.synchronize()?;
        self.memory.reserve(self.packed.device(), bytes)?;
        self.sizes.clear();
        Ok(())
    }

    /// Prepares a batch, unless it is, and marks it as the most recently used one.
    pub(super) fn prepare_batch(
        &mut self,
        count: usize,
        of: &Arc<OfSize>,
        effort: Effort,
    ) -> Result<(), RuntimeError> {
        let batch: Batch = (of.geometry.grids().image(), count);
        if self.sizes.touch(batch).is_some() {
            return Ok(());
        }
        if effort == Effort::Measure || !self.sizes.has_room() {
            // Measurements use the arena, and nothing that work on a stream uses is destroyed before it is
            // done.
            self.last.synchronize()?;
        }
        self.sizes.make_room();
        let launches = self.launches_of(count, of, effort)?;
        self.first = false;
        let graph = self.record(count, of, &launches)?;
        self.sizes.insert(batch, Prepared { graph, of: Arc::clone(of), launches });
        Ok(())
    }

    /// Records the graph of a batch.
    fn record(&self, count: usize, of: &OfSize, launches: &[Launch]) -> Result<Graph, RuntimeError> {
        let (steps, memory, stream) = (&self.packed.steps, &self.memory, &self.stream);
        let images = Images { count, of, input: None };
        let graph = stream.capture(|| run_all(steps, &launches[1..], memory, stream, images, None))?;
        graph.upload(stream)?;
        stream.synchronize()?;
        Ok(graph)
    }

    /// The steps that run for a batch, with a kernel for each linear layer.
    fn launches_of(
        &mut self,
        count: usize,
        of: &OfSize,
        effort: Effort,
    ) -> Result<Vec<Launch>, RuntimeError> {
        self.compile(count, of, effort);
        let (packed, grids) = (Arc::clone(&self.packed), of.geometry.grids());
        let mut launches = Vec::with_capacity(packed.steps.len());
        for (index, step) in packed.steps.iter().enumerate().filter(|(_, step)| step.when.holds(count, grids))
        {
            launches.push((index, self.choose(step, count, of, effort)?));
        }
        self.tuner.finish();
        Ok(launches)
    }

    /// Compiles the kernels for batches of `images` that can be chosen without a measurement. With the first
    /// batch also those of steps that run for other batches alone, and loads these, so that no other batch
    /// waits for a compilation.
    fn compile(&mut self, images: usize, of: &OfSize, effort: Effort) {
        let (packed, geometry) = (Arc::clone(&self.packed), &of.geometry);
        let runs = |step: &&DeviceStep| step.when.holds(images, geometry.grids());
        let first = self.first;
        let steps = packed.steps.iter().filter(|step| first || runs(step));
        let programs = steps.filter_map(|step| match &step.op {
            DeviceOp::Linear(linear, _) => {
                Some(self.tuner.programs(linear, images * geometry.rows(step.rows), effort))
            }
            _ => None,
        });
        packed.device().prefetch(&programs.flatten().collect::<Vec<_>>());
        for step in packed.steps.iter().filter(|step| first && !runs(step)) {
            if let DeviceOp::Linear(linear, _) = &step.op {
                self.tuner.load(linear, images * geometry.rows(step.rows));
            }
        }
    }

    /// The kernel of `step` for `count` images, if it is a linear layer.
    fn choose(
        &mut self,
        step: &DeviceStep,
        count: usize,
        of: &OfSize,
        effort: Effort,
    ) -> Result<Option<Choice>, RuntimeError> {
        let DeviceOp::Linear(linear, order) = &step.op else { return Ok(None) };
        let (geometry, images) = (&of.geometry, Images { count, of, input: None });
        let input = self.memory.slice(step.input, images);
        let output = self.memory.slice(step.output, images);
        let target = Target { slice: &output, map: order.and_then(|order| geometry.map(order)) };
        let m = count * geometry.rows(step.rows);
        let trial = Trial { name: &step.name, linear, m, input: &input, target };
        let choice = self.tuner.choose(&trial, &self.stream, effort);
        choice.map(Some).map_err(|error| RuntimeError::on_device(&step.name, error))
    }
}
