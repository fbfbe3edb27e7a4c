//! Attention inside one window, for one head.

use crate::types::Quantizer;

/// How attention probabilities are represented.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Probs {
    /// f32 softmax.
    Float,
    /// Codes `round_ties_even(255 * exp(x - rowmax))`, normalised after the product by their own integer sum.
    U8,
    /// Signed codes of the softmax (FasterTransformer's).
    S8(Quantizer),
}

/// Unsigned codes of one row of logits, in `codes`, and their sum.
pub fn attention_row_u8(logits: &[f32], codes: &mut [u8]) -> u32 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0;
    for (code, &x) in codes.iter_mut().zip(logits) {
        *code = libm::rintf(255.0 * libm::expf(x - max)) as u8;
        sum += u32::from(*code);
    }
    sum
}

/// Quantizers of the sites inside attention; `None` is a site that is off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionQuant {
    /// Queries.
    pub q: Option<Quantizer>,
    /// Keys.
    pub k: Option<Quantizer>,
    /// Values.
    pub v: Option<Quantizer>,
    /// `QK^T` before scale, bias and mask.
    pub scores: Option<Quantizer>,
    /// Probabilities.
    pub probs: Probs,
}

/// Attention of `n` tokens with `d` channels each: `q`, `k`, `v` are f32 `[n, d]` before their sites, `bias` is `[n, n]`
/// with the mask added, `out` is `[n, d]`.
///
/// A product whose two operands are on is taken over their codes in integers: `QK^T = acc * (s_q * s_k)`,
/// `PV = acc * s_v / sum(codes)` (kind `u8`) or `acc * (s_p * s_v)` (kind `s8`); otherwise over what the sites
/// return, in f32. `logit = fma(scores, scale, bias)`.
#[allow(clippy::too_many_arguments)]
pub fn attention_window(
    n: usize,
    d: usize,
    (q, k, v): (&[f32], &[f32], &[f32]),
    scale: f32,
    bias: &[f32],
    quant: &AttentionQuant,
    out: &mut [f32],
) {
    for i in 0..n {
        let logits: Vec<f32> = (0..n)
            .map(|j| score(&q[i * d..][..d], &k[j * d..][..d], quant).mul_add(scale, bias[i * n + j]))
            .collect();
        weighted_values(&logits, v, d, quant, &mut out[i * d..][..d]);
    }
}

fn score(q: &[f32], k: &[f32], quant: &AttentionQuant) -> f32 {
    let score = match (quant.q, quant.k) {
        (Some(sq), Some(sk)) => {
            let acc: i32 =
                q.iter().zip(k).map(|(&q, &k)| i32::from(sq.code(q)) * i32::from(sk.code(k))).sum();
            acc as f32 * (sq.scale() * sk.scale())
        }
        (sq, sk) => {
            let fake = |s: Option<Quantizer>, x: f32| s.map_or(x, |s| s.fake(x));
            q.iter().zip(k).map(|(&q, &k)| fake(sq, q) * fake(sk, k)).sum()
        }
    };
    quant.scores.map_or(score, |s| s.fake(score))
}

fn weighted_values(logits: &[f32], v: &[f32], d: usize, quant: &AttentionQuant, out: &mut [f32]) {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exps: Vec<f32> = logits.iter().map(|&x| libm::expf(x - max)).collect();
    let total: f32 = exps.iter().sum();
    // Codes (or floats) of the probabilities, and the factor that turns their product with v's codes into values.
    let (weights, factor): (Vec<f32>, f32) = match quant.probs {
        Probs::Float => (exps.iter().map(|e| e / total).collect(), 1.0),
        Probs::U8 => {
            let mut codes = vec![0; logits.len()];
            let sum = attention_row_u8(logits, &mut codes);
            (codes.into_iter().map(f32::from).collect(), 1.0 / sum as f32)
        }
        Probs::S8(s) => (exps.iter().map(|e| f32::from(s.code(e / total))).collect(), s.scale()),
    };
    for (c, out) in out.iter_mut().enumerate() {
        let column = weights.iter().enumerate().map(|(j, w)| (w, v[j * d + c]));
        *out = match (quant.v, quant.probs) {
            (Some(sv), Probs::U8 | Probs::S8(_)) => {
                // Codes are small integers: every partial sum is exact in i32.
                let acc: i32 = column.map(|(&w, v)| w as i32 * i32::from(sv.code(v))).sum();
                match quant.probs {
                    Probs::U8 => acc as f32 * sv.scale() * factor,
                    _ => acc as f32 * (sv.scale() * factor),
                }
            }
            (sv, _) => column.map(|(&w, v)| w * sv.map_or(v, |s| s.fake(v))).sum::<f32>() * factor,
        };
    }
}
