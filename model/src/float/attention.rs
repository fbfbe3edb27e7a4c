//! Window attention with a relative position bias.

use candle_core::Tensor;

use super::Sites;
use super::block::{BlockContext, product};
use super::ops::Ops;
use super::weights::BlockWeights;
use crate::error::ModelError;
use crate::site::BlockId;

/// The attention of one block, as a forward hands it to its sites.
pub struct Attention<'a> {
    /// The block.
    pub block: BlockId,
    /// Queries `[windows, heads, n, head_dim]` of all images, after their bias.
    pub q: Tensor,
    /// Keys, likewise.
    pub k: Tensor,
    /// Values, likewise.
    pub v: Tensor,
    /// Factor of `q k^T`.
    pub scale: f32,
    /// Relative position bias, `[heads, n, n]`.
    pub bias: Tensor,
    /// Added to the logits of each window of an image, `[windows of an image, n, n]`.
    pub mask: Option<&'a Tensor>,
    ops: Ops,
}

impl Attention<'_> {
    /// `q k^T` of what the sites made of queries and keys: `[windows, heads, n, n]`.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn scores(&self, q: &Tensor, k: &Tensor) -> Result<Tensor, ModelError> {
        Ok(self.ops.scores(q, k)?)
    }

    /// `scores * scale + bias + mask`.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn logits(&self, scores: &Tensor) -> Result<Tensor, ModelError> {
        Ok(self.ops.logits(scores, self.scale, &self.bias, self.mask)?)
    }
}

/// From normalised windows `[images * windows * n, c]` to the branch in token order, `[images * tokens, c]`.
pub(super) fn attention(
    input: Tensor,
    weights: &BlockWeights,
    context: &BlockContext,
    sites: &mut dyn Sites,
) -> Result<Tensor, ModelError> {
    let (ops, stage) = (context.ops, context.stage);
    let qkv = product(input, &weights.qkv, sites)?;
    let heads = ops.split_heads(&qkv, stage.heads, stage.window_tokens())?;
    let [q, k, v] = [heads.get(0)?, heads.get(1)?, heads.get(2)?];
    let (bias, mask) = (relative_bias(weights, context)?, context.windows.mask.as_ref());
    let attention = Attention { block: weights.id, q, k, v, scale: context.scale, bias, mask, ops };
    let mixed = ops.merge_heads(&sites.attention(&attention)?)?;
    let branch = product(mixed, &weights.proj, sites)?;
    Ok(ops.gather(&branch, &context.windows.reverse)?)
}

/// `[heads, n, n]`.
fn relative_bias(weights: &BlockWeights, context: &BlockContext) -> Result<Tensor, ModelError> {
    let n = context.stage.window_tokens();
    let rows = weights.bias_table.index_select(context.relative_index, 0)?;
    Ok(rows.t()?.contiguous()?.reshape((context.stage.heads, n, n))?)
}
