//! Attention inside one window, for one head.

use super::fma;
use super::linear::MAX_INT8_K;
use crate::quantizer::Quantizer;

/// How attention probabilities are represented.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Probs {
    /// f32 softmax.
    Float,
    /// Codes `round_ties_even(exp_255(x - rowmax))`, normalised after the product by their own integer sum.
    U8,
    /// Signed codes of the softmax (FasterTransformer's).
    S8(Quantizer),
}

/// Logits are clamped to this difference from the largest one. `e^-60` vanishes in the rounding of any sum
/// that contains a 1, and its products are still normal numbers; subnormal numbers would be slow.
pub const FLOOR: f32 = -60.0;

/// Codes of logits are clamped to this difference from the largest one: `255 e^-11` is less than a half, so
/// that the code is 0.
pub const CODE_FLOOR: f32 = -11.0;

/// The largest of `logits`, ignoring NaNs; -inf if there is none.
#[inline]
fn largest(logits: &[f32]) -> f32 {
    logits.iter().fold(f32::NEG_INFINITY, |max, &x| if x > max { x } else { max })
}

/// Unsigned codes of one row of logits, in `codes`, and their sum:
/// `round_ties_even(exp_255(max(x - rowmax, -11)))`. A NaN has code 0.
#[inline]
pub fn attention_row_u8(logits: &[f32], codes: &mut [u8]) -> u32 {
    let max = largest(logits);
    let mut sum = 0;
    for (code, &x) in codes.iter_mut().zip(logits) {
        let below = x - max;
        let below = if below > CODE_FLOOR { below } else { CODE_FLOOR };
        *code = super::rint(super::exp_255(below)) as u8;
        sum += u32::from(*code);
    }
    sum
}

/// `exp(max(x - rowmax, -60))` of one row of logits, in place, and their sum in f32: sixteen partial sums
/// selected by the index mod 16, each in the order of the index, starting from 0; then [`fold`](super::fold).
/// A NaN stays a NaN.
#[inline]
pub fn attention_row_exp(logits: &mut [f32]) -> f32 {
    let max = largest(logits);
    let mut sums = [0.0; 16];
    for (i, x) in logits.iter_mut().enumerate() {
        let below = *x - max;
        *x = super::exp(if FLOOR > below { FLOOR } else { below });
        sums[i % 16] += *x;
    }
    super::fold(sums)
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

/// How a head computes `QK^T`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadScores {
    /// The factor of `QK^T`.
    pub scale: f32,
    /// Whether each query and key has a code and a lo code, where the sites of both are on.
    pub hi_lo: bool,
}

impl From<f32> for HeadScores {
    /// One code for each value.
    fn from(scale: f32) -> HeadScores {
        HeadScores { scale, hi_lo: false }
    }
}

/// Attention of `n` tokens with `d` channels each: `q`, `k`, `v` are f32 `[n, d]` before their sites, `bias`
/// is `[n, n]` with the mask added, `out` is `[n, d]`.
///
/// `head` is the factor of `QK^T`, or a [`HeadScores`]. A head with hi and lo codes has a
/// [`lo_code`](super::lo_code) for each query and key besides its code, if both sites are on. `hh` is the
/// product of their codes; `hl` and `lh` are the products of one's codes with the other's lo codes:
///
/// ```text
/// acc = hh + (hl + lh) / 256        rounded to f32 once, because the division is exact
/// ```
///
/// A product whose two operands have their sites on is computed in integers over their codes. Any other
/// product is computed in f32 over the values that the sites return, by fused multiply-adds in the order of
/// the channels (`q . k`) or of the keys (`p . v`), starting from 0. The weights `p` are the codes of
/// [`attention_row_u8`] for kind `u8`, the results of [`attention_row_exp`] with their sum `total` for kind
/// float, and `code(exp * (1 / total))` for kind `s8`.
///
/// ```text
/// logit = fma(acc, (s_q * s_k) * scale, bias)             integers, `scores` off
/// logit = fma(scores(acc * (s_q * s_k)), scale, bias)     integers, `scores` on
/// logit = fma(scores(q . k), scale, bias)                 f32
/// y = acc * (s_v / sum(codes))                            integers, kind `u8`
/// y = acc * (s_p * s_v)                                   integers, kind `s8`
/// y = (p . v) * (1 / sum(codes))                          f32, kind `u8`
/// y = (p . v) * s_p                                       f32, kind `s8`
/// y = (p . v) * (1 / total)                               f32, kind float
/// ```
pub fn attention_window(
    n: usize,
    d: usize,
    (q, k, v): (&[f32], &[f32], &[f32]),
    head: impl Into<HeadScores>,
    bias: &[f32],
    quant: &AttentionQuant,
    out: &mut [f32],
) {
    assert!(n.max(d) <= MAX_INT8_K, "sums of {n} or {d} products may not fit an i32");
    assert!(v.len() >= n * d, "{} values of {n} tokens with {d} channels", v.len());
    let HeadScores { scale, hi_lo } = head.into();
    let scores = Scores::new(q, k, scale, quant).with_lo_codes(hi_lo, (q, k), quant);
    let values = Values::new(v, quant);
    let mut logits = vec![0.0; n];
    for (i, out) in out.chunks_exact_mut(d).enumerate() {
        for (j, logit) in logits.iter_mut().enumerate() {
            *logit = scores.logit(i * d, j * d, d, bias[i * n + j]);
        }
        values.weighted(&logits, out);
    }
}

/// One operand of a product: its codes, or the values that its site returns.
enum Operand {
    Codes(Vec<i16>, f32),
    Float(Vec<f32>),
}

impl Operand {
    /// `integer`: whether the site of the other operand is on.
    fn new(x: &[f32], site: Option<Quantizer>, integer: bool) -> Operand {
        match site {
            Some(s) if integer => {
                Operand::Codes(x.iter().map(|&x| i16::from(s.code(x))).collect(), s.scale())
            }
            Some(s) => Operand::Float(x.iter().map(|&x| s.fake(x)).collect()),
            None => Operand::Float(x.to_vec()),
        }
    }
}

/// `QK^T`, scale and bias: everything up to the logits.
struct Scores {
    q: Operand,
    k: Operand,
    /// The lo codes of `q` and `k`.
    low: Option<[Vec<i16>; 2]>,
    scale: f32,
    site: Option<Quantizer>,
}

impl Scores {
    fn new(q: &[f32], k: &[f32], scale: f32, quant: &AttentionQuant) -> Scores {
        Scores {
            q: Operand::new(q, quant.q, quant.k.is_some()),
            k: Operand::new(k, quant.k, quant.q.is_some()),
            low: None,
            scale,
            site: quant.scores,
        }
    }

    /// The same with a lo code for each value, if `hi_lo` and the sites of both operands are on.
    fn with_lo_codes(self, hi_lo: bool, (q, k): (&[f32], &[f32]), quant: &AttentionQuant) -> Scores {
        let (Some(q_site), Some(k_site), true) = (quant.q, quant.k, hi_lo) else { return self };
        let low = |x: &[f32], site: Quantizer| {
            x.iter().map(|&x| i16::from(super::lo_code(x * site.recip()))).collect::<Vec<i16>>()
        };
        Scores { low: Some([low(q, q_site), low(k, k_site)]), ..self }
    }

    /// Logit of the query at `i..i + d` and the key at `j..j + d`.
    fn logit(&self, i: usize, j: usize, d: usize, bias: f32) -> f32 {
        match (&self.q, &self.k) {
            (Operand::Codes(q, s_q), Operand::Codes(k, s_k)) => {
                let dot = |q: &[i16], k: &[i16]| {
                    let pairs = q[i..i + d].iter().zip(&k[j..j + d]);
                    pairs.fold(0_i32, |sum, (&q, &k)| sum.wrapping_add(i32::from(q) * i32::from(k)))
                };
                let acc = match &self.low {
                    None => dot(q, k) as f32,
                    Some([q_low, k_low]) => {
                        let with_low = (dot(q, k_low) + dot(q_low, k)) as f32;
                        fma(with_low, 1.0 / super::LO_STEPS, dot(q, k) as f32)
                    }
                };
                let step = s_q * s_k;
                match self.site {
                    None => fma(acc, step * self.scale, bias),
                    Some(s) => fma(s.fake(acc * step), self.scale, bias),
                }
            }
            (Operand::Float(q), Operand::Float(k)) => {
                let pairs = q[i..i + d].iter().zip(&k[j..j + d]);
                let score = pairs.fold(0.0, |sum: f32, (q, &k)| fma(*q, k, sum));
                fma(self.site.map_or(score, |s| s.fake(score)), self.scale, bias)
            }
            _ => unreachable!("both operands are codes, or neither is"),
        }
    }
}

/// Softmax and `PV`.
struct Values {
    v: Operand,
    probs: Probs,
}

impl Values {
    fn new(v: &[f32], quant: &AttentionQuant) -> Values {
        Values { v: Operand::new(v, quant.v, quant.probs != Probs::Float), probs: quant.probs }
    }

    /// The values weighted by the softmax of `logits`.
    fn weighted(&self, logits: &[f32], out: &mut [f32]) {
        let d = out.len();
        let (weights, factor) = probabilities(logits, self.probs);
        match &self.v {
            Operand::Codes(v, s_v) => {
                let factor = match factor {
                    Factor::Inverse(sum) => s_v / sum,
                    Factor::Scale(s_p) => s_p * s_v,
                };
                let mut sums = vec![0_i32; d];
                for (&w, v) in weights.iter().zip(v.chunks_exact(d)) {
                    // Weights are codes: small integers.
                    let w = i32::from(w as i16);
                    sums.iter_mut().zip(v).for_each(|(sum, &v)| *sum = sum.wrapping_add(w * i32::from(v)));
                }
                out.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum as f32 * factor);
            }
            Operand::Float(v) => {
                let factor = match factor {
                    Factor::Inverse(sum) => 1.0 / sum,
                    Factor::Scale(s_p) => s_p,
                };
                out.fill(0.0);
                for (w, v) in weights.iter().zip(v.chunks_exact(d)) {
                    out.iter_mut().zip(v).for_each(|(sum, &v)| *sum = fma(*w, v, *sum));
                }
                out.iter_mut().for_each(|sum| *sum *= factor);
            }
        }
    }
}

/// The factor that turns a product with the weights into the result.
enum Factor {
    Inverse(f32),
    Scale(f32),
}

/// The weights that `probs` gives to `logits`, and their factor.
fn probabilities(logits: &[f32], probs: Probs) -> (Vec<f32>, Factor) {
    if probs == Probs::U8 {
        let mut codes = vec![0; logits.len()];
        let sum = attention_row_u8(logits, &mut codes);
        return (codes.into_iter().map(f32::from).collect(), Factor::Inverse(sum as f32));
    }
    let mut exps = logits.to_vec();
    let total = attention_row_exp(&mut exps);
    if let Probs::S8(s) = probs {
        let inverse = 1.0 / total;
        exps.iter_mut().for_each(|e| *e = f32::from(s.code(*e * inverse)));
        return (exps, Factor::Scale(s.scale()));
    }
    (exps, Factor::Inverse(total))
}
