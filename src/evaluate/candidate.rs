//! A model that is evaluated or timed, and the figures measured so far.

use swinq_eval::{Collected, ModelResult, Precision, SiteResult};
use swinq_kernels::Cpu;
use swinq_model::quantized::CalibrationRecord;
use swinq_model::site::all_sites;
use swinq_model::{Batch, BoxError, Classifier, Logits, QuantizedModel, Site, SwinConfig, Transform};

use super::Observer;
use crate::{BackendChoice, Engine, EngineOptions, Error, Images, Model, ReadOptions};

/// The engine or classifier that runs a candidate.
pub enum Runner {
    /// An engine.
    Engine(Box<Engine>),
    /// Another classifier, such as a simulation.
    Other(Box<dyn Classifier>),
}

impl Classifier for Runner {
    fn classes(&self) -> usize {
        match self {
            Runner::Engine(engine) => engine.classes(),
            Runner::Other(other) => other.classes(),
        }
    }

    fn input_size(&self) -> usize {
        match self {
            Runner::Engine(engine) => engine.input_size(),
            Runner::Other(other) => other.input_size(),
        }
    }

    fn infer(&mut self, batch: &Batch) -> Result<Logits, BoxError> {
        match self {
            Runner::Engine(engine) => Ok(engine.infer(batch)?),
            Runner::Other(other) => other.infer(batch),
        }
    }
}

/// A model that is evaluated or timed, with its name in the results.
pub struct Candidate {
    /// The figures measured so far.
    pub result: ModelResult,
    /// The engine or classifier that runs the model.
    pub runner: Runner,
    transform: Transform,
    config: SwinConfig,
    /// The model, if the noise of its sites is to be measured.
    measured: Option<Model>,
}

impl Candidate {
    /// `model` on its own engine. Only the engine stays in memory.
    ///
    /// # Errors
    /// The errors of [`Engine::new`].
    pub fn engine(name: &str, model: &Model, options: &EngineOptions) -> Result<Candidate, Error> {
        let engine = Engine::new(model, options)?;
        let quantized = model.as_quantized();
        let precision = match engine.on_gpu() {
            _ if quantized.is_quantized() => Precision::Int8,
            false => Precision::Fp32,
            true => Precision::Fp16,
        };
        let mut result = ModelResult::new(name, precision, engine.backend_name());
        result.size_bytes = Some(quantized.size_bytes());
        if quantized.is_quantized() {
            result.recipe = Some(quantized.recipe.name.clone());
            result.int8_share = Some(quantized.int8_share());
            result.sites = site_results(quantized);
        }
        Ok(Candidate::new(result, Runner::Engine(Box::new(engine)), model))
    }

    /// `model` in the float forward on `device`, with simulated quantization.
    ///
    /// # Errors
    /// [`Error::Device`]; [`Error::Float`] for a site that cannot be simulated.
    #[cfg(feature = "float")]
    pub fn simulated(name: &str, model: &Model, device: crate::FloatDevice) -> Result<Candidate, Error> {
        let classifier = swinq_float::FloatClassifier::simulate(model.as_quantized(), &device.open()?)?;
        let mut result = ModelResult::new(name, Precision::Simulated, "fake quantization");
        result.recipe = Some(model.as_quantized().recipe.name.clone());
        Ok(Candidate::new(result, Runner::Other(Box::new(classifier)), model))
    }

    /// `model` on the CPU engine with the scalar code that defines every operation.
    ///
    /// # Errors
    /// The errors of [`Engine::new`].
    pub fn reference(name: &str, model: &Model, options: &EngineOptions) -> Result<Candidate, Error> {
        let (backend, cpu) = (BackendChoice::Cpu, Some(Cpu::scalar()));
        let engine = Engine::new(model, &EngineOptions { backend, cpu, ..options.clone() })?;
        let mut result = ModelResult::new(name, Precision::Simulated, "scalar reference");
        result.recipe = Some(model.as_quantized().recipe.name.clone());
        Ok(Candidate::new(result, Runner::Engine(Box::new(engine)), model))
    }

    fn new(result: ModelResult, runner: Runner, model: &Model) -> Candidate {
        let (transform, config) = (model.transform().clone(), model.config().clone());
        Candidate { result, runner, transform, config, measured: None }
    }

    /// Keeps a handle of the model, so that [`evaluate`](super::evaluate) can measure the quantization noise
    /// of its sites.
    pub fn with_sites_of(self, model: &Model) -> Candidate {
        Candidate { measured: Some(model.clone()), ..self }
    }

    /// The model, if [`Candidate::with_sites_of`] was called.
    pub fn model(&self) -> Option<&Model> {
        self.measured.as_ref()
    }

    /// How the model was calibrated, in one sentence for a report; `None` unless [`Candidate::with_sites_of`]
    /// was called.
    pub fn calibration(&self) -> Option<String> {
        let model = self.measured.as_ref()?.as_quantized();
        let how = match &model.provenance.calibration {
            Some(CalibrationRecord { images, seed, sha256, .. }) => {
                format!("{} images, seed {seed}, SHA-256 of the pixels {sha256}", images.len())
            }
            None => "ranges imported or fixed by the recipe".to_owned(),
        };
        let (name, recipe, source) = (&self.result.name, &model.recipe.name, &model.provenance.source);
        Some(format!("{name}: recipe {recipe}; {how}; made from {} ({})", source.file, source.sha256))
    }

    /// The preprocessing of images.
    pub fn transform(&self) -> &Transform {
        &self.transform
    }

    /// The architecture.
    pub fn config(&self) -> &SwinConfig {
        &self.config
    }

    /// Runs the candidate on `images` and stores its accuracy.
    pub(super) fn collect(
        &mut self,
        images: &Images,
        read: &ReadOptions,
        observer: &mut dyn Observer,
    ) -> Result<Collected, Error> {
        images.check_labels(&self.config)?;
        let mut batches = images.batches(&self.transform, read)?;
        observer.begin(&self.result, images.len());
        let mut on_images = |done: usize, total: usize| observer.images(done, total);
        let name = &self.result.name;
        let collected = swinq_eval::collect(&mut self.runner, &mut batches, &mut on_images)
            .map_err(|source| Error::Evaluating { model: name.clone(), source })?;
        let accuracy = swinq_eval::accuracy(&collected)?;
        observer.evaluated(&self.result, &accuracy, batches.skipped());
        self.result.set_accuracy(&accuracy);
        Ok(collected)
    }

    /// Stores the candidate's agreement with the baseline.
    pub(super) fn compare(&mut self, baseline: &Collected, own: &Collected) -> Result<(), Error> {
        self.result.set_fidelity(&swinq_eval::fidelity(baseline, own)?);
        self.result.top1_difference = Some(swinq_eval::top1_difference(baseline, own)?);
        Ok(())
    }

    /// Measures the noise of every quantized site on the first of `images`, and stores it.
    #[cfg(feature = "float")]
    pub(super) fn measure_sites(&mut self, images: &Images) -> Result<(), Error> {
        /// Number of images on which the noise is measured.
        const IMAGES: usize = 16;
        let Some(model) = self.measured.as_ref().filter(|_| !self.result.sites.is_empty()) else {
            return Ok(());
        };
        let read = ReadOptions { batch_size: IMAGES, threads: 0, skip_corrupt: IMAGES };
        let mut batches = images.first(IMAGES).batches(&self.transform, &read)?;
        let batch = swinq_model::BatchSource::batch(&mut batches, 0, 0).map_err(Error::batch)?;
        for (site, db) in super::site_noise::measure(model.as_quantized(), &batch)? {
            let name = site.to_string();
            if let Some(result) = self.result.sites.iter_mut().find(|result| result.site == name) {
                result.sqnr_db = Some(db);
            }
        }
        Ok(())
    }
}

fn site_results(model: &QuantizedModel) -> Vec<SiteResult> {
    all_sites(&model.config).into_iter().map(|site| site_result(model, site)).collect()
}

fn site_result(model: &QuantizedModel, site: Site) -> SiteResult {
    let state = model.site(site);
    let name = site.to_string();
    let reason = (!state.spec.enabled).then(|| match model.recipe.deciding_rule(&name) {
        Some(rule) => format!("rule `{}` of recipe {}", rule.pattern, model.recipe.name),
        None => "no rule enables it".to_owned(),
    });
    let (enabled, kind, scale) = (state.spec.enabled, state.spec.kind, state.scale());
    SiteResult { site: name, enabled, kind, scale, sqnr_db: None, reason }
}
