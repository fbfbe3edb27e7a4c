//! What a runner prepares for a batch: the geometry of its images on the device, the kernels of its launches, and their graph.

use std::sync::Arc;

use swinq_cuda::Graph;
use swinq_cuda::ops::linear::Target;
use swinq_model::Size;
use swinq_plan::Geometry;

use super::engine::{Runner, run_all};
use super::geometry::DeviceGeometry;
use super::memory::{Images, OfSize, Places};
use super::sizes::Batch;
use super::step::{Choice, DeviceOp, DeviceStep};
use super::tune::{Effort, Trial};
use crate::error::RuntimeError;
use crate::memory::images_at_a_time;

/// A step that runs for a batch: its index, and the kernel chosen for it if it is a linear layer.
pub(super) type Launch = (usize, Option<Choice>);

/// What a runner has prepared for a number of images of one size.
pub(super) struct Prepared {
    /// All launches but the first, which reads the images.
    pub(super) graph: Graph,
    pub(super) of: Arc<OfSize>,
    pub(super) launches: Vec<Launch>,
}

impl Runner {
    /// Prepares for `images` images of the size of `of`, `each` at a time. Returns the prepared number of images of
    /// each part.
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

    /// How kernels are chosen for images of `size`, for which an inference waits: only the first batch is measured, and a new
    /// size compiles nothing where a kernel is compiled already.
    fn effort(&self, size: Size) -> Effort {
        if self.first {
            Effort::Measure
        } else if size == self.own_size() || self.has(size) {
            Effort::Compile
        } else {
            Effort::Reuse
        }
    }

    /// What all batches of images of `size` share. It lives as long as a batch of that size is prepared.
    pub(super) fn of_size(&mut self, size: Size) -> Result<Arc<OfSize>, RuntimeError> {
        if let Some(prepared) = self.sizes.of_size(size) {
            return Ok(Arc::clone(&prepared.of));
        }
        let (packed, own) = (Arc::clone(&self.packed), self.own_size());
        let geometry = match size == own {
            true => Arc::clone(&packed.own),
            false => Arc::new(Geometry::new(&self.config, size)?),
        };
        let most = images_at_a_time(self.options.max_batch, own, size);
        let places = Places::new(&packed, geometry.grids(), most);
        self.reserve((places.bytes, 0))?;
        let geometry = DeviceGeometry::new(packed.device(), &geometry, packed.codes_in_windows())?;
        Ok(Arc::new(OfSize { geometry, places, most }))
    }

    /// Makes room for so many bytes of the arena and of the results. If memory grows, all graphs are dropped, because they hold
    /// its addresses.
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
        // Measurements use the arena, and no graph is destroyed while it runs.
        self.last.synchronize()?;
        self.sizes.make_room();
        let launches = self.launches_of(count, of, effort)?;
        let (steps, memory, on) = (&self.packed.steps, &self.memory, &self.stream);
        let images = Images { count, of, input: None };
        let graph = on.capture(|| run_all(steps, &launches[1..], memory, on, images, None))?;
        graph.upload(on)?;
        on.synchronize()?;
        self.first = false;
        self.sizes.insert(batch, Prepared { graph, of: Arc::clone(of), launches });
        Ok(())
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

    /// Compiles the kernels for batches of `images` that can be chosen without a measurement.
    fn compile(&self, images: usize, of: &OfSize, effort: Effort) {
        let geometry = &of.geometry;
        let steps = self.packed.steps.iter().filter(|step| step.when.holds(images, geometry.grids()));
        let programs = steps.filter_map(|step| match &step.op {
            DeviceOp::Linear(linear, _) => {
                Some(self.tuner.programs(linear, images * geometry.rows(step.rows), effort))
            }
            _ => None,
        });
        self.packed.device().prefetch(&programs.flatten().collect::<Vec<_>>());
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
