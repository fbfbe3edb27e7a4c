//! A Swin's parameters as tensors.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use candle_core::{Device, Tensor};
use rayon::prelude::*;
use swinq_kernels::Cpu;
use swinq_numerics::Gelu;

use crate::error::FloatError;
use crate::ops::taped::FakeHidden;
use crate::ops::{Compute, Norm, Ops, taped};
use crate::packed::{PackedAttention, PackedLinear};
use swinq_model::ModelError;
use swinq_model::arch::{Stage, SwinConfig, SwinVersion};
use swinq_model::position::AttentionParameters;
use swinq_model::site::{BlockId, Linear};
use swinq_model::tensor::StateDict;

/// The parameters of a linear layer.
pub struct LinearWeights {
    /// The layer.
    pub linear: Linear,
    /// The weight, in its own shape, `[out, ...]`.
    pub weight: Tensor,
    /// The bias, `[out]`, if the layer has one.
    pub bias: Option<Tensor>,
    /// Whether GELU follows the bias.
    pub gelu: bool,
    /// Whether the bias has a part that is not trained: the keys of a Swin V2 have none.
    keys_without_bias: bool,
    packed: Option<PackedLinear>,
    /// The layer without bias and GELU, packed when a site first watches its output.
    without_bias: OnceLock<PackedLinear>,
    ops: Ops,
}

impl LinearWeights {
    /// The packed layer, in a forward pass for inference on the host.
    pub(super) fn packed(&self) -> Option<&PackedLinear> {
        self.packed.as_ref()
    }

    /// Replaces the bias.
    pub(super) fn set_bias(&mut self, bias: &[f32]) -> candle_core::Result<()> {
        let old = self.bias.as_ref().expect("the layer has a bias");
        assert_eq!(old.dims(), [bias.len()], "a bias for every output of {}", self.linear);
        let bias = Tensor::from_slice(bias, bias.len(), old.device())?;
        if let Some(packed) = &self.packed {
            self.packed = Some(packed.with_bias(&self.weight, &bias, self.gelu.then_some(Gelu::Erf))?);
        }
        self.bias = Some(bias);
        Ok(())
    }

    /// The bias, with gradients for what is trained.
    fn trained_bias(&self) -> candle_core::Result<Option<Tensor>> {
        match (&self.bias, &self.ops.tape) {
            (Some(bias), Some(_)) if self.keys_without_bias => {
                taped::without_key_gradient(&self.ops, bias).map(Some)
            }
            (Some(bias), None) if self.keys_without_bias && bias.track_op() => {
                let c = bias.elem_count() / 3;
                let part = |which: usize| bias.narrow(0, which * c, c);
                Tensor::cat(&[part(0)?, part(1)?.detach(), part(2)?], 0).map(Some)
            }
            (bias, _) => Ok(bias.clone()),
        }
    }

    /// The product of `x` `[rows, in]` with `weight`, which is the result of the weight's site. The output
    /// site takes the product.
    ///
    /// # Errors
    /// Candle's errors.
    pub fn before_bias(&self, x: &Tensor, weight: &Tensor) -> candle_core::Result<Tensor> {
        let Some(packed) = &self.packed else { return taped::linear(&self.ops, x, weight, None) };
        if weight.id() != self.weight.id() {
            return packed.with_weight(weight)?.run(x);
        }
        if self.without_bias.get().is_none() {
            // Another thread may have set it in the meantime; then this copy is dropped.
            let _ = self.without_bias.set(packed.with_weight(weight)?);
        }
        self.without_bias.get().expect("set above").run(x)
    }

    /// The whole layer on `x` `[rows, in]`: product, bias and GELU. `weight` is the result of the weight's
    /// site.
    ///
    /// # Errors
    /// Candle's errors.
    pub fn apply(&self, x: &Tensor, weight: &Tensor) -> candle_core::Result<Tensor> {
        if let Some(hidden) = self.apply_hidden(x, weight, &FakeHidden::Off)? {
            return Ok(hidden);
        }
        if self.packed.is_some() {
            return self.finish(self.before_bias(x, weight)?);
        }
        let y = taped::linear(&self.ops, x, weight, self.trained_bias()?.as_ref())?;
        if self.gelu { self.ops.gelu(&y) } else { Ok(y) }
    }

    /// The whole layer as [`LinearWeights::apply`] computes it, and behind its GELU the fake quantization of
    /// the next layer's input, on CUDA; `None` for layers without GELU and elsewhere.
    ///
    /// # Errors
    /// Candle's errors.
    pub fn apply_hidden(
        &self,
        x: &Tensor,
        weight: &Tensor,
        fake: &FakeHidden,
    ) -> candle_core::Result<Option<Tensor>> {
        let Some(bias) = self.bias.as_ref().filter(|_| self.gelu && self.ops.compute.is_cuda()) else {
            return Ok(None);
        };
        let product = taped::linear(&self.ops, x, weight, None)?;
        taped::hidden(&self.ops, &product, bias, fake).map(Some)
    }

    /// The rest of the layer after its output site: adds the bias to `y` `[rows, out]` and applies GELU.
    ///
    /// # Errors
    /// Candle's errors.
    pub fn finish(&self, y: Tensor) -> candle_core::Result<Tensor> {
        let y = self.add_bias(y)?;
        if self.gelu { self.ops.gelu(&y) } else { Ok(y) }
    }

    /// Adds the bias to `y` `[rows, out]`.
    pub(super) fn add_bias(&self, y: Tensor) -> candle_core::Result<Tensor> {
        match self.trained_bias()? {
            Some(bias) => self.ops.add_rows(&y, &bias),
            None => Ok(y),
        }
    }
}

pub(super) struct BlockWeights {
    pub id: BlockId,
    pub norm1: Norm,
    pub norm2: Norm,
    pub factors: Factors,
    pub position: Position,
    /// The attention of Swin V1 as one kernel, in a forward pass for inference on the host.
    pub attention: Option<PackedAttention>,
    pub qkv: LinearWeights,
    pub proj: LinearWeights,
    pub fc1: LinearWeights,
    pub fc2: LinearWeights,
}

/// The factors of `q k^T`.
pub(super) enum Factors {
    /// One for each head.
    Fixed(Vec<f32>),
    /// The logarithms of the factors, `[heads, 1, 1]`, which are trained (Swin V2).
    Learned(Tensor),
}

/// The relative position bias.
pub(super) enum Position {
    /// A table, `[(2 window - 1)^2, heads]`.
    Table(Tensor),
    /// The MLP of a Swin V2 that is trained.
    Mlp(PositionMlp),
}

/// An MLP that gives the table of relative position biases: a linear layer, ReLU, and a linear layer without
/// bias.
pub(super) struct PositionMlp {
    /// `[512, 2]`.
    pub weight: Tensor,
    /// `[512]`.
    pub bias: Tensor,
    /// `[heads, 512]`.
    pub output: Tensor,
}

pub(super) struct StageWeights {
    pub stage: Stage,
    pub blocks: Vec<BlockWeights>,
    pub merge: Option<(Norm, LinearWeights)>,
}

/// Looks up parameters by name.
pub(super) struct Source<'a> {
    pub config: &'a SwinConfig,
    pub tensors: &'a BTreeMap<String, Tensor>,
    /// The same parameters in host memory, if they do not change: then all that follows from them is computed
    /// once.
    pub fixed: Option<&'a StateDict>,
    pub ops: Ops,
    /// Where the network runs.
    pub device: Device,
}

impl Source<'_> {
    /// The instruction set of packed layers. Layers are packed on the host only, if the parameters do not
    /// change.
    fn packs(&self) -> Option<Cpu> {
        match self.ops.compute {
            Compute::Host(cpu) => self.fixed.map(|_| cpu),
            _ => None,
        }
    }

    pub fn tensor(&self, name: &str) -> Result<Tensor, FloatError> {
        self.tensors.get(name).cloned().ok_or_else(|| {
            let problem = format!("is missing; {} needs it", self.config.name);
            ModelError::tensor(name, problem).into()
        })
    }

    pub fn norm(&self, name: &str) -> Result<Norm, FloatError> {
        Ok(Norm {
            weight: self.tensor(&format!("{name}.weight"))?,
            bias: self.tensor(&format!("{name}.bias"))?,
            eps: self.config.norm_eps,
        })
    }

    pub fn linear(&self, linear: Linear) -> Result<LinearWeights, FloatError> {
        let has_bias = match linear {
            Linear::Qkv(_) => self.config.qkv_bias,
            Linear::Reduction(_) => false,
            _ => true,
        };
        let weight = self.tensor(&linear.weight_name())?;
        let bias = has_bias.then(|| self.tensor(&linear.bias_name())).transpose()?;
        let gelu = matches!(linear, Linear::Fc1(_));
        let pack = |cpu| PackedLinear::new(cpu, &weight, bias.as_ref(), None, gelu.then_some(Gelu::Erf));
        let packed = self.packs().map(pack).transpose()?;
        Ok(LinearWeights {
            linear,
            weight,
            bias,
            gelu,
            keys_without_bias: self.config.version == SwinVersion::V2 && matches!(linear, Linear::Qkv(_)),
            packed,
            without_bias: OnceLock::new(),
            ops: self.ops.clone(),
        })
    }

    fn block(&self, stage: &Stage, id: BlockId) -> Result<BlockWeights, FloatError> {
        let (factors, position) = self.attention(stage, id)?;
        Ok(BlockWeights {
            id,
            attention: self.packed_attention(stage, id, &factors, &position)?,
            factors,
            position,
            norm1: self.norm(&format!("{id}.norm1"))?,
            norm2: self.norm(&format!("{id}.norm2"))?,
            qkv: self.linear(Linear::Qkv(id))?,
            proj: self.linear(Linear::Proj(id))?,
            fc1: self.linear(Linear::Fc1(id))?,
            fc2: self.linear(Linear::Fc2(id))?,
        })
    }

    fn attention(&self, stage: &Stage, id: BlockId) -> Result<(Factors, Position), FloatError> {
        let tensor = |name: &str| self.tensor(&format!("{id}.attn.{name}"));
        if self.config.version == SwinVersion::V1 {
            let factors = vec![self.config.attention_scale(stage); stage.heads];
            return Ok((Factors::Fixed(factors), Position::Table(tensor("relative_position_bias_table")?)));
        }
        if let Some(fixed) = self.fixed {
            let found = AttentionParameters::of(self.config, stage, id, |name| &fixed[name].data);
            let shape = (found.table.len() / stage.heads, stage.heads);
            let table = Tensor::from_slice(&found.table, shape, &self.device)?;
            return Ok((Factors::Fixed(found.scales), Position::Table(table)));
        }
        let mlp = PositionMlp {
            weight: tensor("cpb_mlp.0.weight")?,
            bias: tensor("cpb_mlp.0.bias")?,
            output: tensor("cpb_mlp.2.weight")?,
        };
        Ok((Factors::Learned(tensor("logit_scale")?), Position::Mlp(mlp)))
    }

    fn packed_attention(
        &self,
        stage: &Stage,
        id: BlockId,
        factors: &Factors,
        position: &Position,
    ) -> Result<Option<PackedAttention>, FloatError> {
        let (SwinVersion::V1, Some(cpu), Factors::Fixed(scales), Position::Table(table)) =
            (self.config.version, self.packs(), factors, position)
        else {
            return Ok(None);
        };
        let index: Vec<u32> = stage.relative_position_index().into_iter().map(|i| i as u32).collect();
        let index = Tensor::new(index, table.device())?;
        let bias = taped::relative_bias(&self.ops, table, &index, stage.window_tokens())?;
        Ok(Some(PackedAttention::new(cpu, stage, id.block % 2 == 1, scales, &bias)?))
    }

    pub fn stage(&self, stage: Stage) -> Result<StageWeights, FloatError> {
        let index = stage.index;
        let block = |block| self.block(&stage, BlockId { stage: index, block });
        let blocks: Vec<Result<_, _>> = (0..stage.depth).into_par_iter().map(block).collect();
        let blocks = blocks.into_iter().collect::<Result<_, _>>()?;
        let merge = match stage.merge {
            true => Some((
                self.norm(&format!("layers.{index}.downsample.norm"))?,
                self.linear(Linear::Reduction(index))?,
            )),
            false => None,
        };
        Ok(StageWeights { stage, blocks, merge })
    }
}
