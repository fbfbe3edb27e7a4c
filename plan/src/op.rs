//! The ops of a plan and their parameters.

use std::sync::Arc;

use swinq_model::quantized::Int8Weight;
use swinq_numerics::{AttentionQuant, AttentionSpec, ColumnQuantizers, Gelu, ImageEdge, Quantizer, RowStore};

use crate::geometry::Order;
use crate::values::{RelativeBias, Values};

/// How an op stores its result.
#[derive(Clone, Debug, PartialEq)]
pub enum Store {
    /// Writes f32.
    F32,
    /// Quantizes, dequantizes and writes f32: the site is on, but the product that reads it runs in float.
    Fake(Quantizer),
    /// Writes INT8 codes; one quantizer, or one for each equal part of the columns (q, k, v).
    Codes(Vec<Quantizer>),
    /// [`Store::Fake`] with a scale and a zero point for each column.
    ChannelFake(ColumnQuantizers),
    /// [`Store::Codes`] with a scale and a zero point for each column.
    ChannelCodes(ColumnQuantizers),
    /// Adds to the residual stream, each operand through its site.
    Residual {
        /// Site of the branch.
        branch: Option<Quantizer>,
        /// Site of the residual.
        shortcut: Option<Quantizer>,
    },
}

/// Cuts images into patches: the input rows of the patch embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Patches {
    /// Side of a patch in pixels.
    pub patch: usize,
    /// The normalised value of each byte of each channel: `[channel][byte]`.
    pub lookup: Vec<[f32; 256]>,
    /// The treatment of the edges of an image that is no multiple of the patch.
    pub edge: ImageEdge,
}

/// The weight of a linear layer, `[n, k]`, and the arithmetic of its product.
#[derive(Clone, Debug)]
pub enum Weight<'m> {
    /// The product runs in INT8: both operands are codes, and sums are exact in INT32.
    Int8 {
        /// Codes and their scales.
        codes: &'m Int8Weight,
        /// Quantizer of the input.
        input: Quantizer,
        /// The factor of an accumulator: `s_x * s_w[c]` for each of the `n` columns of the result.
        multiplier: Vec<f32>,
        /// The zero points of the `k` inputs, or none: an input code `q` stands for `q - zero_points[k]`. The
        /// factors of per-channel codes are part of the weight.
        zero_points: &'m [i8],
    },
    /// The product runs in float.
    Float(Values<'m>),
}

/// A linear layer: the product with a weight, its bias and its activation.
///
/// Fused launches compute a part of the fields only: `int8-runtime/src/cuda/int8.rs` and
/// `kernels/cpu/src/linear/avx512/full_panels.rs` compute or refuse a new field.
#[derive(Clone, Debug)]
pub struct Linear<'m> {
    /// The layer of the network. Its sites have this name.
    pub layer: swinq_model::Linear,
    /// Columns of the result.
    pub n: usize,
    /// Columns of the input.
    pub k: usize,
    /// The weight, `[n, k]`.
    pub weight: Weight<'m>,
    /// The bias, `[n]`.
    pub bias: Option<Values<'m>>,
    /// Quantizer of the `.output` site, between the product and the bias.
    pub output: Option<Quantizer>,
    /// The GELU that follows the bias, if any.
    pub gelu: Option<Gelu>,
    /// Order of the rows. A residual store scatters them to the tokens of the residual.
    pub order: Order,
}

impl Linear<'_> {
    /// Whether the product runs in INT8.
    pub fn is_int8(&self) -> bool {
        matches!(self.weight, Weight::Int8 { .. })
    }
}

/// A LayerNorm.
#[derive(Clone, Debug)]
pub struct Norm<'m> {
    /// Scale of each channel.
    pub gamma: Values<'m>,
    /// Offset of each channel.
    pub beta: Values<'m>,
    /// Added to the variance.
    pub eps: f32,
}

/// Attention within the windows of one block.
#[derive(Clone, Debug)]
pub struct Attention<'m> {
    /// Heads.
    pub heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Tokens of a window.
    pub tokens: usize,
    /// The windows.
    pub order: Order,
    /// The factor of `QK^T` for each head, `[heads]`.
    pub scales: Vec<f32>,
    /// The heads whose queries and keys have hi and lo codes for each value, `[heads]`; empty if none has.
    pub hi_lo: Vec<bool>,
    /// The relative position bias.
    pub bias: RelativeBias<'m>,
    /// Region of each token under each mask, `[MASKS, tokens]`: tokens of different regions do not attend to
    /// each other. [`Geometry::windows`](crate::Geometry::windows) has the mask of each window. `None` for
    /// even blocks, which mask nothing.
    pub regions: Option<Arc<[u8]>>,
    /// Added to the logits of tokens of different regions.
    pub mask: f32,
    /// Quantizers of the sites inside.
    pub quant: AttentionQuant,
}

impl Attention<'_> {
    /// The description of the op for a backend that stores its results as `store`. `bias` is the expanded
    /// [`Attention::bias`].
    pub fn spec<'a>(&'a self, bias: &'a [f32], store: RowStore) -> AttentionSpec<'a> {
        AttentionSpec {
            heads: self.heads,
            head_dim: self.head_dim,
            tokens: self.tokens,
            scales: &self.scales,
            hi_lo: &self.hi_lo,
            bias,
            regions: self.regions.as_deref(),
            mask: self.mask,
            quant: self.quant,
            store,
        }
    }
}

/// The normalisation of queries and keys to length 1 in each head (Swin V2).
#[derive(Clone, Debug, PartialEq)]
pub struct QkNorm {
    /// Heads.
    pub heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// As [`Attention::hi_lo`]. Codes of the result are followed by the lo codes of these heads.
    pub hi_lo: Vec<bool>,
}

impl QkNorm {
    /// Columns of the result, as codes or as f32.
    pub fn columns(&self, codes: bool) -> usize {
        let low = self.hi_lo.iter().filter(|&&two| two && codes).count();
        (3 * self.heads + 2 * low) * self.head_dim
    }
}

/// The gathering of 2 x 2 tokens at the end of a stage.
#[derive(Clone, Debug)]
pub struct Merge<'m> {
    /// The norm of the gathered channels. In Swin V2 the norm follows the reduction instead, as
    /// [`Op::NormInPlace`].
    pub norm: Option<Norm<'m>>,
    /// The stage that ends with the merge; [`Geometry::merge`](crate::Geometry::merge) has the source tokens
    /// of each merged token. Padding is zeros.
    pub stage: usize,
}

/// An op.
#[derive(Clone, Debug)]
pub enum Op<'m> {
    /// Cuts images into patches and normalises their pixels.
    Patches(Patches),
    /// A linear layer.
    Linear(Linear<'m>),
    /// LayerNorm of the residual's tokens; the result is in the given order. With a residual store (Swin V2)
    /// the input is in that order, and the result is added to the tokens of the residual.
    Norm(Norm<'m>, Order),
    /// Gathers the residual's tokens in the given order, without a norm, and quantizes them; in f32 if the
    /// site is off. Swin V2 needs this op, because no norm precedes its linear layers.
    Quantize(Order),
    /// LayerNorm of the residual in place: after the patch embedding, and after a reduction of Swin V2.
    NormInPlace(Norm<'m>),
    /// Adds the absolute position embedding, `[rows, columns]` of the residual, of the network's own image
    /// size to the residual in place; for another grid the embedding is interpolated first, if the network
    /// takes such images.
    PositionEmbedding(Values<'m>),
    /// Normalises the queries and keys of a Swin V2. Stores the codes of q, k and v, or f32.
    QkNorm(QkNorm),
    /// Window attention.
    Attention(Attention<'m>),
    /// Gathers 2 x 2 tokens, and normalises them in Swin V1.
    Merge(Merge<'m>),
    /// The last norm, and the mean over tokens.
    Pool(Norm<'m>),
}
