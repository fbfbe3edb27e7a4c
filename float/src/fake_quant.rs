//! Simulation of quantization: the float forward in which every enabled site is rounded with its fixed scale,
//! and every quantized linear layer is computed on codes, as the number contract says
//! (`swinq_numerics::reference`).

mod candle;
mod host;

use std::collections::BTreeMap;

use candle_core::{Device, Tensor};
use swinq_numerics::{AttentionQuant, ColumnQuantizers, Gelu, Probs, Quantizer};

use crate::error::FloatError;
use crate::ops::{Compute, fake_quantize, fake_quantize_columns};
use crate::packed::PackedLinear;
use crate::{Attention, LinearWeights, Sites};
use swinq_model::quantized::{Int8Weight, Param, QuantizedModel};
use swinq_model::recipe::Kind;
use swinq_model::site::{BlockId, Linear, Site, all_linears};
use swinq_model::{HostTensor, ModelError};

/// Longest sum of products of codes that f32 arithmetic computes exactly: `1024 * 128 * 127 < 2^24`.
const EXACT: usize = 1024;

/// [`EXACT`] for products with a factor of magnitude up to 255, such as a code minus its zero point:
/// `512 * 255 * 128 < 2^24`.
const EXACT_WIDE: usize = 512;

/// The sites of a [`QuantizedModel`]: activations and weights are replaced with their dequantized codes. A
/// linear layer whose two operands are quantized sums products of codes, exactly. A site that is off leaves
/// its tensor unchanged.
///
/// On the host ([`Compute::Host`]) all arithmetic equals the reference's, bit for bit. Elsewhere it consists
/// of candle's operations: codes and sums of codes equal the reference's; the exponential, GELU and norms are
/// candle's, and a multiplication followed by an addition rounds twice.
pub struct FakeQuant {
    quantizers: BTreeMap<Site, Quantizer>,
    /// The quantizers of sites whose channels have their own; `quantizers` has the common scale.
    channels: BTreeMap<Site, ColumnQuantizers>,
    probs: BTreeMap<BlockId, Probs>,
    /// The GELU of MLPs whose hidden values are quantized.
    gelu: Gelu,
    weights: BTreeMap<Linear, Weight>,
    compute: Compute,
}

/// A quantized weight.
struct Weight {
    /// The dequantized weight, in its own shape.
    float: Tensor,
    /// The linear layer on codes, if its input is quantized too.
    quantized: Option<QuantizedLinear>,
}

/// The quantization of the input of a linear layer on codes.
struct LinearInput {
    /// The site's scale.
    quantizer: Quantizer,
    /// The quantizers of the channels, if they have their own.
    channels: Option<ColumnQuantizers>,
}

impl LinearInput {
    /// The longest sum of products of codes, without zero points, that f32 arithmetic computes exactly.
    fn exact(&self) -> usize {
        if self.channels.is_some() { EXACT_WIDE } else { EXACT }
    }
}

/// A linear layer on codes: a quantized weight and the quantizer of its input.
enum QuantizedLinear {
    Host(host::QuantizedLinear),
    Candle(candle::QuantizedLinear),
}

impl FakeQuant {
    /// The simulation of `model` on `device`, with the implementation for inference there.
    ///
    /// # Errors
    /// The errors of [`QuantizedModel::validate`] and [`Compute::for_inference`].
    pub fn new(model: &QuantizedModel, device: &Device) -> Result<FakeQuant, FloatError> {
        FakeQuant::with(model, device, Compute::for_inference(device)?)
    }

    /// The simulation of `model` on `device`, with the implementation `compute`.
    ///
    /// # Errors
    /// The errors of [`QuantizedModel::validate`].
    pub fn with(model: &QuantizedModel, device: &Device, compute: Compute) -> Result<FakeQuant, FloatError> {
        if !compute.is_host() {
            // Reduced precision would make sums of codes inexact.
            candle_core::cuda::set_gemm_reduced_precision_f32(false);
        }
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
        let mut channels = BTreeMap::new();
        for &site in model.sites.keys() {
            channels.extend(model.column_quantizers(site)?.map(|columns| (site, columns)));
        }
        let mut found =
            FakeQuant { quantizers, channels, probs, gelu: model.gelu, weights: BTreeMap::new(), compute };
        for linear in all_linears(&model.config) {
            if let Some(Param::Int8(weight)) = model.params.get(&linear.weight_name()) {
                let weight = found.prepare(linear, weight, model.float_weight(linear), device)?;
                found.weights.insert(linear, weight);
            }
        }
        Ok(found)
    }

    /// Takes over the weight of `linear` from `model`, which otherwise is the model of this simulation.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] if the weight was not or is not INT8.
    pub fn update(&mut self, model: &QuantizedModel, linear: Linear) -> Result<(), FloatError> {
        let name = linear.weight_name();
        let (Some(Param::Int8(weight)), Some(old)) = (model.params.get(&name), self.weights.get(&linear))
        else {
            return Err(ModelError::tensor(name, "is not an INT8 weight of the simulated model").into());
        };
        let device = old.float.device().clone();
        let weight = self.prepare(linear, weight, model.float_weight(linear), &device)?;
        self.weights.insert(linear, weight);
        Ok(())
    }

    fn prepare(
        &self,
        linear: Linear,
        weight: &Int8Weight,
        float: HostTensor,
        device: &Device,
    ) -> candle_core::Result<Weight> {
        let quantized = |quantizer| {
            let input = LinearInput { quantizer, channels: self.channels.get(&Site::Input(linear)).cloned() };
            if self.compute.is_host() {
                return host::QuantizedLinear::new(weight, input).map(QuantizedLinear::Host);
            }
            let output = self.quantizer(Site::Output(linear));
            candle::QuantizedLinear::new(weight, input, output, device).map(QuantizedLinear::Candle)
        };
        Ok(Weight {
            float: Tensor::from_vec(float.data, float.shape, device)?,
            quantized: self.quantizer(Site::Input(linear)).map(quantized).transpose()?,
        })
    }

    fn quantizer(&self, site: Site) -> Option<Quantizer> {
        self.quantizers.get(&site).copied()
    }

    /// The GELU that follows the bias of `linear`, if any.
    fn gelu(&self, linear: Linear) -> Option<Gelu> {
        let Linear::Fc1(block) = linear else { return None };
        let quantized = self.quantizers.contains_key(&Site::Input(Linear::Fc2(block)));
        Some(if quantized { self.gelu } else { Gelu::Erf })
    }

    /// The rest of `layer` after its output site, in candle's operations.
    fn finish(&self, layer: &LinearWeights, y: Tensor) -> candle_core::Result<Tensor> {
        match self.gelu(layer.linear) {
            Some(Gelu::Quadratic) => candle::gelu_quadratic(&layer.add_bias(y)?),
            _ => layer.finish(y),
        }
    }
}

fn quantizer(model: &QuantizedModel, site: Site) -> Result<Quantizer, FloatError> {
    let scale = model.activation_scale(site)?.and_then(Quantizer::new);
    scale.ok_or_else(|| ModelError::site(site, "has no usable scale; calibrate again").into())
}

/// The codes of `weight` as f32, `[out, in]`.
fn matrix_of_codes(weight: &Int8Weight) -> candle_core::Result<Tensor> {
    let codes: Vec<f32> = weight.codes.iter().map(|&c| f32::from(c)).collect();
    Tensor::from_vec(codes, weight.matrix(), &Device::Cpu)
}

/// The factor of a sum of products of codes, one per output channel: `s_x * s_w[c]`.
fn multipliers(weight: &Int8Weight, input: &LinearInput) -> Vec<f32> {
    (0..weight.matrix().0).map(|row| input.quantizer.scale() * weight.scale(row)).collect()
}

impl Sites for FakeQuant {
    fn activation(&mut self, site: Site, x: Tensor) -> Result<Tensor, FloatError> {
        Ok(match (self.channels.get(&site), self.quantizer(site)) {
            (None, None) => x,
            (Some(columns), _) if self.compute.is_host() => fake_quantize_columns(&x, columns)?,
            (Some(columns), _) => candle::fake_columns(&x, columns)?,
            (None, Some(q)) if self.compute.is_host() => fake_quantize(&x, q)?,
            (None, Some(q)) => candle::fake(&x, q)?,
        })
    }

    fn weight(&mut self, site: Site, w: &Tensor) -> Result<Tensor, FloatError> {
        let Site::Weight(linear) = site else { return Ok(w.clone()) };
        Ok(self.weights.get(&linear).map_or(w, |weight| &weight.float).clone())
    }

    /// Refused if the probabilities are quantized, because the contract defines quantized attention as a
    /// whole: [`Sites::attention`] computes it.
    fn attend(&mut self, attention: &Attention<'_>, logits: Tensor, v: Tensor) -> Result<Tensor, FloatError> {
        if self.probs.contains_key(&attention.block) {
            let problem = "quantized probabilities are simulated by `attention`, not by `attend`";
            return Err(ModelError::site(Site::Probs(attention.block), problem).into());
        }
        attention.attend(&logits, &v)
    }

    fn linear(&mut self, layer: &LinearWeights, x: &Tensor) -> Result<Tensor, FloatError> {
        let output = self.quantizer(Site::Output(layer.linear));
        let weight = self.weights.get(&layer.linear);
        let float = weight.map_or(&layer.weight, |weight| &weight.float);
        match (weight.and_then(|weight| weight.quantized.as_ref()), self.compute) {
            (Some(QuantizedLinear::Host(quantized)), _) => {
                quantized.run(x, layer, output, self.gelu(layer.linear))
            }
            (Some(QuantizedLinear::Candle(quantized)), _) => Ok(self.finish(layer, quantized.run(x)?)?),
            (None, Compute::Host(cpu)) => {
                let gelu = self.gelu(layer.linear);
                Ok(PackedLinear::new(cpu, float, layer.bias.as_ref(), output, gelu)?.run(x)?)
            }
            (None, _) => {
                let y = layer.before_bias(x, float)?;
                Ok(self.finish(layer, candle::fake_if(&y, output)?)?)
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
        attention.merge(&match self.compute {
            Compute::Host(_) => host::attention(attention, &parts, &quant)?,
            _ => candle::attention(attention, &parts, &quant)?,
        })
    }
}
