//! The backward pass of one head of one window.

use super::head::{Head, Scratch, Shape, product};
use crate::ops::host::vectorised;
use crate::ops::taped::fake_quant::{FakeActivation, FakeProbs, RANGE, clip};
use crate::ops::taped::host::add_to;

impl Head<'_> {
    /// The gradients of head `h` of a window: writes the head's columns of `dqkv` `[n, 3 c]`, and adds to
    /// `dbias` `[n, n]` and to `dscales`, which are in the order of `AttentionGradients::scales`.
    #[expect(clippy::too_many_arguments, reason = "rows in, rows out, sums and scratch")]
    pub fn backward(
        &self,
        window: usize,
        h: usize,
        qkv: &[f32],
        grad: &[f32],
        dqkv: &mut [f32],
        dbias: &mut [f32],
        dscales: &mut [f32],
        s: &mut Scratch,
    ) {
        let Shape { n, d, scale, .. } = self.shape;
        self.probabilities(window, h, qkv, s);
        s.grad.clear();
        grad.chunks_exact(self.shape.c()).for_each(|row| s.grad.extend_from_slice(&row[h * d..][..d]));
        product(&s.grad, &s.v, true, [n, d], &mut s.dprobs, &mut s.packed);
        // The probabilities: the operand of the product with the values times its row factors.
        for (probs, &factor) in s.probs.chunks_exact_mut(n).zip(&s.factors) {
            probs.iter_mut().for_each(|p| *p *= factor);
        }
        transpose(&s.probs, n, &mut s.transposed);
        product(&s.transposed, &s.grad, false, [d, n], &mut s.product, &mut s.packed);
        self.store(2, h, dqkv, dscales, s);
        self.softmax_gradient(&mut dscales[4], s);
        add_to(dbias, &s.dprobs);
        vectorised(
            #[inline(always)]
            || s.dprobs.iter_mut().for_each(|x| *x *= scale),
        );
        if let Some(site) = &self.sites.scores {
            dscales[3] += clip_site(&s.scores, site, &mut s.dprobs);
        }
        product(&s.dprobs, &s.k, false, [d, n], &mut s.product, &mut s.packed);
        self.store(0, h, dqkv, dscales, s);
        transpose(&s.dprobs, n, &mut s.transposed);
        product(&s.transposed, &s.q, false, [d, n], &mut s.product, &mut s.packed);
        self.store(1, h, dqkv, dscales, s);
    }

    /// Converts the gradients of the probabilities in `s.dprobs` to the gradients of the logits.
    ///
    /// ```text
    /// float, s8:   dx = p (dp - sum(p dp))                          s8: after the site's clipping
    /// u8:          dx = 255 exp(x - max) / total (dp - sum(p dp))   p: codes / total; rounding passes gradients
    /// ```
    fn softmax_gradient(&self, dscale: &mut f32, s: &mut Scratch) {
        let n = self.shape.n;
        if let FakeProbs::S8(site) = &self.sites.probs {
            *dscale += clip_site(&s.exp, site, &mut s.dprobs);
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

    /// Stores `s.product`, the gradient of queries (0), keys (1) or values (2) after their site: passes it
    /// through the site and writes the head's columns of `dqkv`.
    fn store(&self, which: usize, h: usize, dqkv: &mut [f32], dscales: &mut [f32], s: &mut Scratch) {
        let Shape { d, heads, .. } = self.shape;
        let site = [&self.sites.q, &self.sites.k, &self.sites.v][which];
        if let Some(site) = site {
            dscales[which] += clip_site(&s.raw[which], site, &mut s.product);
        }
        let first = (which * heads + h) * d;
        for (out, x) in dqkv.chunks_exact_mut(self.shape.width()).zip(s.product.chunks_exact(d)) {
            out[first..][..d].copy_from_slice(x);
        }
    }
}

/// Transposes an `[n, n]` matrix.
fn transpose(x: &[f32], n: usize, out: &mut Vec<f32>) {
    out.resize(n * n, 0.0);
    for (i, row) in x.chunks_exact(n).enumerate() {
        for (j, &x) in row.iter().enumerate() {
            out[j * n + i] = x;
        }
    }
}

/// Converts gradients after a site to gradients before the site, in place; returns the gradient of the site's
/// scale.
fn clip_site(x: &[f32], site: &FakeActivation, grad: &mut [f32]) -> f32 {
    clip(x, site.quantizer.recip(), RANGE, site.learned.is_some(), grad)
}

/// The dot product, in sixteen partial sums.
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
