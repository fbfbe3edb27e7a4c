//! Calibration: runs the float model over images, chooses ranges from the observed activations, and quantizes
//! the model.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use candle_core::Device;
use rayon::prelude::*;
use swinq_model::quantized::{FloatModel, ResidualRange, check_range};
use swinq_model::{BatchSource, Calibrator, QuantizedModel, Recipe, Site};

use crate::calibrator::amax;
use crate::error::CalibError;
use crate::histogram::Histogram;
use crate::refine::Trial;
use crate::refined::RefinedParameters;
use crate::run::Run;
use crate::task::Task;

/// Options of a calibration.
pub struct CalibrateOptions<'a> {
    /// Ranges from another source, such as a FasterTransformer file. Their sites are not calibrated. A fixed
    /// `amax` of a rule takes precedence over them. Ranges of sites that the recipe disables are ignored.
    pub imported: Option<&'a BTreeMap<Site, f32>>,
    /// The device that runs the float model. Activations are counted in host memory on every device.
    pub device: &'a Device,
    /// Called after every batch of images, and every refined or reconstructed layer. `Break` stops the
    /// calibration.
    pub progress: &'a mut dyn FnMut(Progress) -> ControlFlow<()>,
}

/// The phase of a calibration, and how much of it is done.
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
    /// The codes of weights are chosen, layer by layer in the order of execution. The work is counted in
    /// layers.
    Reconstruct,
}

/// The result of a calibration.
#[derive(Debug)]
pub struct Calibrated {
    /// The quantized model. The caller must add the calibration record to its provenance, because only the
    /// caller knows the images' names.
    pub model: QuantizedModel,
    /// The histograms of the observed sites: the enabled `s8` activations without an imported or fixed range.
    pub histograms: BTreeMap<Site, Histogram>,
    /// The magnitude of the residual stream; `None` if no image was read.
    pub residual: Option<ResidualRange>,
    /// SHA-256 of the pixel bytes ([`Batch::pixels`](swinq_model::Batch::pixels)) of all batches in the order
    /// of reading, hexadecimal. It is the hash of no bytes if no image was read.
    pub pixels_sha256: String,
    /// Positions of the images in the data set's full list, in the order of reading. Empty if no
    /// site had to be observed.
    pub ids: Vec<usize>,
    /// The transforms that were tried at layers whose `ptq` is not `basic`, in the order of the trials.
    pub trials: Vec<Trial>,
    /// The results of refinement.
    pub refined: RefinedParameters,
}

/// Calibrates `model` for `recipe` on all batches of epoch 0 of `source`, and quantizes it.
///
/// The range of a site is the `amax` of its rule if there is one, else the range that the architecture tells
/// ([`Site::known_range`]), else the imported range. Otherwise the calibrator of its rule chooses the range
/// from all values that the float model passes through the site. If no site has to be observed, no image is
/// read. Other devices differ from the CPU by f32 rounding only.
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
    let task = Task::new(model, recipe, options.imported)?;
    let kept = !task.reconstructed.is_empty();
    let mut run = Run::new(task.sampler(source.images()), kept);
    if task.needs_images() {
        run.all_batches(model, options.device, source, options.progress)?;
        run.check_images()?;
    }
    task.finish(run, options.device, options.progress)
}

/// Chooses the range of every observed site by its calibrator.
pub(crate) fn choose_ranges(
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
