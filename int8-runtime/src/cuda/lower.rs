//! Lowers the plan to device steps: one launch for the patch embedding with its norm, and one for each other
//! op, except that half of a block may be one launch: the MLP, and in an f16 stream attention.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use swinq_kernels::cuda::ops::attention::{DeviceAttention, HEAD_DIM};
use swinq_kernels::cuda::ops::head::{DeviceLinearF32, DevicePool};
use swinq_kernels::cuda::ops::heads::DeviceHeads;
use swinq_kernels::cuda::ops::linear::{DeviceLinear, DeviceLinearSpec, DeviceWeight, LinearStore};
use swinq_kernels::cuda::ops::norm::{DeviceNorm, rows_of_tokens};
use swinq_kernels::cuda::ops::patch::{DevicePatchEmbed, PatchSpec};
use swinq_kernels::cuda::ops::rows::DeviceRows;
use swinq_kernels::cuda::ops::{DeviceMap, DeviceStore, StreamType};
use swinq_kernels::cuda::{CudaError, Device};
use swinq_kernels::heads::HeadsSpec;
use swinq_kernels::{Quantizer, RowMap, RowStore};
use swinq_plan::{
    Attention, Element, Linear, Merge, Norm, NormalizeHeads, Op, Order, Patches, Plan, Step, Store, TensorId,
    TensorSpec, Values, Weight,
};

use super::mlp::lower_mlp;
use super::step::{ANY_BATCH, DeviceElement, DeviceOp, DeviceStep, DeviceTensor};
use super::window_block::WindowBlock;
use crate::error::RuntimeError;

/// The steps of a plan, and its tensors, indexed as in the plan. Tensors that no step uses get no memory.
pub(crate) struct Lowered {
    pub(crate) steps: Vec<DeviceStep>,
    pub(crate) tensors: Vec<DeviceTensor>,
}

/// Lowers `plan` for `device`. With `fuse`, one launch computes half of a block (attention or MLP) where there is
/// a kernel for it.
pub(crate) fn lower(
    device: &Device,
    plan: &Plan<'_>,
    stream: StreamType,
    fuse: bool,
) -> Result<Lowered, RuntimeError> {
    let writes_stream = |step: &&Step<'_>| matches!(step.store, Store::Residual { .. });
    let streams = plan.steps.iter().filter(writes_stream).map(|step| step.output).collect();
    let branches = plan.steps.iter().filter(|step| reads_branch(step)).map(|step| step.input).collect();
    let mut lowering = Lowering { device, plan, stream, fuse, streams, branches, maps: Vec::new() };
    let tensors = lowering.tensors();
    let (embedding, mut rest) = Embedding::split(&plan.steps);
    let mut steps = vec![lowering.patch_embed(&embedding)?];
    while let [step, after @ ..] = rest {
        let on_device = |error| RuntimeError::on_device(&step.name, error);
        if let Some(step) = lowering.heads(rest).map_err(on_device)? {
            steps.push(step);
            rest = &rest[2..];
            continue;
        }
        if let Some((step, count)) = lowering.norm_and_add(rest).map_err(on_device)? {
            steps.push(step);
            rest = &rest[count..];
            continue;
        }
        let fused = match lowering.window_block(rest).map_err(on_device)? {
            Some(block) => Some((block, 4)),
            None => lowering.mlp(rest).map_err(on_device)?.map(|mlp| (mlp, 3)),
        };
        let Some((step, count)) = fused else {
            steps.push(lowering.step(step, ANY_BATCH).map_err(on_device)?);
            rest = after;
            continue;
        };
        // Batches that are too small for the launch run the steps one by one.
        let few = 0..step.images.start;
        steps.push(step);
        if few.end > 1 {
            for step in &rest[..count] {
                let on_device = |error| RuntimeError::on_device(&step.name, error);
                steps.push(lowering.step(step, few.clone()).map_err(on_device)?);
            }
        }
        rest = &rest[count..];
    }
    Ok(Lowered { steps, tensors })
}

/// Whether `step` reads a linear layer's result that has the type of the stream.
fn reads_branch(step: &Step<'_>) -> bool {
    match step.op {
        Op::NormalizeHeads(_) => true,
        Op::Norm(..) => matches!(step.store, Store::Residual { .. }),
        _ => false,
    }
}

/// The plan's steps of the patch embedding, which one launch computes.
struct Embedding<'a> {
    patches: &'a Patches,
    /// How the patches are stored.
    store: &'a Store,
    /// The linear layer, and its step.
    linear: &'a Linear<'a>,
    step: &'a Step<'a>,
    norm: Option<&'a Norm<'a>>,
    position: Option<&'a Values<'a>>,
}

impl<'a> Embedding<'a> {
    /// Splits `steps` into the patch embedding and the steps after it.
    fn split(steps: &'a [Step<'a>]) -> (Embedding<'a>, &'a [Step<'a>]) {
        let [first, step, rest @ ..] = steps else { unreachable!("a plan begins with the patch embedding") };
        let (Op::Patches(patches), Op::Linear(linear)) = (&first.op, &step.op) else {
            unreachable!("a plan begins with the patch embedding")
        };
        let store = &first.store;
        let mut embedding = Embedding { patches, store, linear, step, norm: None, position: None };
        let mut count = 0;
        for step in rest {
            match &step.op {
                Op::NormInPlace(norm) => embedding.norm = Some(norm),
                Op::PositionEmbedding(table) => embedding.position = Some(table),
                _ => break,
            }
            count += 1;
        }
        (embedding, &rest[count..])
    }

    /// The value for each byte of each channel.
    fn lookup(&self) -> [[f32; 256]; 3] {
        match self.store {
            Store::Codes(q) => self.patches.lookup.map(|table| table.map(|x| f32::from(q[0].code(x)))),
            Store::Fake(q) => self.patches.lookup.map(|table| table.map(|x| q.fake(x))),
            _ => *self.patches.lookup,
        }
    }
}

struct Lowering<'a> {
    device: &'a Device,
    plan: &'a Plan<'a>,
    stream: StreamType,
    /// Whether one launch may compute half of a block.
    fuse: bool,
    /// The tensors that hold the residual stream.
    streams: Vec<TensorId>,
    /// The results of linear layers that have the type of the stream, though they are not the stream.
    branches: Vec<TensorId>,
    /// Row maps that are already on the device.
    maps: Vec<(Arc<RowMap>, DeviceMap)>,
}

impl Lowering<'_> {
    /// The device layout of the plan's tensors.
    fn tensors(&self) -> Vec<DeviceTensor> {
        let pooled = self.plan.steps.last().expect("a plan has steps").input;
        let element = |id: TensorId, element: Element| match element {
            Element::Pixel => DeviceElement::Pixel,
            Element::Code => DeviceElement::Code,
            Element::F32 if self.streams.contains(&id) => match self.stream {
                StreamType::F16 => DeviceElement::HalfStream,
                StreamType::F32 => DeviceElement::Float,
            },
            Element::F32 if id == self.plan.logits() => DeviceElement::Float,
            Element::F32
                if self.stream == StreamType::F32 && (id == pooled || self.branches.contains(&id)) =>
            {
                DeviceElement::Float
            }
            Element::F32 => DeviceElement::Half,
        };
        let tensor = |(index, spec): (usize, &TensorSpec)| DeviceTensor {
            rows: spec.rows,
            columns: spec.columns,
            element: element(TensorId(index), spec.element),
        };
        self.plan.tensors.iter().enumerate().map(tensor).collect()
    }

    fn patch_embed(&self, embedding: &Embedding<'_>) -> Result<DeviceStep, RuntimeError> {
        let Embedding { patches, linear, step, norm, position, .. } = embedding;
        let name = "patch_embed";
        // The kernel multiplies codes as floats.
        let (multiplier, weight) = match &linear.weight {
            Weight::Int8 { codes, multiplier, .. } => {
                let codes: Vec<f32> = codes.codes.iter().map(|&c| f32::from(c)).collect();
                (Some(multiplier.as_slice()), Cow::Owned(codes))
            }
            Weight::Float(values) => (None, values.read()),
        };
        let bias = linear.bias.map_or_else(|| vec![0.0; linear.n].into(), |bias| bias.read());
        let params = norm.map(|norm| (norm.gamma.read(), norm.beta.read()));
        let position = position.map(|table| table.read());
        let spec = PatchSpec {
            size: patches.image,
            patch: patches.patch,
            lookup: &embedding.lookup(),
            weight: &weight,
            bias: &bias,
            multiplier,
            output: linear.output,
            norm: params.as_ref().map(|(gamma, beta)| (&gamma[..], &beta[..])),
            epsilon: norm.map_or(0.0, |norm| norm.eps),
            position: position.as_deref(),
            stream: self.stream,
        };
        let on_device = |error| RuntimeError::on_device(name, error);
        self.check_width(linear.n).map_err(on_device)?;
        Ok(DeviceStep {
            name: name.to_owned(),
            images: ANY_BATCH,
            op: DeviceOp::PatchEmbed(DevicePatchEmbed::new(self.device, &spec).map_err(on_device)?),
            input: self.plan.image(),
            output: step.output,
            codes: None,
            rows: self.plan.tensor(step.output).rows,
            macs: step.macs,
            weight_bytes: 4 * weight.len() as u64,
        })
    }

    /// Checks that rows of the stream consist of full groups of eight columns, which kernels read and write
    /// at once.
    fn check_width(&self, columns: usize) -> Result<(), CudaError> {
        if columns.is_multiple_of(8) {
            return Ok(());
        }
        Err(CudaError::Unsupported(format!(
            "{columns} channels: the CUDA kernels need a multiple of 8; the CPU backend runs any"
        )))
    }

    /// The launch for the attention half at the beginning of `steps`, if one kernel computes it. Smaller
    /// batches than those of the result run the steps one by one. The kernel rounds as an f16 stream permits.
    fn window_block(&mut self, steps: &[Step<'_>]) -> Result<Option<DeviceStep>, CudaError> {
        if !self.fuse || self.stream != StreamType::F16 {
            return Ok(None);
        }
        let Some(block) = WindowBlock::find(steps) else { return Ok(None) };
        let map = self.device_map(block.map())?;
        block.lower(self.device, map, self.plan.tensor(steps[0].input).rows)
    }

    /// The launch for `step`, which runs for batches of `images`.
    fn step(&mut self, step: &Step<'_>, images: Range<usize>) -> Result<DeviceStep, CudaError> {
        let rows = self.plan.tensor(step.input).rows;
        let (op, weight_bytes) = self.op(step)?;
        Ok(DeviceStep {
            name: step.name.clone(),
            images,
            op,
            input: step.input,
            output: step.output,
            codes: None,
            rows,
            macs: step.macs,
            weight_bytes,
        })
    }

    /// The step of the MLP that `steps` begins with, if it does and there is a kernel for it. It replaces three
    /// steps, for batches that are large enough.
    fn mlp(&self, steps: &[Step<'_>]) -> Result<Option<DeviceStep>, CudaError> {
        if !self.fuse {
            return Ok(None);
        }
        let Some((name, op, weight_bytes)) = lower_mlp(self.device, steps, self.stream)? else {
            return Ok(None);
        };
        let stream = steps[0].input;
        let rows = self.plan.tensor(stream).rows;
        let macs = steps[..3].iter().map(|step| step.macs).sum();
        Ok(Some(DeviceStep {
            name,
            images: op.least_rows().div_ceil(rows)..usize::MAX,
            op: DeviceOp::Mlp(op),
            input: stream,
            output: stream,
            codes: None,
            rows,
            macs,
            weight_bytes,
        }))
    }

    fn op(&mut self, step: &Step<'_>) -> Result<(DeviceOp, u64), CudaError> {
        let store = half_store(&step.store);
        match &step.op {
            Op::Linear(linear) => match &linear.weight {
                Weight::Float(weight)
                    if step.output == self.plan.logits() && self.stream == StreamType::F32 =>
                {
                    self.float_head(linear, weight)
                }
                _ => self.linear(step, linear),
            },
            Op::Quantize(order) => {
                let (map, columns) = (self.map_of(order)?, self.plan.tensor(step.input).columns);
                Ok((DeviceOp::Rows(DeviceRows::rows(self.device, columns, self.stream, map, store)?), 0))
            }
            Op::Norm(norm, order) => {
                let map = self.map_of(order)?;
                let (gamma, beta) = (norm.gamma.read(), norm.beta.read());
                let norm = DeviceNorm::rows(self.device, (&gamma, &beta), norm.eps, self.stream, map, store)?;
                Ok((DeviceOp::Norm(norm), 0))
            }
            Op::NormalizeHeads(heads) => Ok((DeviceOp::Heads(self.normalize_heads(heads, &step.store)?), 0)),
            Op::Attention(attention) => self.attention(attention, store),
            Op::Merge(merge) => Ok((self.merge(merge, self.plan.tensor(step.output).columns, store)?, 0)),
            Op::Pool(norm) => {
                let (gamma, beta) = (norm.gamma.read(), norm.beta.read());
                let store = match (&step.store, self.stream) {
                    (Store::Fake(q), StreamType::F32) => DeviceStore::FakeFloat(*q),
                    (Store::F32, StreamType::F32) => DeviceStore::Float,
                    _ => store,
                };
                let pool = DevicePool::new(self.device, (&gamma, &beta), norm.eps, self.stream, store)?;
                Ok((DeviceOp::Pool(pool), 0))
            }
            // After the patch embedding, this is the norm after a reduction of Swin V2.
            Op::NormInPlace(norm) => {
                let (gamma, beta) = (norm.gamma.read(), norm.beta.read());
                let store = match self.stream {
                    StreamType::F16 => DeviceStore::Half,
                    StreamType::F32 => DeviceStore::Float,
                };
                let norm =
                    DeviceNorm::rows(self.device, (&gamma, &beta), norm.eps, self.stream, None, store)?;
                Ok((DeviceOp::Norm(norm), 0))
            }
            Op::Patches(_) | Op::PositionEmbedding(_) => {
                unreachable!("{} is part of the patch embedding", step.name)
            }
        }
    }

    /// The launch for the norm at the beginning of `steps` that adds to the stream, if there is one, and the number of
    /// steps that it computes: the codes of the stream, which the next linear layer reads, are stored with it.
    fn norm_and_add(&mut self, steps: &[Step<'_>]) -> Result<Option<(DeviceStep, usize)>, CudaError> {
        let [step, after @ ..] = steps else { return Ok(None) };
        let (Op::Norm(norm, order), Store::Residual { branch, shortcut }) = (&step.op, &step.store) else {
            return Ok(None);
        };
        if branch.is_some() || shortcut.is_some() {
            return Err(add_in_float());
        }
        let map = self.map_of(order)?;
        let next = after.first().and_then(|next| stored_codes(next, step.output));
        let codes = next.map(|(_, quantizer, map)| (quantizer, map));
        let (gamma, beta) = (norm.gamma.read(), norm.beta.read());
        let op = DeviceNorm::residual(self.device, (&gamma, &beta), norm.eps, self.stream, map, codes)?;
        let step = DeviceStep {
            name: step.name.clone(),
            images: ANY_BATCH,
            op: DeviceOp::Norm(op),
            input: step.input,
            output: step.output,
            codes: next.map(|(tensor, ..)| tensor),
            rows: self.plan.tensor(step.output).rows,
            macs: 0,
            weight_bytes: 0,
        };
        Ok(Some((step, 1 + usize::from(next.is_some()))))
    }

    fn normalize_heads(&self, heads: &NormalizeHeads, store: &Store) -> Result<DeviceHeads, CudaError> {
        let codes = match store {
            Store::Codes(sites) => Some([sites[0], sites[1], sites[2]]),
            _ => None,
        };
        let NormalizeHeads { heads, head_dim, two_codes } = heads;
        let spec = HeadsSpec { heads: *heads, head_dim: *head_dim, two_codes, codes };
        DeviceHeads::new(self.device, &spec, self.stream)
    }

    fn merge(&self, merge: &Merge<'_>, columns: usize, store: DeviceStore) -> Result<DeviceOp, CudaError> {
        let sources = (&merge.sources[..], merge.tokens);
        let Some(norm) = &merge.norm else {
            return Ok(DeviceOp::Rows(DeviceRows::merged(
                self.device,
                columns,
                self.stream,
                sources,
                store,
            )?));
        };
        let (gamma, beta) = (norm.gamma.read(), norm.beta.read());
        let params = (&gamma[..], &beta[..]);
        Ok(DeviceOp::Norm(DeviceNorm::merged(self.device, params, norm.eps, self.stream, sources, store)?))
    }

    /// Prepares the head in f32.
    fn float_head(&self, head: &Linear<'_>, weight: &Values<'_>) -> Result<(DeviceOp, u64), CudaError> {
        let bias = head.bias.map_or_else(|| vec![0.0; head.n].into(), |bias| bias.read());
        let weight = weight.read();
        let op = DeviceLinearF32::new(self.device, &weight, &bias, head.output)?;
        Ok((DeviceOp::Head(op), 4 * weight.len() as u64))
    }

    fn linear(&mut self, step: &Step<'_>, linear: &Linear<'_>) -> Result<(DeviceOp, u64), CudaError> {
        let store = self.linear_store(step, linear.n)?;
        // Only a residual addition may write rows in another order than it reads them.
        let map = if store == LinearStore::Residual { self.map_of(&linear.order)? } else { None };
        self.stored_linear(linear, store, map)
    }

    /// The launch of the QKV layer at the beginning of `steps` and of the normalisation after it, if there are these two
    /// steps and one launch computes them: if the results are codes.
    fn heads(&mut self, steps: &[Step<'_>]) -> Result<Option<DeviceStep>, CudaError> {
        let [first, second, ..] = steps else { return Ok(None) };
        let (Op::Linear(linear), Op::NormalizeHeads(heads)) = (&first.op, &second.op) else { return Ok(None) };
        let (Store::F32, Store::Codes(sites)) = (&first.store, &second.store) else { return Ok(None) };
        if !self.fuse || second.input != first.output || heads.head_dim != HEAD_DIM {
            return Ok(None);
        }
        let mut two_codes = heads.two_codes.clone();
        two_codes.resize(heads.heads, false);
        let store = LinearStore::Heads { sites: [sites[0], sites[1], sites[2]], two_codes };
        let (op, weight_bytes) = self.stored_linear(linear, store, None)?;
        Ok(Some(DeviceStep {
            name: first.name.clone(),
            images: ANY_BATCH,
            op,
            input: first.input,
            output: second.output,
            codes: None,
            rows: self.plan.tensor(first.input).rows,
            macs: first.macs,
            weight_bytes,
        }))
    }

    fn stored_linear(
        &self,
        linear: &Linear<'_>,
        store: LinearStore,
        map: Option<DeviceMap>,
    ) -> Result<(DeviceOp, u64), CudaError> {
        let Linear { n, k, output, gelu, .. } = *linear;
        let bias = linear.bias.map(|bias| bias.read());
        let float;
        let weight = match &linear.weight {
            Weight::Int8 { codes, multiplier, zero_points, .. } => {
                DeviceWeight::Codes { codes: &codes.codes, multiplier, zero_points }
            }
            Weight::Float(values) => {
                float = values.read();
                DeviceWeight::Half(&float)
            }
        };
        let spec = DeviceLinearSpec {
            n,
            k,
            weight,
            bias: bias.as_deref(),
            output,
            gelu,
            store,
            stream: self.stream,
        };
        let bytes = n * k * if linear.is_int8() { 1 } else { 2 };
        Ok((DeviceOp::Linear(Box::new(DeviceLinear::new(self.device, &spec)?), map), bytes as u64))
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
                if self.stream == StreamType::F32
                    && (self.streams.contains(&step.output) || self.branches.contains(&step.output)) =>
            {
                LinearStore::Plain(DeviceStore::Float)
            }
            Store::F32 if step.output == self.plan.logits() => LinearStore::Plain(DeviceStore::Float),
            Store::F32 => LinearStore::Plain(DeviceStore::Half),
            Store::Fake(q) => LinearStore::Plain(DeviceStore::FakeHalf(*q)),
        })
    }

    fn attention(&self, attention: &Attention<'_>, store: DeviceStore) -> Result<(DeviceOp, u64), CudaError> {
        let bias = attention.bias.expand();
        let spec = attention.spec(&bias, RowStore::F32);
        let op = DeviceAttention::new(self.device, &spec, store, self.stream)?;
        Ok((DeviceOp::Attention(op), 4 * bias.len() as u64))
    }

    fn map_of(&mut self, order: &Order) -> Result<Option<DeviceMap>, CudaError> {
        let Order::Windows { map, .. } = order else { return Ok(None) };
        self.device_map(map).map(Some)
    }

    fn device_map(&mut self, map: &Arc<RowMap>) -> Result<DeviceMap, CudaError> {
        if let Some((_, on_device)) = self.maps.iter().find(|(known, _)| Arc::ptr_eq(known, map)) {
            return Ok(on_device.clone());
        }
        let on_device = DeviceMap::new(self.device, map)?;
        self.maps.push((Arc::clone(map), on_device.clone()));
        Ok(on_device)
    }
}

/// The tensor, the quantizer and the order of the codes that `step` stores of `stream`, if no row is padding.
fn stored_codes<'a>(
    step: &'a Step<'_>,
    stream: TensorId,
) -> Option<(TensorId, Quantizer, Option<&'a RowMap>)> {
    let (Op::Quantize(order), Store::Codes(quantizers)) = (&step.op, &step.store) else { return None };
    let map = match order {
        Order::Tokens => None,
        Order::Windows { map, .. } => Some(&**map),
    };
    let no_padding = map.is_none_or(|map| rows_of_tokens(map).is_some());
    (step.input == stream && no_padding).then_some((step.output, quantizers[0], map))
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
