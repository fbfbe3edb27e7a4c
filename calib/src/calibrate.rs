//! Calibration: the float forward over images, ranges from what it showed, and the quantized model.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use candle_core::Device;
use rayon::prelude::*;
use sha2::{Digest, Sha256};
use swinq_float::{FloatError, Swin};
use swinq_model::quantized::{FloatModel, check_range};
use swinq_model::{Batch, BatchSource, Calibrator, QuantizedModel, Recipe, Site, SiteSpec};

use crate::calibrator::amax;
use crate::error::CalibError;
use crate::histogram::Histogram;
use crate::observe::Observe;
use crate::quantize::quantize;

/// What a calibration takes besides the model, the recipe and the images.
pub struct CalibrateOptions<'a> {
    /// Ranges from elsewhere (such as a FasterTransformer file's), used instead of calibrating their sites. A rule's
    /// fixed `amax` wins over them; those of sites that the recipe leaves off are ignored.
    pub imported: Option<&'a BTreeMap<Site, f32>>,
    /// Where the float forward runs. What it shows is counted in host memory, wherever that is.
    pub device: &'a Device,
    /// Called after every batch with the images observed so far and the images in all; `Break` stops the calibration.
    pub progress: &'a mut dyn FnMut(usize, usize) -> ControlFlow<()>,
}

/// What a calibration results in.
#[derive(Debug)]
pub struct Calibrated {
    /// The quantized model. Its provenance has no calibration record yet: only the caller knows the images' names.
    pub model: QuantizedModel,
    /// What was observed, by site: the enabled `s8` activations without an imported or fixed range.
    pub histograms: BTreeMap<Site, Histogram>,
    /// SHA-256 over the pixels ([`Batch::pixels`]) of the images in the order seen, hexadecimal.
    pub pixels_sha256: String,
    /// Positions of the images in the data set's full list, in the order seen. Empty where no site needed an image.
    pub ids: Vec<usize>,
}

/// Images per forward in host memory: small tensors stay in the cache.
const FORWARD: usize = 2;
/// Images per forward on another device, whose units want work, and whose memory is finite.
const FORWARD_ON_DEVICE: usize = 16;

/// Calibrates `model` for `recipe` on every batch of epoch 0 of `source`, and quantizes it.
///
/// The range of a site comes from its rule's `amax`, else from the imported ranges, else from its rule's calibrator over
/// all values that the float forward passes through it. Where every range comes from elsewhere no image is read. Another
/// device rounds the forward otherwise, and no more than that: its ranges are the same to a few f32 roundings.
///
/// # Errors
/// [`CalibError::Interrupted`] when asked to stop; [`CalibError::NoImages`] for an empty source; a NaN or infinity in an
/// observed activation and a range that cannot be one, naming the site; everything that [`quantize`] refuses.
pub fn calibrate(
    model: &FloatModel,
    recipe: &Recipe,
    source: &mut dyn BatchSource,
    options: CalibrateOptions,
) -> Result<Calibrated, CalibError> {
    let mut ranges = options.imported.cloned().unwrap_or_default();
    let table = recipe.resolve(&model.config)?;
    let to_observe = |(site, spec): &&(Site, SiteSpec)| {
        spec.needs_scale(*site) && spec.amax.is_none() && !ranges.contains_key(site)
    };
    let observed: Vec<(Site, Calibrator)> =
        table.iter().filter(to_observe).map(|(site, spec)| (*site, spec.calibrator)).collect();
    let observe = Observe::new(observed.iter().map(|(site, _)| *site));
    let mut pass = Pass { observe, hash: Sha256::new(), ids: Vec::new() };
    if !observed.is_empty() {
        pass.run(model, options.device, source, options.progress)?;
    }
    let histograms = pass.observe.into_histograms();
    ranges.extend(choose_ranges(&observed, &histograms)?);
    Ok(Calibrated {
        model: quantize(model, recipe, &ranges)?,
        histograms,
        pixels_sha256: pass.hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect(),
        ids: pass.ids,
    })
}

/// One pass over the images.
struct Pass {
    observe: Observe,
    hash: Sha256,
    ids: Vec<usize>,
}

impl Pass {
    fn run(
        &mut self,
        model: &FloatModel,
        device: &Device,
        source: &mut dyn BatchSource,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<(), CalibError> {
        let swin = Swin::new(&model.config, &model.tensors, device)?;
        let total = source.images();
        for index in 0..source.batches() {
            let batch = source.batch(0, index).map_err(|source| CalibError::Batch { index, source })?;
            self.batch(model, &swin, &batch)?;
            if progress(self.ids.len(), total).is_break() {
                return Err(CalibError::Interrupted { images: self.ids.len() });
            }
        }
        if self.ids.is_empty() { Err(CalibError::NoImages) } else { Ok(()) }
    }

    fn batch(&mut self, model: &FloatModel, swin: &Swin, batch: &Batch) -> Result<(), CalibError> {
        if batch.is_empty() {
            return Ok(());
        }
        let images = swin.images(batch, &model.transform)?;
        // Histograms do not depend on how the images are grouped.
        let forward = if images.device().is_cpu() { FORWARD } else { FORWARD_ON_DEVICE };
        for first in (0..batch.len()).step_by(forward) {
            let images =
                images.narrow(0, first, forward.min(batch.len() - first)).map_err(FloatError::from)?;
            swin.forward(&images, &mut self.observe)?;
        }
        self.hash.update(&batch.pixels);
        self.ids.extend(&batch.ids);
        Ok(())
    }
}

/// The range of every observed site.
fn choose_ranges(
    observed: &[(Site, Calibrator)],
    histograms: &BTreeMap<Site, Histogram>,
) -> Result<BTreeMap<Site, f32>, CalibError> {
    let choose = |&(site, calibrator): &(Site, Calibrator)| {
        let histogram = &histograms[&site];
        if histogram.is_empty() {
            return Err(CalibError::Unseen { site });
        }
        let amax = amax(histogram, calibrator)?;
        check_range(site, amax).map_err(|_| CalibError::Range {
            site,
            calibrator,
            amax,
            max: histogram.max(),
            zeros: histogram.zeros(),
            count: histogram.count(),
        })?;
        Ok((site, amax))
    };
    observed.par_iter().map(choose).collect()
}
