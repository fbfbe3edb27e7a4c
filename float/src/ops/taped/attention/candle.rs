//! Attention in candle's operations, for devices without attention kernels.

use candle_core::{D, Result, Tensor};

use super::head::Shape;
use super::{AttentionGradients, Inputs};
use crate::ops::candle::{logits, merge_heads, probs_times_values, scores, split_heads};
use crate::ops::taped::fake_quant::{self, FakeActivation, FakeProbs, RANGE};

/// The intermediate tensors of a forward pass, all `[windows, heads, n, ...]`.
pub(super) struct Forward {
    /// Queries, keys and values before their sites.
    raw: [Tensor; 3],
    /// Queries, keys and values after their sites.
    faked: [Tensor; 3],
    /// `q k^T` before its site.
    scores: Tensor,
    /// The softmax; for kind `u8` the scaled exponentials divided by the sum of their codes.
    slope: Tensor,
    /// The probabilities after their site.
    probs: Tensor,
}

fn fake(x: &Tensor, site: Option<&FakeActivation>) -> Result<Tensor> {
    site.map_or_else(|| Ok(x.clone()), |site| fake_quant::candle_forward(x, site.quantizer))
}

impl Forward {
    pub fn new(inputs: &Inputs) -> Result<Forward> {
        let Inputs { shape, qkv, bias, mask, sites } = inputs;
        let parts = split_heads(qkv, shape.heads, shape.n)?;
        let raw = [parts.get(0)?, parts.get(1)?, parts.get(2)?];
        let faked = [
            fake(&raw[0], sites.q.as_ref())?,
            fake(&raw[1], sites.k.as_ref())?,
            fake(&raw[2], sites.v.as_ref())?,
        ];
        let scores = scores(&faked[0], &faked[1])?;
        let logits = logits(&fake(&scores, sites.scores.as_ref())?, &[shape.scale], bias, mask.as_ref())?;
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

    /// The output, `[windows * n, c]`.
    pub fn output(&self) -> Result<Tensor> {
        merge_heads(&probs_times_values(&self.probs, &self.faked[2])?)
    }

    /// The gradients of the inputs and scales, from the contiguous gradient `grad` of the output.
    pub fn backward(&self, inputs: &Inputs, grad: &Tensor) -> Result<AttentionGradients> {
        let (Shape { n, heads, d, scale }, sites) = (inputs.shape, &inputs.sites);
        let mut scales = [const { None }; 5];
        let (rows, _) = grad.dims2()?;
        let grad = grad.reshape((rows / n, n, heads, d))?.transpose(1, 2)?.contiguous()?;
        let [q, k, v] = &self.faked;
        let dv = self.probs.t()?.contiguous()?.matmul(&grad)?;
        let mut dprobs = grad.matmul(&v.t()?.contiguous()?)?;
        if let FakeProbs::S8(site) = &sites.probs {
            (dprobs, scales[4]) = clip(&self.slope, &dprobs, site)?;
        }
        let weights = if matches!(sites.probs, FakeProbs::U8) { &self.probs } else { &self.slope };
        let mean = (weights * &dprobs)?.sum_keepdim(D::Minus1)?;
        let dlogits = (&self.slope * dprobs.broadcast_sub(&mean)?)?;
        let dbias = dlogits.sum(0)?;
        let mut dscores = (dlogits * f64::from(scale))?;
        if let Some(site) = &sites.scores {
            (dscores, scales[3]) = clip(&self.scores, &dscores, site)?;
        }
        let mut parts = [dscores.matmul(k)?, dscores.t()?.contiguous()?.matmul(q)?, dv];
        for (which, site) in [&sites.q, &sites.k, &sites.v].into_iter().enumerate() {
            if let Some(site) = site {
                (parts[which], scales[which]) = clip(&self.raw[which], &parts[which], site)?;
            }
        }
        let together = Tensor::stack(&parts, 0)?.permute((1, 3, 0, 2, 4))?;
        let qkv = together.contiguous()?.reshape((rows, inputs.shape.width()))?;
        Ok(AttentionGradients { qkv, bias: dbias, scales })
    }
}

/// The gradient before a site, and the gradient of its scale.
fn clip(x: &Tensor, grad: &Tensor, site: &FakeActivation) -> Result<(Tensor, Option<Tensor>)> {
    let flat = x.contiguous()?.flatten_all()?.unsqueeze(0)?;
    let learned = site.learned.is_some();
    fake_quant::in_candle(&flat, grad, &[site.quantizer.recip()], RANGE, learned)
}
