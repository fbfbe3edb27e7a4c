//! The quantization scales of a model in training: fixed, recomputed from the weights, or learned (LSQ).
//!
//! Esser et al., "Learned Step Size Quantization", ICLR 2020. A learned scale is trained as a ratio to its
//! initial value.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use swinq_calib::weight_scales;
use swinq_float::ops::Compute;
use swinq_float::ops::taped::{
    FakeActivation, FakeChannels, FakeWeight, LearnedScale, WeightScales, resident_columns,
};
use swinq_model::quantized::{ChannelCodes, SiteState, scale_of};
use swinq_model::{Calibrator, HostTensor, Linear, QuantizedModel, Site, SiteSpec};
use swinq_numerics::{ColumnQuantizers, Int8, Quantizer};

use crate::error::QatError;
use crate::flat::host_values;
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
    /// The quantizers of the channels for this scale, if they have their own.
    channels: Option<Channels>,
}

/// The quantizers of the channels of a site.
#[derive(Debug)]
struct Channels {
    /// The constants behind them.
    codes: ChannelCodes,
    columns: Arc<ColumnQuantizers>,
    /// The same on the GPU that trains, if one does.
    resident: Option<Tensor>,
}

impl Channels {
    fn new(codes: ChannelCodes, columns: ColumnQuantizers, device: &Device) -> candle_core::Result<Channels> {
        let columns = Arc::new(columns);
        let resident = device.is_cuda().then(|| resident_columns(&columns, device)).transpose()?;
        Ok(Channels { codes, columns, resident })
    }
}

impl ActivationScale {
    /// Sets the current scale to `amax / 127`; `false` if it cannot quantize.
    fn set(&mut self, amax: f32, device: &Device) -> candle_core::Result<bool> {
        let Some(now) = Quantizer::new(scale_of(amax)) else { return Ok(false) };
        self.now = now;
        let Some(Channels { codes, .. }) = &self.channels else { return Ok(true) };
        let Some(found) = ColumnQuantizers::channels(now.scale(), &codes.factors, &codes.zero_points) else {
            return Ok(false);
        };
        self.channels = Some(Channels::new(codes.clone(), found, device)?);
        Ok(true)
    }
}

/// The scales of a weight.
#[derive(Debug)]
struct WeightScale {
    spec: SiteSpec,
    /// The factors of the input's channels, if they have their own, and their reciprocals, `[2, in]`: the
    /// codes include them.
    factors: Option<Tensor>,
    /// The initial scales: one, or one per output channel.
    base: Vec<f32>,
    /// The trained ratios to the initial scales, if the scales are learned, and the initial scales on their
    /// device.
    ratio: Option<[Tensor; 2]>,
    /// The current scales.
    now: WeightScales,
}

impl WeightScale {
    /// The tensor that determines the scales, on the weight's device: the trained ratios, or the largest
    /// magnitudes. `None` if the scales must be computed from the whole weight in host memory.
    fn source(&self, weight: &Tensor) -> Result<Option<Tensor>, QatError> {
        if let Some([ratio, _]) = &self.ratio {
            return Ok(Some(ratio.clone()));
        }
        if self.spec.calibrator != Calibrator::Max || weight.device().is_cpu() {
            return Ok(None);
        }
        Ok(Some(self.folded(weight)?.reshape((self.base.len(), ()))?.abs()?.max(1)?))
    }

    /// The weight that the codes represent.
    fn folded(&self, weight: &Tensor) -> candle_core::Result<Tensor> {
        let fold = |factors: &Tensor| weight.broadcast_mul(&factors.get(0)?);
        self.factors.as_ref().map_or_else(|| Ok(weight.clone()), fold)
    }

    /// Computes the scales on the GPU that holds `weight`; `None` if they are chosen in host memory.
    #[cfg(feature = "cuda")]
    fn on_device(&self, weight: &Tensor) -> candle_core::Result<Option<Tensor>> {
        use swinq_float::ops::taped::cuda::{learned_scales, scales_of_weight};
        let largest = f32::from(self.spec.largest_code());
        if let Some([ratio, base]) = &self.ratio {
            let factor = lsq_factor(weight.elem_count() / self.base.len(), largest);
            return learned_scales(ratio, base, factor).map(Some);
        }
        if self.spec.calibrator != Calibrator::Max {
            return Ok(None);
        }
        scales_of_weight(weight, self.base.len(), self.factors.as_ref(), largest).map(Some)
    }

    /// Computes the scales from the values of [`WeightScale::source`].
    fn scales(&self, values: Vec<f32>) -> Vec<f32> {
        let largest = f32::from(self.spec.largest_code());
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
                let both = |f: &[f32]| [f, &f.iter().map(|f| f.recip()).collect::<Vec<_>>()].concat();
                let factors = model.weight_factors(linear).map(both);
                let factors =
                    factors.map(|f| Tensor::new(f.as_slice(), device)?.reshape((2, ()))).transpose()?;
                let now = WeightScales::Host(Vec::new());
                let mut scale = WeightScale { spec, factors, ratio: None, now, base: Vec::new() };
                scale.base =
                    recomputed(linear, &scale.folded(&tensors[&linear.weight_name()])?, &scale.spec)?;
                scale.now = WeightScales::Host(scale.base.clone());
                let initial = Tensor::new(scale.base.as_slice(), device)?;
                scale.ratio = ratio(scale.base.len())?.map(|ratio| [ratio, initial]);
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
                let columns = model.column_quantizers(site).map_err(QatError::from)?;
                let channels = model.site(site).channels.clone().zip(columns);
                let channels =
                    channels.map(|(codes, columns)| Channels::new(codes, columns, device)).transpose()?;
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
        let weights = self
            .weights
            .iter()
            .map(|(linear, scale)| (Site::Weight(*linear), scale.ratio.as_ref().map(|r| &r[0])));
        activations.chain(weights).filter_map(|(site, ratio)| Some((ratio_name(site), ratio?)))
    }

    /// Replaces the tensors of learned ratios by those of `parameters`, which have the same values.
    pub fn rebind(&mut self, parameters: &BTreeMap<String, Tensor>) {
        let of = |site| parameters.get(&ratio_name(site)).cloned();
        for (&site, scale) in self.activations.iter_mut().filter(|(_, scale)| scale.ratio.is_some()) {
            scale.ratio = of(site);
        }
        for (&linear, scale) in &mut self.weights {
            if let (Some([ratio, _]), Some(found)) = (&mut scale.ratio, of(Site::Weight(linear))) {
                *ratio = found;
            }
        }
    }

    /// Why an update by CUDA kernels needs the host; `None` if it does not.
    pub fn needs_host(&self) -> Option<String> {
        if let Some((site, _)) = self.activations.iter().find(|(_, scale)| scale.ratio.is_some()) {
            return Some(format!(
                "the scale of {site} is learned, and activation scales are read by the host"
            ));
        }
        let chosen = |(_, scale): &(&Linear, &WeightScale)| {
            scale.ratio.is_none() && scale.spec.calibrator != Calibrator::Max
        };
        let (linear, scale) = self.weights.iter().find(chosen)?;
        Some(format!(
            "the scales of {} are chosen by {} on the host",
            Site::Weight(*linear),
            scale.spec.calibrator
        ))
    }

    /// Drops the current scales of weights that are on a GPU; the next update computes them again.
    pub fn forget(&mut self) {
        for scale in self.weights.values_mut().filter(|scale| matches!(scale.now, WeightScales::Device(_))) {
            scale.now = WeightScales::Host(Vec::new());
        }
    }

    /// Recomputes every scale from the parameters, for operations of `compute`.
    ///
    /// # Errors
    /// A weight can no longer be quantized, or a scale is no longer a positive, finite number.
    pub fn update(&mut self, tensors: &BTreeMap<String, Tensor>, compute: Compute) -> Result<(), QatError> {
        let ratios = self.activations.values().filter_map(|scale| scale.ratio.clone()).collect();
        let mut ratios = read_together(ratios)?.into_iter().map(|ratio| ratio[0]);
        for (&site, scale) in self.activations.iter_mut().filter(|(_, scale)| scale.ratio.is_some()) {
            let amax = scale.amax * ratios.next().expect("one ratio for each learned scale");
            let device = scale.ratio.as_ref().map_or(&Device::Cpu, Tensor::device).clone();
            if !scale.set(amax, &device)? {
                return Err(QatError::Site { site, problem: format!("its range became {amax}") });
            }
        }
        let on_host = self.update_on_device(tensors, compute)?;
        self.update_on_host(tensors, &on_host)
    }

    /// Updates the weights whose scales are computed on a GPU, and returns the others.
    #[cfg(feature = "cuda")]
    fn update_on_device(
        &mut self,
        tensors: &BTreeMap<String, Tensor>,
        compute: Compute,
    ) -> Result<Vec<Linear>, QatError> {
        let mut others = Vec::new();
        for (&linear, scale) in &mut self.weights {
            let weight = &tensors[&linear.weight_name()];
            match if compute.is_cuda() { scale.on_device(weight)? } else { None } {
                Some(table) => scale.now = WeightScales::Device(table),
                None => others.push(linear),
            }
        }
        Ok(others)
    }

    #[cfg(not(feature = "cuda"))]
    fn update_on_device(
        &mut self,
        _: &BTreeMap<String, Tensor>,
        _: Compute,
    ) -> Result<Vec<Linear>, QatError> {
        Ok(self.weights.keys().copied().collect())
    }

    fn update_on_host(
        &mut self,
        tensors: &BTreeMap<String, Tensor>,
        linears: &[Linear],
    ) -> Result<(), QatError> {
        let mut sources = Vec::new();
        for linear in linears {
            sources.push(self.weights[linear].source(&tensors[&linear.weight_name()])?);
        }
        let mut values = read_together(sources.iter().flatten().cloned().collect())?.into_iter();
        for (&linear, source) in linears.iter().zip(&sources) {
            let scale = self.weights.get_mut(&linear).expect("it is one of them");
            scale.now = WeightScales::Host(match source {
                None => recomputed(linear, &scale.folded(&tensors[&linear.weight_name()])?, &scale.spec)?,
                Some(_) => scale.scales(values.next().expect("one vector for each source")),
            });
        }
        Ok(())
    }

    /// As [`ScaleTable::fake`], of a site whose channels have their own scales and zero points; `None` for
    /// every other site.
    pub fn fake_channels(&self, site: Site, values: usize) -> Option<FakeChannels> {
        let Channels { columns, resident, .. } = self.activations.get(&site)?.channels.as_ref()?;
        let FakeActivation { quantizer, learned } = self.fake(site, values)?;
        Some(FakeChannels { quantizer, columns: Arc::clone(columns), resident: resident.clone(), learned })
    }

    /// The factors of the input's channels that the codes of a weight include, and their reciprocals,
    /// `[2, in]`.
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
            gradient_scale: lsq_factor(values, Int8::MAX),
        });
        Some(FakeActivation { quantizer: scale.now, learned })
    }

    /// The fake quantization of a weight; `None` if the site is off. `values` is the weight's number of
    /// values.
    pub fn fake_weight(&self, linear: Linear, values: usize) -> Option<FakeWeight> {
        let scale = self.weights.get(&linear)?;
        let largest = f32::from(scale.spec.largest_code());
        let learned = scale.ratio.as_ref().map(|[ratio, _]| LearnedScale {
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
        let ratio = scale.ratio.as_ref().map(|_| host_values(&tensors[&ratio_name(site)])).transpose()?;
        Ok(Some(ratio.map_or(scale.amax, |ratio| scale.amax * ratio[0])))
    }

    /// The learned scales of a weight, computed from the parameters `tensors`; `None` if they are recomputed
    /// from the weight.
    ///
    /// # Errors
    /// Errors of candle.
    pub fn trained_weight_scales(
        &self,
        linear: Linear,
        tensors: &BTreeMap<String, Tensor>,
    ) -> Result<Option<Vec<f32>>, QatError> {
        let Some(scale) = self.weights.get(&linear).filter(|scale| scale.ratio.is_some()) else {
            return Ok(None);
        };
        let ratio = host_values(&tensors[&ratio_name(Site::Weight(linear))])?;
        Ok(Some(scale.base.iter().zip(ratio).map(|(base, ratio)| base * ratio).collect()))
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
    let host = HostTensor::new(weight.dims().to_vec(), host_values(weight)?);
    Ok(weight_scales(&host, spec).map_err(|error| error.of_weight(linear))?)
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
