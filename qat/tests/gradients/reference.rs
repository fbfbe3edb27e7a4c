//! The quantized network in candle's operations, differentiated by candle: rounding passes gradients, clipping stops
//! them, steps are tensors like any other.

use std::collections::BTreeMap;

use candle_core::{D, DType, Device, Result, Tensor, Var};
use swinq_float::ops::{mix, softmax};
use swinq_float::{FloatError, Sites, Swin};
use swinq_model::{BlockId, Kind, Site};
use swinq_qat::job::{LossKeys, Scales};
use swinq_qat::student::Lesson;

use crate::{Case, copies};

/// Variables for all parameters, and the steps made of them.
pub struct Reference {
    variables: BTreeMap<String, Var>,
    steps: BTreeMap<Site, Step>,
    probs: BTreeMap<BlockId, Kind>,
    images: usize,
}

/// The step of a site.
struct Step {
    /// At first.
    base: Vec<f32>,
    /// The trained multiple.
    ratio: Option<Tensor>,
    largest: f64,
    lowest: f64,
}

/// A value that is `forward` and has the gradient of `x`.
fn instead(x: &Tensor, forward: &Tensor) -> Result<Tensor> {
    x + (forward.detach() - x.detach())?
}

/// To the nearest integer, ties to even: in f32 there are no halves from 2^23 on.
fn rounded(x: &Tensor) -> Result<Tensor> {
    let far = 1.5 * (1u32 << 23) as f64;
    (x.detach() + far)? - far
}

impl Step {
    /// The step as a tensor that has LSQ's gradient for `values` values.
    fn tensor(&self, values: usize, device: &Device) -> Result<Tensor> {
        let base = Tensor::new(self.base.as_slice(), device)?;
        let Some(ratio) = &self.ratio else { return Ok(base) };
        let factor = 1.0 / (values as f64 * self.largest).sqrt();
        instead(&(ratio * factor)?, ratio)? * base
    }

    /// Fake quantization of `[steps, values]`.
    fn fake(&self, x: &Tensor, values: usize) -> Result<Tensor> {
        let s = self.tensor(values, x.device())?.unsqueeze(1)?;
        let scaled = x.detach().broadcast_mul(&s.detach().recip()?)?;
        let codes = rounded(&scaled.clamp(self.lowest, self.largest)?)?;
        // A value at the end of the range, give or take the rounding of a reciprocal, is inside.
        let inside = |edge: f64| edge * (1.0 + 1e-6);
        let within = scaled.le(inside(self.largest))?.to_dtype(DType::F32)?;
        let within = (within * scaled.ge(inside(self.lowest))?.to_dtype(DType::F32)?)?;
        let clipped = (x.broadcast_div(&s)? * within)?;
        instead(&clipped, &codes)?.broadcast_mul(&s)
    }
}

impl Reference {
    /// The network of `case` with the values of `parameters`.
    pub fn new(case: &Case, parameters: &BTreeMap<String, Tensor>) -> Reference {
        let variable = |(name, tensor): (String, Tensor)| (name, Var::from_tensor(&tensor).unwrap());
        let variables: BTreeMap<String, Var> = copies(parameters).into_iter().map(variable).collect();
        let mut reference =
            Reference { variables, steps: BTreeMap::new(), probs: BTreeMap::new(), images: case.batch.len() };
        for &(site, scales) in &case.policy {
            let step = reference.step(case, site, scales);
            reference.steps.insert(site, step);
        }
        for (site, state) in case.quantized.iter().flat_map(|model| &model.sites) {
            if let (Site::Probs(block), true) = (site, state.spec.enabled) {
                reference.probs.insert(*block, state.spec.kind);
            }
        }
        reference
    }

    fn step(&self, case: &Case, site: Site, scales: Scales) -> Step {
        let state = case.quantized.as_ref().unwrap().site(site);
        let ratio = (scales == Scales::Learned).then(|| self.tensor(&format!("scale.{site}")));
        let Site::Weight(linear) = site else {
            let base = vec![state.amax.unwrap() / 127.0];
            return Step { base, ratio, largest: 127.0, lowest: -128.0 };
        };
        let weight = &case.float.tensors[&linear.weight_name()];
        let base = swinq_calib::weight_scales(weight, &state.spec).unwrap();
        let largest = if state.spec.bits == 4 { 7.0 } else { 127.0 };
        Step { base, ratio, largest, lowest: -largest }
    }

    fn tensor(&self, name: &str) -> Tensor {
        self.variables[name].as_tensor().clone()
    }

    /// The loss, and its gradients by parameter.
    pub fn gradients(
        &self,
        case: &Case,
        keys: &LossKeys,
        lesson: &Lesson,
    ) -> (f64, BTreeMap<String, Tensor>) {
        let tensors: BTreeMap<String, Tensor> =
            self.variables.keys().map(|name| (name.clone(), self.tensor(name))).collect();
        let device = tensors.values().next().unwrap().device();
        let swin = Swin::differentiable(&case.float.config, &tensors, device).unwrap();
        let images = swin.images(&case.batch, &case.float.transform).unwrap();
        let mut walk = Walk { reference: self, features: BTreeMap::new() };
        let logits = swin.forward(&images, &mut walk).unwrap();
        let features = walk.features;
        let loss = total_loss(keys, &logits, &features, &case.batch.labels, lesson).unwrap();
        let found = loss.backward().unwrap();
        let gradient = |(name, variable): (&String, &Var)| {
            let gradient = found.get(variable).unwrap_or_else(|| panic!("candle has no gradient of {name}"));
            (name.clone(), gradient.clone())
        };
        let gradients = self.variables.iter().map(gradient).collect();
        (f64::from(loss.to_scalar::<f32>().unwrap()), gradients)
    }
}

/// One forward.
struct Walk<'a> {
    reference: &'a Reference,
    features: BTreeMap<BlockId, Tensor>,
}

impl Walk<'_> {
    fn fake(&self, site: Site, x: &Tensor) -> Result<Tensor> {
        let Some(step) = self.reference.steps.get(&site) else { return Ok(x.clone()) };
        let counted = if site.is_weight() { step.base.len() } else { self.reference.images };
        let rows = x.contiguous()?.reshape((step.base.len(), ()))?;
        step.fake(&rows, x.elem_count() / counted)?.reshape(x.shape())
    }
}

impl Sites for Walk<'_> {
    fn activation(&mut self, site: Site, x: Tensor) -> std::result::Result<Tensor, FloatError> {
        Ok(self.fake(site, &x)?)
    }

    fn weight(&mut self, site: Site, w: &Tensor) -> std::result::Result<Tensor, FloatError> {
        Ok(self.fake(site, w)?)
    }

    fn attend(&mut self, site: Site, logits: Tensor, v: Tensor) -> std::result::Result<Tensor, FloatError> {
        let Site::Probs(block) = site else { panic!("{site} is no site of probabilities") };
        let probs = match self.reference.probs.get(&block) {
            Some(Kind::U8) => unsigned(&logits)?,
            _ => self.fake(site, &softmax(&logits)?)?,
        };
        Ok(mix(&probs, &v)?)
    }

    fn block_output(&mut self, block: BlockId, x: &Tensor) -> std::result::Result<(), FloatError> {
        self.features.insert(block, x.clone());
        Ok(())
    }
}

/// Codes of the exponentials by their sum.
fn unsigned(logits: &Tensor) -> Result<Tensor> {
    let highest = logits.max_keepdim(D::Minus1)?.detach();
    let scaled = (logits.broadcast_sub(&highest)?.exp()? * 255.0)?;
    let codes = instead(&scaled, &rounded(&scaled)?)?;
    codes.broadcast_div(&codes.sum_keepdim(D::Minus1)?)
}

fn log_softmax(x: &Tensor) -> Result<Tensor> {
    let below = x.broadcast_sub(&x.max_keepdim(1)?.detach())?;
    below.broadcast_sub(&below.exp()?.sum_keepdim(1)?.log()?)
}

fn total_loss(
    keys: &LossKeys,
    logits: &Tensor,
    features: &BTreeMap<BlockId, Tensor>,
    labels: &[u32],
    lesson: &Lesson,
) -> Result<Tensor> {
    let (images, classes) = logits.dims2()?;
    let mut targets = vec![keys.smoothing as f32 / classes as f32; images * classes];
    labels
        .iter()
        .enumerate()
        .for_each(|(i, &l)| targets[i * classes + l as usize] += 1.0 - keys.smoothing as f32);
    let targets = Tensor::from_vec(targets, (images, classes), logits.device())?;
    let mut loss = ((targets * log_softmax(logits)?)?.sum_all()? * (-keys.labels / images as f64))?;
    let t = keys.temperature;
    let teacher = (&lesson.logits / t)?;
    let log_q = log_softmax(&teacher)?;
    let apart = (log_q.exp()? * (&log_q - log_softmax(&(logits / t)?)?)?)?.sum_all()?;
    loss = (loss + (apart * (keys.kl * t * t / images as f64))?)?;
    for (block, x) in features {
        let squares = (x - &lesson.features[block])?.sqr()?.mean_all()?;
        loss = (loss + (squares * (keys.features / features.len() as f64))?)?;
    }
    Ok(loss)
}
