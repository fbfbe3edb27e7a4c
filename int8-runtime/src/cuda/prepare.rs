//! What a runner prepares for a batch: the geometry of its images on the device, the kernels of its launches, and their graph.

use std::sync::Arc;

use swinq_cuda::ops::linear::Target;
use swinq_cuda::ops::patch::InputForm;
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
    /// The key of the graph.
    pub(super) graph: usize,
    pub(super) of: Arc<OfSize>,
    pub(super) launches: Vec<Launch>,
}

impl Runner {
    /// Chooses kernels for batches of `images` images of `size`, or as many as run at a time, and records their graph. No-op
    /// if already prepared. Returns the number of images.
    pub(crate) fn prepare(&mut self, images: usize, size: Size) -> Result<usize, RuntimeError> {
        let of = self.of_size(size)?;
        let images = images.min(of.most);
        self.prepare_batch(images, &of, Effort::Measure)?;
        Ok(images)
    }

    /// Prepares for `images` images of `size`, of which at most `each` run at a time. Returns the most images of that size at a
    /// time, and the prepared number of images of each part.
    pub(super) fn prepare_parts(
        &mut self,
        (images, each): (usize, usize),
        size: Size,
    ) -> Result<(usize, Vec<usize>), RuntimeError> {
        let of = self.of_size(size)?;
        let each = each.min(of.most);
        let mut parts = Vec::new();
        for part in (0..images).step_by(each).map(|first| each.min(images - first)) {
            let padded = self.sizes.padded((size, part), of.most);
            self.prepare_batch(padded, &of, self.effort(size))?;
            parts.push(padded);
        }
        Ok((each, parts))
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
        self.reserve(&places)?;
        let geometry = DeviceGeometry::new(packed.device(), &geometry, packed.codes_in_windows())?;
        Ok(Arc::new(OfSize { geometry, places, most }))
    }

    /// Makes room for `places`. If memory grows, all graphs are dropped, because they hold its addresses.
    fn reserve(&mut self, places: &Places) -> Result<(), RuntimeError> {
        let packed = Arc::clone(&self.packed);
        self.pipeline.reserve(packed.device(), 0, self.memory.result_bytes(places))?;
        if self.memory.has_room(places) {
            return Ok(());
        }
        self.memory.reserve(packed.device(), places)?;
        self.pipeline.clear();
        self.sizes.clear();
        Ok(())
    }

    /// Makes room for `images` images of `size` in `form`.
    pub(super) fn reserve_input(
        &mut self,
        images: usize,
        size: Size,
        form: InputForm,
    ) -> Result<(), RuntimeError> {
        let bytes = images * self.image_values(size) * form.element.bytes();
        Ok(self.pipeline.reserve(self.packed.device(), bytes, 0)?)
    }

    /// Prepares a batch, unless it is, and marks it as the most recently used one.
    fn prepare_batch(&mut self, count: usize, of: &Arc<OfSize>, effort: Effort) -> Result<(), RuntimeError> {
        let batch: Batch = (of.geometry.grids().image(), count);
        if self.sizes.touch(batch).is_some() {
            return Ok(());
        }
        if let Some(unused) = self.sizes.make_room() {
            self.pipeline.forget(unused.graph);
        }
        let launches = self.launches_of(count, of, effort)?;
        let graph = self.next_graph;
        let (steps, memory) = (&self.packed.steps, &self.memory);
        // The first launch, which reads the images, is not recorded.
        let images = Images { count, of, pixels: &self.pipeline.input().clone(), form: InputForm::PIXELS };
        self.pipeline.record(graph, |on| run_all(steps, &launches[1..], memory, on, images, None))?;
        (self.next_graph, self.first) = (graph + 1, false);
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
        let (geometry, pipeline) = (&of.geometry, &self.pipeline);
        let images = Images { count, of, pixels: pipeline.input(), form: InputForm::PIXELS };
        let input = self.memory.slice(step.input, images);
        let output = self.memory.slice(step.output, images);
        let target = Target { slice: &output, map: order.and_then(|order| geometry.map(order)) };
        let m = count * geometry.rows(step.rows);
        let trial = Trial { name: &step.name, linear, m, input: &input, target };
        let choice = self.tuner.choose(&trial, pipeline.stream(), effort);
        choice.map(Some).map_err(|error| RuntimeError::on_device(&step.name, error))
    }
}
