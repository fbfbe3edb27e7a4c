//! From a model and its recipe to a plan.

use swinq_kernels::{AttentionQuant, Probs, Quantizer};
use swinq_model::recipe::Kind;
use swinq_model::{BlockId, Half, Linear, ModelError, Operand, QuantizedModel, Site, Stage};

use super::{Element, Op, Order, Plan, Step, Store, TensorId, TensorSpec};

impl Plan {
    /// The plan of `model`.
    ///
    /// # Errors
    /// The model does not pass [`QuantizedModel::validate`].
    pub fn new(model: &QuantizedModel) -> Result<Plan, ModelError> {
        model.validate()?;
        let mut builder = Builder { model, plan: Plan { tensors: Vec::new(), steps: Vec::new() } };
        builder.network()?;
        Ok(builder.plan)
    }
}

struct Builder<'a> {
    model: &'a QuantizedModel,
    plan: Plan,
}

impl Builder<'_> {
    fn network(&mut self) -> Result<(), ModelError> {
        let config = &self.model.config;
        let size = config.image_size;
        let image = self.tensor(size * size, 3, Element::Pixel);
        let mut stream = self.patch_embed(image)?;
        for stage in config.stages() {
            for block in 0..stage.depth {
                self.attention(&stage, BlockId { stage: stage.index, block }, stream)?;
                self.mlp(&stage, BlockId { stage: stage.index, block }, stream)?;
            }
            if stage.merge {
                stream = self.merge(&stage, stream)?;
            }
        }
        self.head(stream)
    }

    fn patch_embed(&mut self, image: TensorId) -> Result<TensorId, ModelError> {
        let config = &self.model.config;
        let (tokens, k) = (config.grid().pow(2), 3 * config.patch_size.pow(2));
        let store = self.input_store(Linear::PatchEmbed)?;
        let patches = self.stored("patch_embed.patches", Op::Patches, store, image, (tokens, k))?;
        let stream = self.product(Linear::PatchEmbed, patches, Store::F32, Order::Tokens)?;
        if config.patch_norm {
            let params = "patch_embed.norm".to_owned();
            self.in_place(&params.clone(), Op::NormInPlace { params }, Store::F32, stream, stream);
        }
        if config.ape {
            self.in_place("absolute_pos_embed", Op::PositionEmbedding, Store::F32, stream, stream);
        }
        Ok(stream)
    }

    /// `stream += proj(attention(partition(norm1(stream))))`.
    fn attention(&mut self, stage: &Stage, id: BlockId, stream: TensorId) -> Result<(), ModelError> {
        let shift = stage.shift_of(id.block);
        let order = Order::Windows { stage: stage.index, shift };
        let rows = stage.padded * stage.padded;
        let norm = Op::Norm { params: format!("{id}.norm1"), order };
        let store = self.input_store(Linear::Qkv(id))?;
        let x = self.stored(&format!("{id}.norm1"), norm, store, stream, (rows, stage.dim))?;

        let quant = self.attention_quant(id)?;
        let store = match (quant.q, quant.k, quant.v) {
            (Some(q), Some(k), Some(v)) => Store::Codes(vec![q, k, v]),
            _ => Store::F32,
        };
        let qkv = self.product(Linear::Qkv(id), x, store, order)?;

        let store = self.input_store(Linear::Proj(id))?;
        let op = Op::Attention { block: id, shift, quant };
        let y = self.stored(&format!("{id}.attn"), op, store, qkv, (rows, stage.dim))?;
        let macs = 2 * rows * stage.window_tokens() * stage.dim;
        self.plan.steps.last_mut().expect("just pushed").macs = macs as u64;
        self.residual(Linear::Proj(id), id, Half::Attn, y, stream, order)
    }

    /// `stream += fc2(gelu(fc1(norm2(stream))))`.
    fn mlp(&mut self, stage: &Stage, id: BlockId, stream: TensorId) -> Result<(), ModelError> {
        let norm = Op::Norm { params: format!("{id}.norm2"), order: Order::Tokens };
        let store = self.input_store(Linear::Fc1(id))?;
        let x = self.stored(&format!("{id}.norm2"), norm, store, stream, (stage.tokens(), stage.dim))?;
        let store = self.input_store(Linear::Fc2(id))?;
        let hidden = self.product(Linear::Fc1(id), x, store, Order::Tokens)?;
        self.residual(Linear::Fc2(id), id, Half::Mlp, hidden, stream, Order::Tokens)
    }

    fn merge(&mut self, stage: &Stage, stream: TensorId) -> Result<TensorId, ModelError> {
        let linear = Linear::Reduction(stage.index);
        let store = self.input_store(linear)?;
        let shape = (stage.merged_grid().pow(2), 4 * stage.dim);
        let name = format!("layers.{}.downsample.norm", stage.index);
        let x = self.stored(&name, Op::Merge { stage: stage.index }, store, stream, shape)?;
        self.product(linear, x, Store::F32, Order::Tokens)
    }

    fn head(&mut self, stream: TensorId) -> Result<(), ModelError> {
        let store = self.input_store(Linear::Head)?;
        let pooled = self.stored("norm", Op::Pool, store, stream, (1, self.model.config.features()))?;
        self.product(Linear::Head, pooled, Store::F32, Order::Tokens)?;
        Ok(())
    }

    /// How the producer of a product's input stores it.
    fn input_store(&self, linear: Linear) -> Result<Store, ModelError> {
        Ok(match self.quantizer(Site::Input(linear))? {
            None => Store::F32,
            Some(q) if self.model.is_int8(linear) => Store::Codes(vec![q]),
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

    fn residual(
        &mut self,
        linear: Linear,
        id: BlockId,
        half: Half,
        input: TensorId,
        stream: TensorId,
        order: Order,
    ) -> Result<(), ModelError> {
        let store = Store::Residual {
            branch: self.quantizer(Site::Add(id, half, Operand::Branch))?,
            shortcut: self.quantizer(Site::Add(id, half, Operand::Shortcut))?,
        };
        let op = self.product_op(linear, order)?;
        self.in_place(&linear.to_string(), op, store, input, stream);
        self.count_product(linear, input);
        Ok(())
    }

    fn product(
        &mut self,
        linear: Linear,
        input: TensorId,
        store: Store,
        order: Order,
    ) -> Result<TensorId, ModelError> {
        let op = self.product_op(linear, order)?;
        let rows = self.plan.tensor(input).rows;
        let columns = self.weight_rows(linear);
        let output = self.stored(&linear.to_string(), op, store, input, (rows, columns))?;
        self.count_product(linear, input);
        Ok(output)
    }

    fn product_op(&self, linear: Linear, order: Order) -> Result<Op, ModelError> {
        Ok(Op::Product {
            linear,
            int8: self.model.is_int8(linear),
            output: self.quantizer(Site::Output(linear))?,
            gelu: matches!(linear, Linear::Fc1(_)),
            order,
        })
    }

    fn weight_rows(&self, linear: Linear) -> usize {
        match &self.model.params[&linear.weight_name()] {
            swinq_model::quantized::Param::Float(tensor) => tensor.shape[0],
            swinq_model::quantized::Param::Int8(weight) => weight.shape[0],
        }
    }

    fn count_product(&mut self, linear: Linear, input: TensorId) {
        let TensorSpec { rows, columns, .. } = *self.plan.tensor(input);
        self.plan.steps.last_mut().expect("just pushed").macs =
            (rows * columns * self.weight_rows(linear)) as u64;
    }

    fn tensor(&mut self, rows: usize, columns: usize, element: Element) -> TensorId {
        self.plan.tensors.push(TensorSpec { rows, columns, element });
        TensorId(self.plan.tensors.len() - 1)
    }

    /// Pushes an op that writes a new tensor.
    fn stored(
        &mut self,
        name: &str,
        op: Op,
        store: Store,
        input: TensorId,
        (rows, columns): (usize, usize),
    ) -> Result<TensorId, ModelError> {
        let element = if matches!(store, Store::Codes(_)) { Element::Code } else { Element::F32 };
        let output = self.tensor(rows, columns, element);
        self.in_place(name, op, store, input, output);
        Ok(output)
    }

    fn in_place(&mut self, name: &str, op: Op, store: Store, input: TensorId, output: TensorId) {
        self.plan.steps.push(Step { name: name.to_owned(), op, store, input, output, macs: 0 });
    }
}
