//! The whole attention in candle's operations, for devices without the kernels of `head`.

use candle_core::{D, Result, Tensor};

use super::super::fake_quant::{self, Fake, FakeProbs};
use super::AttentionSites;
use super::head::{RANGE, Shape};
use crate::ops::composed::{logits, merge_heads, split_heads};

/// What a forward computes on its way, all `[windows, heads, n, ...]`.
pub(super) struct Forward {
    /// Queries, keys and values before and after their sites.
    raw: [Tensor; 3],
    faked: [Tensor; 3],
    scores: Tensor,
    /// Softmax, or for kind `u8` the derivative of a code over their sum.
    slope: Tensor,
    /// What multiplies the values.
    probs: Tensor,
}

fn fake(x: &Tensor, site: Option<&Fake>) -> Result<Tensor> {
    site.map_or_else(|| Ok(x.clone()), |site| fake_quant::composed_forward(x, site.quantizer))
}

impl Forward {
    pub fn new(
        shape: Shape,
        qkv: &Tensor,
        bias: &Tensor,
        mask: Option<&Tensor>,
        sites: &AttentionSites,
    ) -> Result<Forward> {
        let parts = split_heads(qkv, shape.heads, shape.n)?;
        let raw = [parts.get(0)?, parts.get(1)?, parts.get(2)?];
        let faked = [
            fake(&raw[0], sites.q.as_ref())?,
            fake(&raw[1], sites.k.as_ref())?,
            fake(&raw[2], sites.v.as_ref())?,
        ];
        let scores = faked[0].matmul(&faked[1].t()?.contiguous()?)?;
        let logits = logits(&fake(&scores, sites.scores.as_ref())?, shape.scale, bias, mask)?;
        let exp = logits.broadcast_sub(&logits.max_keepdim(D::Minus1)?)?.exp()?;
        let (slope, probs) = match &sites.probs {
            FakeProbs::U8 => {
                let scaled = (exp * 255.0)?;
                let codes = fake_quant::codes(&scaled, (0.0, 255.0))?;
                let total = codes.sum_keepdim(D::Minus1)?;
                (scaled.broadcast_div(&total)?, codes.broadcast_div(&total)?)
            }
            other => {
                let softmax = exp.broadcast_div(&exp.sum_keepdim(D::Minus1)?)?;
                let probs = match other {
                    FakeProbs::S8(site) => fake(&softmax, Some(site))?,
                    _ => softmax.clone(),
                };
                (softmax, probs)
            }
        };
        Ok(Forward { raw, faked, scores, slope, probs })
    }

    /// `[windows * n, c]`.
    pub fn output(&self) -> Result<Tensor> {
        merge_heads(&self.probs.matmul(&self.faked[2])?)
    }

    /// Gradients of `qkv` and of the bias, and of the steps in the order of [`AttentionSites::fakes`].
    pub fn backward(
        &self,
        shape: Shape,
        sites: &AttentionSites,
        grad: &Tensor,
    ) -> Result<(Tensor, Tensor, [Option<Tensor>; 5])> {
        let Shape { n, heads, d, scale } = shape;
        let mut steps = [const { None }; 5];
        let (rows, _) = grad.dims2()?;
        let grad = grad.reshape((rows / n, n, heads, d))?.transpose(1, 2)?.contiguous()?;
        let [q, k, v] = &self.faked;
        let dv = self.probs.t()?.contiguous()?.matmul(&grad)?;
        let mut dprobs = grad.matmul(&v.t()?.contiguous()?)?;
        if let FakeProbs::S8(site) = &sites.probs {
            (dprobs, steps[4]) = clip(&self.slope, &dprobs, site)?;
        }
        let weights = if matches!(sites.probs, FakeProbs::U8) { &self.probs } else { &self.slope };
        let mean = (weights * &dprobs)?.sum_keepdim(D::Minus1)?;
        let dlogits = (&self.slope * dprobs.broadcast_sub(&mean)?)?;
        let dbias = dlogits.sum(0)?;
        let mut dscores = (dlogits * f64::from(scale))?;
        if let Some(site) = &sites.scores {
            (dscores, steps[3]) = clip(&self.scores, &dscores, site)?;
        }
        let mut parts = [dscores.matmul(k)?, dscores.t()?.contiguous()?.matmul(q)?, dv];
        for (which, site) in [&sites.q, &sites.k, &sites.v].into_iter().enumerate() {
            if let Some(site) = site {
                (parts[which], steps[which]) = clip(&self.raw[which], &parts[which], site)?;
            }
        }
        let together = Tensor::stack(&parts, 0)?.permute((1, 3, 0, 2, 4))?;
        Ok((together.contiguous()?.reshape((rows, shape.width()))?, dbias, steps))
    }
}

/// The gradient before a site, and that of its step.
fn clip(x: &Tensor, grad: &Tensor, site: &Fake) -> Result<(Tensor, Option<Tensor>)> {
    let flat = x.contiguous()?.flatten_all()?.unsqueeze(0)?;
    let learned = site.learned.is_some();
    fake_quant::composed(&flat, grad, &[site.quantizer.recip()], RANGE, learned)
}
