//! Variants of one model: models of one architecture that differ at some sites or parameters, run from any
//! place between two blocks.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use swinq_kernels::Pool;
use swinq_model::{QuantizedModel, Size, SwinConfig};
use swinq_numerics::Images as Input;
use swinq_plan::{Element, Geometry, Grids, Outline, Plan, TensorId, TensorSpec};

use super::division::{Bounds, Division, first};
use super::fingerprint::{Fingerprint, fingerprint};
use super::fused::{LaunchRange, groups, parts};
use super::lanes::{Lanes, Room, lanes_in};
use super::launch::Launch;
use super::lower::Lowering;
use super::place::{Arena, Images, Place, tensor_bytes};
use super::{CpuOptions, Packed};
use crate::arena::Layout;
use crate::engine::MOST_OUTPUTS;
use crate::error::RuntimeError;
use crate::memory::images_at_a_time;
use crate::profile::LaunchProfile;

/// A place in the network where one tensor alone is read later: the image, the residual stream, or the last
/// output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The step that reads the tensor next. At the last output it is the number of steps.
    pub step: usize,
    /// Module path of that step; the name of the last output at the end.
    pub name: String,
    /// Values per image of the tensor, for images of the runner's size: f32, but for the image.
    pub values: usize,
    tensor: TensorId,
    spec: TensorSpec,
}

/// The input of a run.
#[derive(Clone, Copy, Debug)]
pub enum Start<'a> {
    /// The images, of the runner's size. The run begins at the first position.
    Images(Input<'a>),
    /// The tensor at the position of this index, f32 `[images, values]`.
    Residual(usize, &'a [f32]),
}

impl<'a> Start<'a> {
    /// Index of the position.
    fn position(&self) -> usize {
        match self {
            Start::Images(_) => 0,
            Start::Residual(position, _) => *position,
        }
    }

    /// Number of values.
    fn len(&self) -> usize {
        match self {
            Start::Images(images) => images.pixels.len(),
            Start::Residual(_, residual) => residual.len(),
        }
    }

    /// The values `range`.
    fn part(self, range: Range<usize>) -> Start<'a> {
        match self {
            Start::Images(images) => Start::Images(images.of_values(range)),
            Start::Residual(position, residual) => Start::Residual(position, &residual[range]),
        }
    }
}

/// A variant that is ready to run. It shares launches with other variants of its runner.
pub struct Variant {
    packed: Packed,
}

impl Variant {
    /// The network as a list of ops.
    pub fn plan(&self) -> &Outline {
        &self.packed.plan
    }
}

/// Runs variants of one model on the CPU.
///
/// A launch that several variants have in common is made, and its weight packed, once. A run may begin and
/// end at any [`Position`], so that what several variants share before their first difference is computed
/// once. The results equal those of an [`Engine`](crate::Engine) bit for bit. All images of a run have one
/// size ([`VariantRunner::set_size`]).
pub struct VariantRunner {
    config: SwinConfig,
    options: CpuOptions,
    lanes: Lanes,
    /// Lanes that have memory.
    side_by_side: usize,
    layout: Layout,
    /// The network without parameters. Its tensors are those of all variants, but for their elements.
    outline: Outline,
    /// The geometry of the images' size, at first the network's own.
    geometry: Arc<Geometry>,
    /// The most images that one thread runs at a time.
    most: usize,
    positions: Vec<Position>,
    launches: HashMap<Fingerprint, Arc<Launch>>,
}

impl VariantRunner {
    /// A runner of variants of `model`, with its threads, and memory for `options.max_batch` images on each.
    ///
    /// # Errors
    /// `model` does not pass [`QuantizedModel::validate`], or the system refuses threads or memory.
    pub fn new(model: &QuantizedModel, options: CpuOptions) -> Result<VariantRunner, RuntimeError> {
        crate::Backend::Cpu(options).check()?;
        let plan = Plan::new(model)?;
        let (outline, positions) = (plan.outline(), positions(&plan));
        let layout = layout_of(&outline, &plan.own, options.max_batch);
        let mut runner = VariantRunner {
            config: model.config.clone(),
            options,
            lanes: Lanes::new(options.threads)?,
            side_by_side: 0,
            layout,
            outline,
            geometry: Arc::clone(&plan.own),
            most: options.max_batch,
            positions,
            launches: HashMap::new(),
        };
        runner.reserve()?;
        Ok(runner)
    }

    /// Takes memory for images of the current size.
    fn reserve(&mut self) -> Result<(), RuntimeError> {
        self.side_by_side =
            lanes_in(self.options.most_memory(), self.layout.total(), self.lanes.crew().threads());
        (0..self.room().lanes).try_for_each(|lane| self.lanes.reserve(lane, self.room()))
    }

    /// Sets the size of the images of further runs. Variants stay valid. Of images larger than the network's
    /// own fewer run at a time.
    ///
    /// # Errors
    /// A size that the network cannot process, or the system refuses memory.
    pub fn set_size(&mut self, size: Size) -> Result<(), RuntimeError> {
        if size == self.geometry.image() {
            return Ok(());
        }
        let geometry = Arc::new(Geometry::new(&self.config, size)?);
        self.most = images_at_a_time(self.options.max_batch, self.config.image_size, size);
        self.layout = layout_of(&self.outline, &geometry, self.most);
        for position in &mut self.positions {
            position.values = geometry.rows(position.spec.rows) * position.spec.columns;
        }
        self.geometry = geometry;
        self.reserve()
    }

    /// The places where a run may begin or end: the image first, the last output last.
    pub fn positions(&self) -> &[Position] {
        &self.positions
    }

    /// Images of which all threads can run some at the same time: `max_batch` for each, or fewer if memory is
    /// short. A run may have more.
    pub fn images_at_a_time(&self) -> usize {
        self.most * self.room().lanes
    }

    fn room(&self) -> Room<'_> {
        let VariantRunner { layout, geometry, most, side_by_side, .. } = self;
        Room { layout, images: *most, size: geometry.image(), lanes: *side_by_side }
    }

    /// How `images` images are divided among the threads.
    fn divide(&self, variant: &Variant, images: usize) -> [Division; 2] {
        let helpful = match self.options.image_threads {
            0 => variant.packed.threads_of_one_image(&self.geometry, self.threads()),
            some => some.min(self.threads()),
        };
        let (threads, lanes) = (self.threads(), self.room().lanes);
        Bounds { threads, lanes, helpful, most: self.most }.divide(images)
    }

    /// Threads in use, the caller's included.
    pub fn threads(&self) -> usize {
        self.lanes.crew().threads()
    }

    /// Number of launches that were made for all variants so far.
    pub fn launches(&self) -> usize {
        self.launches.len()
    }

    /// Prepares a variant. Only launches that no earlier variant has are made.
    ///
    /// # Errors
    /// `model` has another architecture, or does not pass [`QuantizedModel::validate`].
    pub fn prepare(&mut self, model: &QuantizedModel) -> Result<Variant, RuntimeError> {
        if model.config != self.config {
            let (name, expected) = (model.config.name.clone(), self.config.name.clone());
            return Err(RuntimeError::OtherArchitecture { name, expected });
        }
        let (plan, cpu) = (Plan::new(model)?, self.options.cpu);
        let lowering = Lowering::new(&plan, cpu);
        let launch = |(index, step)| {
            let made = self.launches.entry(fingerprint(&plan, index));
            Arc::clone(made.or_insert_with(|| Arc::new(lowering.launch(step))))
        };
        let launches: Vec<Arc<Launch>> = plan.steps.iter().enumerate().map(launch).collect();
        let groups = groups(&launches, cpu);
        Ok(Variant { packed: Packed { plan: Arc::new(plan.outline()), cpu, launches, groups } })
    }

    /// Drops launches that no variant uses any more, and with them their packed weights.
    pub fn forget_unused(&mut self) {
        self.launches.retain(|_, launch| Arc::strong_count(launch) > 1);
    }

    /// Index of the last position before the first launch in which the two variants differ: up to it they
    /// compute the same. `None` if they are equal.
    pub fn first_difference(&self, a: &Variant, b: &Variant) -> Option<usize> {
        let mut launches = a.packed.launches.iter().zip(&b.packed.launches);
        let step = launches.position(|(a, b)| !Arc::ptr_eq(a, b))?;
        self.positions.iter().rposition(|position| position.step <= step)
    }

    /// The outputs that a run from position `from` computes: those that a step from there on writes. Earlier
    /// ones are complete.
    pub fn outputs_from(&self, from: usize) -> Range<usize> {
        let outputs = &self.outline.outputs;
        let computed = |output: &swinq_plan::Output| {
            let written = self.outline.steps.iter().rposition(|step| step.output == output.tensor);
            written.is_some_and(|step| step >= self.positions[from].step)
        };
        outputs.iter().position(computed).unwrap_or(outputs.len())..outputs.len()
    }

    /// f32 values per image of output `index`, for images of the runner's size.
    pub fn output_values(&self, index: usize) -> usize {
        let spec = self.outline.tensor(self.outline.outputs[index].tensor);
        self.geometry.rows(spec.rows) * spec.columns
    }

    /// Runs `variant` over `images` images from the position of `from` to the position `to`, and writes the
    /// tensor at `to`, f32 `[images, values]`.
    ///
    /// # Panics
    /// If there is no image, the positions are not ascending, the images have another size than the runner's,
    /// or the length of the input or of `output` is not that of `images` images.
    pub fn run(&mut self, variant: &Variant, images: usize, from: Start<'_>, to: usize, output: &mut [f32]) {
        let position = &self.positions[to];
        let place = Place { tensor: position.tensor, spec: position.spec, residual: false };
        assert_eq!(output.len(), images * position.values, "the output of {images} images");
        self.run_into(variant, images, from, to, &[place], &mut [Some(output)]);
    }

    /// Runs `variant` over `images` images from the position of `from` to the end, and writes the outputs
    /// that are computed on the way ([`VariantRunner::outputs_from`]): of each output f32 `[images, values]`,
    /// the tokens of a feature map one behind the other.
    ///
    /// # Panics
    /// As [`VariantRunner::run`].
    pub fn run_to_outputs(
        &mut self,
        variant: &Variant,
        images: usize,
        from: Start<'_>,
        outputs: &mut [&mut [f32]],
    ) {
        let computed = self.outputs_from(from.position());
        assert_eq!(outputs.len(), computed.len(), "the outputs of a run");
        let mut places = Vec::with_capacity(MOST_OUTPUTS);
        let mut targets: [Option<&mut [f32]>; MOST_OUTPUTS] = [const { None }; MOST_OUTPUTS];
        for ((index, output), target) in computed.zip(outputs).zip(&mut targets) {
            assert_eq!(output.len(), images * self.output_values(index), "output {index} of {images} images");
            let tensor = self.outline.outputs[index].tensor;
            places.push(Place { tensor, spec: *self.outline.tensor(tensor), residual: false });
            *target = Some(output);
        }
        self.run_into(variant, images, from, self.positions.len() - 1, &places, &mut targets);
    }

    /// Runs `variant` from the position of `from` to the position `to`, and writes the tensors at `places`
    /// into `outputs`.
    fn run_into<const N: usize>(
        &mut self,
        variant: &Variant,
        images: usize,
        from: Start<'_>,
        to: usize,
        places: &[Place],
        outputs: &mut [Option<&mut [f32]>; N],
    ) {
        assert!(images > 0, "a run of no image");
        let first = from.position();
        assert!(first < to, "a run from position {first} to {to}");
        if let Start::Images(input) = &from {
            assert_eq!(input.size, self.geometry.image(), "the size of the images");
        }
        let read = self.positions[first].values;
        assert_eq!(from.len(), images * read, "the input of {images} images");
        let mut done = 0;
        for division in self.divide(variant, images) {
            let some = done..done + division.images;
            let mut parts = outputs.each_mut().map(|output| {
                let values = output.as_ref().map_or(0, |output| output.len() / images);
                output.as_deref_mut().map(|output| &mut output[some.start * values..some.end * values])
            });
            let ran = self.lanes.run(division, self.room(), &mut parts, &|pool, arena, group, outputs| {
                let batch = Images { count: group.len(), geometry: &self.geometry };
                let group = (some.start + group.start) * read..(some.start + group.end) * read;
                self.run_lane(variant, (pool, &mut *arena), batch, from.part(group), (first, to));
                for (place, output) in places.iter().zip(outputs.iter_mut().flatten()) {
                    output.copy_from_slice(place.f32(batch, arena.buffer(place)));
                }
            });
            ran.expect("all lanes have their memory");
            done = some.end;
        }
    }

    /// Runs a few images on one lane.
    fn run_lane(
        &self,
        variant: &Variant,
        (pool, arena): (&mut Pool, &mut Arena<'_>),
        images: Images<'_>,
        from: Start<'_>,
        (first, to): (usize, usize),
    ) {
        let Packed { plan, launches, groups, .. } = &variant.packed;
        let place = |position: &Position| Place {
            tensor: position.tensor,
            spec: *plan.tensor(position.tensor),
            residual: false,
        };
        let input = match from {
            Start::Images(input) => input,
            Start::Residual(position, residual) => {
                let buffer = arena.buffer_mut(&place(&self.positions[position])).as_f32_mut();
                buffer[..residual.len()].copy_from_slice(residual);
                Input::new(images.geometry.image(), &[][..] as &[u8])
            }
        };
        let steps = self.positions[first].step..self.positions[to].step;
        let reached =
            |part: &&LaunchRange| part.launches.end > steps.start && part.launches.start < steps.end;
        for part in parts(groups, images.geometry).filter(reached) {
            let whole = part.launches.start >= steps.start && part.launches.end <= steps.end;
            match part.fused(images, pool.threads()).filter(|_| whole) {
                Some(fused) => {
                    let residual = launches[part.launches.start].residual_mut(images, arena);
                    fused.block.run(pool, images.count, fused.rows, residual);
                }
                None => {
                    let some = part.launches.start.max(steps.start)..part.launches.end.min(steps.end);
                    for launch in &launches[some] {
                        launch.run(pool, images, input, arena);
                    }
                }
            }
        }
    }

    /// The time of each launch in one forward of `variant` over the images of one group of threads, when
    /// `images` images of `pixels` are run.
    ///
    /// # Panics
    /// As [`VariantRunner::run`].
    pub fn profile(&mut self, variant: &Variant, images: usize, pixels: &[u8]) -> Vec<LaunchProfile> {
        assert_eq!(pixels.len(), images * self.positions[0].values, "pixels of {images} images");
        let Division { threads, each, .. } = first(&self.divide(variant, images));
        let batch = Images { count: each, geometry: &self.geometry };
        let input = Input::new(self.geometry.image(), &pixels[..each * self.positions[0].values]);
        let profile = self.lanes.with_one(threads, self.room(), |pool, arena| {
            variant.packed.profile(pool, arena, batch, input, 1)
        });
        profile.expect("all lanes have their memory")
    }
}

/// The memory of a lane that runs `images` images of the size of `geometry`.
fn layout_of(outline: &Outline, geometry: &Geometry, images: usize) -> Layout {
    let bytes = |tensor: &TensorSpec| bytes_of_any_element(tensor, geometry.grids());
    Layout::of_plan(outline, bytes, |_| images)
}

/// Bytes per image of a tensor, whatever its elements: the plans of all variants then have one layout.
fn bytes_of_any_element(spec: &TensorSpec, grids: &Grids) -> usize {
    let of = |element| tensor_bytes(&TensorSpec { element, ..*spec }, grids);
    of(Element::F32).max(of(Element::Code))
}

/// The positions of `plan`.
fn positions(plan: &Plan<'_>) -> Vec<Position> {
    let mut found = Vec::new();
    for (step, next) in plan.steps.iter().enumerate() {
        if let [tensor] = alive(plan, step)[..] {
            let spec = plan.tensor(tensor);
            let residual = tensor == plan.image() || next_uses_are_residual(plan, step, tensor);
            if residual {
                found.push(Position {
                    step,
                    name: next.name.clone(),
                    values: plan.own.rows(spec.rows) * spec.columns,
                    tensor,
                    spec: *spec,
                });
            }
        }
    }
    let (output, step) = (plan.outputs.last().expect("a plan has an output"), plan.steps.len());
    let (tensor, spec) = (output.tensor, plan.tensor(output.tensor));
    let values = plan.own.rows(spec.rows) * spec.columns;
    found.push(Position { step, name: output.name.clone(), values, tensor, spec: *spec });
    found
}

/// Tensors that are written (or are the image) before step `at`, and that a step from `at` on reads or
/// changes.
fn alive(plan: &Plan<'_>, at: usize) -> Vec<TensorId> {
    let written = |tensor: &TensorId| {
        *tensor == plan.image() || plan.steps[..at].iter().any(|step| step.output == *tensor)
    };
    let mut alive: Vec<TensorId> =
        plan.steps[at..].iter().flat_map(|step| [step.input, step.output]).filter(written).collect();
    alive.sort_by_key(|tensor| tensor.0);
    alive.dedup();
    alive
}

/// Whether `tensor`, which alone is alive before step `at`, is the residual stream, which is f32 in every
/// variant: a norm, a merge, a pool or an op in place reads it, and no variant stores codes there.
fn next_uses_are_residual(plan: &Plan<'_>, at: usize, tensor: TensorId) -> bool {
    use swinq_plan::Op;
    let reads = |op: &Op<'_>| {
        let norm = matches!(op, Op::Norm(..) | Op::Merge(_) | Op::Pool(_) | Op::Quantize(_));
        norm || matches!(op, Op::NormInPlace(_) | Op::PositionEmbedding(_))
    };
    plan.steps[at].input == tensor && reads(&plan.steps[at].op)
}
