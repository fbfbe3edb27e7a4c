//! The quantized models that recipes make of one float model, without running images for each.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use swinq_calib::Histogram;
use swinq_model::quantized::{CalibrationRecord, FloatModel, Param, SiteState};
use swinq_model::site::all_linears;
use swinq_model::{ModelError, Ptq, QuantizedModel, Recipe, Rule, Site, SiteSpec};

use crate::calibration::record;
use crate::{Error, FloatDevice, Images, ReadOptions};

/// Pattern of the sites that a search may enable although a recipe leaves them off: the operands of products.
const OPERANDS: &str = r"re:.*\.(input|q|k|v)";

/// Applies recipes to one float model. The images were observed once: the histograms of the sites give the range
/// of every calibrator.
pub(crate) struct Quantizer {
    float: FloatModel,
    histograms: BTreeMap<Site, Histogram>,
    record: CalibrationRecord,
    /// The ranges that calibrators chose so far.
    ranges: BTreeMap<(Site, String), f32>,
    /// The model of the last recipe.
    current: QuantizedModel,
}

impl Quantizer {
    /// Runs `float` over `images`, and keeps the histogram of every site that `recipe` quantizes, and of the
    /// operands of every product. `progress` is called with the number of images done and of all images.
    ///
    /// # Errors
    /// The errors of [`calibrate`](crate::calibrate()); [`Error::Argument`] for a layer whose `ptq` is not `basic`.
    pub(crate) fn calibrate(
        float: FloatModel,
        recipe: &Recipe,
        images: &Images,
        read: &ReadOptions,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Quantizer, Error> {
        check_ptq(&float, recipe)?;
        let device = FloatDevice::Cpu.open()?;
        let mut batches = images.batches(&float.transform, read)?;
        let operands = Rule { pattern: OPERANDS.to_owned(), enable: Some(true), ..Rule::default() };
        let mut observed = |step: swinq_calib::Progress| progress(step.done, step.total);
        let settings =
            swinq_calib::CalibrateOptions { imported: None, device: &device, progress: &mut observed };
        let all = recipe.clone().with_rule(operands);
        let found = swinq_calib::calibrate(&float, &all, &mut batches, settings)?;
        Ok(Quantizer {
            current: QuantizedModel::from_float(&float)?,
            float,
            histograms: found.histograms,
            record: record(images, read, &found.ids, found.pixels_sha256),
            ranges: BTreeMap::new(),
        })
    }

    /// The float model.
    pub(crate) fn float(&self) -> &FloatModel {
        &self.float
    }

    /// The magnitudes at `site`; `None` for a site that was not observed.
    pub(crate) fn histogram(&self, site: Site) -> Option<&Histogram> {
        self.histograms.get(&site)
    }

    /// The float model with `recipe` applied, as [`calibrate`](crate::calibrate()) would make it. Only what differs
    /// from the last call is made anew.
    ///
    /// # Errors
    /// [`Error::Model`] for a recipe that does not fit the model, or for a site that has to be quantized and was
    /// not observed; [`Error::Calib`] for an unusable range; [`Error::Argument`] as in [`Quantizer::calibrate`].
    pub(crate) fn apply(&mut self, recipe: &Recipe) -> Result<&QuantizedModel, Error> {
        check_ptq(&self.float, recipe)?;
        let mut states = BTreeMap::new();
        for (site, spec) in recipe.resolve(&self.float.config)? {
            let amax = if spec.needs_scale(site) { Some(self.range(site, &spec)?) } else { None };
            states.insert(site, SiteState::new(spec, amax));
        }
        for linear in all_linears(&self.float.config) {
            let (site, name) = (Site::Weight(linear), linear.weight_name());
            let spec = &states[&site].spec;
            if self.current.sites[&site].spec == *spec {
                continue;
            }
            let param = match spec.enabled {
                true => Param::Int8(swinq_calib::quantize_weight(&self.float.tensors[&name], spec)?),
                false => Param::Float(self.float.tensors[&name].clone()),
            };
            self.current.params.insert(name, param);
        }
        self.current.sites = states;
        self.current.recipe = recipe.clone();
        self.current.provenance.calibration = Some(self.record.clone());
        Ok(&self.current)
    }

    /// The range of an enabled activation.
    fn range(&mut self, site: Site, spec: &SiteSpec) -> Result<f32, Error> {
        if let Some(amax) = spec.amax {
            return Ok(amax);
        }
        let key = (site, spec.calibrator.to_string());
        if let Some(&amax) = self.ranges.get(&key) {
            return Ok(amax);
        }
        let histogram = self.histograms.get(&site).ok_or_else(|| {
            ModelError::site(site, "was not observed during calibration, so that it cannot be quantized")
        })?;
        let amax = swinq_calib::choose_range(site, spec.calibrator, histogram)?;
        self.ranges.insert(key, amax);
        Ok(amax)
    }
}

/// Refuses a recipe that rewrites layers: each candidate would need its own refinement.
fn check_ptq(float: &FloatModel, recipe: &Recipe) -> Result<(), Error> {
    let table = recipe.resolve(&float.config)?;
    match table.iter().find(|(_, spec)| spec.enabled && spec.ptq != Ptq::Basic) {
        None => Ok(()),
        Some((site, spec)) => Err(Error::argument(
            "recipe",
            format!(
                "{site} has `ptq: {}`, but sensitivity and tune quantize with `ptq: basic` only; state `basic` here, \
                 and calibrate the recipe that `tune` writes with `--ptq {}`",
                spec.ptq, spec.ptq
            ),
        )),
    }
}

/// A rule for the sites of this name that switches them on or off.
pub(crate) fn switch(site: Site, enable: bool) -> Rule {
    Rule { pattern: site.to_string(), enable: Some(enable), ..Rule::default() }
}
