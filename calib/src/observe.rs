//! Counting of activations during the float forward.

use std::collections::BTreeMap;

use candle_core::{Device, Storage, Tensor};
use swinq_float::{Float, FloatError, Sites, ops};
use swinq_model::{ModelError, Site};

use crate::error::CalibError;
use crate::histogram::Histogram;

/// Counts the magnitudes at chosen sites during a forward without changing the values. At a `probs` site it
/// counts the softmax's results.
pub struct Observe {
    histograms: BTreeMap<Site, Histogram>,
}

impl Observe {
    /// Observes the activation sites `sites`.
    pub fn new(sites: impl IntoIterator<Item = Site>) -> Observe {
        Observe { histograms: sites.into_iter().map(|site| (site, Histogram::new())).collect() }
    }

    /// The histograms, by site.
    pub fn histograms(&self) -> &BTreeMap<Site, Histogram> {
        &self.histograms
    }

    /// The histograms, by site.
    pub fn into_histograms(self) -> BTreeMap<Site, Histogram> {
        self.histograms
    }

    /// Counts `x` if `site` is observed. A tensor on another device is copied to host memory first.
    fn record(&mut self, site: Site, x: &Tensor) -> Result<(), FloatError> {
        let Some(histogram) = self.histograms.get_mut(&site) else { return Ok(()) };
        let x = x.contiguous()?.to_device(&Device::Cpu)?;
        let (storage, layout) = x.storage_and_layout();
        let (Storage::Cpu(storage), Some((start, end))) = (&*storage, layout.contiguous_offsets()) else {
            unreachable!("the tensor is contiguous in host memory")
        };
        histogram.add(&storage.as_slice::<f32>()?[start..end]).map_err(|error| refused(site, &error))
    }
}

/// The error for a value that is not finite, with the next step.
fn refused(site: Site, error: &CalibError) -> FloatError {
    let problem = format!(
        "{error}; the float model overflows, or its checkpoint or preprocessing is wrong; check its accuracy with \
         `swinq eval` before you calibrate"
    );
    ModelError::site(site, problem).into()
}

impl Sites for Observe {
    fn activation(&mut self, site: Site, x: Tensor) -> Result<Tensor, FloatError> {
        self.record(site, &x)?;
        Ok(x)
    }

    fn weight(&mut self, site: Site, w: &Tensor) -> Result<Tensor, FloatError> {
        Float.weight(site, w)
    }

    fn watches(&self, site: Site) -> bool {
        self.histograms.contains_key(&site)
    }

    fn attend(&mut self, site: Site, logits: Tensor, v: Tensor) -> Result<Tensor, FloatError> {
        if self.histograms.contains_key(&site) {
            self.record(site, &ops::softmax(&logits)?)?;
        }
        Float.attend(site, logits, v)
    }
}
