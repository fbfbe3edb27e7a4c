//! From the plan to the steps of a device: one launch for patch embedding with its norm, and one for each other op.

use std::collections::BTreeMap;

use swinq_kernels::attention::AttentionSpec;
use swinq_kernels::cuda::ops::attention::DeviceAttention;
use swinq_kernels::cuda::ops::head::{DeviceLinearF32, DevicePool};
use swinq_kernels::cuda::ops::linear::{DeviceLinear, DeviceLinearSpec, DeviceWeight, LinearStore};
use swinq_kernels::cuda::ops::norm::DeviceNorm;
use swinq_kernels::cuda::ops::patch::{DevicePatchEmbed, PatchSpec};
use swinq_kernels::cuda::ops::{DeviceMap, DeviceStore, StreamType};
use swinq_kernels::cuda::{CudaError, Device};
use swinq_kernels::{AttentionQuant, Quantizer, RowMap, RowStore};
use swinq_model::quantized::Param;
use swinq_model::{BlockId, Linear, QuantizedModel, Site, Stage};

use super::step::{DeviceElement, DeviceOp, DeviceStep, DeviceTensor};
use crate::error::RuntimeError;
use crate::expand::expand_bias;
use crate::plan::{Element, Op, Order, Plan, Step, Store};

/// The steps of a plan, and their tensors by the plan's numbers (those that no step touches are not in memory).
pub(crate) struct Lowered {
    pub(crate) steps: Vec<DeviceStep>,
    pub(crate) tensors: Vec<DeviceTensor>,
}

/// Lowers `plan` of `model` for `device`.
pub(crate) fn lower(
    device: &Device,
    model: &QuantizedModel,
    plan: &Plan,
    stream: StreamType,
) -> Result<Lowered, RuntimeError> {
    let mut lowering =
        Lowering { device, model, plan, stream, stages: model.config.stages(), maps: BTreeMap::new() };
    let tensors = lowering.tensors();
    let (embedding, rest) = lowering.split();
    let mut steps = vec![lowering.patch_embed(embedding)?];
    for step in rest {
        steps.push(lowering.step(step).map_err(|error| RuntimeError::on_device(&step.name, error))?);
    }
    Ok(Lowered { steps, tensors })
}

struct Lowering<'a> {
    device: &'a Device,
    model: &'a QuantizedModel,
    plan: &'a Plan,
    stream: StreamType,
    stages: Vec<Stage>,
    /// Window partitions by stage and shift.
    maps: BTreeMap<(usize, usize), DeviceMap>,
}

impl<'a> Lowering<'a> {
    /// The tensors of the plan as the device holds them.
    fn tensors(&self) -> Vec<DeviceTensor> {
        let streams: Vec<_> =
            self.plan.steps.iter().filter(|s| self.writes_stream(s)).map(|s| s.output).collect();
        let pooled = self.plan.steps.last().expect("a plan has steps").input;
        let element = |index: usize, element: Element| match element {
            Element::Pixel => DeviceElement::Pixel,
            Element::Code => DeviceElement::Code,
            Element::F32 if streams.iter().any(|s| s.0 == index) => match self.stream {
                StreamType::F16 => DeviceElement::HalfStream,
                StreamType::F32 => DeviceElement::Float,
            },
            Element::F32 if index == self.plan.logits().0 => DeviceElement::Float,
            Element::F32 if index == pooled.0 && self.stream == StreamType::F32 => DeviceElement::Float,
            Element::F32 => DeviceElement::Half,
        };
        let tensor = |(index, spec): (usize, &crate::plan::TensorSpec)| DeviceTensor {
            rows: spec.rows,
            columns: spec.columns,
            element: element(index, spec.element),
        };
        self.plan.tensors.iter().enumerate().map(tensor).collect()
    }

    fn writes_stream(&self, step: &Step) -> bool {
        let product = |linear: &Linear| matches!(linear, Linear::PatchEmbed | Linear::Reduction(_));
        matches!(step.store, Store::Residual { .. })
            || matches!(&step.op, Op::Product { linear, .. } if product(linear))
    }

    /// The steps of the patch embedding, which become one, and the others.
    fn split(&self) -> (&'a [Step], &'a [Step]) {
        let embeds = |step: &Step| {
            let product = matches!(step.op, Op::Product { linear: Linear::PatchEmbed, .. });
            product || matches!(step.op, Op::Patches | Op::NormInPlace { .. } | Op::PositionEmbedding)
        };
        let steps = &self.plan.steps;
        let count = steps.iter().position(|step| !embeds(step)).unwrap_or(steps.len());
        steps.split_at(count)
    }

    fn patch_embed(&self, steps: &[Step]) -> Result<DeviceStep, RuntimeError> {
        let config = &self.model.config;
        let name = "patch_embed";
        let linear = Linear::PatchEmbed;
        let product = steps.iter().find(|s| matches!(s.op, Op::Product { .. })).expect("a patch embedding");
        let Op::Product { int8, output, .. } = &product.op else { unreachable!("found as a product") };
        let (codes, weight) = self.patch_weight(*int8);
        let lookup = self.patch_lookup(&steps[0].store);
        let norm = config.patch_norm.then(|| self.norm_params("patch_embed.norm"));
        let position = config.ape.then(|| self.float("absolute_pos_embed"));
        let spec = PatchSpec {
            size: config.image_size,
            patch: config.patch_size,
            lookup: &lookup,
            weight: &weight,
            bias: &self.bias(linear).unwrap_or_else(|| vec![0.0; config.embed_dim]),
            multiplier: codes.as_deref(),
            output: *output,
            norm: norm.as_ref().map(|(g, b)| (g.as_slice(), b.as_slice())),
            epsilon: self.eps(),
            position: position.as_deref(),
            stream: self.stream,
        };
        let on_device = |error| RuntimeError::on_device(name, error);
        self.check_width(config.embed_dim).map_err(on_device)?;
        Ok(DeviceStep {
            name: name.to_owned(),
            op: DeviceOp::PatchEmbed(DevicePatchEmbed::new(self.device, &spec).map_err(on_device)?),
            input: self.plan.image(),
            output: product.output,
            rows: self.plan.tensor(product.output).rows,
            macs: product.macs,
            weight_bytes: 4 * weight.len() as u64,
        })
    }

    /// Streams are read and written in eights.
    fn check_width(&self, columns: usize) -> Result<(), CudaError> {
        if columns.is_multiple_of(8) {
            return Ok(());
        }
        Err(CudaError::Unsupported(format!(
            "{columns} channels: the CUDA kernels need a multiple of 8; the CPU backend runs any"
        )))
    }

    /// Multipliers of an INT8 patch embedding, and its weight or codes as f32.
    fn patch_weight(&self, int8: bool) -> (Option<Vec<f32>>, Vec<f32>) {
        match &self.model.params[&Linear::PatchEmbed.weight_name()] {
            Param::Int8(weight) if int8 => {
                let codes = weight.codes.iter().map(|&c| f32::from(c)).collect();
                (Some(self.multiplier(Linear::PatchEmbed)), codes)
            }
            weight => (None, weight.to_float().data),
        }
    }

    /// What each byte of each channel becomes.
    fn patch_lookup(&self, store: &Store) -> [[f32; 256]; 3] {
        let lookup = self.model.transform.lookup();
        match store {
            Store::Codes(q) => lookup.map(|table| table.map(|x| f32::from(q[0].code(x)))),
            Store::Fake(q) => lookup.map(|table| table.map(|x| q.fake(x))),
            _ => lookup,
        }
    }

    fn step(&mut self, step: &Step) -> Result<DeviceStep, CudaError> {
        let rows = self.plan.tensor(step.input).rows;
        let (op, weight_bytes) = self.op(step)?;
        Ok(DeviceStep {
            name: step.name.clone(),
            op,
            input: step.input,
            output: step.output,
            rows,
            macs: step.macs,
            weight_bytes,
        })
    }

    fn op(&mut self, step: &Step) -> Result<(DeviceOp, u64), CudaError> {
        let store = half_store(&step.store);
        match &step.op {
            Op::Product { linear: Linear::Head, int8: false, output, .. }
                if self.stream == StreamType::F32 =>
            {
                self.float_head(*output)
            }
            Op::Product { linear, int8, output, gelu, order } => {
                // Only a residual addition leaves the order of its input.
                let residual = matches!(step.store, Store::Residual { .. });
                let map = if residual { self.map_of(*order)? } else { None };
                self.product(step, *linear, *int8, *output, *gelu, map)
            }
            Op::Norm { params, order } => {
                let map = self.map_of(*order)?;
                let (gamma, beta) = self.norm_params(params);
                let norm =
                    DeviceNorm::rows(self.device, (&gamma, &beta), self.eps(), self.stream, map, store)?;
                Ok((DeviceOp::Norm(norm), 0))
            }
            Op::Attention { block, shift, quant } => self.attention(*block, *shift, *quant, store),
            Op::Merge { stage } => {
                let (gamma, beta) = self.norm_params(&format!("layers.{stage}.downsample.norm"));
                let stage = &self.stages[*stage];
                let (merge, params) = (stage.merge_sources(), (&gamma[..], &beta[..]));
                let merge = (&merge[..], stage.tokens());
                let norm = DeviceNorm::merged(self.device, params, self.eps(), self.stream, merge, store)?;
                Ok((DeviceOp::Norm(norm), 0))
            }
            Op::Pool => {
                let (gamma, beta) = self.norm_params("norm");
                let store = match (&step.store, self.stream) {
                    (Store::Fake(q), StreamType::F32) => DeviceStore::FakeFloat(*q),
                    (Store::F32, StreamType::F32) => DeviceStore::Float,
                    _ => store,
                };
                let pool = DevicePool::new(self.device, (&gamma, &beta), self.eps(), self.stream, store)?;
                Ok((DeviceOp::Pool(pool), 0))
            }
            Op::Patches | Op::NormInPlace { .. } | Op::PositionEmbedding => {
                unreachable!("{} is part of the patch embedding", step.name)
            }
        }
    }

    /// The head in f32.
    fn float_head(&self, output: Option<Quantizer>) -> Result<(DeviceOp, u64), CudaError> {
        let weight = self.model.params[&Linear::Head.weight_name()].to_float();
        let bias = self.bias(Linear::Head).unwrap_or_else(|| vec![0.0; weight.shape[0]]);
        let head = DeviceLinearF32::new(self.device, &weight.data, &bias, output)?;
        Ok((DeviceOp::Head(head), 4 * weight.data.len() as u64))
    }

    fn product(
        &self,
        step: &Step,
        linear: Linear,
        int8: bool,
        output: Option<Quantizer>,
        gelu: bool,
        map: Option<DeviceMap>,
    ) -> Result<(DeviceOp, u64), CudaError> {
        let weight = &self.model.params[&linear.weight_name()];
        let (n, k) = match weight {
            Param::Float(tensor) => tensor.matrix(),
            Param::Int8(weight) => weight.matrix(),
        };
        let (bias, multiplier, float) =
            (self.bias(linear), self.multiplier_if(linear, int8), weight.to_float());
        let device_weight = match (weight, &multiplier) {
            (Param::Int8(weight), Some(multiplier)) => {
                DeviceWeight::Codes { codes: &weight.codes, multiplier }
            }
            _ => DeviceWeight::Half(&float.data),
        };
        let spec = DeviceLinearSpec {
            n,
            k,
            weight: device_weight,
            bias: bias.as_deref(),
            output,
            gelu,
            store: self.product_store(step, n)?,
            stream: self.stream,
        };
        let bytes = n * k * if int8 { 1 } else { 2 };
        Ok((DeviceOp::Linear(Box::new(DeviceLinear::new(self.device, &spec)?), map), bytes as u64))
    }

    fn product_store(&self, step: &Step, n: usize) -> Result<LinearStore, CudaError> {
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
            Store::F32 if self.stream == StreamType::F32 && self.writes_stream(step) => {
                LinearStore::Plain(DeviceStore::Float)
            }
            Store::F32 if step.output == self.plan.logits() => LinearStore::Plain(DeviceStore::Float),
            Store::F32 => LinearStore::Plain(DeviceStore::Half),
            Store::Fake(q) => LinearStore::Plain(DeviceStore::FakeHalf(*q)),
        })
    }

    fn attention(
        &self,
        block: BlockId,
        shift: usize,
        quant: AttentionQuant,
        store: DeviceStore,
    ) -> Result<(DeviceOp, u64), CudaError> {
        let stage = &self.stages[block.stage];
        let table = self.model.params[&format!("{block}.attn.relative_position_bias_table")].to_float();
        let bias = expand_bias(stage, &table);
        let regions = stage.shift_regions(shift);
        let spec = AttentionSpec {
            heads: stage.heads,
            head_dim: stage.head_dim(),
            tokens: stage.window_tokens(),
            windows: stage.windows(),
            scales: &vec![self.model.config.attention_scale(stage); stage.heads],
            bias: &bias,
            regions: regions.as_deref(),
            quant,
            store: RowStore::F32,
        };
        Ok((
            DeviceOp::Attention(DeviceAttention::new(self.device, &spec, store, self.stream)?),
            4 * bias.len() as u64,
        ))
    }

    fn map_of(&mut self, order: Order) -> Result<Option<DeviceMap>, CudaError> {
        let Order::Windows { stage, shift } = order else { return Ok(None) };
        if let Some(map) = self.maps.get(&(stage, shift)) {
            return Ok(Some(map.clone()));
        }
        let of = &self.stages[stage];
        let map =
            RowMap::new(&of.partition(shift), of.tokens()).expect("a partition covers every token once");
        let map = DeviceMap::new(self.device, &map)?;
        self.maps.insert((stage, shift), map.clone());
        Ok(Some(map))
    }

    fn multiplier_if(&self, linear: Linear, int8: bool) -> Option<Vec<f32>> {
        int8.then(|| self.multiplier(linear))
    }

    /// `s_x * s_w` of each column.
    fn multiplier(&self, linear: Linear) -> Vec<f32> {
        let Param::Int8(weight) = &self.model.params[&linear.weight_name()] else {
            unreachable!("validated: the weight of an INT8 product is INT8")
        };
        let input = self.model.site(Site::Input(linear)).scale().expect("validated: the input has a scale");
        (0..weight.matrix().0).map(|row| input * weight.scale(row)).collect()
    }

    fn bias(&self, linear: Linear) -> Option<Vec<f32>> {
        self.model.params.get(&linear.bias_name()).map(|p| p.to_float().data)
    }

    fn norm_params(&self, prefix: &str) -> (Vec<f32>, Vec<f32>) {
        (self.float(&format!("{prefix}.weight")), self.float(&format!("{prefix}.bias")))
    }

    fn float(&self, name: &str) -> Vec<f32> {
        self.model.params[name].to_float().data
    }

    fn eps(&self) -> f32 {
        self.model.config.norm_eps as f32
    }
}

/// What an op stores for a product on tensor cores.
fn half_store(store: &Store) -> DeviceStore {
    match store {
        Store::Codes(q) => DeviceStore::Codes(q[0]),
        Store::Fake(q) => DeviceStore::FakeHalf(*q),
        Store::F32 | Store::Residual { .. } => DeviceStore::Half,
    }
}
