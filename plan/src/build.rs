//! Builds a plan from a model and its recipe.

use std::sync::Arc;

use swinq_model::quantized::Param;
use swinq_model::recipe::Kind;
use swinq_model::{
    AttentionParameters, BlockId, Branch, Input, Linear as Layer, ModelError, Operand, QuantizedModel, Site,
    Stage, StageOutput, position,
};
use swinq_numerics::{AttentionQuant, Probs, Quantizer};

use crate::{
    Attention, Element, Geometry, Linear, Merge, Norm, Op, Order, Output, OutputKind, Patches, Plan, QkNorm,
    RelativeBias, Rows, Step, Store, TensorId, TensorSpec, Values, Weight,
};

impl<'m> Plan<'m> {
    /// The plan of `model`.
    ///
    /// # Errors
    /// The model does not pass [`QuantizedModel::validate`], or a scale is not usable for quantization.
    pub fn new(model: &'m QuantizedModel) -> Result<Plan<'m>, ModelError> {
        model.validate()?;
        let own = Arc::new(Geometry::new(&model.config, model.config.image_size)?);
        let plan = Plan { tensors: Vec::new(), steps: Vec::new(), outputs: Vec::new(), own };
        let mut builder = Builder { model, plan };
        builder.network()?;
        Ok(builder.plan)
    }
}

/// The data that the blocks of one stage share.
struct Shared {
    stage: Stage,
    index: Arc<[usize]>,
    regions: Arc<[u8]>,
}

impl Shared {
    fn new(stage: Stage) -> Shared {
        let (index, regions) = (stage.relative_position_index().into(), stage.mask_regions().into());
        Shared { stage, index, regions }
    }
}

struct Builder<'m> {
    model: &'m QuantizedModel,
    plan: Plan<'m>,
}

impl<'m> Builder<'m> {
    fn network(&mut self) -> Result<(), ModelError> {
        let image = self.tensor(Rows::Pixels, self.model.config.in_chans, Element::Pixel);
        let mut residual = match self.model.config.input {
            Input::Images => self.patch_embed(image)?,
            Input::Tokens => self.patches("tokens", Store::F32, image),
        };
        for stage in self.model.config.stages() {
            let shared = Shared::new(stage);
            let stage = &shared.stage;
            for block in 0..stage.depth {
                let id = BlockId { stage: stage.index, block };
                self.attention(&shared, id, residual)?;
                self.mlp(stage, id, residual)?;
            }
            if let Some(output) = self.model.config.output_of(stage.index) {
                self.feature_map(output, residual);
            }
            if stage.merge {
                residual = self.merge(stage, residual)?;
            }
        }
        if self.model.config.is_backbone() { Ok(()) } else { self.head(residual) }
    }

    /// The patches of `image`, a row for each token of the first stage.
    fn patches(&mut self, name: &str, store: Store, image: TensorId) -> TensorId {
        let config = &self.model.config;
        let columns = config.in_chans * config.patch_size.pow(2);
        let lookup = self.model.transform.lookup();
        let edge = config.window_policy.image_edge();
        let op = Op::Patches(Patches { patch: config.patch_size, lookup, edge });
        self.stored(name, op, store, image, (Rows::Tokens(0), columns), 0)
    }

    fn patch_embed(&mut self, image: TensorId) -> Result<TensorId, ModelError> {
        let config = &self.model.config;
        let store = self.input_store(Layer::PatchEmbed)?;
        let patches = self.patches("patch_embed.patches", store, image);
        let residual = self.linear(Layer::PatchEmbed, patches, Store::F32, Order::Tokens(0))?;
        if config.patch_norm {
            let name = "patch_embed.norm";
            self.in_place(name, Op::NormInPlace(self.norm(name)), Store::F32, residual, residual, 0);
        }
        if config.ape {
            let name = "absolute_pos_embed";
            let op = Op::PositionEmbedding(self.values(name));
            self.in_place(name, op, Store::F32, residual, residual, 0);
        }
        Ok(residual)
    }

    /// `residual += proj(attention(partition(norm1(residual))))`; in Swin V2
    /// `residual += norm1(proj(attention(partition(residual))))`.
    fn attention(&mut self, shared: &Shared, id: BlockId, residual: TensorId) -> Result<(), ModelError> {
        let stage = &shared.stage;
        let shifted = id.block % 2 == 1;
        let order = Order::Windows { stage: stage.index, shifted };
        let rows = Rows::Windows(stage.index);
        let name = format!("{id}.norm1");
        let x = self.branch_input(Layer::Qkv(id), &name, order, residual, rows)?;

        let quant = self.attention_quant(id)?;
        let AttentionParameters { scales, table } = self.model.attention_parameters(stage, id);
        let hi_lo = self.hi_lo(&scales, &quant);
        let qkv = self.operands(id, stage, order, x, (&quant, &hi_lo))?;

        let op = Op::Attention(Attention {
            heads: stage.heads,
            head_dim: stage.head_dim(),
            tokens: stage.window_tokens(),
            order,
            scales,
            hi_lo,
            bias: RelativeBias { table, index: Arc::clone(&shared.index), heads: stage.heads },
            regions: shifted.then(|| Arc::clone(&shared.regions)),
            mask: self.model.config.mask as f32,
            quant,
        });
        let store = self.input_store(Layer::Proj(id))?;
        let macs = (2 * stage.window_tokens() * stage.dim) as u64;
        let y = self.stored(&format!("{id}.attn"), op, store, qkv, (rows, stage.dim), macs);
        self.branch_output(Layer::Proj(id), &name, (id, Branch::Attn), y, residual, order)
    }

    /// Queries, keys and values for attention, from the rows `x` of its windows. In Swin V2 queries and keys
    /// are normalised.
    fn operands(
        &mut self,
        id: BlockId,
        stage: &Stage,
        order: Order,
        x: TensorId,
        (quant, hi_lo): (&AttentionQuant, &[bool]),
    ) -> Result<TensorId, ModelError> {
        let store = match (quant.q, quant.k, quant.v) {
            (Some(q), Some(k), Some(v)) => Store::Codes(vec![q, k, v]),
            _ => Store::F32,
        };
        if !self.model.config.post_norm() {
            return self.linear(Layer::Qkv(id), x, store, order);
        }
        let qkv = self.linear(Layer::Qkv(id), x, Store::F32, order)?;
        let heads = QkNorm { heads: stage.heads, head_dim: stage.head_dim(), hi_lo: hi_lo.to_vec() };
        let shape = (self.plan.tensor(qkv).rows, heads.columns(matches!(store, Store::Codes(_))));
        let name = format!("{id}.attn.normalize");
        Ok(self.stored(&name, Op::QkNorm(heads), store, qkv, shape, 0))
    }

    /// The heads whose queries and keys have hi and lo codes for each value; empty if none has.
    fn hi_lo(&self, scales: &[f32], quant: &AttentionQuant) -> Vec<bool> {
        let version = self.model.config.version;
        let two: Vec<bool> = scales.iter().map(|&scale| position::hi_lo(version, scale)).collect();
        if two.contains(&true) && quant.q.is_some() && quant.k.is_some() { two } else { Vec::new() }
    }

    /// The input of the first layer of a branch: tokens of the residual in `order`, normalised with the norm
    /// `name` in Swin V1.
    fn branch_input(
        &mut self,
        layer: Layer,
        name: &str,
        order: Order,
        residual: TensorId,
        rows: Rows,
    ) -> Result<TensorId, ModelError> {
        let store = self.input_store(layer)?;
        let columns = self.plan.tensor(residual).columns;
        if self.model.config.post_norm() {
            let name = format!("{layer}.input");
            return Ok(self.stored(&name, Op::Quantize(order), store, residual, (rows, columns), 0));
        }
        let norm = Op::Norm(self.norm(name), order);
        Ok(self.stored(name, norm, store, residual, (rows, columns), 0))
    }

    /// Adds the last layer of a branch to the residual, normalised with the norm `name` in Swin V2.
    fn branch_output(
        &mut self,
        layer: Layer,
        name: &str,
        of: (BlockId, Branch),
        input: TensorId,
        residual: TensorId,
        order: Order,
    ) -> Result<(), ModelError> {
        if !self.model.config.post_norm() {
            return self.residual(layer, of, input, residual, order);
        }
        let branch = self.linear(layer, input, Store::F32, order)?;
        let store = self.residual_store(of)?;
        self.in_place(name, Op::Norm(self.norm(name), order), store, branch, residual, 0);
        Ok(())
    }

    /// `residual += fc2(gelu(fc1(norm2(residual))))`; in Swin V2
    /// `residual += norm2(fc2(gelu(fc1(residual))))`.
    fn mlp(&mut self, stage: &Stage, id: BlockId, residual: TensorId) -> Result<(), ModelError> {
        let name = format!("{id}.norm2");
        let order = Order::Tokens(stage.index);
        let x = self.branch_input(Layer::Fc1(id), &name, order, residual, Rows::Tokens(stage.index))?;
        let store = self.input_store(Layer::Fc2(id))?;
        let hidden = self.linear(Layer::Fc1(id), x, store, order)?;
        self.branch_output(Layer::Fc2(id), &name, (id, Branch::Mlp), hidden, residual, order)
    }

    fn merge(&mut self, stage: &Stage, residual: TensorId) -> Result<TensorId, ModelError> {
        let layer = Layer::Reduction(stage.index);
        let name = format!("layers.{}.downsample.norm", stage.index);
        let (next, stage_index) = (stage.index + 1, stage.index);
        let shape = (Rows::Tokens(next), 4 * stage.dim);
        let store = self.input_store(layer)?;
        if !self.model.config.post_norm() {
            let op = Op::Merge(Merge { norm: Some(self.norm(&name)), stage: stage_index });
            let x = self.stored(&name, op, store, residual, shape, 0);
            return self.linear(layer, x, Store::F32, Order::Tokens(next));
        }
        let op = Op::Merge(Merge { norm: None, stage: stage_index });
        let x = self.stored(&format!("{layer}.input"), op, store, residual, shape, 0);
        let merged = self.linear(layer, x, Store::F32, Order::Tokens(next))?;
        self.in_place(&name, Op::NormInPlace(self.norm(&name)), Store::F32, merged, merged, 0);
        Ok(merged)
    }

    /// The feature map of a stage whose tokens are `residual`: the tokens themselves, which no later step
    /// changes, or a norm of them.
    fn feature_map(&mut self, output: &StageOutput, residual: TensorId) {
        let &StageOutput { ref name, stage, .. } = output;
        let (rows, order) = (Rows::Tokens(stage), Order::Tokens(stage));
        let tensor = output.norm_name().map_or(residual, |norm| {
            let columns = self.plan.tensor(residual).columns;
            let op = Op::Norm(self.norm(&norm), order);
            self.stored(&norm, op, Store::F32, residual, (rows, columns), 0)
        });
        self.plan.outputs.push(Output { name: name.clone(), kind: OutputKind::Stage(stage), tensor });
    }

    fn head(&mut self, residual: TensorId) -> Result<(), ModelError> {
        let store = self.input_store(Layer::Head)?;
        let op = Op::Pool(self.norm("norm"));
        let pooled = self.stored("norm", op, store, residual, (Rows::One, self.model.config.features()), 0);
        let last = self.model.config.depths.len() - 1;
        let tensor = self.linear(Layer::Head, pooled, Store::F32, Order::Tokens(last))?;
        self.plan.outputs.push(Output { name: "logits".to_owned(), kind: OutputKind::Logits, tensor });
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

    /// A linear layer that adds to the residual.
    fn residual(
        &mut self,
        layer: Layer,
        of: (BlockId, Branch),
        input: TensorId,
        residual: TensorId,
        order: Order,
    ) -> Result<(), ModelError> {
        let store = self.residual_store(of)?;
        let linear = self.layer(layer, order)?;
        let macs = (linear.k * linear.n) as u64;
        self.in_place(&layer.to_string(), Op::Linear(linear), store, input, residual, macs);
        Ok(())
    }

    /// The sites of a residual addition.
    fn residual_store(&self, (id, of): (BlockId, Branch)) -> Result<Store, ModelError> {
        Ok(Store::Residual {
            branch: self.quantizer(Site::Add(id, of, Operand::Branch))?,
            shortcut: self.quantizer(Site::Add(id, of, Operand::Shortcut))?,
        })
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
        let macs = (linear.k * linear.n) as u64;
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
        let gelu = match layer {
            Layer::Fc1(block) => Some(self.model.gelu_of(block)),
            _ => None,
        };
        Ok(Linear { layer, n, k, weight, bias, output, gelu, order })
    }

    fn norm(&self, prefix: &str) -> Norm<'m> {
        let (gamma, beta) =
            (self.values(&format!("{prefix}.weight")), self.values(&format!("{prefix}.bias")));
        Norm { gamma, beta, eps: self.model.config.norm_eps as f32 }
    }

    fn values(&self, name: &str) -> Values<'m> {
        Values::of(&self.model.params[name])
    }

    fn tensor(&mut self, rows: Rows, columns: usize, element: Element) -> TensorId {
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
        (rows, columns): (Rows, usize),
        macs_per_row: u64,
    ) -> TensorId {
        let codes = matches!(store, Store::Codes(_) | Store::ChannelCodes(_));
        let element = if codes { Element::Code } else { Element::F32 };
        let output = self.tensor(rows, columns, element);
        self.in_place(name, op, store, input, output, macs_per_row);
        output
    }

    fn in_place(
        &mut self,
        name: &str,
        op: Op<'m>,
        store: Store,
        input: TensorId,
        output: TensorId,
        macs_per_row: u64,
    ) {
        self.plan.steps.push(Step { name: name.to_owned(), op, store, input, output, macs_per_row });
    }
}
