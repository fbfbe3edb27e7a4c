//! The quantization scales of a model in training: fixed, recomputed from the weights, or learned (LSQ).
//!
//! Esser et al., "Learned Step Size Quantization", ICLR 2020. A learned scale is trained as a ratio to its
//! initial value.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use swinq_calib::{CalibError, largest_code, weight_scales};
use swinq_float::ops::taped::{FakeActivation, FakeChannels, FakeWeight, LearnedScale};
use swinq_kernels::{ColumnQuantizers, Quantizer};
use swinq_model::quantized::{ChannelCodes, SiteState, scale_of};
use swinq_model::{Calibrator, HostTensor, Linear, QuantizedModel, Site, SiteSpec};

use crate::error::QatError;
use crate::job::Scales;

/// A learned scale stays within this factor of its initial value, in both directions.
pub const LIMIT: f32 = 64.0;

/// Prefix of the ratios' names among the parameters.
pub const RATIO: &str = "scale.";

/// The scale of an activation.
#[derive(Debug)]
struct ActivationScale {
    /// The initial range.
    amax: f32,
    /// The trained ratio to the initial scale, `[1]`, if the scale is learned.
    ratio: Option<Tensor>,
    /// The quantizer of the current scale.
    now: Quantizer,
    /// The quantizers of the channels for this scale, if they have their own, and the constants behind them.
    channels: Option<(ChannelCodes, Arc<ColumnQuantizers>)>,
}

impl ActivationScale {
    /// Sets the current scale to `amax / 127`; `false` if it cannot quantize.
    fn set(&mut self, amax: f32) -> bool {
        let Some(now) = Quantizer::new(scale_of(amax)) else { return false };
        self.now = now;
        self.channels.as_mut().is_none_or(|(codes, columns)| {
            let found = ColumnQuantizers::channels(now.scale(), &codes.factors, &codes.zero_points);
            found.map(|found| *columns = Arc::new(found)).is_some()
        })
    }
}

/// The scales of a weight.
#[derive(Debug)]
struct WeightScale {
    spec: SiteSpec,
    /// The factors of the input's channels, `[in]`, if they have their own: the codes include them.
    factors: Option<Tensor>,
    /// The initial scales: one, or one per output channel.
    base: Vec<f32>,
    /// The trained ratios to the initial scales, if the scales are learned.
    ratio: Option<Tensor>,
    /// The current scales.
    now: Vec<f32>,
}

impl WeightScale {
    /// The tensor that determines the scales, on the weight's device: the trained ratios, or the largest
    /// magnitudes. `None` if the scales must be computed from the whole weight in host memory.
    fn source(&self, weight: &Tensor) -> Result<Option<Tensor>, QatError> {
        if let Some(ratio) = &self.ratio {
            return Ok(Some(ratio.clone()));
        }
        if self.spec.calibrator != Calibrator::Max || weight.device().is_cpu() {
            return Ok(None);
        }
        Ok(Some(self.folded(weight)?.reshape((self.base.len(), ()))?.abs()?.max(1)?))
    }

    /// The weight that the codes represent.
    fn folded(&self, weight: &Tensor) -> candle_core::Result<Tensor> {
        self.factors.as_ref().map_or_else(|| Ok(weight.clone()), |factors| weight.broadcast_mul(factors))
    }

    /// Computes the scales from the values of [`WeightScale::source`].
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

/// Every scale of a model in training.
#[derive(Debug)]
pub struct ScaleTable {
    activations: BTreeMap<Site, ActivationScale>,
    weights: BTreeMap<Linear, WeightScale>,
}

impl ScaleTable {
    /// The scales of `model`; `policy` says for each site whether its scale is fixed, recomputed or learned.
    /// `tensors` are the weights at the start of the training.
    ///
    /// # Errors
    /// A site has no usable range, or a weight cannot be quantized as its site says.
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
                let factors = model.weight_factors(linear).map(|f| Tensor::new(f, device)).transpose()?;
                let mut scale = WeightScale { spec, factors, ratio: None, now: Vec::new(), base: Vec::new() };
                scale.base =
                    recomputed(linear, &scale.folded(&tensors[&linear.weight_name()])?, &scale.spec)?;
                (scale.ratio, scale.now) = (ratio(scale.base.len())?, scale.base.clone());
                table.weights.insert(linear, scale);
            } else {
                let unusable =
                    || QatError::Site { site, problem: "has no range; calibrate again".to_owned() };
                let amax = model.site(site).amax.ok_or_else(unusable)?;
                if learned && model.site(site).spec.amax.is_some() {
                    let problem = "its range is fixed by the recipe; set its scale to `fixed`".to_owned();
                    return Err(QatError::Site { site, problem });
                }
                let now = Quantizer::new(scale_of(amax)).ok_or_else(unusable)?;
                let columns = model.column_quantizers(site).map_err(QatError::from)?.map(Arc::new);
                let channels = model.site(site).channels.clone().zip(columns);
                table.activations.insert(site, ActivationScale { amax, ratio: ratio(1)?, now, channels });
            }
        }
        Ok(table)
    }

    /// An empty table: nothing is quantized.
    pub fn off() -> ScaleTable {
        ScaleTable { activations: BTreeMap::new(), weights: BTreeMap::new() }
    }

    /// The ratios of the learned scales, with their names among the parameters.
    pub fn ratios(&self) -> impl Iterator<Item = (String, &Tensor)> {
        let activations = self.activations.iter().map(|(site, scale)| (*site, scale.ratio.as_ref()));
        let weights =
            self.weights.iter().map(|(linear, scale)| (Site::Weight(*linear), scale.ratio.as_ref()));
        activations.chain(weights).filter_map(|(site, ratio)| Some((ratio_name(site), ratio?)))
    }

    /// Recomputes every scale from the parameters.
    ///
    /// # Errors
    /// A weight can no longer be quantized, or a scale is no longer a positive, finite number.
    pub fn update(&mut self, tensors: &BTreeMap<String, Tensor>) -> Result<(), QatError> {
        let ratios = self.activations.values().filter_map(|scale| scale.ratio.clone()).collect();
        let mut ratios = read_together(ratios)?.into_iter().map(|ratio| ratio[0]);
        for (&site, scale) in self.activations.iter_mut().filter(|(_, scale)| scale.ratio.is_some()) {
            let amax = scale.amax * ratios.next().expect("one ratio for each learned scale");
            if !scale.set(amax) {
                return Err(QatError::Site { site, problem: format!("its range became {amax}") });
            }
        }
        let mut sources = Vec::new();
        for (linear, scale) in &self.weights {
            sources.push(scale.source(&tensors[&linear.weight_name()])?);
        }
        let mut values = read_together(sources.iter().flatten().cloned().collect())?.into_iter();
        for ((&linear, scale), source) in self.weights.iter_mut().zip(&sources) {
            scale.now = match source {
                None => recomputed(linear, &scale.folded(&tensors[&linear.weight_name()])?, &scale.spec)?,
                Some(_) => scale.scales(values.next().expect("one vector for each source")),
            };
        }
        Ok(())
    }

    /// As [`ScaleTable::fake`], of a site whose channels have their own scales and zero points; `None` for every
    /// other site.
    pub fn fake_channels(&self, site: Site, values: usize) -> Option<FakeChannels> {
        let (_, columns) = self.activations.get(&site)?.channels.as_ref()?;
        let FakeActivation { quantizer: step, learned } = self.fake(site, values)?;
        Some(FakeChannels { step, columns: Arc::clone(columns), learned })
    }

    /// The factors of the input's channels that the codes of a weight include.
    pub fn weight_factors(&self, linear: Linear) -> Option<&Tensor> {
        self.weights.get(&linear)?.factors.as_ref()
    }

    /// The fake quantization of an activation; `None` if the site is off. `values` is the number of values
    /// per image, for LSQ's factor.
    pub fn fake(&self, site: Site, values: usize) -> Option<FakeActivation> {
        let scale = self.activations.get(&site)?;
        let learned = scale.ratio.as_ref().map(|ratio| LearnedScale {
            ratio: ratio.clone(),
            base: vec![scale_of(scale.amax)],
            gradient_scale: lsq_factor(values, 127.0),
        });
        Some(FakeActivation { quantizer: scale.now, learned })
    }

    /// The fake quantization of a weight; `None` if the site is off. `values` is the weight's number of
    /// values.
    pub fn fake_weight(&self, linear: Linear, values: usize) -> Option<FakeWeight> {
        let scale = self.weights.get(&linear)?;
        let largest = f32::from(largest_code(&scale.spec));
        let learned = scale.ratio.as_ref().map(|ratio| LearnedScale {
            ratio: ratio.clone(),
            base: scale.base.clone(),
            gradient_scale: lsq_factor(values / scale.base.len(), largest),
        });
        Some(FakeWeight { scales: scale.now.clone(), largest, learned })
    }

    /// The range of an activation, computed from the parameters `tensors`, for export.
    ///
    /// # Errors
    /// Errors of candle.
    pub fn amax(&self, site: Site, tensors: &BTreeMap<String, Tensor>) -> Result<Option<f32>, QatError> {
        let Some(scale) = self.activations.get(&site) else { return Ok(None) };
        let ratio = scale.ratio.as_ref().map(|_| tensors[&ratio_name(site)].to_vec1::<f32>()).transpose()?;
        Ok(Some(ratio.map_or(scale.amax, |ratio| scale.amax * ratio[0])))
    }

    /// The learned scales of a weight, computed from the parameters `tensors`, and the weight's largest code.
    /// `None` if the scales are recomputed from the weight.
    ///
    /// # Errors
    /// Errors of candle.
    pub fn trained_weight_scales(
        &self,
        linear: Linear,
        tensors: &BTreeMap<String, Tensor>,
    ) -> Result<Option<(Vec<f32>, u8)>, QatError> {
        let Some(scale) = self.weights.get(&linear).filter(|scale| scale.ratio.is_some()) else {
            return Ok(None);
        };
        let ratio = tensors[&ratio_name(Site::Weight(linear))].to_vec1::<f32>()?;
        let scales = scale.base.iter().zip(ratio).map(|(base, ratio)| base * ratio).collect();
        Ok(Some((scales, largest_code(&scale.spec))))
    }
}

/// The sites of a model that have a scale.
pub fn sites_with_scales(model: &QuantizedModel) -> Vec<Site> {
    let has = |(site, state): (&Site, &SiteState)| {
        (state.spec.enabled && (site.is_weight() || state.spec.needs_scale(*site))).then_some(*site)
    };
    model.sites.iter().filter_map(has).collect()
}

/// Name of a site's ratio among the parameters.
fn ratio_name(site: Site) -> String {
    format!("{RATIO}{site}")
}

/// LSQ's factor of a scale's gradient: `1 / sqrt(values * largest code)`.
fn lsq_factor(values: usize, largest: f32) -> f32 {
    1.0 / (values as f32 * largest).sqrt()
}

/// The scales of a weight under the recipe, from its current values ([`weight_scales`]).
fn recomputed(linear: Linear, weight: &Tensor, spec: &SiteSpec) -> Result<Vec<f32>, QatError> {
    let host = HostTensor::new(weight.dims().to_vec(), weight.flatten_all()?.to_vec1()?);
    let named = |source| CalibError::WeightSite { site: Site::Weight(linear), source: Box::new(source) };
    Ok(weight_scales(&host, spec).map_err(named)?)
}

/// The values of several vectors in one transfer, because each transfer waits for the device.
fn read_together(tensors: Vec<Tensor>) -> Result<Vec<Vec<f32>>, QatError> {
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
