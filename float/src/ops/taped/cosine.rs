//! The operations before the product of queries and keys in Swin V2: normalisation, fake quantization, and
//! the learned factor of each head. In host memory it is one pass, on other devices it is candle's
//! operations.

use candle_core::{D, Result, Tensor, bail};
use swinq_numerics::reference::{SHORTEST, inverse_length};

use super::fake_quant::{self, FakeActivation, RANGE, clip};
use super::host::{lane_sum, slices, sum_in_order};
use crate::ops::Ops;
use crate::ops::candle::{LARGEST_LOGARITHM, clamped_exp, inverse_lengths};
use crate::ops::host::{rounded, vectorised};
use crate::tape::Gradients;
use crate::threads::{map_each, zeros};

/// Rows of a part. It is fixed, so that sums over parts do not depend on the number of threads.
const PART: usize = 256;

/// Vectors get a gradient if their reciprocal length is below this bound. It is less than that of
/// [`SHORTEST`], so that no rounding of the square root decides.
const LARGEST_INVERSE: f32 = 0.999 / SHORTEST;

/// The inputs of one call.
struct Inputs {
    /// `[rows, 3 * c]`, contiguous.
    qkv: Tensor,
    /// `[heads, 1, 1]`.
    logarithms: Tensor,
    /// The fake quantization of queries and keys.
    sites: [Option<FakeActivation>; 2],
    heads: usize,
    /// Channels of a head.
    d: usize,
}

/// The gradients of one call.
struct CosineGradients {
    qkv: Tensor,
    /// Of the factors themselves, `[heads]`.
    factors: Tensor,
    /// Of the scales of queries and keys, `[1]` each.
    scales: [Option<Tensor>; 2],
}

/// Queries, keys and values `[rows, 3 * c]`, of which the queries become `factor * site(q / |q|)` and the
/// keys `site(k / |k|)` in every head, with `factor = exp(min(logarithm, ln 100))` and `logarithms`
/// `[heads, 1, 1]`. Lengths are those of [`swinq_numerics::reference::inverse_length`]. The product of the
/// results is the scaled product of cosine attention.
///
/// A vector shorter than [`SHORTEST`] gets no gradient: the derivative there is 1e12.
///
/// # Errors
/// Shapes that do not fit.
pub(crate) fn cosine(
    ops: &Ops,
    qkv: &Tensor,
    logarithms: &Tensor,
    [q, k]: [&Option<FakeActivation>; 2],
) -> Result<Tensor> {
    let ((_, width), heads) = (qkv.dims2()?, logarithms.elem_count());
    if width % (3 * heads) != 0 {
        bail!("cosine: {:?} with {heads} heads", qkv.shape());
    }
    let inputs = Inputs {
        qkv: qkv.contiguous()?,
        logarithms: logarithms.clone(),
        sites: [q.clone(), k.clone()],
        heads,
        d: width / 3 / heads,
    };
    let host = ops.compute.is_host();
    let out = if host { inputs.on_host()? } else { InCandle::new(&inputs)?.output(&inputs)? };
    let learned = inputs.sites.iter().flatten().filter_map(|site| site.learned.as_ref());
    let tracked = [qkv, logarithms].into_iter().chain(learned.map(|learned| &learned.ratio));
    let tracked: Vec<Tensor> = tracked.cloned().collect();
    let qkv = qkv.clone();
    ops.record(&tracked.iter().collect::<Vec<_>>(), &out, move |grad, sink| {
        let grad = grad.tensor().contiguous()?;
        let gradients = match host {
            true => inputs.gradients_on_host(&grad)?,
            false => InCandle::new(&inputs)?.gradients(&inputs, &grad)?,
        };
        gradients.add(&inputs, &qkv, sink)
    });
    Ok(out)
}

impl CosineGradients {
    fn add(self, inputs: &Inputs, qkv: &Tensor, sink: &mut Gradients) -> Result<()> {
        for (site, scale) in inputs.sites.iter().zip(self.scales) {
            if let (Some(learned), Some(scale)) = (site.as_ref().and_then(|s| s.learned.as_ref()), &scale) {
                learned.add(sink, scale)?;
            }
        }
        let logarithms = &inputs.logarithms;
        let free = logarithms.le(LARGEST_LOGARITHM)?.to_dtype(logarithms.dtype())?;
        let gradient = (self.factors.reshape(logarithms.shape())? * clamped_exp(logarithms)?)?;
        sink.add(logarithms, (gradient * free)?)?;
        sink.add(qkv, self.qkv)
    }
}

impl Inputs {
    fn factors(&self) -> Result<Vec<f32>> {
        clamped_exp(&self.logarithms)?.flatten_all()?.to_vec1()
    }

    fn on_host(&self) -> Result<Tensor> {
        let (c, width, factors) = (self.heads * self.d, 3 * self.heads * self.d, self.factors()?);
        let mut out = zeros(self.qkv.elem_count());
        slices(&[&self.qkv], |values| {
            let parts = out.chunks_mut(PART * width).zip(values[0].chunks(PART * width));
            map_each(parts, |(out, x)| {
                vectorised(
                    #[inline(always)]
                    || {
                        for (out, x) in out.chunks_exact_mut(width).zip(x.chunks_exact(width)) {
                            let heads = out.chunks_exact_mut(self.d).zip(x.chunks_exact(self.d));
                            for (index, (out, x)) in heads.take(2 * self.heads).enumerate() {
                                let (which, head) = (index / self.heads, index % self.heads);
                                let inverse = inverse_length(x);
                                out.iter_mut().zip(x).for_each(|(out, x)| *out = x * inverse);
                                self.site(which, out);
                                if which == 0 {
                                    out.iter_mut().for_each(|out| *out *= factors[head]);
                                }
                            }
                            out[2 * c..].copy_from_slice(&x[2 * c..]);
                        }
                    },
                );
            });
        })?;
        Tensor::from_vec(out, self.qkv.shape(), self.qkv.device())
    }

    /// Fake quantization of the queries (0) or keys (1) of one head.
    #[inline(always)]
    fn site(&self, which: usize, x: &mut [f32]) {
        if let Some(FakeActivation { quantizer, .. }) = &self.sites[which] {
            let (recip, scale) = (quantizer.recip(), quantizer.scale());
            x.iter_mut().for_each(|x| *x = rounded(*x, scale, recip));
        }
    }

    fn gradients_on_host(&self, grad: &Tensor) -> Result<CosineGradients> {
        let (heads, width, factors) = (self.heads, 3 * self.heads * self.d, self.factors()?);
        let mut dqkv = grad.flatten_all()?.to_vec1::<f32>()?;
        // The gradients of the factors, then those of the two scales.
        let sums = slices(&[&self.qkv], |values| {
            let parts = dqkv.chunks_mut(PART * width).zip(values[0].chunks(PART * width));
            let parts = map_each(parts, |(grad, x)| {
                let (mut sums, mut scratch) = (vec![0.0; heads + 2], vec![0.0; 2 * self.d]);
                for (grad, x) in grad.chunks_exact_mut(width).zip(x.chunks_exact(width)) {
                    let vectors = grad.chunks_exact_mut(self.d).zip(x.chunks_exact(self.d));
                    for (index, (grad, x)) in vectors.take(2 * heads).enumerate() {
                        self.vector(index / heads, index % heads, &factors, x, grad, &mut sums, &mut scratch);
                    }
                }
                sums
            });
            sum_in_order(parts, heads + 2)
        })?;
        let device = self.qkv.device();
        let scale = |which: usize| Tensor::from_slice(&sums[heads + which..][..1], 1, device).map(Some);
        Ok(CosineGradients {
            qkv: Tensor::from_vec(dqkv, self.qkv.shape(), device)?,
            factors: Tensor::from_slice(&sums[..heads], heads, device)?,
            scales: [scale(0)?, scale(1)?],
        })
    }

    /// The gradient of the query (`which` 0) or key (1) `x` of one head: replaces `grad`, that of the result,
    /// and adds to `sums`. `scratch` holds twice `d` values.
    ///
    /// ```text
    /// u = x / |x|       dx = (g - u (g . u)) / |x|       with g the gradient of u
    /// ```
    #[expect(clippy::too_many_arguments, reason = "the place of a vector, its gradient, sums and scratch")]
    fn vector(
        &self,
        which: usize,
        head: usize,
        factors: &[f32],
        x: &[f32],
        grad: &mut [f32],
        sums: &mut [f32],
        scratch: &mut [f32],
    ) {
        vectorised(
            #[inline(always)]
            || {
                let (unit, site) = scratch.split_at_mut(self.d);
                let inverse = inverse_length(x);
                unit.iter_mut().zip(x).for_each(|(unit, x)| *unit = x * inverse);
                if which == 0 {
                    site.copy_from_slice(unit);
                    self.site(0, site);
                    sums[head] += site.iter().zip(&*grad).map(|(site, g)| site * g).sum::<f32>();
                    grad.iter_mut().for_each(|g| *g *= factors[head]);
                }
                if let Some(FakeActivation { quantizer, learned }) = &self.sites[which] {
                    sums[self.heads + which] += clip(unit, quantizer.recip(), RANGE, learned.is_some(), grad);
                }
                site.iter_mut().zip(&*unit).zip(&*grad).for_each(|((product, u), g)| *product = u * g);
                let along = lane_sum(site, |product| product);
                let inverse = if inverse < LARGEST_INVERSE { inverse } else { 0.0 };
                grad.iter_mut().zip(&*unit).for_each(|(g, u)| *g = inverse * (*g - u * along));
            },
        );
    }
}

/// The intermediate tensors in candle's operations: `[rows, 2, heads, d]`, queries and keys.
struct InCandle {
    /// `[rows, 2, heads, 1]`.
    inverse: Tensor,
    unit: Tensor,
    /// Queries and keys after their sites, `[rows, 1, heads, d]` each.
    sites: [Tensor; 2],
    /// `[heads, 1]`.
    factors: Tensor,
}

impl InCandle {
    fn new(inputs: &Inputs) -> Result<InCandle> {
        let Inputs { qkv, heads, d, .. } = inputs;
        let x = qkv.narrow(1, 0, 2 * heads * d)?.contiguous()?.reshape((qkv.dim(0)?, 2, *heads, *d))?;
        let inverse = inverse_lengths(&x)?;
        let unit = x.broadcast_mul(&inverse)?;
        let site = |which: usize| {
            let x = unit.narrow(1, which, 1)?.contiguous()?;
            match &inputs.sites[which] {
                Some(site) => fake_quant::candle_forward(&x, site.quantizer),
                None => Ok(x),
            }
        };
        let factors = clamped_exp(&inputs.logarithms)?.reshape((*heads, 1))?;
        Ok(InCandle { sites: [site(0)?, site(1)?], inverse, unit, factors })
    }

    fn output(&self, inputs: &Inputs) -> Result<Tensor> {
        let (rows, c) = (inputs.qkv.dim(0)?, inputs.heads * inputs.d);
        let q = self.sites[0].broadcast_mul(&self.factors)?.reshape((rows, c))?;
        let k = self.sites[1].reshape((rows, c))?;
        Tensor::cat(&[&q, &k, &inputs.qkv.narrow(1, 2 * c, c)?], 1)
    }

    fn gradients(&self, inputs: &Inputs, grad: &Tensor) -> Result<CosineGradients> {
        let (rows, c) = (inputs.qkv.dim(0)?, inputs.heads * inputs.d);
        let part = |which: usize| {
            grad.narrow(1, which * c, c)?.contiguous()?.reshape((rows, 1, inputs.heads, inputs.d))
        };
        let factors = (part(0)? * &self.sites[0])?.sum((0, 1, 3))?;
        let mut parts = [part(0)?.broadcast_mul(&self.factors)?, part(1)?];
        let mut scales = [None, None];
        for (which, site) in inputs.sites.iter().enumerate() {
            let Some(FakeActivation { quantizer, learned }) = site else { continue };
            let x = self.unit.narrow(1, which, 1)?.contiguous()?.flatten_all()?.unsqueeze(0)?;
            let recips = [quantizer.recip()];
            (parts[which], scales[which]) =
                fake_quant::in_candle(&x, &parts[which], &recips, RANGE, learned.is_some())?;
        }
        let g = Tensor::cat(&parts, 1)?;
        let along = (&g * &self.unit)?.sum_keepdim(D::Minus1)?;
        let long = self.inverse.lt(LARGEST_INVERSE)?.to_dtype(g.dtype())?;
        let dx = (g - self.unit.broadcast_mul(&along)?)?.broadcast_mul(&(&self.inverse * long)?)?;
        let values = grad.narrow(1, 2 * c, c)?;
        Ok(CosineGradients { qkv: Tensor::cat(&[&dx.reshape((rows, 2 * c))?, &values], 1)?, factors, scales })
    }
}
