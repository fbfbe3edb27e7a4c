//! One transformer block, and the weighted product that every part of the network shares.

use candle_core::Tensor;

use super::Sites;
use super::attention::attention;
use super::ops::Ops;
use super::weights::{BlockWeights, LinearWeights, Windows};
use crate::arch::Stage;
use crate::error::ModelError;
use crate::site::{BlockId, Half, Operand, Site};

/// The product of `x` `[rows, in]` with a weight, before its bias, through the product's three sites.
pub(super) fn product(
    x: Tensor,
    linear: &LinearWeights,
    sites: &mut dyn Sites,
) -> Result<Tensor, ModelError> {
    let x = sites.activation(Site::Input(linear.linear), x)?;
    multiply(&x, linear, sites)
}

/// The product of what an input site returned, through the sites of weight and output.
pub(super) fn multiply(
    x: &Tensor,
    linear: &LinearWeights,
    sites: &mut dyn Sites,
) -> Result<Tensor, ModelError> {
    let weight = sites.weight(Site::Weight(linear.linear), &linear.weight)?;
    let y = x.matmul(&weight.flatten_from(1)?.t()?)?;
    sites.activation(Site::Output(linear.linear), y)
}

/// `y` `[rows, out]` plus the product's bias, where it has one.
pub(super) fn add_bias(y: Tensor, linear: &LinearWeights, ops: Ops) -> Result<Tensor, ModelError> {
    match &linear.bias {
        Some(bias) => Ok(ops.add_bias(&y, bias)?),
        None => Ok(y),
    }
}

/// What the blocks of one stage and one shift share.
pub(super) struct BlockContext<'a> {
    pub stage: &'a Stage,
    /// Scale of `q k^T`.
    pub scale: f32,
    pub windows: &'a Windows,
    /// `[n * n]` rows into the bias table.
    pub relative_index: &'a Tensor,
    pub ops: Ops,
}

/// One block: `[images * tokens, c]` to the same.
pub(super) fn block(
    x: Tensor,
    weights: &BlockWeights,
    context: &BlockContext,
    sites: &mut dyn Sites,
) -> Result<Tensor, ModelError> {
    let ops = context.ops;
    let input = ops.norm_then_gather(&x, &weights.norm1, &context.windows.partition)?;
    let branch = attention(input, weights, context, sites)?;
    let x = residual(x, branch, weights.id, Half::Attn, ops, sites)?;
    let hidden = product(ops.norm(&x, &weights.norm2)?, &weights.fc1, sites)?;
    let hidden = ops.add_bias_gelu(&hidden, weights.fc1.bias()?)?;
    let branch = add_bias(product(hidden, &weights.fc2, sites)?, &weights.fc2, ops)?;
    residual(x, branch, weights.id, Half::Mlp, ops, sites)
}

fn residual(
    shortcut: Tensor,
    branch: Tensor,
    id: BlockId,
    half: Half,
    ops: Ops,
    sites: &mut dyn Sites,
) -> Result<Tensor, ModelError> {
    let branch = sites.activation(Site::Add(id, half, Operand::Branch), branch)?;
    let shortcut = sites.activation(Site::Add(id, half, Operand::Shortcut), shortcut)?;
    Ok(ops.add(&shortcut, &branch)?)
}
