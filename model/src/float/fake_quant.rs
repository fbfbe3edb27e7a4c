//! Quantization in simulation: the float forward, with every enabled site rounded at its fixed scale and every quantized
//! product taken over codes, as the number contract says (`swinq_kernels::reference`).

use std::collections::BTreeMap;

use candle_core::{Device, Tensor};
use rayon::prelude::*;
use swinq_kernels::reference::{attention_window, code, epilogue_i8};
use swinq_kernels::{AttentionQuant, Probs, Quantizer};

use super::ops::{fake_quantize, with_values};
use super::packed::{Packed, Workers};
use super::{Attention, Float, LinearWeights, Sites};
use crate::error::ModelError;
use crate::quantized::{Int8Weight, Param, QuantizedModel};
use crate::recipe::Kind;
use crate::site::{BlockId, Linear, Site, all_linears};

/// Longest sum of products of codes whose every partial sum an f32 holds exactly: `1024 * 128 * 127 < 2^24`.
const EXACT: usize = 1024;

/// The fixed quantization of a [`QuantizedModel`], for a forward in host memory: activations are replaced by what
/// their codes stand for, weights likewise. A product whose two operands are quantized is summed over their codes,
/// exactly; an attention is the reference's. A site that is off passes through.
pub struct FakeQuant {
    quantizers: BTreeMap<Site, Quantizer>,
    probs: BTreeMap<BlockId, Probs>,
    weights: BTreeMap<Linear, Weight>,
    workers: Workers,
}

/// A quantized weight.
struct Weight {
    /// What the codes stand for, in the weight's own shape.
    float: Tensor,
    /// The codes as f32, `[out, in]`.
    codes: Tensor,
    /// One per output channel.
    scales: Vec<f32>,
}

impl Weight {
    fn new(weight: &Int8Weight) -> Result<Weight, ModelError> {
        let (rows, columns) = weight.matrix();
        let codes: Vec<f32> = weight.codes.iter().map(|&c| f32::from(c)).collect();
        let float = weight.dequantize();
        Ok(Weight {
            float: Tensor::from_vec(float.data, float.shape, &Device::Cpu)?,
            codes: Tensor::from_vec(codes, (rows, columns), &Device::Cpu)?,
            scales: (0..rows).map(|row| weight.scale(row)).collect(),
        })
    }
}

impl FakeQuant {
    /// The quantization of `model`.
    ///
    /// # Errors
    /// What [`QuantizedModel::validate`] refuses.
    pub fn new(model: &QuantizedModel) -> Result<FakeQuant, ModelError> {
        model.validate()?;
        let (mut quantizers, mut probs, mut weights) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for (&site, state) in
            model.sites.iter().filter(|(site, state)| state.spec.enabled && !site.is_weight())
        {
            match (site, state.spec.kind) {
                (Site::Probs(block), Kind::U8) => {
                    probs.insert(block, Probs::U8);
                }
                (Site::Probs(block), Kind::S8) => {
                    probs.insert(block, Probs::S8(quantizer(model, site)?));
                }
                _ => {
                    quantizers.insert(site, quantizer(model, site)?);
                }
            }
        }
        for linear in all_linears(&model.config) {
            if let Some(Param::Int8(weight)) = model.params.get(&linear.weight_name()) {
                weights.insert(linear, Weight::new(weight)?);
            }
        }
        Ok(FakeQuant { quantizers, probs, weights, workers: Workers::new()? })
    }

    fn quantizer(&self, site: Site) -> Option<Quantizer> {
        self.quantizers.get(&site).copied()
    }
}

fn quantizer(model: &QuantizedModel, site: Site) -> Result<Quantizer, ModelError> {
    let scale = model.activation_scale(site)?.and_then(Quantizer::new);
    scale.ok_or_else(|| ModelError::site(site, "has no scale that can quantize; calibrate again"))
}

impl Sites for FakeQuant {
    fn activation(&mut self, site: Site, x: Tensor) -> Result<Tensor, ModelError> {
        match self.quantizer(site) {
            Some(q) => Ok(fake_quantize(&x, q)?),
            None => Ok(x),
        }
    }

    fn weight(&mut self, site: Site, w: &Tensor) -> Result<Tensor, ModelError> {
        let Site::Weight(linear) = site else { return Ok(w.clone()) };
        Ok(self.weights.get(&linear).map_or(w, |weight| &weight.float).clone())
    }

    /// Refused where the probabilities are quantized: their contract is about whole attentions, which
    /// [`Sites::attention`] computes.
    fn attend(&mut self, site: Site, logits: Tensor, v: Tensor) -> Result<Tensor, ModelError> {
        match site {
            Site::Probs(block) if self.probs.contains_key(&block) => Err(ModelError::site(
                site,
                "quantized probabilities are simulated by `attention`, not by `attend`",
            )),
            _ => Float.attend(site, logits, v),
        }
    }

    fn product(&mut self, linear: &LinearWeights, x: &Tensor) -> Result<Tensor, ModelError> {
        let output = self.quantizer(Site::Output(linear.linear));
        let weight = self.weights.get(&linear.linear);
        if let (Some(input), Some(weight)) = (self.quantizer(Site::Input(linear.linear)), weight) {
            return product_of_codes(x, input, weight, linear, output);
        }
        let float = weight.map_or(&linear.weight, |weight| &weight.float);
        Ok(Packed::new(&self.workers, float, linear.bias.as_ref(), output, linear.gelu)?.product(x)?)
    }

    fn attention(&mut self, attention: &Attention<'_>) -> Result<Tensor, ModelError> {
        let block = attention.block;
        let quant = AttentionQuant {
            q: self.quantizer(Site::Q(block)),
            k: self.quantizer(Site::K(block)),
            v: self.quantizer(Site::V(block)),
            scores: self.quantizer(Site::Scores(block)),
            probs: self.probs.get(&block).copied().unwrap_or(Probs::Float),
        };
        attention.merge(&attention_by_reference(attention, &quant)?)
    }
}

/// The product of what codes of `input` stand for with a quantized weight, over the codes, and what follows it.
fn product_of_codes(
    x: &Tensor,
    input: Quantizer,
    weight: &Weight,
    linear: &LinearWeights,
    output: Option<Quantizer>,
) -> Result<Tensor, ModelError> {
    let (rows, columns) = (x.dim(0)?, weight.scales.len());
    let sums = exact_product(&codes_of(x, input)?, &weight.codes)?;
    let multipliers: Vec<f32> = weight.scales.iter().map(|scale| input.scale() * scale).collect();
    let bias = match &linear.bias {
        Some(bias) => bias.to_vec1::<f32>()?,
        None => vec![0.0; multipliers.len()],
    };
    let mut values = vec![0.0; sums.len()];
    values.par_chunks_mut(columns).zip(sums.par_chunks(columns)).for_each(|(values, sums)| {
        for (((value, &sum), &multiplier), &bias) in values.iter_mut().zip(sums).zip(&multipliers).zip(&bias)
        {
            *value = epilogue_i8(sum, multiplier, bias, output, linear.gelu);
        }
    });
    Ok(Tensor::from_vec(values, (rows, columns), x.device())?)
}

/// The codes of values that are codes times a step, as f32.
fn codes_of(x: &Tensor, quantizer: Quantizer) -> Result<Tensor, ModelError> {
    let recip = quantizer.recip();
    let codes = |x: &[f32]| x.par_iter().map(|&x| f32::from(code(x * recip))).collect::<Vec<f32>>();
    Ok(Tensor::from_vec(with_values(x, codes)?, x.shape(), x.device())?)
}

/// `codes` `[rows, in]` times `weight` `[out, in]` transposed, exactly: the sums of parts are exact in f32, and are added
/// as integers.
fn exact_product(codes: &Tensor, weight: &Tensor) -> Result<Vec<i32>, ModelError> {
    let width = codes.dim(1)?;
    let mut sums = vec![0; codes.dim(0)? * weight.dim(0)?];
    for start in (0..width).step_by(EXACT) {
        let len = EXACT.min(width - start);
        let [codes, weight] = [codes.narrow(1, start, len)?, weight.narrow(1, start, len)?];
        let part = codes.contiguous()?.matmul(&weight.t()?.contiguous()?)?;
        with_values(&part, |part| sums.iter_mut().zip(part).for_each(|(sum, &part)| *sum += part as i32))?;
    }
    Ok(sums)
}

/// Every window and head by [`attention_window`].
fn attention_by_reference(attention: &Attention<'_>, quant: &AttentionQuant) -> Result<Tensor, ModelError> {
    let [q, k, v] = attention.split()?;
    let (_, heads, n, d) = q.dims4()?;
    let bias = attention.bias.flatten_all()?.to_vec1::<f32>()?;
    let mask = attention.mask.map(|mask| mask.flatten_all()?.to_vec1::<f32>()).transpose()?;
    let mut out = vec![0.0; q.elem_count()];
    let mut run = |q: &[f32], k: &[f32], v: &[f32]| {
        out.par_chunks_mut(n * d).enumerate().for_each(|(index, out)| {
            let part = index * n * d..(index + 1) * n * d;
            let mut bias = bias[index % heads * n * n..][..n * n].to_vec();
            if let Some(mask) = &mask {
                let window = index / heads % (mask.len() / (n * n));
                bias.iter_mut().zip(&mask[window * n * n..]).for_each(|(bias, mask)| *bias += mask);
            }
            attention_window(
                n,
                d,
                (&q[part.clone()], &k[part.clone()], &v[part]),
                attention.scale,
                &bias,
                quant,
                out,
            );
        });
    };
    with_values(&q, |q| with_values(&k, |k| with_values(&v, |v| run(q, k, v))))???;
    Ok(Tensor::from_vec(out, q.shape(), q.device())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_beyond_what_an_f32_holds_are_exact() {
        let wide = |rows: usize, value: f32| Tensor::full(value, (rows, 3072), &Device::Cpu).unwrap();
        let mut odd = vec![127.0f32; 3072];
        odd[3071] = 126.0;
        let odd = Tensor::from_vec(odd, (1, 3072), &Device::Cpu).unwrap();
        assert_eq!(exact_product(&wide(2, 127.0), &odd).unwrap(), [3072 * 127 * 127 - 127; 2]);
        assert_eq!(exact_product(&wide(1, -128.0), &wide(1, 127.0)).unwrap(), [-3072 * 128 * 127]);
    }
}
