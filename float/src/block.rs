//! One transformer block, and the linear layer with its sites.

use candle_core::Tensor;

use crate::Sites;
use crate::attention::attention;
use crate::error::FloatError;
use crate::ops::Ops;
use crate::weights::{BlockWeights, LinearWeights, Windows};
use swinq_model::arch::Stage;
use swinq_model::site::{BlockId, Half, Operand, Site};

/// A linear layer on `x` `[rows, in]`, through its sites.
pub(super) fn linear(x: Tensor, layer: &LinearWeights, sites: &mut dyn Sites) -> Result<Tensor, FloatError> {
    let x = sites.activation(Site::Input(layer.linear), x)?;
    sites.linear(layer, &x)
}

/// The data that the blocks of one stage and one shift share.
pub(super) struct BlockContext<'a> {
    pub stage: &'a Stage,
    /// Factor of `q k^T`.
    pub scale: f32,
    pub windows: &'a Windows,
    /// Rows of the bias table, `[n * n]`.
    pub relative_index: &'a Tensor,
    pub ops: &'a Ops,
}

/// The attention branch of a block, added to the residual stream `[images * tokens, c]`.
pub(super) fn attention_half(
    x: Tensor,
    weights: &BlockWeights,
    context: &BlockContext,
    sites: &mut dyn Sites,
) -> Result<Tensor, FloatError> {
    let ops = context.ops;
    let input = ops.norm_then_gather(&x, &weights.norm1, &context.windows.partition)?;
    let branch = attention(input, weights, context, sites)?;
    residual(x, branch, weights.id, Half::Attn, ops, sites)
}

/// The MLP of a block, added to the residual stream `[images * tokens, c]`.
pub(super) fn mlp_half(
    x: Tensor,
    weights: &BlockWeights,
    context: &BlockContext,
    sites: &mut dyn Sites,
) -> Result<Tensor, FloatError> {
    let ops = context.ops;
    let hidden = linear(ops.norm(&x, &weights.norm2)?, &weights.fc1, sites)?;
    let branch = linear(hidden, &weights.fc2, sites)?;
    let x = residual(x, branch, weights.id, Half::Mlp, ops, sites)?;
    sites.block_output(weights.id, &x)?;
    Ok(x)
}

fn residual(
    shortcut: Tensor,
    branch: Tensor,
    id: BlockId,
    half: Half,
    ops: &Ops,
    sites: &mut dyn Sites,
) -> Result<Tensor, FloatError> {
    let branch = sites.activation(Site::Add(id, half, Operand::Branch), branch)?;
    let shortcut = sites.activation(Site::Add(id, half, Operand::Shortcut), shortcut)?;
    Ok(ops.add(&shortcut, &branch)?)
}
