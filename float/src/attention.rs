//! Window attention with relative position bias, as sites see it.

use std::borrow::Cow;

use candle_core::{Tensor, bail};
use swinq_model::site::{BlockId, Site};
use swinq_model::{ModelError, SwinVersion, position};
use swinq_numerics::HeadScores;

use crate::Sites;
use crate::block::{BlockContext, linear};
use crate::error::FloatError;
use crate::ops::taped::{self, AttentionSites};
use crate::ops::{Compute, Ops, candle};
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
    /// Queries, keys and values, the tensors of their sites: `[windows, heads, n, head_dim]` each. They are
    /// parts of [`Attention::qkv`]; in Swin V2 queries and keys are normalised to length 1.
    ///
    /// # Errors
    /// Shapes that do not fit, or a forward pass on a tape, where attention is one operation.
    pub fn split(&self) -> Result<[Tensor; 3], FloatError> {
        let (heads, n, _) = self.bias.dims3()?;
        let compute = self.parts()?;
        let parts = compute.split_heads(&self.qkv, heads, n)?;
        let [q, k, v] = [parts.get(0)?, parts.get(1)?, parts.get(2)?];
        Ok(if self.cosine { [compute.normalize(&q)?, compute.normalize(&k)?, v] } else { [q, k, v] })
    }

    /// The implementation of the parts.
    fn parts(&self) -> candle_core::Result<Compute> {
        match self.ops.tape {
            None => Ok(self.ops.compute),
            Some(_) => bail!("attention on a tape is one operation; its parts are not available"),
        }
    }

    /// The factor of `q k^T` for each head, `[heads]`.
    ///
    /// # Errors
    /// Candle's errors.
    pub fn scales(&self) -> Result<Cow<'_, [f32]>, FloatError> {
        Ok(match self.factors {
            Factors::Fixed(scales) => Cow::Borrowed(scales),
            Factors::Learned(logarithms) => {
                Cow::Owned(candle::clamped_exp(logarithms)?.flatten_all()?.to_vec1()?)
            }
        })
    }

    /// How each head computes `q k^T` in integers, `[heads]`.
    ///
    /// # Errors
    /// Candle's errors.
    pub fn head_scores(&self) -> Result<Vec<HeadScores>, FloatError> {
        let version = if self.cosine { SwinVersion::V2 } else { SwinVersion::V1 };
        let scores = |&scale: &f32| HeadScores { scale, hi_lo: position::hi_lo(version, scale) };
        Ok(self.scales()?.iter().map(scores).collect())
    }

    /// Converts `[windows, heads, n, head_dim]` to the projection's input rows,
    /// `[windows * n, heads * head_dim]`.
    ///
    /// # Errors
    /// The errors of [`Attention::split`].
    pub fn merge(&self, mixed: &Tensor) -> Result<Tensor, FloatError> {
        Ok(self.parts()?.merge_heads(mixed)?)
    }

    /// The whole attention as one operation, as it is trained: `[windows * n, heads * head_dim]`.
    ///
    /// # Errors
    /// The errors of [`taped::attention`].
    pub fn at_once(&self, sites: &AttentionSites) -> Result<Tensor, FloatError> {
        let logarithms = match self.factors {
            Factors::Fixed(scales) => {
                return Ok(taped::attention(self.ops, &self.qkv, scales[0], &self.bias, self.mask, sites)?);
            }
            Factors::Learned(logarithms) => logarithms,
        };
        if sites.scores.is_some() {
            let problem =
                "cannot be trained in a Swin V2, whose heads have their own scales; disable it with a rule";
            return Err(ModelError::site(Site::Scores(self.block), problem).into());
        }
        // The factors become part of the queries, so that the rest is the attention of Swin V1 with the
        // factor 1.
        let scaled = taped::cosine(self.ops, &self.qkv, logarithms, [&sites.q, &sites.k])?;
        let rest = AttentionSites { q: None, k: None, ..sites.clone() };
        Ok(taped::attention(self.ops, &scaled, 1.0, &self.bias, self.mask, &rest)?)
    }

    /// The whole attention in float, without its sites: `[windows * n, heads * head_dim]`. On the host it has
    /// the bits of its parts. `None` where only the parts exist: in Swin V2 on the host, and in candle's
    /// operations without a tape.
    ///
    /// # Errors
    /// The errors of [`Attention::at_once`].
    pub fn whole(&self) -> Result<Option<Tensor>, FloatError> {
        if self.ops.tape.is_some() || self.ops.compute.is_cuda() {
            return self.at_once(&AttentionSites::FLOAT).map(Some);
        }
        Ok(self.packed.map(|packed| packed.run(&self.qkv, self.masks)).transpose()?)
    }

    /// `q k^T` of queries and keys after their sites: `[windows, heads, n, n]`.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn scores(&self, q: &Tensor, k: &Tensor) -> Result<Tensor, FloatError> {
        Ok(self.parts()?.scores(q, k)?)
    }

    /// `scores * scale + (bias + mask)`.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn logits(&self, scores: &Tensor) -> Result<Tensor, FloatError> {
        let compute = self.parts()?;
        if let Factors::Learned(logarithms) = self.factors {
            let scaled = scores.broadcast_mul(&candle::clamped_exp(logarithms)?)?;
            return Ok(candle::add_bias_and_mask(&scaled, &self.bias, self.mask)?);
        }
        Ok(compute.logits(scores, &self.scales()?, &self.bias, self.mask)?)
    }

    /// The probabilities of `logits`: their softmax over the last dimension.
    ///
    /// # Errors
    /// Candle's errors.
    pub fn softmax(&self, logits: &Tensor) -> Result<Tensor, FloatError> {
        Ok(self.parts()?.softmax(logits)?)
    }

    /// [`Attention::softmax`] of `logits` `[windows, heads, n, n]`, times `v`
    /// `[windows, heads, n, head_dim]`.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn attend(&self, logits: &Tensor, v: &Tensor) -> Result<Tensor, FloatError> {
        Ok(self.parts()?.attend(logits, v)?)
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
    let table = match &weights.position {
        Position::Table(table) => table.clone(),
        Position::Mlp(mlp) => taped::position_table(ops, context.coordinates, mlp)?,
    };
    let bias = taped::relative_bias(ops, &table, context.relative_index, context.stage.window_tokens())?;
    let mask = context.windows.mask.as_ref();
    let (factors, cosine) = (&weights.factors, context.post_norm);
    let (packed, masks) = (weights.attention.as_ref(), context.windows.masks.as_slice());
    let attention = Attention { block: weights.id, qkv, bias, mask, masks, factors, cosine, ops, packed };
    let mixed = sites.attention(&attention)?;
    let branch = linear(mixed, &weights.proj, sites)?;
    Ok(ops.gather(&branch, &context.windows.reverse)?)
}
