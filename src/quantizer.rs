//! The quantized models that recipes make of one float model, without running images for each.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use swinq_calib::{Histogram, LayerForm, Progress, RefinedParameters};
use swinq_data::{Padding, Sizing};
use swinq_model::quantized::{CalibrationRecord, FloatModel};
use swinq_model::site::all_linears;
use swinq_model::{
    Calibrator, Linear, ModelError, Ptq, QuantizedModel, Recipe, Rule, Site, SiteSpec, SwinConfig,
};

use crate::cache::RunKey;
use crate::calibration::{ClassNames, batches_for, record};
use crate::{Error, FloatDevice, Images, ReadOptions};

/// Pattern of the sites that a search may enable although a recipe leaves them off: the operands of products.
const OPERANDS: &str = r"re:.*\.(input|q|k|v)";

/// Applies recipes to one float model. The images were observed once: the histograms of the sites give the
/// range of every calibrator.
///
/// Layers whose `ptq` is `refined` were refined once, with the sites of the first recipe. A later recipe that
/// switches some of these sites off keeps what was found for the others, whereas
/// [`calibrate`](crate::calibrate()) would refine them again.
pub(crate) struct ModelQuantizer {
    float: FloatModel,
    histograms: BTreeMap<Site, Histogram>,
    refined: RefinedParameters,
    record: CalibrationRecord,
    /// The ranges that calibrators chose so far.
    ranges: BTreeMap<(Site, String), f32>,
    /// How the layers of `current` were made.
    forms: BTreeMap<Linear, LayerForm>,
    /// The model of the last recipe.
    current: QuantizedModel,
}

impl ModelQuantizer {
    /// Runs `float` over `images`, read as `how` says and, before a backbone, of these sizes, keeps the
    /// histogram of every site that `recipe` quantizes and of the operands of every product, and refines the
    /// layers whose `ptq` asks for it. `progress` is called after every batch of images and every refined
    /// layer.
    ///
    /// # Errors
    /// The errors of [`calibrate`](crate::calibrate()); [`Error::Argument`] for a layer whose `ptq` is
    /// `reconstruct`.
    pub(crate) fn calibrate(
        float: FloatModel,
        recipe: &Recipe,
        images: &Images,
        how: (&ReadOptions, Sizing),
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<ModelQuantizer, Error> {
        check_ptq(&float.config, recipe)?;
        let operands = Rule { pattern: OPERANDS.to_owned(), enable: Some(true), ..Rule::default() };
        let all = recipe.clone().with_rule(operands);
        let found = run(&float, &all, images, how, progress)?;
        let mut current = QuantizedModel::from_float(float.clone())?;
        ClassNames::by(images, &float.source.dialect).give(&mut current);
        Ok(ModelQuantizer {
            record: record(&float, images, (how.0, how.1, Padding::default()), &found),
            current,
            float,
            histograms: found.histograms,
            refined: found.refined,
            ranges: BTreeMap::new(),
            forms: BTreeMap::new(),
        })
    }

    /// The float model.
    pub(crate) fn float(&self) -> &FloatModel {
        &self.float
    }

    /// The magnitudes at `site` in the float model; `None` for a site that was not observed.
    pub(crate) fn histogram(&self, site: Site) -> Option<&Histogram> {
        self.histograms.get(&site)
    }

    /// The images of the calibration.
    pub(crate) fn record(&self) -> &CalibrationRecord {
        &self.record
    }

    /// The float model with the parameters that refinement has rewritten: the same function.
    pub(crate) fn rewritten(&self) -> FloatModel {
        self.refined.applied_to(&self.float)
    }

    /// Whether the range of an activation is one that refinement chose, which is valid for the rewritten
    /// model.
    pub(crate) fn is_refined(&self, site: Site, model: &QuantizedModel) -> bool {
        self.refined.range(site, |layer| model.site(Site::Weight(layer)).spec.ptq).is_some()
    }

    /// The float model with `recipe` applied. Without refined layers it is the model that
    /// [`calibrate`](crate::calibrate()) would make. Only what differs from the last call is made anew.
    ///
    /// # Errors
    /// [`Error::Model`] for a recipe that does not fit the model, or for a site that has to be quantized and
    /// was not observed; [`Error::Calib`] for an unusable range; [`Error::Argument`] as in
    /// [`ModelQuantizer::calibrate`].
    pub(crate) fn apply(&mut self, recipe: &Recipe) -> Result<&QuantizedModel, Error> {
        check_ptq(&self.float.config, recipe)?;
        let specs: BTreeMap<Site, SiteSpec> = recipe.resolve(&self.float.config)?.into_iter().collect();
        let ModelQuantizer { float, histograms, refined, ranges, forms, current, .. } = self;
        let states = refined.site_states(&specs, |site, spec| match site.known_range(&float.config) {
            Some(amax) => Ok(amax),
            None => chosen_range(ranges, histograms, site, spec.calibrator),
        })?;
        for linear in all_linears(&float.config) {
            let form = LayerForm::new(linear, &states);
            if forms.get(&linear) != Some(&form) {
                current.params.extend(refined.layer(float, linear, &form)?);
                forms.insert(linear, form);
            }
        }
        self.current.sites = states;
        self.current.recipe = recipe.clone();
        self.current.provenance.calibration = Some(self.record.clone());
        Ok(&self.current)
    }

    /// The model that [`calibrate`](crate::calibrate()) makes of `recipe`. It runs the images again if layers
    /// have to be refined.
    ///
    /// # Errors
    /// The errors of [`ModelQuantizer::calibrate`] and [`ModelQuantizer::apply`].
    pub(crate) fn finish(
        &mut self,
        recipe: &Recipe,
        images: &Images,
        how: (&ReadOptions, Sizing),
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<QuantizedModel, Error> {
        let refines = |(_, spec): &(Site, SiteSpec)| spec.enabled && spec.ptq != Ptq::Basic;
        if !recipe.resolve(&self.float.config)?.iter().any(refines) {
            return Ok(self.apply(recipe)?.clone());
        }
        let mut model = run(&self.float, recipe, images, how, progress)?.model;
        model.provenance.calibration = Some(self.record.clone());
        ClassNames::by(images, &self.float.source.dialect).give(&mut model);
        Ok(model)
    }
}

/// The range that `calibrator` chooses for `site`, which `ranges` keeps.
fn chosen_range(
    ranges: &mut BTreeMap<(Site, String), f32>,
    histograms: &BTreeMap<Site, Histogram>,
    site: Site,
    calibrator: Calibrator,
) -> Result<f32, Error> {
    let key = (site, calibrator.to_string());
    if let Some(&amax) = ranges.get(&key) {
        return Ok(amax);
    }
    let histogram = histograms.get(&site).ok_or_else(|| {
        ModelError::site(site, "was not observed during calibration, so that it cannot be quantized")
    })?;
    let amax = swinq_calib::choose_range(site, calibrator, histogram)?;
    ranges.insert(key, amax);
    Ok(amax)
}

/// Calibrates `float` on the CPU.
fn run(
    float: &FloatModel,
    recipe: &Recipe,
    images: &Images,
    (read, sizing): (&ReadOptions, Sizing),
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<swinq_calib::Calibrated, Error> {
    let device = FloatDevice::Cpu.open()?;
    let mut batches = batches_for(float, images, (read, sizing, Padding::default()))?;
    let settings = swinq_calib::CalibrateOptions { imported: None, device: &device, progress };
    Ok(swinq_calib::calibrate(float, recipe, &mut batches, settings)?)
}

/// Refuses a recipe with reconstructed layers: the codes of each depend on all layers before it, so that
/// every candidate would need its own reconstruction.
pub(crate) fn check_ptq(config: &SwinConfig, recipe: &Recipe) -> Result<(), Error> {
    let table = recipe.resolve(config)?;
    match table.iter().find(|(_, spec)| spec.enabled && spec.ptq == Ptq::Reconstruct) {
        None => Ok(()),
        Some((site, _)) => Err(Error::argument(
            "recipe",
            format!(
                "{site} has `ptq: reconstruct`, but sensitivity and tune quantize with `basic` or `refined` only; state \
                 `refined` here, and calibrate the recipe that `tune` writes with `--ptq reconstruct`"
            ),
        )),
    }
}

/// A hash of what distinguishes the models of one run: the settings and ranges of their sites.
pub(crate) fn identity(model: &QuantizedModel) -> String {
    let sites = model.sites.iter().map(|(site, state)| (site.to_string(), &state.spec, state.amax));
    RunKey::new("model").with_json(&sites.collect::<Vec<_>>()).finish()
}

/// A rule for the sites of this name that switches them on or off.
pub(crate) fn switch(site: Site, enable: bool) -> Rule {
    Rule { pattern: site.to_string(), enable: Some(enable), ..Rule::default() }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use swinq_model::checkpoint::{LoadOptions, load_float};
    use swinq_model::config::load_config;

    use super::*;
    use crate::{CalibrateOptions, Model, Split};

    fn images() -> Images {
        let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/cifar10");
        Images::open(&samples, Split::Train, Some(24), 0).unwrap()
    }

    fn float() -> FloatModel {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/swin_micro_cifar10");
        let cfg = load_config(folder.join("cfg.yaml").to_str().unwrap(), &[]).unwrap();
        load_float(
            &folder.join("model.safetensors"),
            &LoadOptions { cfg: Some(cfg), ..LoadOptions::default() },
        )
        .unwrap()
    }

    #[test]
    fn recipes_give_the_models_of_a_calibration() {
        let go_on = &mut |_| ControlFlow::Continue(());
        let start = Recipe::shipped("default").unwrap();
        let read = ReadOptions::default();
        let mut quantizer =
            ModelQuantizer::calibrate(float(), &start, &images(), (&read, Sizing::Keep), go_on).unwrap();
        let rule = |pattern: &str| Rule { pattern: pattern.to_owned(), ..Rule::default() };
        let off = Rule { enable: Some(false), ..rule("layers.1.blocks.0.mlp.fc1.{input,weight}") };
        let basic = Rule { ptq: Some(Ptq::Basic), ..rule("layers.1.blocks.1.mlp.fc2.weight") };
        let recipes = [
            start.clone(),
            start.clone().with_rule(off),
            start.clone().with_rule(basic),
            start.clone().with_ptq(Ptq::Basic),
            start.clone(),
        ];
        let mut models: Vec<QuantizedModel> = Vec::new();
        for recipe in recipes {
            let options = CalibrateOptions { recipe: recipe.clone(), ..CalibrateOptions::default() };
            let model = Model::from_float(float()).unwrap();
            let want = crate::calibrate(model, &options, &images(), go_on).unwrap().model;
            let found = quantizer.apply(&recipe).unwrap();
            assert_eq!(found.sites, want.as_quantized().sites, "{:?}", recipe.rules.last());
            // A layer that is off keeps its rewritten parameters here, which are the same function.
            if recipe.rules.last().and_then(|rule| rule.enable) != Some(false) || recipe == start {
                assert_eq!(found, want.as_quantized(), "{:?}", recipe.rules.last());
            }
            models.push(found.clone());
        }
        assert!(models[0] == models[4] && models.windows(2).all(|pair| pair[0] != pair[1]));
        let rewritten = quantizer.rewritten();
        assert_ne!(rewritten.tensors, float().tensors);
    }

    #[test]
    fn reconstruction_is_refused() {
        let recipe = Recipe::shipped("default").unwrap().with_ptq(Ptq::Reconstruct);
        let go_on = &mut |_| ControlFlow::Continue(());
        let found = ModelQuantizer::calibrate(
            float(),
            &recipe,
            &images(),
            (&ReadOptions::default(), Sizing::Keep),
            go_on,
        );
        let message = found.err().expect("refused").to_string();
        assert!(message.contains("reconstruct") && message.contains("refined"), "{message}");
    }
}
