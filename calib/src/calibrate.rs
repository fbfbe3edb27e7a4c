//! Calibration: runs the float model over images, chooses ranges from the observed activations, and quantizes the
//! model.

use std::collections::{BTreeMap, BTreeSet};
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
use crate::quantize::assemble;
use crate::reconstruct::{Reconstruction, in_order, reconstructed_layers};
use crate::refine::{Refined, RefinedParameters, Refiner, Sampler, Trial, refined_layers};

/// Options of a calibration.
pub struct CalibrateOptions<'a> {
    /// Ranges from another source, such as a FasterTransformer file. Their sites are not calibrated. A fixed
    /// `amax` of a rule takes precedence over them. Ranges of sites that the recipe disables are ignored.
    pub imported: Option<&'a BTreeMap<Site, f32>>,
    /// The device that runs the float model. Activations are counted in host memory on every device.
    pub device: &'a Device,
    /// Called after every batch of images, and every refined or reconstructed layer. `Break` stops the calibration.
    pub progress: &'a mut dyn FnMut(Progress) -> ControlFlow<()>,
}

/// What a calibration is doing, and how much of it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The phase. Phases follow each other in the order of [`Phase`]; a phase without work is left out.
    pub phase: Phase,
    /// Images or layers done.
    pub done: usize,
    /// All images or layers of the phase.
    pub total: usize,
}

/// A phase of a calibration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// The float model runs on the images, and its activations are observed.
    Observe,
    /// Layers are rewritten, and their ranges are searched. The work is counted in layers.
    Refine,
    /// The codes of weights are chosen, layer by layer in the order of execution. The work is counted in layers.
    Reconstruct,
}

/// The result of a calibration.
#[derive(Debug)]
pub struct Calibrated {
    /// The quantized model. The caller must add the calibration record to its provenance, because only the caller
    /// knows the images' names.
    pub model: QuantizedModel,
    /// The histograms of the observed sites: the enabled `s8` activations without an imported or fixed range.
    pub histograms: BTreeMap<Site, Histogram>,
    /// SHA-256 of the pixel bytes ([`Batch::pixels`]) of all batches in the order in which they were read,
    /// hexadecimal. It is the hash of no bytes if no image was read.
    pub pixels_sha256: String,
    /// Positions of the images in the data set's full list, in the order in which they were read. Empty if no
    /// site had to be observed.
    pub ids: Vec<usize>,
    /// The transforms that were tried at layers whose `ptq` is not `basic`, in the order of the trials.
    pub trials: Vec<Trial>,
    /// What refinement found.
    pub refined: RefinedParameters,
}

/// Images per forward on the CPU. The number is small so that tensors stay in the cache.
const IMAGES_PER_FORWARD: usize = 2;
/// Images per forward on a GPU: enough to occupy it, few enough for its memory.
const IMAGES_PER_GPU_FORWARD: usize = 16;

fn images_per_forward(device: &Device) -> usize {
    if device.is_cpu() { IMAGES_PER_FORWARD } else { IMAGES_PER_GPU_FORWARD }
}

/// Calibrates `model` for `recipe` on all batches of epoch 0 of `source`, and quantizes it.
///
/// The range of a site is the `amax` of its rule if there is one, else the range that the architecture tells
/// ([`Site::known_range`]), else the imported range. Otherwise the calibrator of its rule chooses the range from all values that the float model passes through the site. If no
/// site has to be observed, no image is read. Other devices differ from the CPU by f32 rounding only.
///
/// # Errors
/// - [`CalibError::Batch`] if the source fails, [`CalibError::NoImages`] if it has no image.
/// - [`CalibError::Interrupted`] if `options.progress` returns `Break`.
/// - [`CalibError::Range`] for an unusable range, [`CalibError::Unseen`] for a site without values, and
///   [`CalibError::Float`] for a NaN or infinity in an observed activation. The error names the site.
/// - The errors of [`quantize`](crate::quantize()).
pub fn calibrate(
    model: &FloatModel,
    recipe: &Recipe,
    source: &mut dyn BatchSource,
    options: CalibrateOptions,
) -> Result<Calibrated, CalibError> {
    let mut ranges = options.imported.cloned().unwrap_or_default();
    let specs: BTreeMap<Site, SiteSpec> = recipe.resolve(&model.config)?.into_iter().collect();
    let known = |(site, spec): (&Site, &SiteSpec)| {
        let range = site.known_range(&model.config).filter(|_| spec.needs_scale(*site))?;
        Some((*site, range))
    };
    ranges.extend(specs.iter().filter_map(known));
    let fixed: BTreeSet<Site> = specs
        .iter()
        .filter(|(site, s)| s.amax.is_some() || ranges.contains_key(site))
        .map(|(s, _)| *s)
        .collect();
    ranges.extend(specs.iter().filter_map(|(site, spec)| Some((*site, spec.amax?))));
    let needs_observation =
        |(site, spec): &(&Site, &SiteSpec)| spec.needs_scale(**site) && !fixed.contains(site);
    let observed: Vec<(Site, Calibrator)> =
        specs.iter().filter(needs_observation).map(|(site, spec)| (*site, spec.calibrator)).collect();
    let (layers, reconstructed) = (refined_layers(&specs), reconstructed_layers(&specs));
    let blocks = layers.iter().filter_map(|layer| layer.block()).collect();
    let observe = Observe::new(observed.iter().map(|(site, _)| *site));
    let sampler = Sampler::new(observe, layers.clone(), blocks, source.images());
    let kept = (!reconstructed.is_empty()).then(Vec::new);
    let mut run = Run { sampler, hash: Sha256::new(), ids: Vec::new(), kept };
    if !(observed.is_empty() && layers.is_empty() && reconstructed.is_empty()) {
        run.all_batches(model, options.device, source, options.progress)?;
    }
    let (samples, observe) = run.sampler.into_samples();
    let histograms = observe.into_histograms();
    ranges.extend(choose_ranges(&observed, &histograms)?);
    let refiner = Refiner { specs: &specs, fixed: &fixed, samples, refined: Refined::new(model, ranges) };
    let total = layers.len();
    let refined = refiner.run(layers, &mut layers_done(Phase::Refine, total, options.progress))?;
    let parameters = refined.parameters(model);
    let mut quantized = assemble(recipe, &refined)?;
    let mut trials = refined.trials;
    if let Some(batches) = run.kept {
        let reconstruction = Reconstruction {
            float: &refined.model,
            model: &mut quantized,
            layers: &reconstructed,
            images: &in_order(&batches, images_per_forward(options.device)),
            device: options.device,
        };
        let total = reconstructed.len();
        let mut done = layers_done(Phase::Reconstruct, total, options.progress);
        trials.extend(reconstruction.run(&mut done)?);
        quantized.validate()?;
    }
    Ok(Calibrated {
        refined: parameters,
        model: quantized,
        trials,
        histograms,
        pixels_sha256: run.hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect(),
        ids: run.ids,
    })
}

/// Reports that layers of a phase are done; [`CalibError::Stopped`] if the callback stops the calibration.
fn layers_done(
    phase: Phase,
    total: usize,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> impl FnMut(usize) -> Result<(), CalibError> {
    move |done| match progress(Progress { phase, done, total }) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(CalibError::Stopped),
    }
}

/// A run of the float model over the images.
struct Run {
    sampler: Sampler,
    hash: Sha256,
    ids: Vec<usize>,
    /// The images, if a later phase needs them.
    kept: Option<Vec<Batch>>,
}

impl Run {
    fn all_batches(
        &mut self,
        model: &FloatModel,
        device: &Device,
        source: &mut dyn BatchSource,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<(), CalibError> {
        let swin = Swin::new(&model.config, &model.tensors, device)?;
        let total = source.images();
        for index in 0..source.batches() {
            let batch = source.batch(0, index).map_err(|source| CalibError::Batch { index, source })?;
            self.one_batch(model, &swin, &batch)?;
            let step = Progress { phase: Phase::Observe, done: self.ids.len(), total };
            if progress(step).is_break() {
                return Err(CalibError::Interrupted { images: self.ids.len() });
            }
        }
        if self.ids.is_empty() { Err(CalibError::NoImages) } else { Ok(()) }
    }

    fn one_batch(&mut self, model: &FloatModel, swin: &Swin, batch: &Batch) -> Result<(), CalibError> {
        if batch.is_empty() {
            return Ok(());
        }
        let images = swin.images(batch, &model.transform)?;
        // The histograms do not depend on the number of images per forward.
        let per_forward = images_per_forward(images.device());
        for first in (0..batch.len()).step_by(per_forward) {
            let last = batch.len().min(first + per_forward);
            let images = images.narrow(0, first, last - first).map_err(FloatError::from)?;
            self.sampler.next_images(&batch.ids[first..last]);
            swin.forward(&images, &mut self.sampler)?;
        }
        self.hash.update(&batch.pixels);
        self.ids.extend(&batch.ids);
        if let Some(kept) = &mut self.kept {
            kept.push(batch.clone());
        }
        Ok(())
    }
}

/// Chooses the range of every observed site by its calibrator.
fn choose_ranges(
    observed: &[(Site, Calibrator)],
    histograms: &BTreeMap<Site, Histogram>,
) -> Result<BTreeMap<Site, f32>, CalibError> {
    let choose = |&(site, calibrator): &(Site, Calibrator)| {
        Ok((site, choose_range(site, calibrator, &histograms[&site])?))
    };
    observed.par_iter().map(choose).collect()
}

/// The range that `calibrator` chooses for the activation `site` from its values.
///
/// # Errors
/// [`CalibError::Unseen`] for a histogram without values, [`CalibError::Range`] for an unusable range.
pub fn choose_range(site: Site, calibrator: Calibrator, histogram: &Histogram) -> Result<f32, CalibError> {
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
    Ok(amax)
}
