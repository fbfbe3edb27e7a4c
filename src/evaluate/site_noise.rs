//! Quantization noise of each site: the error that rounding at this site adds to its input tensor.

use std::collections::BTreeMap;

use candle_core::{Device, Tensor};
use swinq_eval::Distortion;
use swinq_float::{Attention, FakeQuant, Float, FloatError, Sites, Swin};
use swinq_model::{Batch, ModelError, QuantizedModel, Site};

/// Signal-to-noise ratio in dB at every enabled activation site of `model`, on the images of `batch`, in a
/// forward in which every enabled site is quantized. For attention probabilities the ratio is measured after
/// their product with the values, because their integer codes are normalised only there.
///
/// # Errors
/// An error if the float forward fails.
pub(super) fn measure(model: &QuantizedModel, batch: &Batch) -> Result<BTreeMap<Site, f64>, FloatError> {
    let swin = Swin::new(&model.config, &model.float_tensors(), &Device::Cpu)?;
    let mut sites = Noise { model, fake: FakeQuant::new(model, &Device::Cpu)?, found: BTreeMap::new() };
    swin.forward(&swin.images(batch, &model.transform)?, &mut sites)?;
    Ok(sites.found.into_iter().map(|(site, distortion)| (site, distortion.sqnr_db())).collect())
}

struct Noise<'a> {
    model: &'a QuantizedModel,
    fake: FakeQuant,
    found: BTreeMap<Site, Distortion>,
}

impl Noise<'_> {
    fn note(&mut self, site: Site, exact: &Tensor, rounded: &Tensor) -> Result<(), FloatError> {
        let values = |x: &Tensor| x.flatten_all()?.to_vec1::<f32>();
        let (exact, rounded) = (values(exact)?, values(rounded)?);
        let distortion = self.found.entry(site).or_default();
        distortion.update(&exact, &rounded).map_err(|e| ModelError::site(site, e.to_string()).into())
    }

    fn is_on(&self, site: Site) -> bool {
        self.model.site(site).spec.enabled
    }
}

impl Sites for Noise<'_> {
    fn activation(&mut self, site: Site, x: Tensor) -> Result<Tensor, FloatError> {
        let rounded = self.fake.activation(site, x.clone())?;
        if self.is_on(site) {
            self.note(site, &x, &rounded)?;
        }
        Ok(rounded)
    }

    fn weight(&mut self, site: Site, w: &Tensor) -> Result<Tensor, FloatError> {
        self.fake.weight(site, w)
    }

    fn attend(&mut self, site: Site, logits: Tensor, v: Tensor) -> Result<Tensor, FloatError> {
        Float.attend(site, logits, v)
    }

    fn attention(&mut self, attention: &Attention<'_>) -> Result<Tensor, FloatError> {
        let rounded = self.fake.attention(attention)?;
        let block = attention.block;
        let [q, k, v] = attention.split()?;
        let q = self.activation(Site::Q(block), q)?;
        let k = self.activation(Site::K(block), k)?;
        let v = self.activation(Site::V(block), v)?;
        let probs = Site::Probs(block);
        if self.is_on(probs) {
            let logits = attention.logits(&attention.scores(&q, &k)?)?;
            self.note(probs, &attention.merge(&Float.attend(probs, logits, v)?)?, &rounded)?;
        }
        Ok(rounded)
    }
}
