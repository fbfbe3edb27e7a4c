//! Quantization in simulation: every enabled site is rounded with its fixed scale and goes on in float.

use std::collections::BTreeMap;

use candle_core::{Device, Tensor};

use super::{Sites, ops};
use crate::error::ModelError;
use crate::quantized::{Param, QuantizedModel};
use crate::recipe::Kind;
use crate::site::{Site, all_linears};

/// How the probabilities of one block are rounded.
#[derive(Clone, Copy)]
enum Probs {
    U8,
    S8(f32),
}

/// The fixed quantization of a [`QuantizedModel`]: activations are replaced by their dequantized codes, weights by
/// theirs, probabilities by either kind of code. A site that is off passes through.
pub struct FakeQuant {
    scales: BTreeMap<Site, f32>,
    probs: BTreeMap<Site, Probs>,
    weights: BTreeMap<Site, Tensor>,
}

impl FakeQuant {
    /// The quantization of `model`, for a forward in host memory.
    ///
    /// # Errors
    /// What [`QuantizedModel::validate`] refuses.
    pub fn new(model: &QuantizedModel) -> Result<FakeQuant, ModelError> {
        model.validate()?;
        let (mut scales, mut probs) = (BTreeMap::new(), BTreeMap::new());
        for (&site, state) in
            model.sites.iter().filter(|(site, state)| state.spec.enabled && !site.is_weight())
        {
            match (site, state.spec.kind) {
                (Site::Probs(_), Kind::U8) => {
                    probs.insert(site, Probs::U8);
                }
                (Site::Probs(_), Kind::S8) => {
                    probs.extend(model.activation_scale(site)?.map(|scale| (site, Probs::S8(scale))));
                }
                _ => scales.extend(model.activation_scale(site)?.map(|scale| (site, scale))),
            }
        }
        Ok(FakeQuant { scales, probs, weights: dequantized_weights(model)? })
    }
}

fn dequantized_weights(model: &QuantizedModel) -> Result<BTreeMap<Site, Tensor>, ModelError> {
    let mut weights = BTreeMap::new();
    for linear in all_linears(&model.config) {
        if let Some(Param::Int8(weight)) = model.params.get(&linear.weight_name()) {
            let float = weight.dequantize();
            let tensor = Tensor::from_vec(float.data, float.shape, &Device::Cpu)?;
            weights.insert(Site::Weight(linear), tensor);
        }
    }
    Ok(weights)
}

impl Sites for FakeQuant {
    fn activation(&mut self, site: Site, x: Tensor) -> Result<Tensor, ModelError> {
        match self.scales.get(&site) {
            Some(&scale) => Ok(ops::fake_quantize(&x, scale)?),
            None => Ok(x),
        }
    }

    fn weight(&mut self, site: Site, w: &Tensor) -> Result<Tensor, ModelError> {
        Ok(self.weights.get(&site).unwrap_or(w).clone())
    }

    fn attend(&mut self, site: Site, logits: Tensor, v: Tensor) -> Result<Tensor, ModelError> {
        match self.probs.get(&site) {
            None => Ok(ops::attend(&logits, &v)?),
            Some(Probs::U8) => Ok(ops::attend_u8(&logits, &v)?),
            Some(&Probs::S8(scale)) => {
                let probs = ops::fake_quantize(&ops::softmax(&logits)?, scale)?;
                Ok(ops::mix(&probs, &v)?)
            }
        }
    }
}
