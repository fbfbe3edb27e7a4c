//! The prepared state of a batch: the geometry of its images on the device, the kernels of its launches, and their graph.
//!
//! A graph saves the host time at each run, and recording it takes as long as some dozens of runs save. So a batch that nobody
//! announced gets one when it has run a few times; until then its launches are put on the stream one by one.

use std::sync::Arc;

use swinq_cuda::ops::linear::Target;
use swinq_cuda::{CudaError, Graph, Stream};
use swinq_model::Size;
use swinq_plan::{Geometry, Grids};

use super::engine::{CudaRunner, run_all};
use super::geometry::DeviceGeometry;
use super::memory::{Images, Memory, OfSize, Places};
use super::packed::{Packed, check_position};
use super::sizes::Batch;
use super::step::{Choice, DeviceOp, DeviceStep};
use super::tune::{Effort, Trial};
use crate::error::RuntimeError;
use crate::memory::images_at_a_time;

/// A step that runs for a batch: its index, and the kernel chosen for it if it is a linear layer.
pub(super) type Launch = (usize, Option<Choice>);

/// Runs of a batch without a graph.
const RUNS_WITHOUT: usize = 16;

/// The prepared state of a runner for a number of images of one size.
pub(super) struct Prepared {
    /// All launches but the first, which reads the images; `None` as long as they run one by one.
    graph: Option<Graph>,
    /// Runs without a graph.
    runs: usize,
    pub(super) of: Arc<OfSize>,
    pub(super) launches: Vec<Launch>,
}

impl Prepared {
    /// Puts all launches but the first on `stream`, for all `images` of the prepared batch.
    pub(super) fn run(
        &self,
        packed: &Packed,
        memory: &Memory,
        stream: &Stream,
        images: Images<'_>,
    ) -> Result<(), CudaError> {
        if let Some(graph) = &self.graph {
            return graph.launch(stream);
        }
        let mut launches = self.launches[1..].iter();
        launches.try_for_each(|(index, choice)| {
            memory.run((*index, &packed.steps[*index]), choice.as_ref(), stream, images)
        })
    }
}

impl CudaRunner {
    /// Prepares for `images` images of the size of `of`, `each` at a time, with graphs if they are `announced`. Returns the prepared
    /// number of images of each part.
    pub(super) fn prepare_parts(
        &mut self,
        (images, each): (usize, usize),
        of: &Arc<OfSize>,
        announced: bool,
    ) -> Result<Vec<usize>, RuntimeError> {
        let (size, mut parts) = (of.geometry.grids().image(), Vec::new());
        for part in (0..images).step_by(each).map(|first| each.min(images - first)) {
            let padded = self.sizes.padded((size, part), of.most);
            self.prepare_batch(padded, of, self.effort(size), announced)?;
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

    /// The state that all batches of up to `images` images of `size` share. It lives as long as a batch of that size is
    /// prepared. More images than before need other places, so that the batches of that size are prepared anew.
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

    /// The most images of `size` at a time in inference from host memory: as many as take the memory of a full batch of images of
    /// the network's own size. Copies overlap with the computation of small parts.
    pub(super) fn at_a_time(&self, size: Size) -> usize {
        images_at_a_time(self.options.max_batch, self.own_size(), size)
    }

    /// Places for `asked` images at a time, or for fewer, if half of the free memory does not hold them, but at least for as many as
    /// inference from host memory runs; and that number.
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

    /// Prepares a batch, unless it is, and marks it as the most recently used one. Its graph is recorded if it is `announced`, or
    /// has run without one for some time.
    pub(super) fn prepare_batch(
        &mut self,
        count: usize,
        of: &Arc<OfSize>,
        effort: Effort,
        announced: bool,
    ) -> Result<(), RuntimeError> {
        let batch: Batch = (of.geometry.grids().image(), count);
        if let Some(prepared) = self.sizes.touch(batch) {
            prepared.runs += 1;
            let due = prepared.graph.is_none() && (announced || prepared.runs > RUNS_WITHOUT);
            return if due { self.record(batch) } else { Ok(()) };
        }
        if effort == Effort::Measure || !self.sizes.has_room() {
            // Measurements use the arena, and nothing that work on a stream uses is destroyed before it is done.
            self.last.synchronize()?;
        }
        self.sizes.make_room();
        let launches = self.launches_of(count, of, effort)?;
        self.first = false;
        self.sizes.insert(batch, Prepared { graph: None, runs: 0, of: Arc::clone(of), launches });
        if announced || effort != Effort::Reuse { self.record(batch) } else { Ok(()) }
    }

    /// Records the graph of a prepared batch.
    fn record(&mut self, batch: Batch) -> Result<(), RuntimeError> {
        let (packed, memory, stream) = (&self.packed, &self.memory, &self.stream);
        let prepared = self.sizes.touch(batch).expect("the batch is prepared");
        let images = Images { count: batch.1, of: &prepared.of, input: None };
        let graph = stream
            .capture(|| run_all(&packed.steps, &prepared.launches[1..], memory, stream, images, None))?;
        graph.upload(stream)?;
        stream.synchronize()?;
        prepared.graph = Some(graph);
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
