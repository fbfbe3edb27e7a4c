//! Lowers the plan to device steps: one launch for the patch embedding with its norm, and one for each other
//! op, except that half of a block may be one launch: the MLP, and in an f16 stream attention.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use swinq_kernels::cuda::ops::attention::DeviceAttention;
use swinq_kernels::cuda::ops::head::{DeviceLinearF32, DevicePool};
use swinq_kernels::cuda::ops::linear::{DeviceLinear, DeviceLinearSpec, DeviceWeight, LinearStore};
use swinq_kernels::cuda::ops::norm::DeviceNorm;
use swinq_kernels::cuda::ops::patch::{DevicePatchEmbed, PatchSpec};
use swinq_kernels::cuda::ops::{DeviceMap, DeviceStore, StreamType};
use swinq_kernels::cuda::{CudaError, Device};
use swinq_kernels::{RowMap, RowStore};
use swinq_plan::{
    Attention, Element, Linear, Norm, Op, Order, Patches, Plan, Step, Store, TensorId, TensorSpec, Values,
    Weight,
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
    let mut lowering = Lowering { device, plan, stream, fuse, streams, maps: Vec::new() };
    let tensors = lowering.tensors();
    let (embedding, mut rest) = Embedding::split(&plan.steps);
    let mut steps = vec![lowering.patch_embed(&embedding)?];
    while let [step, after @ ..] = rest {
        let on_device = |error| RuntimeError::on_device(&step.name, error);
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
            Element::F32 if id == pooled && self.stream == StreamType::F32 => DeviceElement::Float,
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
            Op::Norm(..) if matches!(step.store, Store::Residual { .. }) => Err(CudaError::Unsupported(
                "a norm that adds to the residual stream (Swin V2): the CUDA kernels have none".to_owned(),
            )),
            Op::Quantize(_) => Err(CudaError::Unsupported(
                "quantization of the residual stream without a norm (Swin V2): the CUDA kernels have none"
                    .to_owned(),
            )),
            Op::Norm(norm, order) => {
                let map = self.map_of(order)?;
                let (gamma, beta) = (norm.gamma.read(), norm.beta.read());
                let norm = DeviceNorm::rows(self.device, (&gamma, &beta), norm.eps, self.stream, map, store)?;
                Ok((DeviceOp::Norm(norm), 0))
            }
            Op::NormalizeHeads(_) => Err(CudaError::Unsupported(
                "the normalisation of queries and keys (Swin V2): the CUDA kernels have none".to_owned(),
            )),
            Op::Attention(attention) => self.attention(attention, store),
            Op::Merge(merge) => {
                let norm = merge.norm.as_ref().ok_or_else(|| {
                    CudaError::Unsupported(
                        "a merge without a norm (Swin V2): the CUDA kernels have none".to_owned(),
                    )
                })?;
                let (gamma, beta) = (norm.gamma.read(), norm.beta.read());
                let (params, sources) = ((&gamma[..], &beta[..]), (&merge.sources[..], merge.tokens));
                let norm = DeviceNorm::merged(self.device, params, norm.eps, self.stream, sources, store)?;
                Ok((DeviceOp::Norm(norm), 0))
            }
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
            Op::NormInPlace(_) if step.input != self.streams[0] => Err(CudaError::Unsupported(
                "a norm after a reduction (Swin V2): the CUDA kernels have none".to_owned(),
            )),
            Op::Patches(_) | Op::NormInPlace(_) | Op::PositionEmbedding(_) => {
                unreachable!("{} is part of the patch embedding", step.name)
            }
        }
    }

    /// Prepares the head in f32.
    fn float_head(&self, head: &Linear<'_>, weight: &Values<'_>) -> Result<(DeviceOp, u64), CudaError> {
        let bias = head.bias.map_or_else(|| vec![0.0; head.n].into(), |bias| bias.read());
        let weight = weight.read();
        let op = DeviceLinearF32::new(self.device, &weight, &bias, head.output)?;
        Ok((DeviceOp::Head(op), 4 * weight.len() as u64))
    }

    fn linear(&mut self, step: &Step<'_>, linear: &Linear<'_>) -> Result<(DeviceOp, u64), CudaError> {
        let Linear { n, k, output, gelu, .. } = *linear;
        // Only a residual addition may write rows in another order than it reads them.
        let residual = matches!(step.store, Store::Residual { .. });
        let map = if residual { self.map_of(&linear.order)? } else { None };
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
            store: self.linear_store(step, n)?,
            stream: self.stream,
        };
        let bytes = n * k * if linear.is_int8() { 1 } else { 2 };
        Ok((DeviceOp::Linear(Box::new(DeviceLinear::new(self.device, &spec)?), map), bytes as u64))
    }

    fn linear_store(&self, step: &Step<'_>, n: usize) -> Result<LinearStore, CudaError> {
        Ok(match &step.store {
            Store::Residual { branch: None, shortcut: None } => LinearStore::Residual,
            Store::Residual { .. } => {
                return Err(CudaError::Unsupported(
                    "the sites add.branch and add.shortcut are on: the CUDA kernels add in float; the CPU backend runs \
                     every recipe"
                        .to_owned(),
                ));
            }
            Store::Codes(quantizers) => {
                let part = n / quantizers.len();
                LinearStore::Codes((0..n).map(|c| quantizers[c / part].recip()).collect())
            }
            Store::ChannelFake(channels) => LinearStore::ChannelFake(channels.clone()),
            Store::ChannelCodes(channels) => LinearStore::ChannelCodes(channels.clone()),
            Store::F32 if self.stream == StreamType::F32 && self.streams.contains(&step.output) => {
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
