//! The parameters of ops, for whoever computes them.

use crate::quantizer::Quantizer;
use crate::reference::{AttentionQuant, HeadScores};
use crate::rows::RowStore;

/// The parameters of attention within the windows of one block;
/// [`attention_window`](crate::reference::attention_window) defines it for one window and head.
pub struct AttentionSpec<'a> {
    /// Heads.
    pub heads: usize,
    /// Channels of one head, `d`.
    pub head_dim: usize,
    /// Tokens of one window, `n`.
    pub tokens: usize,
    /// Factor of `QK^T`, for each head.
    pub scales: &'a [f32],
    /// Whether the queries and keys of a head have hi and lo codes for each value, for each head; empty if
    /// none has.
    pub hi_lo: &'a [bool],
    /// Relative position bias, `[heads, n, n]` (head, query, key).
    pub bias: &'a [f32],
    /// Region of each token under each mask, `[MASKS, n]`: `mask` is added to a logit whose query and key lie
    /// in different regions. Under mask 0 all tokens lie in one region. The image decides which mask a window
    /// has ([`Windows::masks`](crate::Windows::masks)). `None`: no window of any image is masked.
    pub regions: Option<&'a [u8]>,
    /// Added to the logits of different regions: -100 in Swin.
    pub mask: f32,
    /// Quantizers of the sites inside.
    pub quant: AttentionQuant,
    /// How the result is stored.
    pub store: RowStore,
}

impl AttentionSpec<'_> {
    /// How each head computes `QK^T`.
    pub fn head_scores(&self) -> impl Iterator<Item = HeadScores> + '_ {
        self.scales
            .iter()
            .enumerate()
            .map(|(head, &scale)| HeadScores { scale, hi_lo: self.hi_lo.get(head).copied().unwrap_or(false) })
    }
}

/// The heads of one block's cosine attention, and how their operands are stored: queries and keys are
/// normalised, then they and the values are quantized.
///
/// The input is f32 `[rows, 3 * heads * d]`: `q | k | v` of a token. The result has the same columns, as f32
/// or as codes. In codes, a lo code for each value of the heads that have two follows: all of `q`, then all
/// of `k`, each `[heads with hi and lo codes, d]`.
///
/// ```text
/// y = x * inverse_length(q or k of the head)           queries and keys
/// code = code(y * recip)        lo code = lo_code(y * recip)
/// ```
#[derive(Clone, Debug)]
pub struct QkNormSpec<'a> {
    /// Heads.
    pub heads: usize,
    /// Channels of one head, `d`.
    pub head_dim: usize,
    /// Whether the queries and keys of a head have hi and lo codes for each value, for each head; empty if
    /// none has.
    pub hi_lo: &'a [bool],
    /// The sites q, k and v, if the result is codes; else it is f32, and attention applies the sites that are
    /// on.
    pub codes: Option<[Quantizer; 3]>,
}
