//! Statistics of the ranges at the quantized sites.

use std::collections::BTreeMap;

use candle_core::{D, Device, Tensor};
use swinq_calib::{Histogram, weight_scales};
use swinq_eval::results::sensitivity::{ChannelSpread, Percentile, RangeStatistics};
use swinq_float::{FloatError, Sites, Swin};
use swinq_model::quantized::ChannelCodes;
use swinq_model::site::all_sites;
use swinq_model::{Batch, Granularity, HostTensor, Int8, Linear, ModelError, QuantizedModel, Site, SiteSpec};

use crate::Error;
use crate::quantizer::ModelQuantizer;

/// The percentiles of the results.
const PERCENTILES: [f64; 5] = [50.0, 99.0, 99.9, 99.99, 99.999];
/// Bins of the histograms of the results.
const BINS: usize = 64;

/// Statistics of every quantized site of `model`, a model of `quantizer`, that has a range. The magnitudes
/// are those of the calibration; the largest magnitudes of channels are those on `images`. At refined layers,
/// whose inputs refinement has rewritten, the magnitudes are those on `images`, too.
pub(super) fn statistics(
    quantizer: &ModelQuantizer,
    model: &QuantizedModel,
    images: &Batch,
) -> Result<Vec<RangeStatistics>, Error> {
    let float = quantizer.rewritten();
    let swin = Swin::new(&float.config, &float.tensors, &Device::Cpu)?;
    let refined = all_sites(&model.config).into_iter().filter(|&site| quantizer.is_refined(site, model));
    let histograms = refined.map(|site| (site, Histogram::new())).collect();
    let mut channels = Channels { model, largest: BTreeMap::new(), histograms, codes: BTreeMap::new() };
    let tensor = swin.images(images, &float.transform)?;
    for first in (0..images.len()).step_by(2) {
        let some = tensor.narrow(0, first, 2.min(images.len() - first)).map_err(FloatError::from)?;
        swin.outputs(&some, &mut channels)?;
    }
    let mut all = Vec::new();
    for site in all_sites(&model.config) {
        let state = model.site(site);
        if !state.spec.enabled {
            continue;
        }
        if let Site::Weight(linear) = site {
            all.push(weight(&float.tensors[&linear.weight_name()], linear, &state.spec)?);
            continue;
        }
        let refined = channels.histograms.get(&site);
        let histogram = refined.or_else(|| quantizer.histogram(site));
        if let (Some(amax), Some(histogram)) = (state.amax, histogram) {
            let mut found = activation(site, &state.spec, histogram, amax);
            found.spread = channels.largest.get(&site).and_then(|largest| spread(largest));
            if refined.is_some() && state.spec.amax.is_none() {
                found.calibrator = "refined".to_owned();
            }
            if let Some(codes) = channels.codes.get(&site) {
                found.amax = None;
                (found.clipped, found.zeroed) = codes.fractions();
            }
            all.push(found);
        }
    }
    Ok(all)
}

fn activation(site: Site, spec: &SiteSpec, histogram: &Histogram, amax: f32) -> RangeStatistics {
    let (all, zeros) = (histogram.count() as f64, histogram.zeros() as f64);
    let below = |x: f64| below(histogram, x);
    RangeStatistics {
        site: site.to_string(),
        calibrator: spec.amax.map_or_else(|| spec.calibrator.to_string(), |_| "fixed".to_owned()),
        max: histogram.max(),
        amax: Some(amax),
        percentiles: percentiles(histogram),
        clipped: ((all - below(f64::from(amax))) / all).max(0.0),
        zeroed: ((below(f64::from(amax) / 254.0) - zeros) / all).max(0.0),
        spread: None,
        histogram: coarse(histogram),
    }
}

fn weight(tensor: &HostTensor, linear: Linear, spec: &SiteSpec) -> Result<RangeStatistics, Error> {
    let mut histogram = Histogram::new();
    histogram.add(&tensor.data)?;
    let (rows, columns) = tensor.matrix();
    let scales = weight_scales(tensor, spec)?;
    let largest_code = f32::from(spec.largest_code());
    let (mut clipped, mut zeroed) = (0usize, 0usize);
    for (row, values) in tensor.data.chunks(columns).enumerate() {
        let scale = if scales.len() == 1 { scales[0] } else { scales[row] };
        clipped += values.iter().filter(|w| w.abs() * scale.recip() > largest_code + 0.5).count();
        zeroed += values.iter().filter(|w| **w != 0.0 && w.abs() * scale.recip() <= 0.5).count();
    }
    let largest: Vec<f32> = tensor.data.chunks(columns).map(largest_magnitude).collect();
    let all = (rows * columns) as f64;
    Ok(RangeStatistics {
        site: Site::Weight(linear).to_string(),
        calibrator: spec.calibrator.to_string(),
        max: histogram.max(),
        amax: (spec.granularity == Granularity::Tensor).then(|| scales[0] * largest_code),
        percentiles: percentiles(&histogram),
        clipped: clipped as f64 / all,
        zeroed: zeroed as f64 / all,
        spread: spread(&largest),
        histogram: coarse(&histogram),
    })
}

fn largest_magnitude(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |max, v| max.max(v.abs()))
}

/// The number of magnitudes below `x`; within a bin they count as spread evenly.
fn below(histogram: &Histogram, x: f64) -> f64 {
    let counts = histogram.counts();
    let at = x / histogram.width();
    let whole = (at as usize).min(counts.len());
    let sum: u64 = counts[..whole].iter().sum();
    let part = counts.get(whole).map_or(0.0, |&count| count as f64 * (at - whole as f64));
    sum as f64 + part
}

fn percentiles(histogram: &Histogram) -> Vec<Percentile> {
    let value = |percent: f64| {
        let rank = histogram.count() as f64 * percent / 100.0;
        let mut sum = 0.0;
        let bin = histogram.counts().iter().position(|&count| {
            sum += count as f64;
            sum >= rank
        });
        let edge = bin.map_or(f64::INFINITY, |bin| (bin + 1) as f64 * histogram.width());
        Percentile { percent, value: edge.min(f64::from(histogram.max())) as f32 }
    };
    PERCENTILES.map(value).to_vec()
}

/// The counts in [`BINS`] equal bins from 0 to the largest magnitude.
fn coarse(histogram: &Histogram) -> Vec<u64> {
    let mut bins = vec![0; BINS];
    let max = f64::from(histogram.max()).max(f64::MIN_POSITIVE);
    for (i, count) in histogram.counts().iter().enumerate() {
        let center = (i as f64 + 0.5) * histogram.width();
        bins[((center / max * BINS as f64) as usize).min(BINS - 1)] += count;
    }
    bins
}

/// The spread of the largest magnitudes of channels; `None` if there is no channel.
fn spread(largest: &[f32]) -> Option<ChannelSpread> {
    let mut sorted = largest.to_vec();
    sorted.sort_by(f32::total_cmp);
    let top = *sorted.last()?;
    Some(ChannelSpread {
        channels: sorted.len(),
        least: sorted[0],
        median: sorted[sorted.len() / 2],
        largest: top,
        outlier: largest.iter().position(|&value| value == top)?,
    })
}

/// Finds the largest magnitude of each channel at the sites whose tensors have channels: inputs and outputs
/// of linear layers, `[rows, channels]`. Counts the magnitudes at the sites of `histograms`, and the codes at
/// sites with a scale for each channel.
struct Channels<'a> {
    model: &'a QuantizedModel,
    largest: BTreeMap<Site, Vec<f32>>,
    histograms: BTreeMap<Site, Histogram>,
    codes: BTreeMap<Site, CodeCounts>,
}

/// Counts of the values at a site with a scale and a zero point for each channel.
#[derive(Default)]
struct CodeCounts {
    all: usize,
    /// Values whose code is outside -128 to 127 before it is clamped.
    clipped: usize,
    /// Values other than 0 with the code of 0.
    zeroed: usize,
}

impl CodeCounts {
    /// Adds `x`, rows of as many values as `codes` has channels, for the site's scale `step`.
    fn add(&mut self, x: &[f32], codes: &ChannelCodes, step: f32) {
        let recips: Vec<f32> = codes.factors.iter().map(|factor| (step * factor).recip()).collect();
        for row in x.chunks_exact(recips.len()) {
            for ((x, recip), zero) in row.iter().zip(&recips).zip(&codes.zero_points) {
                let units = (x * recip).round_ties_even();
                self.clipped += usize::from(!(Int8::MIN..=Int8::MAX).contains(&(units + f32::from(*zero))));
                self.zeroed += usize::from(units == 0.0 && *x != 0.0);
            }
        }
        self.all += x.len();
    }

    /// The fractions of the values that are clipped and zeroed.
    fn fractions(&self) -> (f64, f64) {
        let of_all = |count: usize| count as f64 / self.all.max(1) as f64;
        (of_all(self.clipped), of_all(self.zeroed))
    }
}

impl Channels<'_> {
    fn record(&mut self, site: Site, x: &Tensor) -> Result<(), FloatError> {
        let largest: Vec<f32> = x.abs()?.max(0)?.to_vec1()?;
        let all = self.largest.entry(site).or_insert_with(|| vec![0.0; largest.len()]);
        all.iter_mut().zip(largest).for_each(|(all, value)| *all = all.max(value));
        Ok(())
    }

    /// Counts the values of a site whose range refinement chose.
    fn count(&mut self, site: Site, x: &Tensor) -> Result<(), FloatError> {
        let Some(histogram) = self.histograms.get_mut(&site) else { return Ok(()) };
        let values: Vec<f32> = x.flatten_all()?.to_vec1()?;
        histogram.add(&values).map_err(|error| ModelError::site(site, error.to_string()))?;
        if let (Some(codes), Some(step)) =
            (&self.model.site(site).channels, self.model.activation_scale(site)?)
        {
            self.codes.entry(site).or_default().add(&values, codes, step);
        }
        Ok(())
    }
}

impl Sites for Channels<'_> {
    fn activation(&mut self, site: Site, x: Tensor) -> Result<Tensor, FloatError> {
        self.count(site, &x)?;
        let has_channels = matches!(site, Site::Input(linear) if linear != Linear::PatchEmbed)
            || matches!(site, Site::Output(_));
        if has_channels && self.watches(site) {
            let columns = x.dim(D::Minus1)?;
            self.record(site, &x.reshape(((), columns))?)?;
        }
        Ok(x)
    }

    fn watches(&self, site: Site) -> bool {
        self.model.site(site).spec.enabled
    }
}
