//! Window attention with a relative position bias.

use candle_core::Tensor;

use super::Sites;
use super::block::{BlockContext, product};
use super::weights::BlockWeights;
use crate::error::ModelError;
use crate::site::Site;

/// From normalised windows `[images * windows * n, c]` to the branch in token order, `[images * tokens, c]`.
pub(super) fn attention(
    input: Tensor,
    weights: &BlockWeights,
    context: &BlockContext,
    sites: &mut dyn Sites,
) -> Result<Tensor, ModelError> {
    let (ops, stage, id) = (context.ops, context.stage, weights.id);
    let qkv = product(input, &weights.qkv, sites)?;
    let heads = ops.split_heads(&qkv, weights.qkv.bias.as_ref(), stage.heads, stage.window_tokens())?;
    let q = sites.activation(Site::Q(id), heads.get(0)?)?;
    let k = sites.activation(Site::K(id), heads.get(1)?)?;
    let v = sites.activation(Site::V(id), heads.get(2)?)?;
    let scores = sites.activation(Site::Scores(id), ops.scores(&q, &k)?)?;
    let bias = relative_bias(weights, context)?;
    let logits = ops.logits(&scores, context.scale, &bias, context.windows.mask.as_ref())?;
    let mixed = ops.merge_heads(&sites.attend(Site::Probs(id), logits, v)?)?;
    let branch = product(mixed, &weights.proj, sites)?;
    Ok(ops.gather_add_bias(&branch, &context.windows.reverse, weights.proj.bias()?)?)
}

/// `[heads, n, n]`.
fn relative_bias(weights: &BlockWeights, context: &BlockContext) -> Result<Tensor, ModelError> {
    let n = context.stage.window_tokens();
    let rows = weights.bias_table.index_select(context.relative_index, 0)?;
    Ok(rows.t()?.contiguous()?.reshape((context.stage.heads, n, n))?)
}
