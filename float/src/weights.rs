//! A Swin's parameters as tensors, and the index maps of its stages.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use candle_core::{Device, Tensor};

use crate::attention::expand_bias;
use crate::error::FloatError;
use crate::ops::{Gather, Norm, Ops, taped};
use crate::packed::{PackedAttention, PackedLinear, Packing};
use swinq_model::ModelError;
use swinq_model::arch::{Stage, SwinConfig};
use swinq_model::site::{BlockId, Linear};

/// Added to the logits of tokens that must not attend to each other.
const MASKED: f32 = -100.0;

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
            self.packed = Some(packed.with_bias(&self.weight, &bias, self.gelu)?);
        }
        self.bias = Some(bias);
        Ok(())
    }

    /// The product of `x` `[rows, in]` with `weight`, which is the result of the weight's site. The output
    /// site takes the product.
    ///
    /// # Errors
    /// Candle's errors.
    pub fn before_bias(&self, x: &Tensor, weight: &Tensor) -> candle_core::Result<Tensor> {
        let Some(packed) = &self.packed else {
            return match &self.ops {
                Ops::Taped(tape) => taped::linear(tape, x, weight, None),
                _ => x.matmul(&weight.flatten_from(1)?.t()?),
            };
        };
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
        match &self.ops {
            Ops::Taped(tape) => {
                let y = taped::linear(tape, x, weight, self.bias.as_ref())?;
                if self.gelu { self.ops.gelu(&y) } else { Ok(y) }
            }
            _ => self.finish(self.before_bias(x, weight)?),
        }
    }

    /// The rest of the layer after its output site: adds the bias to `y` `[rows, out]` and applies GELU.
    ///
    /// # Errors
    /// Candle's errors.
    pub fn finish(&self, y: Tensor) -> candle_core::Result<Tensor> {
        let y = match &self.bias {
            Some(bias) => self.ops.add_bias(&y, bias)?,
            None => y,
        };
        if self.gelu { self.ops.gelu(&y) } else { Ok(y) }
    }
}

pub(super) struct BlockWeights {
    pub id: BlockId,
    pub norm1: Norm,
    pub norm2: Norm,
    /// `[(2 window - 1)^2, heads]`.
    pub bias_table: Tensor,
    /// The attention as one kernel, in a forward pass for inference on the host.
    pub attention: Option<PackedAttention>,
    pub qkv: LinearWeights,
    pub proj: LinearWeights,
    pub fc1: LinearWeights,
    pub fc2: LinearWeights,
}

pub(super) struct StageWeights {
    pub stage: Stage,
    pub blocks: Vec<BlockWeights>,
    pub merge: Option<(Norm, LinearWeights)>,
}

/// The index maps of one stage for one shift.
pub(super) struct Windows {
    pub partition: Gather,
    pub reverse: Gather,
    /// `[windows, n, n]`.
    pub mask: Option<Tensor>,
}

impl Windows {
    pub fn new(stage: &Stage, shift: usize, device: &Device) -> Result<Windows, FloatError> {
        let partition = Gather::new(stage.tokens(), 1, stage.partition(shift));
        let reverse = partition.inverse();
        let mask = stage.shift_regions(shift).map(|regions| mask(stage, &regions, device)).transpose()?;
        Ok(Windows { partition, reverse, mask })
    }
}

fn mask(stage: &Stage, regions: &[u8], device: &Device) -> Result<Tensor, FloatError> {
    let n = stage.window_tokens();
    let mut mask = Vec::with_capacity(regions.len() * n);
    for window in regions.chunks_exact(n) {
        for a in window {
            mask.extend(window.iter().map(|b| if a == b { 0.0 } else { MASKED }));
        }
    }
    Ok(Tensor::from_vec(mask, (stage.windows(), n, n), device)?)
}

/// Looks up parameters by name.
pub(super) struct Source<'a> {
    pub config: &'a SwinConfig,
    pub tensors: &'a BTreeMap<String, Tensor>,
    /// The preparation of linear layers.
    pub packing: Packing,
}

impl Source<'_> {
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
        let packed = self.packing.pack(&weight, bias.as_ref(), gelu)?;
        Ok(LinearWeights {
            linear,
            weight,
            bias,
            gelu,
            packed,
            without_bias: OnceLock::new(),
            ops: self.packing.ops.clone(),
        })
    }

    fn block(&self, stage: &Stage, id: BlockId) -> Result<BlockWeights, FloatError> {
        let bias_table = self.tensor(&format!("{id}.attn.relative_position_bias_table"))?;
        let bias = || {
            let index: Vec<u32> = stage.relative_position_index().into_iter().map(|i| i as u32).collect();
            expand_bias(&bias_table, &Tensor::new(index, bias_table.device())?, stage)
        };
        let (shift, scale) = (stage.shift_of(id.block), self.config.attention_scale(stage));
        Ok(BlockWeights {
            id,
            attention: self.packing.pack_attention(stage, shift, scale, bias)?,
            norm1: self.norm(&format!("{id}.norm1"))?,
            norm2: self.norm(&format!("{id}.norm2"))?,
            bias_table,
            qkv: self.linear(Linear::Qkv(id))?,
            proj: self.linear(Linear::Proj(id))?,
            fc1: self.linear(Linear::Fc1(id))?,
            fc2: self.linear(Linear::Fc2(id))?,
        })
    }

    pub fn stage(&self, stage: Stage) -> Result<StageWeights, FloatError> {
        let index = stage.index;
        let blocks = (0..stage.depth).map(|block| self.block(&stage, BlockId { stage: index, block }));
        let blocks = blocks.collect::<Result<_, _>>()?;
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
