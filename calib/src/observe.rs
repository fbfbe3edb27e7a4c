//! Counting of activations, and the magnitude of the residual stream, during the float forward.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::Range;

use candle_core::{Device, Storage, Tensor};
use rayon::prelude::*;
use swinq_float::{Attention, FloatError, LinearWeights, Sites, attention_in_parts, linear_in_float};
use swinq_model::site::BlockId;
use swinq_model::{Linear, ModelError, Site};

use crate::histogram::Histogram;

/// Counts the magnitudes at chosen sites during a forward, and finds the largest of the residual stream,
/// without changing the values. At a `probs` site it counts the softmax's results.
pub struct Observe {
    histograms: BTreeMap<Site, Histogram>,
    /// The largest magnitude of the residual stream in each block that was run.
    residual: BTreeMap<BlockId, f32>,
}

impl Observe {
    /// Observes the activation sites `sites`.
    pub fn new(sites: impl IntoIterator<Item = Site>) -> Observe {
        let histograms = sites.into_iter().map(|site| (site, Histogram::new())).collect();
        Observe { histograms, residual: BTreeMap::new() }
    }

    /// Observes the same sites, and has seen nothing.
    pub(crate) fn anew(&self) -> Observe {
        Observe::new(self.histograms.keys().copied())
    }

    /// Adds the counts of `other`, of the same sites.
    pub(crate) fn merge(&mut self, other: &Observe) {
        self.histograms.par_iter_mut().for_each(|(site, histogram)| histogram.merge(&other.histograms[site]));
        other.residual.iter().for_each(|(block, largest)| self.raise(*block, *largest));
    }

    /// The largest magnitude of the residual stream in each block that was run ([`ResidualRange`]).
    ///
    /// [`ResidualRange`]: swinq_model::quantized::ResidualRange
    pub fn largest_in_blocks(&self) -> &BTreeMap<BlockId, f32> {
        &self.residual
    }

    /// Takes note of a magnitude of the residual stream in `block`.
    pub(crate) fn raise(&mut self, block: BlockId, magnitude: f32) {
        let largest = self.residual.entry(block).or_default();
        *largest = largest.max(magnitude);
    }

    /// Takes note of the values `x` of the residual stream at `layer`.
    fn see(&mut self, layer: Linear, x: &Tensor) -> Result<(), FloatError> {
        let Some(block) = layer.residual_block() else { return Ok(()) };
        let magnitude = largest_magnitude(x)?;
        if !magnitude.is_finite() {
            return Err(refused(layer, "the residual stream has a value that is not finite"));
        }
        self.raise(block, magnitude);
        Ok(())
    }

    /// The histograms, by site.
    pub fn histograms(&self) -> &BTreeMap<Site, Histogram> {
        &self.histograms
    }

    /// The histograms, by site.
    pub(crate) fn histograms_mut(&mut self) -> &mut BTreeMap<Site, Histogram> {
        &mut self.histograms
    }

    /// The histograms, by site.
    pub fn into_histograms(self) -> BTreeMap<Site, Histogram> {
        self.histograms
    }

    /// Counts `x` if `site` is observed.
    fn record(&mut self, site: Site, x: &Tensor) -> Result<(), FloatError> {
        let Some(histogram) = self.histograms.get_mut(&site) else { return Ok(()) };
        with_host_values(x, |x| histogram.add(x))?.map_err(|error| refused(site, error))
    }

    /// Counts the columns `columns` of `rows` `[rows, width]`, if `site` is observed.
    fn record_columns(&mut self, site: Site, rows: &Tensor, columns: Range<usize>) -> Result<(), FloatError> {
        let Some(histogram) = self.histograms.get_mut(&site) else { return Ok(()) };
        let width = rows.dim(1)?;
        with_host_values(rows, |rows| histogram.add_columns(rows, width, columns))?
            .map_err(|error| refused(site, error))
    }
}

/// Calls `f` with the values of `x`, f32, row-major. A tensor on another device is copied to host memory
/// first.
pub(crate) fn with_host_values<R>(x: &Tensor, f: impl FnOnce(&[f32]) -> R) -> Result<R, FloatError> {
    let x = x.contiguous()?.to_device(&Device::Cpu)?;
    let (storage, layout) = x.storage_and_layout();
    let (Storage::Cpu(storage), Some((start, end))) = (&*storage, layout.contiguous_offsets()) else {
        unreachable!("the tensor is contiguous in host memory")
    };
    Ok(f(&storage.as_slice::<f32>()?[start..end]))
}

/// The largest magnitude of the values of `x`; NaN or infinite if one of them is.
fn largest_magnitude(x: &Tensor) -> Result<f32, FloatError> {
    /// Values of one task.
    const PIECE: usize = 1 << 16;
    if !x.device().is_cpu() {
        // Maxima on a GPU drop NaN, and sums keep it.
        let magnitudes = x.abs()?.flatten_all()?;
        let (largest, sum): (f32, f32) = (magnitudes.max(0)?.to_scalar()?, magnitudes.sum(0)?.to_scalar()?);
        return Ok(if sum.is_nan() { sum } else { largest });
    }
    // The bits of magnitudes are in the order of the magnitudes, NaN behind infinity.
    let bits = |x: &[f32]| x.iter().fold(0, |most: u32, x| most.max(x.abs().to_bits()));
    with_host_values(x, |x| f32::from_bits(x.par_chunks(PIECE).map(bits).max().unwrap_or(0)))
}

/// The error for a value that is not finite, with the next step.
fn refused(place: impl Display, error: impl Display) -> FloatError {
    let problem = format!(
        "{error}; the float model overflows, or its checkpoint or preprocessing is wrong; check its accuracy with \
         `swinq eval` before you calibrate"
    );
    ModelError::site(place, problem).into()
}

impl Sites for Observe {
    fn activation(&mut self, site: Site, x: Tensor) -> Result<Tensor, FloatError> {
        self.record(site, &x)?;
        Ok(x)
    }

    fn watches(&self, site: Site) -> bool {
        self.histograms.contains_key(&site)
    }

    fn attend(&mut self, attention: &Attention<'_>, logits: Tensor, v: Tensor) -> Result<Tensor, FloatError> {
        let site = Site::Probs(attention.block);
        if self.watches(site) {
            self.record(site, &attention.softmax(&logits)?)?;
        }
        attention.attend(&logits, &v)
    }

    fn residual(&mut self, after: Linear, x: &Tensor) -> Result<(), FloatError> {
        self.see(after, x)
    }

    fn linear(&mut self, layer: &LinearWeights, x: &Tensor) -> Result<Tensor, FloatError> {
        let y = linear_in_float(self, layer, x)?;
        self.see(layer.linear, &y)?;
        Ok(y)
    }

    /// Attention as a whole, unless a site between its parts is observed.
    fn attention(&mut self, attention: &Attention<'_>) -> Result<Tensor, FloatError> {
        let block = attention.block;
        if self.watches(Site::Scores(block)) || self.watches(Site::Probs(block)) {
            return attention_in_parts(self, attention);
        }
        let Some(mixed) = attention.whole()? else { return attention_in_parts(self, attention) };
        let width = attention.qkv.dim(1)? / 3;
        for (part, site) in [Site::Q(block), Site::K(block), Site::V(block)].into_iter().enumerate() {
            self.record_columns(site, &attention.qkv, part * width..(part + 1) * width)?;
        }
        Ok(mixed)
    }
}
