//! Quantization in simulation: the float forward, with every enabled site rounded at its fixed scale and every quantized
//! product taken over codes, as the number contract says (`swinq_kernels::reference`).

mod composed;
mod host;

use std::collections::BTreeMap;

use candle_core::{Device, Tensor};
use swinq_kernels::{AttentionQuant, Probs, Quantizer};

use crate::error::FloatError;
use crate::ops::fake_quantize;
use crate::packed::{Packed, Workers};
use crate::{Attention, Float, LinearWeights, Sites};
use swinq_model::ModelError;
use swinq_model::quantized::{Int8Weight, Param, QuantizedModel};
use swinq_model::recipe::Kind;
use swinq_model::site::{BlockId, Linear, Site, all_linears};

/// Longest sum of products of codes whose every partial sum an f32 holds exactly: `1024 * 128 * 127 < 2^24`.
const EXACT: usize = 1024;

/// The fixed quantization of a [`QuantizedModel`]: activations are replaced by what their codes stand for, weights
/// likewise. A product whose two operands are quantized is summed over their codes, exactly. A site that is off passes
/// through.
///
/// In host memory everything between the sites is the reference's, bit for bit. In candle's operations
/// ([`FakeQuant::composed`]) codes and sums of codes are the reference's, too; the exponential, GELU and norms are
/// candle's, and a multiplication and an addition round twice.
pub struct FakeQuant {
    quantizers: BTreeMap<Site, Quantizer>,
    probs: BTreeMap<BlockId, Probs>,
    weights: BTreeMap<Linear, Weight>,
    arithmetic: Arithmetic,
}

/// Who computes.
enum Arithmetic {
    /// The reference, in host memory.
    Host(Workers),
    /// candle's operations, on any device.
    Composed,
}

/// A quantized weight.
struct Weight {
    /// What the codes stand for, in the weight's own shape.
    float: Tensor,
    /// Prepared for the product over codes, where the input is quantized too.
    codes: Option<Codes>,
}

/// A quantized weight and the quantizer of what it is multiplied with.
enum Codes {
    Host(host::Codes),
    Composed(composed::Codes),
}

impl FakeQuant {
    /// The quantization of `model`, for a forward on `device`: the reference's in host memory, else candle's operations.
    ///
    /// # Errors
    /// What [`QuantizedModel::validate`] refuses.
    pub fn new(model: &QuantizedModel, device: &Device) -> Result<FakeQuant, FloatError> {
        match device {
            Device::Cpu => FakeQuant::with(model, device, Arithmetic::Host(Workers::new()?)),
            _ => FakeQuant::composed(model, device),
        }
    }

    /// The quantization of `model` in candle's operations, for a forward on `device`, whichever it is.
    ///
    /// # Errors
    /// As [`FakeQuant::new`].
    pub fn composed(model: &QuantizedModel, device: &Device) -> Result<FakeQuant, FloatError> {
        // Sums of codes must be exact.
        candle_core::cuda::set_gemm_reduced_precision_f32(false);
        FakeQuant::with(model, device, Arithmetic::Composed)
    }

    fn with(
        model: &QuantizedModel,
        device: &Device,
        arithmetic: Arithmetic,
    ) -> Result<FakeQuant, FloatError> {
        model.validate()?;
        let (mut quantizers, mut probs) = (BTreeMap::new(), BTreeMap::new());
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
        let mut found = FakeQuant { quantizers, probs, weights: BTreeMap::new(), arithmetic };
        for linear in all_linears(&model.config) {
            if let Some(Param::Int8(weight)) = model.params.get(&linear.weight_name()) {
                let weight = found.prepare(linear, weight, device)?;
                found.weights.insert(linear, weight);
            }
        }
        Ok(found)
    }

    fn prepare(&self, linear: Linear, weight: &Int8Weight, device: &Device) -> candle_core::Result<Weight> {
        let float = weight.dequantize();
        let codes = |input| match self.arithmetic {
            Arithmetic::Host(_) => host::Codes::new(weight, input).map(Codes::Host),
            Arithmetic::Composed => {
                let output = self.quantizer(Site::Output(linear));
                composed::Codes::new(weight, input, output, device).map(Codes::Composed)
            }
        };
        Ok(Weight {
            float: Tensor::from_vec(float.data, float.shape, device)?,
            codes: self.quantizer(Site::Input(linear)).map(codes).transpose()?,
        })
    }

    fn quantizer(&self, site: Site) -> Option<Quantizer> {
        self.quantizers.get(&site).copied()
    }
}

fn quantizer(model: &QuantizedModel, site: Site) -> Result<Quantizer, FloatError> {
    let scale = model.activation_scale(site)?.and_then(Quantizer::new);
    scale.ok_or_else(|| ModelError::site(site, "has no scale that can quantize; calibrate again").into())
}

/// The codes of `weight` as f32, `[out, in]`.
fn matrix_of_codes(weight: &Int8Weight) -> candle_core::Result<Tensor> {
    let codes: Vec<f32> = weight.codes.iter().map(|&c| f32::from(c)).collect();
    Tensor::from_vec(codes, weight.matrix(), &Device::Cpu)
}

/// What a sum of products of codes stands for, one per output channel.
fn multipliers(weight: &Int8Weight, input: Quantizer) -> Vec<f32> {
    (0..weight.matrix().0).map(|row| input.scale() * weight.scale(row)).collect()
}

impl Sites for FakeQuant {
    fn activation(&mut self, site: Site, x: Tensor) -> Result<Tensor, FloatError> {
        match (self.quantizer(site), &self.arithmetic) {
            (None, _) => Ok(x),
            (Some(q), Arithmetic::Host(_)) => Ok(fake_quantize(&x, q)?),
            (Some(q), Arithmetic::Composed) => Ok(composed::fake(&x, q)?),
        }
    }

    fn weight(&mut self, site: Site, w: &Tensor) -> Result<Tensor, FloatError> {
        let Site::Weight(linear) = site else { return Ok(w.clone()) };
        Ok(self.weights.get(&linear).map_or(w, |weight| &weight.float).clone())
    }

    /// Refused where the probabilities are quantized: their contract is about whole attentions, which
    /// [`Sites::attention`] computes.
    fn attend(&mut self, site: Site, logits: Tensor, v: Tensor) -> Result<Tensor, FloatError> {
        match site {
            Site::Probs(block) if self.probs.contains_key(&block) => Err(ModelError::site(
                site,
                "quantized probabilities are simulated by `attention`, not by `attend`",
            )
            .into()),
            _ => Float.attend(site, logits, v),
        }
    }

    fn product(&mut self, linear: &LinearWeights, x: &Tensor) -> Result<Tensor, FloatError> {
        let output = self.quantizer(Site::Output(linear.linear));
        let weight = self.weights.get(&linear.linear);
        let float = weight.map_or(&linear.weight, |weight| &weight.float);
        match (weight.and_then(|weight| weight.codes.as_ref()), &self.arithmetic) {
            (Some(Codes::Host(codes)), _) => codes.product(x, linear, output),
            (Some(Codes::Composed(codes)), _) => Ok(linear.finish(codes.product(x)?)?),
            (None, Arithmetic::Host(workers)) => {
                Ok(Packed::new(workers, float, linear.bias.as_ref(), output, linear.gelu)?.product(x)?)
            }
            (None, Arithmetic::Composed) => {
                let y = linear.before_bias(x, float)?;
                Ok(linear.finish(composed::fake_if(&y, output)?)?)
            }
        }
    }

    fn attention(&mut self, attention: &Attention<'_>) -> Result<Tensor, FloatError> {
        let block = attention.block;
        let quant = AttentionQuant {
            q: self.quantizer(Site::Q(block)),
            k: self.quantizer(Site::K(block)),
            v: self.quantizer(Site::V(block)),
            scores: self.quantizer(Site::Scores(block)),
            probs: self.probs.get(&block).copied().unwrap_or(Probs::Float),
        };
        let parts = attention.split()?;
        attention.merge(&match self.arithmetic {
            Arithmetic::Host(_) => host::attention(attention, &parts, &quant)?,
            Arithmetic::Composed => composed::attention(attention, &parts, &quant)?,
        })
    }
}
