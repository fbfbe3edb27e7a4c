//! Lowers the plan to device steps: one launch for the patch embedding with its norm, and one for each other
//! op, except that one branch of a block may be one launch: the MLP, and in an f16 residual attention.

mod embedding;
mod heads;
mod planned;
mod sequence;

use swinq_cuda::ops::attention::DeviceAttention;
use swinq_cuda::ops::head::{DeviceLinearF32, DevicePool};
use swinq_cuda::ops::linear::{DeviceLinear, DeviceLinearSpec, DeviceWeight, LinearStore};
use swinq_cuda::ops::norm::DeviceNorm;
use swinq_cuda::ops::output::DeviceOutput;
use swinq_cuda::ops::qk_norm::DeviceQkNorm;
use swinq_cuda::ops::rows::DeviceRows;
use swinq_cuda::ops::{DeviceStore, ResidualType};
use swinq_cuda::{CudaError, Device};
use swinq_model::Linear as Layer;
use swinq_numerics::{QkNormSpec, RowStore};
use swinq_plan::{
    Attention, Element, Linear, Merge, Norm, Op, Order, Output, OutputKind, Plan, QkNorm, Rows, Step, Store,
    TensorId, TensorSpec, Values, Weight,
};

use self::embedding::Embedding;
use self::heads::{Filled, FilledWeight, NarrowHeads};
use self::planned::{Planned, Span};
pub(super) use self::sequence::stored_codes;
use super::geometry::Gather;
use super::packed::PackedOutput;
use super::step::{DeviceElement, DeviceOp, DeviceStep, DeviceTensor};
use super::when::When;
use crate::error::RuntimeError;
use crate::launches::LaunchSteps;

/// The steps of a plan, and its tensors, indexed as in the plan. Tensors that no step uses get no memory.
pub(crate) struct Lowered {
    pub(crate) steps: Vec<DeviceStep>,
    pub(crate) tensors: Vec<DeviceTensor>,
    pub(crate) outputs: Vec<PackedOutput>,
}

/// Lowers `plan` for `device`. With `fuse`, one launch computes one branch of a block
/// (attention or MLP) where there is a kernel for it.
pub(crate) fn lower(
    device: &Device,
    plan: &Plan<'_>,
    residual: ResidualType,
    fuse: bool,
) -> Result<Lowered, RuntimeError> {
    let lowering = Lowering::new(device, plan, residual, fuse);
    let tensors = lowering.tensors();
    let steps = lowering.launches()?.into_iter().map(Planned::build).collect::<Result<_, _>>()?;
    let outputs = plan.outputs.iter().map(|output| lowering.output(output)).collect::<Result<_, _>>();
    let outputs = outputs.map_err(|error| RuntimeError::on_device("outputs", error))?;
    Ok(Lowered { steps, tensors, outputs })
}

/// The launches of `images` images of the network's own size, as [`lower`] makes them. Nothing is compiled or
/// copied.
pub(crate) fn launches(
    device: &Device,
    plan: &Plan<'_>,
    residual: ResidualType,
    fuse: bool,
    images: usize,
) -> Result<Vec<LaunchSteps>, RuntimeError> {
    let lowering = Lowering::new(device, plan, residual, fuse);
    let planned = lowering.launches()?;
    let runs = planned.into_iter().filter(|launch| launch.when.holds(images, plan.own.grids()));
    Ok(runs.map(|launch| LaunchSteps { name: launch.name, steps: launch.steps }).collect())
}

/// The scores of a classifier.
pub(super) fn scores_of(plan: &Plan<'_>) -> Option<TensorId> {
    plan.outputs.iter().find(|output| output.kind == OutputKind::Logits).map(|output| output.tensor)
}

/// Whether `step` reads a linear layer's result that has the type of the residual.
fn reads_branch(step: &Step<'_>) -> bool {
    match step.op {
        Op::QkNorm(_) => true,
        Op::Norm(..) => matches!(step.store, Store::Residual { .. }),
        _ => false,
    }
}

struct Lowering<'a> {
    device: &'a Device,
    plan: &'a Plan<'a>,
    /// The scores of a classifier, which are f32.
    scores: Option<TensorId>,
    residual: ResidualType,
    /// Whether one launch may compute one branch of a block.
    fuse: bool,
    /// The tensors that hold the residual stream.
    residuals: Vec<TensorId>,
    /// The results of linear layers that have the type of the residual, though they are not the residual.
    branches: Vec<TensorId>,
    narrow: NarrowHeads,
}

impl<'a> Lowering<'a> {
    fn new(device: &'a Device, plan: &'a Plan<'a>, residual: ResidualType, fuse: bool) -> Lowering<'a> {
        // Blocks add to it, and it begins with tokens or with a reduction.
        let writes_residual = |step: &&Step<'_>| match &step.op {
            Op::Patches(_) => step.store == Store::F32,
            Op::Linear(linear) if matches!(linear.layer, Layer::Reduction(_)) => true,
            _ => matches!(step.store, Store::Residual { .. }),
        };
        let residuals = plan.steps.iter().filter(writes_residual).map(|step| step.output).collect();
        let branches = plan.steps.iter().filter(|step| reads_branch(step)).map(|step| step.input).collect();
        let narrow = NarrowHeads::of(plan);
        Lowering { device, plan, scores: scores_of(plan), residual, fuse, residuals, branches, narrow }
    }

    /// All launches, for any batch.
    fn launches(&self) -> Result<Vec<Planned<'_>>, RuntimeError> {
        let all = Span { first: 0, steps: &self.plan.steps };
        let (first, count) = self.first(all);
        let (mut launches, mut rest) = (vec![first], all.after(count));
        while let [first, ..] = rest.steps {
            let count = match self.is_map(first) {
                true => Ok(1),
                false => self.next(rest, &mut launches),
            };
            rest = rest.after(count.map_err(|error| RuntimeError::on_device(&first.name, error))?);
        }
        Ok(launches)
    }

    /// The launch that reads the images, or the tokens of a network that begins with blocks, and the number
    /// of its steps.
    fn first<'b>(&'b self, all: Span<'b>) -> (Planned<'b>, usize) {
        let Some((embedding, count)) = Embedding::find(all.steps) else {
            let build = move |name, when| self.tokens(&all.steps[0], name, when);
            return (Planned::new(&all.steps[0].name, &When::ANY, (all, 1), build), 1);
        };
        let build = move |name, when| self.patch_embed(&embedding, name, when);
        (Planned::new("patch_embed", &When::ANY, (all, count), build), count)
    }

    /// The device layout of the plan's tensors.
    fn tensors(&self) -> Vec<DeviceTensor> {
        // The last step of a classifier is the head, which reads the mean over tokens.
        let pooled = self.scores.and(self.plan.steps.last()).map(|step| step.input);
        let element = |id: TensorId, element: Element| match element {
            Element::Pixel => DeviceElement::Pixel,
            Element::Code => DeviceElement::Code,
            Element::F32 if self.residuals.contains(&id) => match self.residual {
                ResidualType::F16 => DeviceElement::HalfResidual,
                ResidualType::F32 => DeviceElement::Float,
            },
            Element::F32 if Some(id) == self.scores => DeviceElement::Float,
            Element::F32
                if self.residual == ResidualType::F32
                    && (Some(id) == pooled || self.branches.contains(&id)) =>
            {
                DeviceElement::Float
            }
            Element::F32 => DeviceElement::Half,
        };
        let tensor = |(index, spec): (usize, &TensorSpec)| DeviceTensor {
            rows: spec.rows,
            columns: self.narrow.columns(TensorId(index), spec.columns),
            element: element(TensorId(index), spec.element),
            narrow: self.narrow.channels(TensorId(index)),
        };
        self.plan.tensors.iter().enumerate().map(tensor).collect()
    }

    /// Whether `step` computes a feature map from the residual, which its output does.
    fn is_map(&self, step: &Step<'_>) -> bool {
        self.plan
            .outputs
            .iter()
            .any(|output| self.map_norm(output).is_some_and(|(norm, _)| std::ptr::eq(norm, step)))
    }

    /// The step of the norm of `output` and its parameters, if it is a feature map with a norm.
    fn map_norm(&self, output: &Output) -> Option<(&Step<'_>, &Norm<'_>)> {
        let step = self.plan.steps.iter().find(|step| step.output == output.tensor)?;
        match (output.kind, &step.op, &step.store) {
            (OutputKind::Stage(_), Op::Norm(norm, _), Store::F32) => Some((step, norm)),
            _ => None,
        }
    }

    fn output(&self, output: &Output) -> Result<PackedOutput, CudaError> {
        let (name, columns) = (output.name.clone(), self.plan.tensor(output.tensor).columns);
        let (source, op) = match (output.kind, self.map_norm(output)) {
            (OutputKind::Logits, _) => (output.tensor, DeviceOutput::values(columns)),
            (OutputKind::Stage(_), None) => (output.tensor, DeviceOutput::map(self.device, columns, None)?),
            (OutputKind::Stage(_), Some((step, norm))) => {
                let (gamma, beta) = (norm.gamma.read(), norm.beta.read());
                let norm = Some((&gamma[..], &beta[..], norm.eps));
                (step.input, DeviceOutput::map(self.device, columns, norm)?)
            }
        };
        Ok(PackedOutput { name, source, op })
    }

    /// The launch for the first step of `span`.
    fn step<'b>(&'b self, span: Span<'b>, when: &When) -> Planned<'b> {
        let step = &span.steps[0];
        let build = move |name, when| {
            let (op, weight_bytes) = self.op(step)?;
            Ok(DeviceStep {
                name,
                when,
                op,
                input: step.input,
                output: step.output,
                codes: None,
                rows: self.plan.tensor(step.input).rows,
                macs_per_row: step.macs_per_row,
                weight_bytes,
            })
        };
        Planned::new(&step.name, when, (span, 1), build)
    }

    fn op(&self, step: &Step<'_>) -> Result<(DeviceOp, u64), CudaError> {
        let (store, rows) = (half_store(&step.store), self.plan.tensor(step.input).rows);
        match &step.op {
            Op::Linear(linear) => match &linear.weight {
                Weight::Float(weight)
                    if Some(step.output) == self.scores && self.residual == ResidualType::F32 =>
                {
                    self.float_head(linear, weight)
                }
                _ => self.linear(step, linear),
            },
            Op::Quantize(order) => {
                let columns = self.plan.tensor(step.input).columns;
                let rows = DeviceRows::rows(self.device, columns, self.residual, store)?;
                Ok((DeviceOp::Rows(rows, Gather::Rows(*order)), 0))
            }
            Op::Norm(norm, order) => Ok((self.norm(norm, *order, store)?, 0)),
            Op::QkNorm(heads) => Ok((DeviceOp::QkNorm(self.qk_norm(heads, &step.store)?), 0)),
            Op::Attention(attention) => self.attention(attention, store),
            Op::Merge(merge) => Ok((self.merge(merge, self.plan.tensor(step.output).columns, store)?, 0)),
            Op::Pool(norm) => {
                let (gamma, beta) = (norm.gamma.read(), norm.beta.read());
                let store = match (&step.store, self.residual) {
                    (Store::Fake(q), ResidualType::F32) => DeviceStore::FakeFloat(*q),
                    (Store::F32, ResidualType::F32) => DeviceStore::Float,
                    _ => store,
                };
                let pool = DevicePool::new(self.device, (&gamma, &beta), norm.eps, self.residual, store)?;
                Ok((DeviceOp::Pool(pool), 0))
            }
            // After the patch embedding, this is the norm after a reduction of Swin V2.
            Op::NormInPlace(norm) => {
                let store = match self.residual {
                    ResidualType::F16 => DeviceStore::Half,
                    ResidualType::F32 => DeviceStore::Float,
                };
                let Rows::Tokens(stage) = rows else { unreachable!("{} is a norm of tokens", step.name) };
                Ok((self.norm(norm, Order::Tokens(stage), store)?, 0))
            }
            Op::Patches(_) | Op::PositionEmbedding(_) => {
                unreachable!("{} is part of the first launch", step.name)
            }
        }
    }

    fn qk_norm(&self, heads: &QkNorm, store: &Store) -> Result<DeviceQkNorm, CudaError> {
        let codes = match store {
            Store::Codes(sites) => Some([sites[0], sites[1], sites[2]]),
            _ => None,
        };
        let QkNorm { heads, head_dim, hi_lo } = heads;
        let spec = QkNormSpec { heads: *heads, head_dim: *head_dim, hi_lo, codes };
        DeviceQkNorm::new(self.device, &spec, self.residual)
    }

    /// The norm of the residual's tokens in `order`.
    fn norm(&self, norm: &Norm<'_>, order: Order, store: DeviceStore) -> Result<DeviceOp, CudaError> {
        let (gamma, beta) = (norm.gamma.read(), norm.beta.read());
        let op = DeviceNorm::rows(self.device, (&gamma, &beta), norm.eps, self.residual, store)?;
        Ok(DeviceOp::Norm(op, Gather::Rows(order)))
    }

    fn merge(&self, merge: &Merge<'_>, columns: usize, store: DeviceStore) -> Result<DeviceOp, CudaError> {
        let gather = Gather::Merge(merge.stage);
        let Some(norm) = &merge.norm else {
            let rows = DeviceRows::merged(self.device, columns, self.residual, store)?;
            return Ok(DeviceOp::Rows(rows, gather));
        };
        let (gamma, beta) = (norm.gamma.read(), norm.beta.read());
        let op = DeviceNorm::merged(self.device, (&gamma, &beta), norm.eps, self.residual, store)?;
        Ok(DeviceOp::Norm(op, gather))
    }

    /// Prepares the head in f32.
    fn float_head(&self, head: &Linear<'_>, weight: &Values<'_>) -> Result<(DeviceOp, u64), CudaError> {
        let bias = head.bias.map_or_else(|| vec![0.0; head.n].into(), |bias| bias.read());
        let weight = weight.read();
        let op = DeviceLinearF32::new(self.device, &weight, &bias, head.output)?;
        Ok((DeviceOp::Head(op), 4 * weight.len() as u64))
    }

    fn linear(&self, step: &Step<'_>, linear: &Linear<'_>) -> Result<(DeviceOp, u64), CudaError> {
        let store = self.linear_store(step, self.narrow.columns(step.output, linear.n))?;
        // Only a residual addition may write rows in another order than it reads them.
        let order = (store == LinearStore::Residual).then_some(linear.order);
        self.stored_linear((step, linear), store, order)
    }

    /// The layer `linear` of `step`, which stores its results as `store`.
    fn stored_linear(
        &self,
        (step, linear): (&Step<'_>, &Linear<'_>),
        store: LinearStore,
        order: Option<Order>,
    ) -> Result<(DeviceOp, u64), CudaError> {
        let Filled { n, k, weight, bias } = self.narrow.filled(step, linear);
        let weight = match &weight {
            FilledWeight::Codes { codes, multiplier, zero_points } => {
                DeviceWeight::Codes { codes, multiplier, zero_points }
            }
            FilledWeight::Float(values) => DeviceWeight::Half(values),
        };
        let spec = DeviceLinearSpec {
            n,
            k,
            weight,
            bias: bias.as_deref(),
            output: linear.output,
            gelu: linear.gelu,
            store,
            residual: self.residual,
        };
        let bytes = n * k * if linear.is_int8() { 1 } else { 2 };
        Ok((DeviceOp::Linear(Box::new(DeviceLinear::new(self.device, &spec)?), order), bytes as u64))
    }

    fn linear_store(&self, step: &Step<'_>, n: usize) -> Result<LinearStore, CudaError> {
        Ok(match &step.store {
            Store::Residual { branch: None, shortcut: None } => LinearStore::Residual,
            Store::Residual { .. } => return Err(add_in_float()),
            Store::Codes(quantizers) => {
                let part = n / quantizers.len();
                LinearStore::Codes((0..n).map(|c| quantizers[c / part].recip()).collect())
            }
            Store::ChannelFake(channels) => LinearStore::ChannelFake(channels.clone()),
            Store::ChannelCodes(channels) => LinearStore::ChannelCodes(channels.clone()),
            Store::F32
                if self.residual == ResidualType::F32
                    && (self.residuals.contains(&step.output) || self.branches.contains(&step.output)) =>
            {
                LinearStore::Plain(DeviceStore::Float)
            }
            Store::F32 if Some(step.output) == self.scores => LinearStore::Plain(DeviceStore::Float),
            Store::F32 => LinearStore::Plain(DeviceStore::Half),
            Store::Fake(q) => LinearStore::Plain(DeviceStore::FakeHalf(*q)),
        })
    }

    fn attention(&self, attention: &Attention<'_>, store: DeviceStore) -> Result<(DeviceOp, u64), CudaError> {
        let bias = attention.bias.expand();
        let spec = attention.spec(&bias, RowStore::F32);
        let op = DeviceAttention::new(self.device, &spec, store, self.residual)?;
        Ok((DeviceOp::Attention(op, attention.order), 4 * bias.len() as u64))
    }
}

fn add_in_float() -> CudaError {
    CudaError::Unsupported(
        "the sites add.branch and add.shortcut are on: the CUDA kernels add in float; the CPU backend runs every recipe"
            .to_owned(),
    )
}

/// How an op stores its output for a linear layer on the tensor cores.
fn half_store(store: &Store) -> DeviceStore {
    match store {
        Store::Codes(q) => DeviceStore::Codes(q[0]),
        Store::Fake(q) => DeviceStore::FakeHalf(*q),
        // Only a linear layer, which has its own stores, has scales for each channel.
        Store::F32 | Store::Residual { .. } | Store::ChannelFake(_) | Store::ChannelCodes(_) => {
            DeviceStore::Half
        }
    }
}
