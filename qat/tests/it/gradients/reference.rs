//! The quantized network composed of candle's operations and differentiated by candle. Rounding passes
//! gradients through, clipping stops them, and scales are ordinary tensors.

use std::collections::BTreeMap;

use candle_core::{D, DType, Device, Result, Tensor, Var};
use swinq_float::ops::Compute;
use swinq_float::{Attention, FloatError, Sites, Swin};
use swinq_model::{BlockId, Kind, Linear, Site};
use swinq_qat::job::{LossKeys, Scales};
use swinq_qat::student::TeacherOutput;

use super::{Case, copies};

/// The reference network: variables for all parameters, and the scales computed from them.
pub struct Reference {
    variables: BTreeMap<String, Var>,
    scales: BTreeMap<Site, SiteScale>,
    probs: BTreeMap<BlockId, Kind>,
    images: usize,
}

/// The scales of a site.
struct SiteScale {
    /// The initial scales.
    base: Vec<f32>,
    /// The trained ratios to the initial scales.
    ratio: Option<Tensor>,
    largest: f64,
    lowest: f64,
}

/// A tensor with exactly the values of `forward`, and the gradient of `x`.
fn straight_through(x: &Tensor, forward: &Tensor) -> Result<Tensor> {
    (x - x.detach())? + forward.detach()
}

/// Rounds to the nearest integer, ties to even: adding 1.5 * 2^23 leaves no fractional bits in f32.
fn rounded(x: &Tensor) -> Result<Tensor> {
    let far = 1.5 * (1u32 << 23) as f64;
    (x.detach() + far)? - far
}

impl SiteScale {
    /// The scales as a tensor with LSQ's gradient for `values` values.
    fn tensor(&self, values: usize, device: &Device) -> Result<Tensor> {
        let base = Tensor::new(self.base.as_slice(), device)?;
        let Some(ratio) = &self.ratio else { return Ok(base) };
        let factor = 1.0 / (values as f64 * self.largest).sqrt();
        straight_through(&(ratio * factor)?, ratio)? * base
    }

    /// Fake quantization of `[scales, values]`.
    fn fake(&self, x: &Tensor, values: usize) -> Result<Tensor> {
        let s = self.tensor(values, x.device())?.unsqueeze(1)?;
        let scaled = x.detach().broadcast_mul(&s.detach().recip()?)?;
        let codes = rounded(&scaled.clamp(self.lowest, self.largest)?)?;
        // A value at the end of the range counts as inside, with a tolerance for the rounding of the
        // reciprocal.
        let inside = |edge: f64| edge * (1.0 + 1e-6);
        let within = scaled.le(inside(self.largest))?.to_dtype(DType::F32)?;
        let within = (within * scaled.ge(inside(self.lowest))?.to_dtype(DType::F32)?)?;
        let clipped = (x.broadcast_div(&s)? * within)?;
        straight_through(&clipped, &codes)?.broadcast_mul(&s)
    }
}

impl Reference {
    /// The reference network of `case` with the values of `parameters`.
    pub fn new(case: &Case, parameters: &BTreeMap<String, Tensor>) -> Reference {
        let variable = |(name, tensor): (String, Tensor)| (name, Var::from_tensor(&tensor).unwrap());
        let variables: BTreeMap<String, Var> = copies(parameters).into_iter().map(variable).collect();
        let mut reference = Reference {
            variables,
            scales: BTreeMap::new(),
            probs: BTreeMap::new(),
            images: case.batch.len(),
        };
        for &(site, scales) in &case.policy {
            let scale = reference.scale(case, site, scales);
            reference.scales.insert(site, scale);
        }
        for (site, state) in case.quantized.iter().flat_map(|model| &model.sites) {
            if let (Site::Probs(block), true) = (site, state.spec.enabled) {
                reference.probs.insert(*block, state.spec.kind);
            }
        }
        reference
    }

    fn scale(&self, case: &Case, site: Site, scales: Scales) -> SiteScale {
        let state = case.quantized.as_ref().unwrap().site(site);
        let ratio = (scales == Scales::Learned).then(|| self.tensor(&format!("scale.{site}")));
        let Site::Weight(linear) = site else {
            let base = vec![state.amax.unwrap() / 127.0];
            return SiteScale { base, ratio, largest: 127.0, lowest: -128.0 };
        };
        let weight = &case.float.tensors[&linear.weight_name()];
        let base = swinq_calib::weight_scales(weight, &state.spec).unwrap();
        let largest = f64::from(state.spec.largest_code());
        SiteScale { base, ratio, largest, lowest: -largest }
    }

    fn tensor(&self, name: &str) -> Tensor {
        self.variables[name].as_tensor().clone()
    }

    /// The loss, and its gradient by parameter.
    pub fn gradients(
        &self,
        case: &Case,
        keys: &LossKeys,
        teacher_output: &TeacherOutput,
    ) -> (f64, BTreeMap<String, Tensor>) {
        let tensors: BTreeMap<String, Tensor> =
            self.variables.keys().map(|name| (name.clone(), self.tensor(name))).collect();
        let device = tensors.values().next().unwrap().device();
        let swin = Swin::with_ops(&case.float.config, &tensors, device, Compute::Candle.into()).unwrap();
        let images = swin.images(&case.batch, &case.float.transform).unwrap();
        let mut sites = ReferenceSites { reference: self, features: BTreeMap::new() };
        let outputs = swin.outputs(&images, &mut sites).unwrap();
        let loss = match case.float.config.is_backbone() {
            true => loss_of_maps(keys, case, &outputs, teacher_output),
            false => loss_of_logits(keys, &outputs[0], &case.batch.labels, teacher_output),
        };
        let loss = (loss.unwrap() + loss_of_blocks(keys, &sites.features, teacher_output).unwrap()).unwrap();
        let found = loss.backward().unwrap();
        let gradient = |(name, variable): (&String, &Var)| {
            let gradient = found.get(variable).unwrap_or_else(|| panic!("candle has no gradient of {name}"));
            (name.clone(), gradient.clone())
        };
        let gradients = self.variables.iter().map(gradient).collect();
        (f64::from(loss.to_scalar::<f32>().unwrap()), gradients)
    }
}

/// The sites of one forward pass.
struct ReferenceSites<'a> {
    reference: &'a Reference,
    features: BTreeMap<BlockId, Tensor>,
}

impl ReferenceSites<'_> {
    fn fake(&self, site: Site, x: &Tensor) -> Result<Tensor> {
        let Some(scale) = self.reference.scales.get(&site) else { return Ok(x.clone()) };
        let counted = if site.is_weight() { scale.base.len() } else { self.reference.images };
        let rows = x.contiguous()?.reshape((scale.base.len(), ()))?;
        scale.fake(&rows, x.elem_count() / counted)?.reshape(x.shape())
    }
}

impl Sites for ReferenceSites<'_> {
    fn activation(&mut self, site: Site, x: Tensor) -> std::result::Result<Tensor, FloatError> {
        Ok(self.fake(site, &x)?)
    }

    fn weight(&mut self, site: Site, w: &Tensor) -> std::result::Result<Tensor, FloatError> {
        Ok(self.fake(site, w)?)
    }

    fn attend(
        &mut self,
        attention: &Attention<'_>,
        logits: Tensor,
        v: Tensor,
    ) -> std::result::Result<Tensor, FloatError> {
        let probs = match self.reference.probs.get(&attention.block) {
            Some(Kind::U8) => unsigned(&logits)?,
            _ => self.fake(Site::Probs(attention.block), &attention.softmax(&logits)?)?,
        };
        Ok(probs.contiguous()?.matmul(&v.contiguous()?)?)
    }

    fn residual(&mut self, after: Linear, x: &Tensor) -> std::result::Result<(), FloatError> {
        if let Linear::Fc2(block) = after {
            self.features.insert(block, x.clone());
        }
        Ok(())
    }
}

/// Probabilities of kind `u8`: codes of the exponentials, divided by their sum.
fn unsigned(logits: &Tensor) -> Result<Tensor> {
    let highest = logits.max_keepdim(D::Minus1)?.detach();
    let scaled = (logits.broadcast_sub(&highest)?.exp()? * 255.0)?;
    let codes = straight_through(&scaled, &rounded(&scaled)?)?;
    codes.broadcast_div(&codes.sum_keepdim(D::Minus1)?)
}

fn log_softmax(x: &Tensor) -> Result<Tensor> {
    let below = x.broadcast_sub(&x.max_keepdim(1)?.detach())?;
    below.broadcast_sub(&below.exp()?.sum_keepdim(1)?.log()?)
}

fn loss_of_logits(
    keys: &LossKeys,
    logits: &Tensor,
    labels: &[u32],
    teacher_output: &TeacherOutput,
) -> Result<Tensor> {
    let (images, classes) = logits.dims2()?;
    let mut targets = vec![keys.smoothing as f32 / classes as f32; images * classes];
    labels
        .iter()
        .enumerate()
        .for_each(|(i, &l)| targets[i * classes + l as usize] += 1.0 - keys.smoothing as f32);
    let targets = Tensor::from_vec(targets, (images, classes), logits.device())?;
    let loss = ((targets * log_softmax(logits)?)?.sum_all()? * (-keys.labels / images as f64))?;
    let t = keys.temperature;
    let teacher = (&teacher_output.outputs[0] / t)?;
    let log_q = log_softmax(&teacher)?;
    let apart = (log_q.exp()? * (&log_q - log_softmax(&(logits / t)?)?)?)?.sum_all()?;
    loss + (apart * (keys.kl * t * t / images as f64))?
}

fn loss_of_maps(
    keys: &LossKeys,
    case: &Case,
    maps: &[Tensor],
    teacher_output: &TeacherOutput,
) -> Result<Tensor> {
    let images = case.batch.len();
    let weights: Vec<f64> = (case.float.config.outputs.iter())
        .map(|output| keys.output_weights.get(&output.name).copied().unwrap_or(1.0))
        .collect();
    let mut loss = Tensor::new(0f32, maps[0].device())?;
    for ((map, target), weight) in maps.iter().zip(&teacher_output.outputs).zip(&weights) {
        let rows = |x: &Tensor| x.reshape((images, ()));
        let errors = (rows(&(map - target)?)?.sqr()?.sum(1)? / rows(target)?.sqr()?.sum(1)?)?;
        let share = weight / weights.iter().sum::<f64>();
        loss = (loss + (errors.mean_all()? * (keys.outputs * share))?)?;
    }
    Ok(loss)
}

fn loss_of_blocks(
    keys: &LossKeys,
    features: &BTreeMap<BlockId, Tensor>,
    teacher_output: &TeacherOutput,
) -> Result<Tensor> {
    let mut loss = Tensor::new(0f32, &Device::Cpu)?;
    for (block, x) in features {
        let squares = (x - &teacher_output.features[block])?.sqr()?.mean_all()?;
        loss = (loss + (squares * (keys.features / features.len() as f64))?)?;
    }
    Ok(loss)
}
