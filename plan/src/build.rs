//! Builds a plan from a model and its recipe.

use std::sync::Arc;

use swinq_kernels::{AttentionQuant, Probs, Quantizer, RowMap};
use swinq_model::quantized::Param;
use swinq_model::recipe::Kind;
use swinq_model::{
    BlockId, Half, Linear as Layer, ModelError, Operand, QuantizedModel, Site, Stage, SwinVersion,
};

use crate::{
    Attention, Element, Linear, Merge, Norm, Op, Order, Patches, Plan, RelativeBias, Step, Store, TensorId,
    TensorSpec, Values, Weight,
};

impl<'m> Plan<'m> {
    /// The plan of `model`.
    ///
    /// # Errors
    /// The model does not pass [`QuantizedModel::validate`], or a scale is not usable for quantization.
    pub fn new(model: &'m QuantizedModel) -> Result<Plan<'m>, ModelError> {
        model.validate()?;
        if model.config.version == SwinVersion::V2 {
            let problem = "v2: the engine cannot run a Swin V2 yet; use the simulation";
            return Err(ModelError::config("version", problem));
        }
        let mut builder = Builder { model, plan: Plan { tensors: Vec::new(), steps: Vec::new() } };
        builder.network()?;
        Ok(builder.plan)
    }
}

/// The data that the blocks of one stage share.
struct Shared {
    stage: Stage,
    index: Arc<[usize]>,
    /// The windows of the even blocks and of the odd blocks.
    windows: [Windows; 2],
}

/// The window order of one shift.
#[derive(Clone)]
struct Windows {
    order: Order,
    regions: Option<Arc<[u8]>>,
}

impl Shared {
    fn new(stage: Stage) -> Shared {
        let windows = |shift: usize| {
            let map = RowMap::new(&stage.partition(shift), stage.tokens());
            let map = Arc::new(map.expect("a window partition covers every token once"));
            Windows {
                order: Order::Windows { shift, map },
                regions: stage.shift_regions(shift).map(Arc::from),
            }
        };
        let (even, odd) = (stage.shift_of(0), stage.shift_of(1));
        let first = windows(even);
        let second = if odd == even { first.clone() } else { windows(odd) };
        Shared { index: stage.relative_position_index().into(), windows: [first, second], stage }
    }
}

struct Builder<'m> {
    model: &'m QuantizedModel,
    plan: Plan<'m>,
}

impl<'m> Builder<'m> {
    fn network(&mut self) -> Result<(), ModelError> {
        let size = self.model.config.image_size;
        let image = self.tensor(size * size, 3, Element::Pixel);
        let mut stream = self.patch_embed(image)?;
        for stage in self.model.config.stages() {
            let shared = Shared::new(stage);
            let stage = &shared.stage;
            for block in 0..stage.depth {
                let id = BlockId { stage: stage.index, block };
                self.attention(&shared, id, stream)?;
                self.mlp(stage, id, stream)?;
            }
            if stage.merge {
                stream = self.merge(stage, stream)?;
            }
        }
        self.head(stream)
    }

    fn patch_embed(&mut self, image: TensorId) -> Result<TensorId, ModelError> {
        let config = &self.model.config;
        let (tokens, k) = (config.grid().pow(2), 3 * config.patch_size.pow(2));
        let lookup = Box::new(self.model.transform.lookup());
        let op = Op::Patches(Patches { image: config.image_size, patch: config.patch_size, lookup });
        let store = self.input_store(Layer::PatchEmbed)?;
        let patches = self.stored("patch_embed.patches", op, store, image, (tokens, k), 0);
        let stream = self.linear(Layer::PatchEmbed, patches, Store::F32, Order::Tokens)?;
        if config.patch_norm {
            let name = "patch_embed.norm";
            self.in_place(name, Op::NormInPlace(self.norm(name)), Store::F32, stream, stream, 0);
        }
        if config.ape {
            let name = "absolute_pos_embed";
            let op = Op::PositionEmbedding(self.values(name));
            self.in_place(name, op, Store::F32, stream, stream, 0);
        }
        Ok(stream)
    }

    /// `stream += proj(attention(partition(norm1(stream))))`.
    fn attention(&mut self, shared: &Shared, id: BlockId, stream: TensorId) -> Result<(), ModelError> {
        let stage = &shared.stage;
        let Windows { order, regions } = &shared.windows[id.block % 2];
        let rows = stage.padded * stage.padded;
        let name = format!("{id}.norm1");
        let store = self.input_store(Layer::Qkv(id))?;
        let norm = Op::Norm(self.norm(&name), order.clone());
        let x = self.stored(&name, norm, store, stream, (rows, stage.dim), 0);

        let quant = self.attention_quant(id)?;
        let store = match (quant.q, quant.k, quant.v) {
            (Some(q), Some(k), Some(v)) => Store::Codes(vec![q, k, v]),
            _ => Store::F32,
        };
        let qkv = self.linear(Layer::Qkv(id), x, store, order.clone())?;

        let table = self.values(&format!("{id}.attn.relative_position_bias_table"));
        let op = Op::Attention(Attention {
            heads: stage.heads,
            head_dim: stage.head_dim(),
            tokens: stage.window_tokens(),
            windows: stage.windows(),
            scales: vec![self.model.config.attention_scale(stage); stage.heads],
            bias: RelativeBias { table, index: Arc::clone(&shared.index), heads: stage.heads },
            regions: regions.clone(),
            quant,
        });
        let store = self.input_store(Layer::Proj(id))?;
        let macs = (2 * rows * stage.window_tokens() * stage.dim) as u64;
        let y = self.stored(&format!("{id}.attn"), op, store, qkv, (rows, stage.dim), macs);
        self.residual(Layer::Proj(id), (id, Half::Attn), y, stream, order.clone())
    }

    /// `stream += fc2(gelu(fc1(norm2(stream))))`.
    fn mlp(&mut self, stage: &Stage, id: BlockId, stream: TensorId) -> Result<(), ModelError> {
        let name = format!("{id}.norm2");
        let store = self.input_store(Layer::Fc1(id))?;
        let norm = Op::Norm(self.norm(&name), Order::Tokens);
        let x = self.stored(&name, norm, store, stream, (stage.tokens(), stage.dim), 0);
        let store = self.input_store(Layer::Fc2(id))?;
        let hidden = self.linear(Layer::Fc1(id), x, store, Order::Tokens)?;
        self.residual(Layer::Fc2(id), (id, Half::Mlp), hidden, stream, Order::Tokens)
    }

    fn merge(&mut self, stage: &Stage, stream: TensorId) -> Result<TensorId, ModelError> {
        let layer = Layer::Reduction(stage.index);
        let name = format!("layers.{}.downsample.norm", stage.index);
        let (sources, tokens) = (stage.merge_sources(), stage.tokens());
        let op = Op::Merge(Merge { norm: self.norm(&name), sources, tokens });
        let shape = (stage.merged_grid().pow(2), 4 * stage.dim);
        let store = self.input_store(layer)?;
        let x = self.stored(&name, op, store, stream, shape, 0);
        self.linear(layer, x, Store::F32, Order::Tokens)
    }

    fn head(&mut self, stream: TensorId) -> Result<(), ModelError> {
        let store = self.input_store(Layer::Head)?;
        let op = Op::Pool(self.norm("norm"));
        let pooled = self.stored("norm", op, store, stream, (1, self.model.config.features()), 0);
        self.linear(Layer::Head, pooled, Store::F32, Order::Tokens)?;
        Ok(())
    }

    /// How the op that produces the input of `layer` stores it.
    fn input_store(&self, layer: Layer) -> Result<Store, ModelError> {
        if let Some(columns) = self.model.column_quantizers(Site::Input(layer))? {
            let int8 = self.model.is_int8(layer);
            return Ok(if int8 { Store::ChannelCodes(columns) } else { Store::ChannelFake(columns) });
        }
        Ok(match self.quantizer(Site::Input(layer))? {
            None => Store::F32,
            Some(q) if self.model.is_int8(layer) => Store::Codes(vec![q]),
            Some(q) => Store::Fake(q),
        })
    }

    fn attention_quant(&self, id: BlockId) -> Result<AttentionQuant, ModelError> {
        let site = Site::Probs(id);
        let spec = &self.model.site(site).spec;
        let probs = match (spec.enabled, spec.kind) {
            (false, _) => Probs::Float,
            (true, Kind::U8) => Probs::U8,
            (true, Kind::S8) => Probs::S8(self.quantizer(site)?.expect("an enabled site has a quantizer")),
        };
        Ok(AttentionQuant {
            q: self.quantizer(Site::Q(id))?,
            k: self.quantizer(Site::K(id))?,
            v: self.quantizer(Site::V(id))?,
            scores: self.quantizer(Site::Scores(id))?,
            probs,
        })
    }

    fn quantizer(&self, site: Site) -> Result<Option<Quantizer>, ModelError> {
        let Some(scale) = self.model.activation_scale(site)? else { return Ok(None) };
        let unusable = || ModelError::site(site, format!("scale {scale} cannot quantize; calibrate again"));
        Quantizer::new(scale).map(Some).ok_or_else(unusable)
    }

    /// A linear layer that adds to the stream.
    fn residual(
        &mut self,
        layer: Layer,
        (id, half): (BlockId, Half),
        input: TensorId,
        stream: TensorId,
        order: Order,
    ) -> Result<(), ModelError> {
        let store = Store::Residual {
            branch: self.quantizer(Site::Add(id, half, Operand::Branch))?,
            shortcut: self.quantizer(Site::Add(id, half, Operand::Shortcut))?,
        };
        let linear = self.layer(layer, order)?;
        let macs = self.linear_macs(&linear, input);
        self.in_place(&layer.to_string(), Op::Linear(linear), store, input, stream, macs);
        Ok(())
    }

    /// A linear layer that writes a new tensor.
    fn linear(
        &mut self,
        layer: Layer,
        input: TensorId,
        store: Store,
        order: Order,
    ) -> Result<TensorId, ModelError> {
        let linear = self.layer(layer, order)?;
        let macs = self.linear_macs(&linear, input);
        let shape = (self.plan.tensor(input).rows, linear.n);
        Ok(self.stored(&layer.to_string(), Op::Linear(linear), store, input, shape, macs))
    }

    /// The parameters of `layer`.
    fn layer(&self, layer: Layer, order: Order) -> Result<Linear<'m>, ModelError> {
        let param = &self.model.params[&layer.weight_name()];
        let (n, k) = match param {
            Param::Float(tensor) => tensor.matrix(),
            Param::Int8(weight) => weight.matrix(),
        };
        let weight = match (param, self.quantizer(Site::Input(layer))?) {
            (Param::Int8(codes), Some(input)) => {
                let multiplier = (0..n).map(|row| input.scale() * codes.scale(row)).collect();
                let channels = self.model.site(Site::Input(layer)).channels.as_ref();
                let zero_points = channels.map_or(&[][..], |channels| &channels.zero_points);
                Weight::Int8 { codes, input, multiplier, zero_points }
            }
            _ => Weight::Float(Values::of(param)),
        };
        let bias = self.model.params.get(&layer.bias_name()).map(Values::of);
        let output = self.quantizer(Site::Output(layer))?;
        Ok(Linear { layer, n, k, weight, bias, output, gelu: matches!(layer, Layer::Fc1(_)), order })
    }

    fn linear_macs(&self, linear: &Linear<'_>, input: TensorId) -> u64 {
        (self.plan.tensor(input).rows * linear.k * linear.n) as u64
    }

    fn norm(&self, prefix: &str) -> Norm<'m> {
        let (gamma, beta) =
            (self.values(&format!("{prefix}.weight")), self.values(&format!("{prefix}.bias")));
        Norm { gamma, beta, eps: self.model.config.norm_eps as f32 }
    }

    fn values(&self, name: &str) -> Values<'m> {
        Values::of(&self.model.params[name])
    }

    fn tensor(&mut self, rows: usize, columns: usize, element: Element) -> TensorId {
        self.plan.tensors.push(TensorSpec { rows, columns, element });
        TensorId(self.plan.tensors.len() - 1)
    }

    /// Pushes an op that writes a new tensor.
    fn stored(
        &mut self,
        name: &str,
        op: Op<'m>,
        store: Store,
        input: TensorId,
        (rows, columns): (usize, usize),
        macs: u64,
    ) -> TensorId {
        let codes = matches!(store, Store::Codes(_) | Store::ChannelCodes(_));
        let element = if codes { Element::Code } else { Element::F32 };
        let output = self.tensor(rows, columns, element);
        self.in_place(name, op, store, input, output, macs);
        output
    }

    fn in_place(
        &mut self,
        name: &str,
        op: Op<'m>,
        store: Store,
        input: TensorId,
        output: TensorId,
        macs: u64,
    ) {
        self.plan.steps.push(Step { name: name.to_owned(), op, store, input, output, macs });
    }
}
