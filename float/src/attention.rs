//! Window attention with relative position bias, as sites see it.

use std::borrow::Cow;

use candle_core::Tensor;
use swinq_model::arch::Stage;
use swinq_model::site::{BlockId, Site};
use swinq_model::{ModelError, SwinVersion, position};
use swinq_numerics::HeadScores;

use crate::Sites;
use crate::block::{BlockContext, linear};
use crate::error::FloatError;
use crate::ops::taped::{self, AttentionSites};
use crate::ops::{Ops, composed};
use crate::packed::PackedAttention;
use crate::weights::{BlockWeights, Factors, Position};

/// The operands of one block's attention, which a forward pass hands to its sites.
pub struct Attention<'a> {
    /// The block.
    pub block: BlockId,
    /// The output of the qkv layer for the windows of all images: `[windows * n, 3 * heads * head_dim]`.
    pub qkv: Tensor,
    /// Relative position bias, `[heads, n, n]`.
    pub bias: Tensor,
    /// The mask that is added to the logits, `[windows of an image, n, n]`; `None` without a shift.
    pub mask: Option<&'a Tensor>,
    /// The number of the mask of each window of an image.
    masks: &'a [u8],
    factors: &'a Factors,
    /// Whether queries and keys are normalised (Swin V2).
    cosine: bool,
    ops: &'a Ops,
    packed: Option<&'a PackedAttention>,
}

impl Attention<'_> {
    /// Queries, keys and values, the tensors of their sites: `[windows, heads, n, head_dim]` each. They are parts of
    /// [`Attention::qkv`]; in Swin V2 queries and keys are normalised to length 1.
    ///
    /// # Errors
    /// Shapes that do not fit, or a forward pass on a tape, where attention is one operation.
    pub fn split(&self) -> Result<[Tensor; 3], FloatError> {
        let (heads, n, _) = self.bias.dims3()?;
        let parts = self.ops.split_heads(&self.qkv, heads, n)?;
        let [q, k, v] = [parts.get(0)?, parts.get(1)?, parts.get(2)?];
        Ok(if self.cosine { [self.ops.normalize(&q)?, self.ops.normalize(&k)?, v] } else { [q, k, v] })
    }

    /// The factor of `q k^T` for each head, `[heads]`.
    ///
    /// # Errors
    /// Candle's errors.
    pub fn scales(&self) -> Result<Cow<'_, [f32]>, FloatError> {
        Ok(match self.factors {
            Factors::Fixed(scales) => Cow::Borrowed(scales),
            Factors::Learned(logarithms) => {
                Cow::Owned(composed::clamped_exp(logarithms)?.flatten_all()?.to_vec1()?)
            }
        })
    }

    /// How each head computes `q k^T` in integers, `[heads]`.
    ///
    /// # Errors
    /// Candle's errors.
    pub fn head_scores(&self) -> Result<Vec<HeadScores>, FloatError> {
        let version = if self.cosine { SwinVersion::V2 } else { SwinVersion::V1 };
        let scores = |&scale: &f32| HeadScores { scale, two_codes: position::two_codes(version, scale) };
        Ok(self.scales()?.iter().map(scores).collect())
    }

    /// Converts `[windows, heads, n, head_dim]` to the projection's input rows,
    /// `[windows * n, heads * head_dim]`.
    ///
    /// # Errors
    /// The errors of [`Attention::split`].
    pub fn merge(&self, mixed: &Tensor) -> Result<Tensor, FloatError> {
        Ok(self.ops.merge_heads(mixed)?)
    }

    /// The whole attention as one differentiable operation, in a forward pass on a tape; `None` in others.
    ///
    /// # Errors
    /// The errors of [`taped::attention`].
    pub fn taped(&self, sites: &AttentionSites) -> Result<Option<Tensor>, FloatError> {
        let Ops::Taped(tape) = self.ops else { return Ok(None) };
        let logarithms = match self.factors {
            Factors::Fixed(scales) => {
                return Ok(Some(taped::attention(tape, &self.qkv, scales[0], &self.bias, self.mask, sites)?));
            }
            Factors::Learned(logarithms) => logarithms,
        };
        if sites.scores.is_some() {
            let problem =
                "cannot be trained in a Swin V2, whose heads have their own scales; disable it with a rule";
            return Err(ModelError::site(Site::Scores(self.block), problem).into());
        }
        // The factors become part of the queries, so that the rest is the attention of Swin V1 with the factor 1.
        let scaled = taped::cosine(tape, &self.qkv, logarithms, [&sites.q, &sites.k])?;
        let rest = AttentionSites { q: None, k: None, ..sites.clone() };
        Ok(Some(taped::attention(tape, &scaled, 1.0, &self.bias, self.mask, &rest)?))
    }

    /// The whole attention in float, without its sites: `[windows * n, heads * head_dim]`, with the bits that its parts
    /// would give. `None` where only the parts exist: in Swin V2, on a tape and on
    /// other devices.
    ///
    /// # Errors
    /// Candle's errors.
    pub fn whole(&self) -> Result<Option<Tensor>, FloatError> {
        Ok(self.packed.map(|packed| packed.run(&self.qkv, self.masks)).transpose()?)
    }

    /// `q k^T` of queries and keys after their sites: `[windows, heads, n, n]`.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn scores(&self, q: &Tensor, k: &Tensor) -> Result<Tensor, FloatError> {
        Ok(self.ops.scores(q, k)?)
    }

    /// `scores * scale + (bias + mask)`.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn logits(&self, scores: &Tensor) -> Result<Tensor, FloatError> {
        if let (Ops::Composed, Factors::Learned(logarithms)) = (self.ops, self.factors) {
            let scaled = scores.broadcast_mul(&composed::clamped_exp(logarithms)?)?;
            return Ok(composed::add_bias_and_mask(&scaled, &self.bias, self.mask)?);
        }
        Ok(self.ops.logits(scores, &self.scales()?, &self.bias, self.mask)?)
    }
}

/// The attention branch of a block: normalised windows `[images * windows * n, c]` to token order
/// `[images * tokens, c]`.
pub(super) fn attention(
    input: Tensor,
    weights: &BlockWeights,
    context: &BlockContext,
    sites: &mut dyn Sites,
) -> Result<Tensor, FloatError> {
    let ops = context.ops;
    let qkv = linear(input, &weights.qkv, sites)?;
    let (bias, mask) = (relative_bias(weights, context)?, context.windows.mask.as_ref());
    let (factors, cosine) = (&weights.factors, context.post_norm);
    let (packed, masks) = (weights.attention.as_ref(), context.windows.masks.as_slice());
    let attention = Attention { block: weights.id, qkv, bias, mask, masks, factors, cosine, ops, packed };
    let mixed = sites.attention(&attention)?;
    let branch = linear(mixed, &weights.proj, sites)?;
    Ok(ops.gather(&branch, &context.windows.reverse)?)
}

/// The relative position bias, `[heads, n, n]`.
fn relative_bias(weights: &BlockWeights, context: &BlockContext) -> Result<Tensor, FloatError> {
    let table = match (&weights.position, context.ops) {
        (Position::Table(table), _) => table.clone(),
        (Position::Mlp(mlp), Ops::Taped(tape)) => taped::position_table(tape, context.coordinates, mlp)?,
        (Position::Mlp(mlp), _) => composed::position_table(context.coordinates, mlp)?,
    };
    if let Ops::Taped(tape) = context.ops {
        let n = context.stage.window_tokens();
        return Ok(taped::relative_bias(tape, &table, context.relative_index, n)?);
    }
    Ok(expand_bias(&table, context.relative_index, context.stage)?)
}

/// The relative position bias `[heads, n, n]` of a table `[bias_rows, heads]`; `index` `[n * n]` has its rows.
pub(super) fn expand_bias(table: &Tensor, index: &Tensor, stage: &Stage) -> candle_core::Result<Tensor> {
    let n = stage.window_tokens();
    table.index_select(index, 0)?.t()?.contiguous()?.reshape((stage.heads, n, n))
}
