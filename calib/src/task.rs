//! The quantities that a calibration has to find, and how the result follows from the observations.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use candle_core::Device;
use sha2::Digest;
use swinq_model::quantized::{FloatModel, ResidualRange};
use swinq_model::{Calibrator, Linear, Recipe, Site, SiteSpec};

use crate::calibrate::{Calibrated, Phase, Progress, choose_ranges};
use crate::error::CalibError;
use crate::observe::Observe;
use crate::quantize::assemble;
use crate::reconstruct::{Reconstruction, in_order, reconstructed_layers};
use crate::refine::{Refiner, Sampler, refined_layers};
use crate::refined::RefinedParameters;
use crate::run::{Run, images_per_forward};

/// The quantities that a calibration of a model for a recipe has to find.
pub(crate) struct Task<'a> {
    model: &'a FloatModel,
    recipe: &'a Recipe,
    specs: BTreeMap<Site, SiteSpec>,
    /// The ranges that need no observation.
    ranges: BTreeMap<Site, f32>,
    /// The sites whose range must not change.
    fixed: BTreeSet<Site>,
    /// The sites to observe, with their calibrators.
    observed: Vec<(Site, Calibrator)>,
    /// The layers to refine.
    refined: Vec<Linear>,
    /// The layers to reconstruct.
    pub reconstructed: BTreeSet<Linear>,
}

impl<'a> Task<'a> {
    /// The task for ranges from another source, if there are any
    /// ([`CalibrateOptions::imported`](crate::CalibrateOptions::imported)).
    pub fn new(
        model: &'a FloatModel,
        recipe: &'a Recipe,
        imported: Option<&BTreeMap<Site, f32>>,
    ) -> Result<Task<'a>, CalibError> {
        let mut ranges = imported.cloned().unwrap_or_default();
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
        let observed =
            specs.iter().filter(needs_observation).map(|(site, spec)| (*site, spec.calibrator)).collect();
        let (refined, reconstructed) = (refined_layers(&specs), reconstructed_layers(&specs));
        Ok(Task { model, recipe, specs, ranges, fixed, observed, refined, reconstructed })
    }

    /// Whether images have to be read.
    pub fn needs_images(&self) -> bool {
        !(self.observed.is_empty() && self.refined.is_empty() && self.reconstructed.is_empty())
    }

    /// Observes and samples what the task needs, on `total` images.
    pub fn sampler(&self, total: usize) -> Sampler {
        let blocks = self.refined.iter().filter_map(|layer| layer.block()).collect();
        let observe = Observe::new(self.observed.iter().map(|(site, _)| *site));
        Sampler::new(observe, self.refined.clone(), blocks, total)
    }

    /// The result, from the observations of `run`. `progress` is called after each layer.
    pub fn finish(
        self,
        run: Run,
        device: &Device,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Calibrated, CalibError> {
        let Task { model, recipe, specs, mut ranges, fixed, observed, refined: layers, reconstructed } = self;
        let (samples, observe) = run.sampler.into_samples();
        let residual =
            ResidualRange::of(&ResidualRange::by_block(&model.config, observe.largest_in_blocks()));
        let histograms = observe.into_histograms();
        ranges.extend(choose_ranges(&observed, &histograms)?);
        let refined = RefinedParameters::new(ranges);
        let refiner =
            Refiner { float: model, specs: &specs, fixed: &fixed, samples, refined, trials: Vec::new() };
        let total = layers.len();
        let (refined, mut trials) = refiner.run(layers, &mut layers_done(Phase::Refine, total, progress))?;
        let mut quantized = assemble(model, recipe, &refined)?;
        if let Some(batches) = run.kept.filter(|_| !reconstructed.is_empty()) {
            let reconstruction = Reconstruction {
                float: &refined.applied_to(model),
                model: &mut quantized,
                layers: &reconstructed,
                images: &in_order(&batches, images_per_forward(device)),
                device,
            };
            let total = reconstructed.len();
            let mut done = layers_done(Phase::Reconstruct, total, progress);
            trials.extend(reconstruction.run(&mut done)?);
            quantized.validate()?;
        }
        Ok(Calibrated {
            refined,
            model: quantized,
            trials,
            histograms,
            residual,
            pixels_sha256: run.hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect(),
            ids: run.ids,
        })
    }
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
