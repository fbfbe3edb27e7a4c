//! From the plan to launches: packs weights, expands bias tables, makes row maps.

use std::collections::BTreeMap;
use std::sync::Arc;

use swinq_kernels::attention::{AttentionSpec, WindowAttention};
use swinq_kernels::layer_norm::{LayerNorm, MergeNorm, PooledNorm};
use swinq_kernels::linear::{LinearF32, LinearI8, LinearSpec, Store as LinearStore};
use swinq_kernels::patches::Patches;
use swinq_kernels::{AttentionQuant, Cpu, Quantizer, RowMap, RowStore};
use swinq_model::quantized::Param;
use swinq_model::{BlockId, HostTensor, Linear, QuantizedModel, Site, Stage};

use super::launch::{Kernel, Launch};
use super::place::Place;
use crate::expand::expand_bias;
use crate::plan::{Op, Order, Plan, Step, Store};

/// One launch for each step of `plan`.
pub(super) fn lower(model: &QuantizedModel, plan: &Plan, cpu: Cpu) -> Vec<Launch> {
    let mut lowering = Lowering { model, plan, cpu, stages: model.config.stages(), maps: BTreeMap::new() };
    plan.steps.iter().map(|step| lowering.launch(step)).collect()
}

struct Lowering<'a> {
    model: &'a QuantizedModel,
    plan: &'a Plan,
    cpu: Cpu,
    stages: Vec<Stage>,
    /// Window partitions by stage and shift.
    maps: BTreeMap<(usize, usize), Arc<RowMap>>,
}

impl Lowering<'_> {
    fn launch(&mut self, step: &Step) -> Launch {
        let residual = matches!(step.store, Store::Residual { .. });
        let place = |tensor, residual| Place { tensor, spec: *self.plan.tensor(tensor), residual };
        Launch {
            name: step.name.clone(),
            macs: step.macs,
            weight_bytes: self.weight_bytes(step),
            input: (step.input != self.plan.image()).then(|| place(step.input, false)),
            output: place(step.output, residual),
            kernel: self.kernel(step),
        }
    }

    /// Bytes of the weight or table of `step`, those of norms neglected.
    fn weight_bytes(&self, step: &Step) -> usize {
        match &step.op {
            Op::Product { linear, int8, .. } => match &self.model.params[&linear.weight_name()] {
                Param::Int8(weight) if *int8 => weight.codes.len(),
                Param::Int8(weight) => 4 * weight.codes.len(),
                Param::Float(weight) => 4 * weight.data.len(),
            },
            Op::Attention { block, .. } => {
                let stage = &self.stages[block.stage];
                4 * stage.heads * stage.window_tokens().pow(2)
            }
            Op::PositionEmbedding => {
                let stream = self.plan.tensor(step.output);
                4 * stream.rows * stream.columns
            }
            _ => 0,
        }
    }

    fn kernel(&mut self, step: &Step) -> Kernel {
        let config = &self.model.config;
        match &step.op {
            Op::Patches => {
                let lookup = self.model.transform.lookup();
                let store = row_store(&step.store);
                Kernel::Patches(Patches::new(config.image_size, config.patch_size, &lookup, store))
            }
            Op::Product { linear, int8, output, gelu, order } => {
                let map = self.map(*order, self.plan.tensor(step.output).rows);
                self.product(*linear, *int8, *output, *gelu, &step.store, map)
            }
            Op::Norm { params, order } => {
                let map = self.map(*order, self.plan.tensor(step.input).rows);
                Kernel::Norm(Arc::new(self.layer_norm(params, &step.store)), map)
            }
            Op::NormInPlace { params } => Kernel::NormInPlace(self.layer_norm(params, &step.store)),
            Op::PositionEmbedding => Kernel::AddTable(self.float("absolute_pos_embed").data),
            Op::Attention { block, shift, quant } => self.attention(*block, *shift, *quant, &step.store),
            Op::Merge { stage } => {
                let (gamma, beta) = self.norm_params(&format!("layers.{stage}.downsample.norm"));
                let stage = &self.stages[*stage];
                let (sources, tokens) = (stage.merge_sources(), stage.tokens());
                let store = row_store(&step.store);
                Kernel::Merge(MergeNorm::new(self.cpu, &gamma, &beta, self.eps(), store, &sources, tokens))
            }
            Op::Pool => {
                let (gamma, beta) = self.norm_params("norm");
                let tokens = self.plan.tensor(step.input).rows;
                Kernel::Pool(PooledNorm::new(
                    self.cpu,
                    &gamma,
                    &beta,
                    self.eps(),
                    row_store(&step.store),
                    tokens,
                ))
            }
        }
    }

    fn product(
        &self,
        linear: Linear,
        int8: bool,
        output: Option<Quantizer>,
        gelu: bool,
        store: &Store,
        map: Arc<RowMap>,
    ) -> Kernel {
        let weight = &self.model.params[&linear.weight_name()];
        let (n, k) = match weight {
            Param::Float(tensor) => tensor.matrix(),
            Param::Int8(weight) => weight.matrix(),
        };
        let bias = self.model.params.get(&linear.bias_name()).map(|p| p.to_float().data);
        let spec = LinearSpec { n, k, bias: bias.as_deref(), output, gelu, store: linear_store(store, n) };
        match weight {
            Param::Int8(weight) if int8 => {
                let input =
                    self.model.site(Site::Input(linear)).scale().expect("validated: the input has a scale");
                let multiplier: Vec<f32> = (0..n).map(|row| input * weight.scale(row)).collect();
                let op = LinearI8::new(self.cpu, spec, &weight.codes, &multiplier);
                Kernel::LinearI8(Arc::new(op), map)
            }
            weight => {
                Kernel::LinearF32(Arc::new(LinearF32::new(self.cpu, spec, &weight.to_float().data)), map)
            }
        }
    }

    fn attention(&self, block: BlockId, shift: usize, quant: AttentionQuant, store: &Store) -> Kernel {
        let stage = &self.stages[block.stage];
        let table = self.float(&format!("{block}.attn.relative_position_bias_table"));
        let regions = stage.shift_regions(shift);
        let spec = AttentionSpec {
            heads: stage.heads,
            head_dim: stage.head_dim(),
            tokens: stage.window_tokens(),
            windows: stage.windows(),
            scales: &vec![self.model.config.attention_scale(stage); stage.heads],
            bias: &expand_bias(stage, &table),
            regions: regions.as_deref(),
            quant,
            store: row_store(store),
        };
        Kernel::Attention(Arc::new(WindowAttention::new(self.cpu, spec)))
    }

    fn layer_norm(&self, params: &str, store: &Store) -> LayerNorm {
        let (gamma, beta) = self.norm_params(params);
        LayerNorm::new(self.cpu, &gamma, &beta, self.eps(), row_store(store))
    }

    fn norm_params(&self, prefix: &str) -> (Vec<f32>, Vec<f32>) {
        (self.float(&format!("{prefix}.weight")).data, self.float(&format!("{prefix}.bias")).data)
    }

    fn float(&self, name: &str) -> HostTensor {
        self.model.params[name].to_float()
    }

    fn eps(&self) -> f32 {
        self.model.config.norm_eps as f32
    }

    fn map(&mut self, order: Order, tokens: usize) -> Arc<RowMap> {
        let Order::Windows { stage, shift } = order else { return Arc::new(RowMap::identity(tokens)) };
        let stage = &self.stages[stage];
        let make = || {
            let map = RowMap::new(&stage.partition(shift), stage.tokens());
            Arc::new(map.expect("a window partition covers every token once"))
        };
        Arc::clone(self.maps.entry((stage.index, shift)).or_insert_with(make))
    }
}

fn row_store(store: &Store) -> RowStore {
    match store {
        Store::F32 => RowStore::F32,
        Store::Fake(q) => RowStore::Fake(*q),
        Store::Codes(q) => RowStore::Codes(q[0]),
        Store::Residual { .. } => unreachable!("only products write to the residual stream"),
    }
}

fn linear_store(store: &Store, columns: usize) -> LinearStore {
    match store {
        Store::F32 => LinearStore::F32,
        Store::Fake(q) => LinearStore::Fake(*q),
        Store::Codes(quantizers) => {
            let part = columns / quantizers.len();
            LinearStore::Codes((0..columns).map(|c| quantizers[c / part].recip()).collect())
        }
        Store::Residual { branch, shortcut } => {
            LinearStore::Residual { branch: *branch, shortcut: *shortcut }
        }
    }
}
