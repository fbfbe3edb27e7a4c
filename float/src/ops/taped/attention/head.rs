//! One head of one window, forward and backward.

use swinq_kernels::{Quantizer, rows_f32};

use super::super::fake_quant::{Fake, FakeProbs, clip};
use super::super::host::{add_lanes, lane_sum};
use super::AttentionSites;
use crate::ops::fused::{cpu, rounded, vectorised};
use crate::ops::product::Product;

/// Sizes of an attention.
#[derive(Clone, Copy)]
pub(in crate::ops::taped) struct Shape {
    /// Tokens of a window.
    pub n: usize,
    pub heads: usize,
    /// Channels of a head.
    pub d: usize,
    /// Factor of `q k^T`.
    pub scale: f32,
}

impl Shape {
    pub fn c(self) -> usize {
        self.heads * self.d
    }

    pub fn width(self) -> usize {
        3 * self.c()
    }
}

/// Matrices of one head, reused.
#[derive(Default)]
pub(super) struct Scratch {
    /// What the sites made of queries, keys and values, `[n, d]`.
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    /// The same before their sites.
    raw: [Vec<f32>; 3],
    /// `[n, n]`: `q k^T` before its site.
    scores: Vec<f32>,
    /// `exp(logit - max)`, then the softmax.
    exp: Vec<f32>,
    /// What the product with the values takes.
    probs: Vec<f32>,
    /// Factor of each row of that product.
    factors: Vec<f32>,
    /// `[n, n]` and `[n, d]` of the backward pass.
    dprobs: Vec<f32>,
    transposed: Vec<f32>,
    grad: Vec<f32>,
    product: Vec<f32>,
    packed: Vec<f32>,
}

/// One attention's operands beside its rows.
pub(super) struct Head<'a> {
    shape: Shape,
    /// `[heads, n, n]`.
    bias: &'a [f32],
    /// `[windows of an image, n, n]`.
    mask: Option<&'a [f32]>,
    sites: &'a AttentionSites,
}

pub(super) const RANGE: (f32, f32) = (-128.0, 127.0);

/// `out = a b`, with `b` read as `[n, k]` if `transposed`.
fn product(
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

/// `[n, n]` transposed.
fn transpose(x: &[f32], n: usize, out: &mut Vec<f32>) {
    out.resize(n * n, 0.0);
    for (i, row) in x.chunks_exact(n).enumerate() {
        for (j, &x) in row.iter().enumerate() {
            out[j * n + i] = x;
        }
    }
}

fn fake(x: &mut [f32], site: Option<&Fake>) {
    if let Some(Fake { quantizer, .. }) = site {
        round(x, *quantizer);
    }
}

/// Gradients before a site, in place; returns that of its step.
fn clip_site(x: &[f32], site: &Fake, grad: &mut [f32]) -> f32 {
    clip(x, site.quantizer.recip(), RANGE, site.learned.is_some(), grad)
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

    /// Attention of head `h` of a window: `qkv` `[n, 3 c]` to its columns of `out` `[n, c]`.
    pub fn forward(&self, window: usize, h: usize, qkv: &[f32], out: &mut [f32], s: &mut Scratch) {
        let Shape { n, d, .. } = self.shape;
        self.probabilities(window, h, qkv, s);
        product(&s.probs, &s.v, false, [d, n], &mut s.product, &mut s.packed);
        let rows = out.chunks_exact_mut(self.shape.c()).zip(s.product.chunks_exact(d)).zip(&s.factors);
        for ((out, y), &factor) in rows {
            out[h * d..][..d].iter_mut().zip(y).for_each(|(out, y)| *out = y * factor);
        }
    }

    /// Fills the scratch up to `probs` and `factors`.
    fn probabilities(&self, window: usize, h: usize, qkv: &[f32], s: &mut Scratch) {
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
                // A copy: what is behind a reference is read again for each value.
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

    /// From the exponentials, whose sums are in `factors`, to what multiplies the values.
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
        if let FakeProbs::S8(Fake { quantizer, .. }) = &self.sites.probs {
            round(&mut s.probs, *quantizer);
        }
    }

    /// Gradients of head `h` of a window: into its columns of `dqkv`, added to `dbias` `[n, n]` and to `steps`.
    #[expect(clippy::too_many_arguments, reason = "rows in, rows out, sums and scratch")]
    pub fn backward(
        &self,
        window: usize,
        h: usize,
        qkv: &[f32],
        grad: &[f32],
        dqkv: &mut [f32],
        dbias: &mut [f32],
        steps: &mut [f32],
        s: &mut Scratch,
    ) {
        let Shape { n, d, scale, .. } = self.shape;
        self.probabilities(window, h, qkv, s);
        s.grad.clear();
        grad.chunks_exact(self.shape.c()).for_each(|row| s.grad.extend_from_slice(&row[h * d..][..d]));
        product(&s.grad, &s.v, true, [n, d], &mut s.dprobs, &mut s.packed);
        // What multiplied the values, with its factors.
        for (probs, &factor) in s.probs.chunks_exact_mut(n).zip(&s.factors) {
            probs.iter_mut().for_each(|p| *p *= factor);
        }
        transpose(&s.probs, n, &mut s.transposed);
        product(&s.transposed, &s.grad, false, [d, n], &mut s.product, &mut s.packed);
        self.store(2, h, dqkv, steps, s);
        self.softmax_gradient(&mut steps[4], s);
        add_lanes(dbias, &s.dprobs);
        vectorised(
            #[inline(always)]
            || s.dprobs.iter_mut().for_each(|x| *x *= scale),
        );
        if let Some(site) = &self.sites.scores {
            steps[3] += clip_site(&s.scores, site, &mut s.dprobs);
        }
        product(&s.dprobs, &s.k, false, [d, n], &mut s.product, &mut s.packed);
        self.store(0, h, dqkv, steps, s);
        transpose(&s.dprobs, n, &mut s.transposed);
        product(&s.transposed, &s.q, false, [d, n], &mut s.product, &mut s.packed);
        self.store(1, h, dqkv, steps, s);
    }

    /// From the gradients of the probabilities to those of the logits, in `dprobs`.
    ///
    /// ```text
    /// dx = p (dp - sum(p dp))                      float; kind s8 after the clipping of its site
    /// dx = 255 exp(x - max) / total (dp - sum(p dp))   kind u8: p its codes over their total, rounding passed
    /// ```
    fn softmax_gradient(&self, step: &mut f32, s: &mut Scratch) {
        let n = self.shape.n;
        if let FakeProbs::S8(site) = &self.sites.probs {
            *step += clip_site(&s.exp, site, &mut s.dprobs);
        }
        let u8 = matches!(self.sites.probs, FakeProbs::U8);
        let weights = if u8 { &s.probs } else { &s.exp };
        vectorised(
            #[inline(always)]
            || {
                let rows =
                    s.dprobs.chunks_exact_mut(n).zip(weights.chunks_exact(n)).zip(s.exp.chunks_exact(n));
                for (((dprobs, p), exp), &factor) in rows.zip(&s.factors) {
                    let mean = dot(p, dprobs);
                    let factor = if u8 { 255.0 * factor } else { 1.0 };
                    for (dx, &e) in dprobs.iter_mut().zip(exp) {
                        *dx = factor * e * (*dx - mean);
                    }
                }
            },
        );
    }

    /// Puts `product`, the gradient of queries (0), keys (1) or values (2) after their site, where it belongs.
    fn store(&self, which: usize, h: usize, dqkv: &mut [f32], steps: &mut [f32], s: &mut Scratch) {
        let Shape { d, heads, .. } = self.shape;
        let site = [&self.sites.q, &self.sites.k, &self.sites.v][which];
        if let Some(site) = site {
            steps[which] += clip_site(&s.raw[which], site, &mut s.product);
        }
        let first = (which * heads + h) * d;
        for (out, x) in dqkv.chunks_exact_mut(self.shape.width()).zip(s.product.chunks_exact(d)) {
            out[first..][..d].copy_from_slice(x);
        }
    }
}

/// The sum of products.
#[inline(always)]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 16];
    let (a16, b16) = (a.chunks_exact(16), b.chunks_exact(16));
    let rest: f32 = a16.remainder().iter().zip(b16.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a16.zip(b16) {
        for i in 0..16 {
            sums[i] = a[i].mul_add(b[i], sums[i]);
        }
    }
    sums.iter().sum::<f32>() + rest
}
