//! One transformer block, and the linear layer with its sites.

use candle_core::Tensor;

use crate::Sites;
use crate::attention::attention;
use crate::error::FloatError;
use crate::maps::Windows;
use crate::ops::Ops;
use crate::weights::{BlockWeights, LinearWeights};
use swinq_model::arch::Stage;
use swinq_model::site::{Linear, Operand, Site};

/// A linear layer on `x` `[rows, in]`, through its sites.
pub(super) fn linear(x: Tensor, layer: &LinearWeights, sites: &mut dyn Sites) -> Result<Tensor, FloatError> {
    let x = sites.activation(Site::Input(layer.linear), x)?;
    sites.linear(layer, &x)
}

/// The data that the blocks of one stage and one shift share.
pub(super) struct BlockContext<'a> {
    pub stage: &'a Stage,
    /// Whether the norms follow the branches, and queries and keys are normalised (Swin V2).
    pub post_norm: bool,
    pub windows: &'a Windows,
    /// Rows of the bias table, `[n * n]`.
    pub relative_index: &'a Tensor,
    /// The inputs of the MLP of the position bias, `[bias_rows, 2]`.
    pub coordinates: &'a Tensor,
    pub ops: &'a Ops,
}

/// The attention branch of a block, added to the residual stream `[images * tokens, c]`.
pub(super) fn attention_branch(
    x: Tensor,
    weights: &BlockWeights,
    context: &BlockContext,
    sites: &mut dyn Sites,
) -> Result<Tensor, FloatError> {
    let ops = context.ops;
    let partition = &context.windows.partition;
    let branch = if context.post_norm {
        ops.norm(&attention(ops.gather(&x, partition)?, weights, context, sites)?, &weights.norm1)?
    } else {
        attention(ops.norm_then_gather(&x, &weights.norm1, partition)?, weights, context, sites)?
    };
    residual(x, branch, Linear::Proj(weights.id), ops, sites)
}

/// The MLP of a block, added to the residual stream `[images * tokens, c]`.
pub(super) fn mlp_branch(
    x: Tensor,
    weights: &BlockWeights,
    context: &BlockContext,
    sites: &mut dyn Sites,
) -> Result<Tensor, FloatError> {
    let ops = context.ops;
    let input = if context.post_norm { x.clone() } else { ops.norm(&x, &weights.norm2)? };
    let hidden = linear(input, &weights.fc1, sites)?;
    let branch = linear(hidden, &weights.fc2, sites)?;
    let branch = if context.post_norm { ops.norm(&branch, &weights.norm2)? } else { branch };
    residual(x, branch, Linear::Fc2(weights.id), ops, sites)
}

/// Adds `branch`, which the layer `end` ends, to `shortcut`. The site of the branch is visited also where
/// nothing is quantized: training drops branches there.
fn residual(
    shortcut: Tensor,
    branch: Tensor,
    end: Linear,
    ops: &Ops,
    sites: &mut dyn Sites,
) -> Result<Tensor, FloatError> {
    let (id, of) = end.block().zip(end.branch()).expect("the layer ends a branch of a block");
    let branch = sites.activation(Site::Add(id, of, Operand::Branch), branch)?;
    let shortcut = sites.activation(Site::Add(id, of, Operand::Shortcut), shortcut)?;
    let sum = ops.add(&shortcut, &branch)?;
    sites.residual(end, &sum)?;
    Ok(sum)
}
