//! The steps of a model in training: which are constants, which follow the weights, which are trained.

use std::collections::BTreeMap;

use candle_core::{DType, Device, Tensor};
use swinq_calib::{CalibError, largest_code, weight_scales};
use swinq_float::ops::taped::{Fake, FakeWeight, Learned};
use swinq_kernels::Quantizer;
use swinq_model::quantized::SiteState;
use swinq_model::{Calibrator, HostTensor, Linear, QuantizedModel, Site, SiteSpec};

use crate::error::QatError;
use crate::job::Scales;

/// How far a trained step may go from where it began: a factor of this, either way.
pub const LIMIT: f32 = 64.0;

/// What names of multiples among the parameters begin with.
pub const RATIO: &str = "scale.";

/// The step of an activation.
#[derive(Debug)]
struct ActivationStep {
    /// The range at first.
    amax: f32,
    ratio: Option<Tensor>,
    now: Quantizer,
}

/// The steps of a weight.
#[derive(Debug)]
struct WeightStep {
    spec: SiteSpec,
    /// At first, one or one per output channel.
    base: Vec<f32>,
    ratio: Option<Tensor>,
    now: Vec<f32>,
}

impl WeightStep {
    /// What the scales follow from, on the weight's device: the trained multiples, or the largest magnitudes. `None` where
    /// the whole weight must be looked at in host memory.
    fn source(&self, weight: &Tensor) -> Result<Option<Tensor>, QatError> {
        if let Some(ratio) = &self.ratio {
            return Ok(Some(ratio.clone()));
        }
        if self.spec.calibrator != Calibrator::Max || weight.device().is_cpu() {
            return Ok(None);
        }
        Ok(Some(weight.reshape((self.base.len(), ()))?.abs()?.max(1)?))
    }

    /// From what [`WeightStep::source`] gave.
    fn scales(&self, values: Vec<f32>) -> Vec<f32> {
        let largest = f32::from(largest_code(&self.spec));
        let scale = |(value, base): (f32, &f32)| match self.ratio.is_some() {
            true => base * value,
            false if (value / largest).recip().is_finite() => value / largest,
            false => 1.0,
        };
        values.into_iter().zip(&self.base).map(scale).collect()
    }
}

/// Every step of a model in training.
#[derive(Debug)]
pub struct ScaleTable {
    activations: BTreeMap<Site, ActivationStep>,
    weights: BTreeMap<Linear, WeightStep>,
}

impl ScaleTable {
    /// The steps of `model`, of which `policy` says what happens to each. Weights are those the training starts from.
    ///
    /// # Errors
    /// A site without a usable range, a weight that cannot be quantized as its site says.
    pub fn new(
        model: &QuantizedModel,
        policy: &[(Site, Scales)],
        tensors: &BTreeMap<String, Tensor>,
        device: &Device,
    ) -> Result<ScaleTable, QatError> {
        let mut table = ScaleTable { activations: BTreeMap::new(), weights: BTreeMap::new() };
        for &(site, scales) in policy {
            let learned = scales == Scales::Learned;
            let ratio = |n: usize| learned.then(|| Tensor::ones(n, DType::F32, device)).transpose();
            if let Site::Weight(linear) = site {
                let spec = model.site(site).spec.clone();
                let base = recomputed(linear, &tensors[&linear.weight_name()], &spec)?;
                let step = WeightStep { spec, ratio: ratio(base.len())?, now: base.clone(), base };
                table.weights.insert(linear, step);
            } else {
                let unusable =
                    || QatError::Site { site, problem: "has no range; calibrate again".to_owned() };
                let amax = model.site(site).amax.ok_or_else(unusable)?;
                if learned && model.site(site).spec.amax.is_some() {
                    let problem = "its range is stated by the recipe; let its scale be fixed".to_owned();
                    return Err(QatError::Site { site, problem });
                }
                let now = Quantizer::new(amax / 127.0).ok_or_else(unusable)?;
                table.activations.insert(site, ActivationStep { amax, ratio: ratio(1)?, now });
            }
        }
        Ok(table)
    }

    /// Nothing is quantized.
    pub fn off() -> ScaleTable {
        ScaleTable { activations: BTreeMap::new(), weights: BTreeMap::new() }
    }

    /// The trained multiples, by the names they have among the parameters.
    pub fn ratios(&self) -> impl Iterator<Item = (String, &Tensor)> {
        let activations = self.activations.iter().map(|(site, step)| (*site, step.ratio.as_ref()));
        let weights = self.weights.iter().map(|(linear, step)| (Site::Weight(*linear), step.ratio.as_ref()));
        activations.chain(weights).filter_map(|(site, ratio)| Some((ratio_name(site), ratio?)))
    }

    /// Brings every step up to date with the parameters.
    ///
    /// # Errors
    /// A weight that can no longer be quantized, a step that is no number.
    pub fn update(&mut self, tensors: &BTreeMap<String, Tensor>) -> Result<(), QatError> {
        let ratios = self.activations.values().filter_map(|step| step.ratio.clone()).collect();
        let mut ratios = at_once(ratios)?.into_iter().map(|ratio| ratio[0]);
        for (&site, step) in self.activations.iter_mut().filter(|(_, step)| step.ratio.is_some()) {
            let amax = step.amax * ratios.next().expect("one for each trained step");
            let problem = || QatError::Site { site, problem: format!("its range became {amax}") };
            step.now = Quantizer::new(amax / 127.0).ok_or_else(problem)?;
        }
        let mut sources = Vec::new();
        for (linear, step) in &self.weights {
            sources.push(step.source(&tensors[&linear.weight_name()])?);
        }
        let mut values = at_once(sources.iter().flatten().cloned().collect())?.into_iter();
        for ((&linear, step), source) in self.weights.iter_mut().zip(&sources) {
            step.now = match source {
                None => recomputed(linear, &tensors[&linear.weight_name()], &step.spec)?,
                Some(_) => step.scales(values.next().expect("one for each source")),
            };
        }
        Ok(())
    }

    /// The fake quantization of an activation whose gradient sums over `values` values an image; `None` where the site
    /// is off.
    pub fn fake(&self, site: Site, values: usize) -> Option<Fake> {
        let step = self.activations.get(&site)?;
        let learned = step.ratio.as_ref().map(|ratio| Learned {
            ratio: ratio.clone(),
            base: vec![step.amax / 127.0],
            gradient_scale: lsq_factor(values, 127.0),
        });
        Some(Fake { quantizer: step.now, learned })
    }

    /// The fake quantization of a weight of `values` values; `None` where the site is off.
    pub fn fake_weight(&self, linear: Linear, values: usize) -> Option<FakeWeight> {
        let step = self.weights.get(&linear)?;
        let largest = f32::from(largest_code(&step.spec));
        let learned = step.ratio.as_ref().map(|ratio| Learned {
            ratio: ratio.clone(),
            base: step.base.clone(),
            gradient_scale: lsq_factor(values / step.base.len(), largest),
        });
        Some(FakeWeight { scales: step.now.clone(), largest, learned })
    }

    /// The range of an activation under `tensors`, for the checkpoint.
    ///
    /// # Errors
    /// Those of candle.
    pub fn amax(&self, site: Site, tensors: &BTreeMap<String, Tensor>) -> Result<Option<f32>, QatError> {
        let Some(step) = self.activations.get(&site) else { return Ok(None) };
        let ratio = step.ratio.as_ref().map(|_| tensors[&ratio_name(site)].to_vec1::<f32>()).transpose()?;
        Ok(Some(ratio.map_or(step.amax, |ratio| step.amax * ratio[0])))
    }

    /// The trained scales of a weight under `tensors`, and its largest code; `None` where they follow the weights.
    ///
    /// # Errors
    /// Those of candle.
    pub fn trained_weight_scales(
        &self,
        linear: Linear,
        tensors: &BTreeMap<String, Tensor>,
    ) -> Result<Option<(Vec<f32>, u8)>, QatError> {
        let Some(step) = self.weights.get(&linear).filter(|step| step.ratio.is_some()) else {
            return Ok(None);
        };
        let ratio = tensors[&ratio_name(Site::Weight(linear))].to_vec1::<f32>()?;
        let scales = step.base.iter().zip(ratio).map(|(base, ratio)| base * ratio).collect();
        Ok(Some((scales, largest_code(&step.spec))))
    }
}

/// The sites of a model that have a step.
pub fn sites_with_scales(model: &QuantizedModel) -> Vec<Site> {
    let has = |(site, state): (&Site, &SiteState)| {
        (state.spec.enabled && (site.is_weight() || state.spec.needs_scale(*site))).then_some(*site)
    };
    model.sites.iter().filter_map(has).collect()
}

/// What the multiple of a site's step is called among the parameters.
fn ratio_name(site: Site) -> String {
    format!("{RATIO}{site}")
}

/// LSQ's factor: `1 / sqrt(values * largest code)`.
fn lsq_factor(values: usize, largest: f32) -> f32 {
    1.0 / (values as f32 * largest).sqrt()
}

/// The scales that the recipe gives a weight, as [`weight_scales`] has them.
fn recomputed(linear: Linear, weight: &Tensor, spec: &SiteSpec) -> Result<Vec<f32>, QatError> {
    let host = HostTensor::new(weight.dims().to_vec(), weight.flatten_all()?.to_vec1()?);
    let named = |source| CalibError::WeightSite { site: Site::Weight(linear), source: Box::new(source) };
    Ok(weight_scales(&host, spec).map_err(named)?)
}

/// The values of several vectors. Each transfer from a device waits for it, so there is one.
fn at_once(tensors: Vec<Tensor>) -> Result<Vec<Vec<f32>>, QatError> {
    if tensors.is_empty() {
        return Ok(Vec::new());
    }
    let all = Tensor::cat(&tensors, 0)?.to_vec1::<f32>()?;
    let mut rest = all.as_slice();
    let mut take = |tensor: &Tensor| {
        let (values, others) = rest.split_at(tensor.elem_count());
        rest = others;
        values.to_vec()
    };
    Ok(tensors.iter().map(&mut take).collect())
}
