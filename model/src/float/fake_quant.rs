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

    /// Softmax and product in float: only where a caller asks for it by itself; [`FakeQuant::attention`] does without.
    fn attend(&mut self, site: Site, logits: Tensor, v: Tensor) -> Result<Tensor, ModelError> {
        Float.attend(site, logits, v)
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
        Ok(attention_by_reference(attention, &quant)?)
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
    let sums = exact_product(&codes_of(x, input)?, &weight.codes)?;
    let multipliers: Vec<f32> = weight.scales.iter().map(|scale| input.scale() * scale).collect();
    let bias = match &linear.bias {
        Some(bias) => bias.to_vec1::<f32>()?,
        None => vec![0.0; multipliers.len()],
    };
    let mut values = sums.flatten_all()?.to_vec1::<f32>()?;
    values.par_chunks_mut(multipliers.len()).for_each(|row| {
        for ((value, &multiplier), &bias) in row.iter_mut().zip(&multipliers).zip(&bias) {
            *value = epilogue_i8(*value as i32, multiplier, bias, output, linear.gelu);
        }
    });
    Ok(Tensor::from_vec(values, sums.shape(), x.device())?)
}

/// The codes of values that are codes times a step, as f32.
fn codes_of(x: &Tensor, quantizer: Quantizer) -> Result<Tensor, ModelError> {
    let recip = quantizer.recip();
    let codes = |x: &[f32]| x.par_iter().map(|&x| f32::from(code(x * recip))).collect::<Vec<f32>>();
    Ok(Tensor::from_vec(with_values(x, codes)?, x.shape(), x.device())?)
}

/// `codes` `[rows, in]` times `weight` `[out, in]` transposed. Every part of the sum is exact in f32.
fn exact_product(codes: &Tensor, weight: &Tensor) -> Result<Tensor, ModelError> {
    let width = codes.dim(1)?;
    let part = |start: usize| {
        let len = EXACT.min(width - start);
        codes.narrow(1, start, len)?.contiguous()?.matmul(&weight.narrow(1, start, len)?.t()?.contiguous()?)
    };
    let mut sums = part(0)?;
    for start in (EXACT..width).step_by(EXACT) {
        sums = (sums + part(start)?)?;
    }
    Ok(sums)
}

/// Every window and head by [`attention_window`].
fn attention_by_reference(attention: &Attention<'_>, quant: &AttentionQuant) -> candle_core::Result<Tensor> {
    let (_, heads, n, d) = attention.q.dims4()?;
    let bias = attention.bias.flatten_all()?.to_vec1::<f32>()?;
    let mask = attention.mask.map(|mask| mask.flatten_all()?.to_vec1::<f32>()).transpose()?;
    let mut out = vec![0.0; attention.q.elem_count()];
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
    with_values(&attention.q, |q| {
        with_values(&attention.k, |k| with_values(&attention.v, |v| run(q, k, v)))
    })???;
    Tensor::from_vec(out, attention.q.shape(), attention.q.device())
}
