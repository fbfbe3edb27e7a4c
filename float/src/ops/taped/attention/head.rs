//! The forward pass of one head of one window.

use swinq_kernels::rows_f32;
use swinq_numerics::Quantizer;

use super::AttentionSites;
use crate::ops::host::{cpu, rounded, vectorised};
use crate::ops::product::Product;
use crate::ops::taped::fake_quant::{FakeActivation, FakeProbs};
use crate::ops::taped::host::lane_sum;

/// Sizes and scale of an attention.
#[derive(Clone, Copy)]
pub(in crate::ops::taped) struct Shape {
    /// Tokens of a window.
    pub n: usize,
    /// Number of heads.
    pub heads: usize,
    /// Channels of a head.
    pub d: usize,
    /// Factor of `q k^T`.
    pub scale: f32,
}

impl Shape {
    /// Channels of all heads.
    pub fn c(self) -> usize {
        self.heads * self.d
    }

    /// Columns of `qkv`.
    pub fn width(self) -> usize {
        3 * self.c()
    }
}

/// Matrices of one head, reused between heads.
#[derive(Default)]
pub(super) struct Scratch {
    /// Queries, keys and values after their sites, `[n, d]` each.
    pub(super) q: Vec<f32>,
    pub(super) k: Vec<f32>,
    pub(super) v: Vec<f32>,
    /// Queries, keys and values before their sites, `[n, d]` each.
    pub(super) raw: [Vec<f32>; 3],
    /// `q k^T` before its site, `[n, n]`.
    pub(super) scores: Vec<f32>,
    /// `exp(logit - max)`, then the softmax; `[n, n]`. For kind `u8` it stays `exp(logit - max)`.
    pub(super) exp: Vec<f32>,
    /// The left operand of the product with the values, `[n, n]`: probabilities, or codes for kind `u8`.
    pub(super) probs: Vec<f32>,
    /// Factor of each row of the product with the values, `[n]`.
    pub(super) factors: Vec<f32>,
    /// Gradient of the probabilities, then of the logits and of the scores; `[n, n]`.
    pub(super) dprobs: Vec<f32>,
    /// A transposed matrix, `[n, n]`.
    pub(super) transposed: Vec<f32>,
    /// The head's columns of the output's gradient, `[n, d]`.
    pub(super) grad: Vec<f32>,
    /// The latest product with an `[n, d]` operand.
    pub(super) product: Vec<f32>,
    /// Scratch of [`Product`].
    pub(super) packed: Vec<f32>,
}

/// The operands that all heads and windows of one attention share.
pub(super) struct Head<'a> {
    pub(super) shape: Shape,
    /// `[heads, n, n]`.
    bias: &'a [f32],
    /// `[windows of an image, n, n]`.
    mask: Option<&'a [f32]>,
    pub(super) sites: &'a AttentionSites,
}

/// `out = a b`, with `b` read as `[n, k]` if `transposed`.
pub(super) fn product(
    a: &[f32],
    b: &[f32],
    transposed: bool,
    [n, k]: [usize; 2],
    out: &mut Vec<f32>,
    packed: &mut Vec<f32>,
) {
    out.resize(a.len() / k * n, 0.0);
    pulp::Arch::new().dispatch(Product { a, b, transposed, n, k, out, packed });
}

fn fake(x: &mut [f32], site: Option<&FakeActivation>) {
    if let Some(FakeActivation { quantizer, .. }) = site {
        round(x, *quantizer);
    }
}

fn round(x: &mut [f32], quantizer: Quantizer) {
    let (recip, scale) = (quantizer.recip(), quantizer.scale());
    vectorised(
        #[inline(always)]
        || {
            let (recip, scale) = (recip, scale);
            for x in x.iter_mut() {
                *x = rounded(*x, scale, recip);
            }
        },
    );
}

impl<'a> Head<'a> {
    pub fn new(
        shape: Shape,
        bias: &'a [f32],
        mask: Option<&'a [f32]>,
        sites: &'a AttentionSites,
    ) -> Head<'a> {
        Head { shape, bias, mask, sites }
    }

    /// Attention of head `h` of a window: reads `qkv` `[n, 3 c]` and writes the head's columns of `out`
    /// `[n, c]`.
    pub fn forward(&self, window: usize, h: usize, qkv: &[f32], out: &mut [f32], s: &mut Scratch) {
        let Shape { n, d, .. } = self.shape;
        self.probabilities(window, h, qkv, s);
        product(&s.probs, &s.v, false, [d, n], &mut s.product, &mut s.packed);
        let rows = out.chunks_exact_mut(self.shape.c()).zip(s.product.chunks_exact(d)).zip(&s.factors);
        for ((out, y), &factor) in rows {
            out[h * d..][..d].iter_mut().zip(y).for_each(|(out, y)| *out = y * factor);
        }
    }

    /// Computes everything before the product with the values: fills `s.probs`, `s.factors` and the matrices
    /// from which they are computed.
    pub(super) fn probabilities(&self, window: usize, h: usize, qkv: &[f32], s: &mut Scratch) {
        let Shape { n, d, heads, .. } = self.shape;
        let sites = [&self.sites.q, &self.sites.k, &self.sites.v];
        for ((which, x), site) in [&mut s.q, &mut s.k, &mut s.v].into_iter().enumerate().zip(sites) {
            let first = (which * heads + h) * d;
            s.raw[which].clear();
            qkv.chunks_exact(self.shape.width())
                .for_each(|row| s.raw[which].extend_from_slice(&row[first..][..d]));
            x.clear();
            x.extend_from_slice(&s.raw[which]);
            fake(x, site.as_ref());
        }
        product(&s.q, &s.k, true, [n, d], &mut s.scores, &mut s.packed);
        s.exp.clear();
        s.exp.extend_from_slice(&s.scores);
        fake(&mut s.exp, self.sites.scores.as_ref());
        self.logits(window, h, &mut s.exp);
        s.factors.resize(n, 0.0);
        rows_f32::exp_minus_max(cpu(), n, &mut s.exp, &mut s.factors);
        self.quantize_probabilities(s);
    }

    /// `x * scale + bias + mask`, in place.
    fn logits(&self, window: usize, h: usize, x: &mut [f32]) {
        let Shape { n, scale, .. } = self.shape;
        let size = n * n;
        let bias = &self.bias[h * size..][..size];
        let mask = self.mask.map(|mask| &mask[window % (mask.len() / size) * size..][..size]);
        vectorised(
            #[inline(always)]
            || {
                // A local copy: the compiler would load a captured reference again for each value.
                let factor = scale;
                match mask {
                    Some(mask) => {
                        x.iter_mut()
                            .zip(bias)
                            .zip(mask)
                            .for_each(|((x, b), m)| *x = x.mul_add(factor, b + m));
                    }
                    None => x.iter_mut().zip(bias).for_each(|(x, &b)| *x = x.mul_add(factor, b)),
                }
            },
        );
    }

    /// Converts the exponentials in `s.exp`, whose row sums are in `s.factors`, to the operand of the product
    /// with the values and its row factors.
    fn quantize_probabilities(&self, s: &mut Scratch) {
        let n = self.shape.n;
        s.probs.resize(n * n, 0.0);
        vectorised(
            #[inline(always)]
            || {
                let rows = s.probs.chunks_exact_mut(n).zip(s.exp.chunks_exact_mut(n)).zip(&mut s.factors);
                for ((probs, exp), factor) in rows {
                    if matches!(self.sites.probs, FakeProbs::U8) {
                        for (p, &e) in probs.iter_mut().zip(&*exp) {
                            *p = (255.0 * e).round_ties_even();
                        }
                        *factor = 1.0 / lane_sum(probs, |p| p);
                    } else {
                        let reciprocal = 1.0 / *factor;
                        exp.iter_mut().for_each(|e| *e *= reciprocal);
                        probs.copy_from_slice(exp);
                        *factor = 1.0;
                    }
                }
            },
        );
        if let FakeProbs::S8(FakeActivation { quantizer, .. }) = &self.sites.probs {
            round(&mut s.probs, *quantizer);
        }
    }
}
