//! A model that is evaluated or timed, and the figures measured so far.

use std::path::Path;

use swinq_eval::{
    Collected, EvalError, LaunchResult, ModelResult, Origin, Precision, Profile, RangeFile, SizeResult,
    site_results,
};
use swinq_kernels::Cpu;
use swinq_model::{Batch, BoxError, Classifier, Logits, Size, SwinConfig, Transform};

use super::predictions::Predicted;
use super::{Observer, noise_of};
use crate::features;
use crate::hex::sha256_of;
use crate::{BackendChoice, Engine, EngineOptions, Error, Images, Model, ReadOptions, Replicas};

/// The engines or the simulation that run a candidate.
pub enum CandidateRunner {
    /// An engine.
    Engine(Box<Engine>),
    /// An engine on each of several GPUs.
    Replicas(Replicas),
    /// The float forward, with simulated quantization.
    #[cfg(feature = "float")]
    Simulated(Box<swinq_float::FloatClassifier>),
}

impl CandidateRunner {
    /// The engines; none for a simulation.
    pub fn engines(&self) -> &[Engine] {
        match self {
            CandidateRunner::Engine(engine) => std::slice::from_ref(engine),
            CandidateRunner::Replicas(replicas) => replicas.engines(),
            #[cfg(feature = "float")]
            CandidateRunner::Simulated(_) => &[],
        }
    }

    /// Computes every output of `batch` into `values`, f32 with the channels first: `[images, classes]`, or
    /// `[images, channels, height, width]` of each feature map. The memory of `values` is reused.
    pub(super) fn compute(&self, batch: &Batch, values: &mut Vec<Vec<f32>>) -> Result<(), BoxError> {
        match self {
            CandidateRunner::Engine(engine) => Ok(features::compute(engine, batch, values)?),
            CandidateRunner::Replicas(replicas) => Ok(replicas.compute(batch, values)?),
            #[cfg(feature = "float")]
            CandidateRunner::Simulated(simulated) => {
                *values = simulated.outputs(batch)?;
                Ok(())
            }
        }
    }

    /// A function that computes all outputs of `batch`, in memory that it keeps.
    pub(super) fn on<'a>(&'a self, batch: &'a Batch) -> Box<dyn FnMut() -> Result<(), BoxError> + 'a> {
        let mut values = Vec::new();
        Box::new(move || self.compute(batch, &mut values))
    }

    /// The engine that runs on a CPU, if one does.
    pub fn cpu_engine(&self) -> Option<&Engine> {
        self.engines().iter().find(|engine| engine.device().is_none())
    }
}

impl Classifier for CandidateRunner {
    fn classes(&self) -> usize {
        match self {
            CandidateRunner::Engine(engine) => engine.classes(),
            CandidateRunner::Replicas(replicas) => replicas.classes(),
            #[cfg(feature = "float")]
            CandidateRunner::Simulated(simulated) => simulated.classes(),
        }
    }

    fn input_size(&self) -> Size {
        match self {
            CandidateRunner::Engine(engine) => engine.input_size(),
            CandidateRunner::Replicas(replicas) => replicas.input_size(),
            #[cfg(feature = "float")]
            CandidateRunner::Simulated(simulated) => simulated.input_size(),
        }
    }

    fn channels(&self) -> usize {
        match self {
            CandidateRunner::Engine(engine) => engine.channels(),
            CandidateRunner::Replicas(replicas) => replicas.channels(),
            #[cfg(feature = "float")]
            CandidateRunner::Simulated(simulated) => simulated.channels(),
        }
    }

    fn infer(&self, batch: &Batch) -> Result<Logits, BoxError> {
        match self {
            CandidateRunner::Engine(engine) => Ok(engine.infer(batch)?),
            CandidateRunner::Replicas(replicas) => replicas.infer(batch),
            #[cfg(feature = "float")]
            CandidateRunner::Simulated(simulated) => simulated.infer(batch),
        }
    }
}

/// A model that is evaluated or timed, with its name in the results.
pub struct Candidate {
    /// The figures measured so far.
    pub result: ModelResult,
    /// The engine or classifier that runs the model.
    pub runner: CandidateRunner,
    transform: Transform,
    config: SwinConfig,
    /// The model, if the noise of its sites is to be measured.
    measured: Option<Model>,
    /// The predicted classes, after an evaluation.
    predicted: Option<Predicted>,
    /// The model's class names.
    labels: Option<Vec<String>>,
    /// SHA-256 of the float file that the model was made from.
    source_sha256: String,
    /// The naming convention of that file.
    dialect: String,
    /// The model's hash, if the evaluation is divided into shards.
    #[cfg(feature = "float")]
    fingerprint: Option<String>,
}

impl Candidate {
    /// `model` on its own engine. Only the engine stays in memory.
    ///
    /// # Errors
    /// The errors of [`Model::engine`].
    pub fn engine(name: &str, model: &Model, options: &EngineOptions) -> Result<Candidate, Error> {
        let engine = model.engine(options)?;
        let (on_gpu, backend) = (engine.device().is_some(), engine.backend().name());
        Ok(Candidate::run_by(CandidateRunner::Engine(Box::new(engine)), name, model, on_gpu, backend))
    }

    /// `model` on several GPUs, with an engine on each.
    ///
    /// # Errors
    /// The errors of [`Replicas::new`].
    pub fn replicas(
        name: &str,
        model: &Model,
        options: &EngineOptions,
        devices: &[usize],
    ) -> Result<Candidate, Error> {
        let replicas = Replicas::new(model, options, devices)?;
        let backend = format!("{} x {}", replicas.engines()[0].backend().name(), devices.len());
        Ok(Candidate::run_by(CandidateRunner::Replicas(replicas), name, model, true, backend))
    }

    /// `model` on the engines of `runner`.
    fn run_by(
        runner: CandidateRunner,
        name: &str,
        model: &Model,
        on_gpu: bool,
        backend: String,
    ) -> Candidate {
        let quantized = model.as_quantized();
        let precision = match on_gpu {
            _ if quantized.is_quantized() => Precision::Int8,
            false => Precision::Fp32,
            true => Precision::Fp16,
        };
        let mut result = ModelResult::new(name, precision, backend);
        if let Some(engine) = runner.cpu_engine() {
            (result.image_threads, result.lanes) = (Some(engine.image_threads()), Some(engine.lanes()));
        }
        result.size_bytes = Some(quantized.size_bytes());
        if quantized.is_quantized() {
            result.recipe = Some(quantized.recipe.name.clone());
            result.int8_share = Some(quantized.int8_share());
            result.origin = Some(Origin::of(quantized));
            result.sites = site_results(quantized);
        }
        Candidate::new(result, runner, model)
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
        Ok(Candidate::new(result, CandidateRunner::Simulated(Box::new(classifier)), model))
    }

    /// `model` on the CPU engine with the scalar code that defines every operation.
    ///
    /// # Errors
    /// The errors of [`Model::engine`].
    pub fn reference(name: &str, model: &Model, options: &EngineOptions) -> Result<Candidate, Error> {
        let (backend, cpu) = (BackendChoice::Cpu, Some(Cpu::scalar()));
        let engine = model.engine(&EngineOptions { backend, cpu, ..options.clone() })?;
        let mut result = ModelResult::new(name, Precision::Simulated, "scalar reference");
        result.recipe = Some(model.as_quantized().recipe.name.clone());
        Ok(Candidate::new(result, CandidateRunner::Engine(Box::new(engine)), model))
    }

    fn new(mut result: ModelResult, runner: CandidateRunner, model: &Model) -> Candidate {
        let (transform, config) = (model.transform().clone(), model.config().clone());
        result.architecture = Some(architecture(&config));
        let labels = model.labels().map(<[String]>::to_vec);
        let source = &model.as_quantized().provenance.source;
        let (source_sha256, dialect) = (source.sha256.clone(), source.dialect.clone());
        Candidate {
            result,
            runner,
            transform,
            config,
            labels,
            source_sha256,
            dialect,
            measured: None,
            predicted: None,
            #[cfg(feature = "float")]
            fingerprint: None,
        }
    }

    /// The model on images of `size` instead of its own. [`measure_latency`](super::measure_latency) times
    /// these.
    ///
    /// # Errors
    /// [`Error::Argument`] for a size that the network cannot process.
    pub fn at(mut self, size: Size) -> Result<Candidate, Error> {
        self.config
            .grids(size)
            .map_err(|error| Error::argument("size", format!("{} at {size}: {error}", self.result.name)))?;
        if size != self.config.image_size {
            // The share is that of the network's own size.
            self.result.int8_share = None;
        }
        self.result.input_size = Some([size.height, size.width]);
        Ok(self)
    }

    /// Sets the size of the images that are timed, and forgets the times of another.
    pub(super) fn begin_size(&mut self, size: Size) {
        let result = &mut self.result;
        result.input_size = Some([size.height, size.width]);
        (result.latency_ms, result.compute_ms) = Default::default();
        (result.throughput_ips, result.stream_ips) = Default::default();
    }

    /// Stores the times of several sizes. Those that are stored already are the times of the first.
    pub(super) fn end_sizes(&mut self, sizes: Vec<SizeResult>) {
        (self.result.input_size, self.result.sizes) = (None, sizes);
    }

    /// Height and width of the images.
    pub(super) fn size(&self) -> Size {
        self.result.input_size.map_or(self.config.image_size, |[height, width]| Size::new(height, width))
    }

    /// Images of noise that the model is timed on.
    ///
    /// # Errors
    /// [`Error::Argument`] for 0 images, or for more than fit in memory.
    pub fn noise(&self, images: usize) -> Result<Batch, Error> {
        noise_of(self.size(), self.runner.channels(), images)
    }

    /// Whether the images have the network's own size.
    pub(super) fn has_own_size(&self) -> bool {
        self.size() == self.config.image_size
    }

    /// Keeps a handle of the model, so that [`evaluate`](super::evaluate) can measure the quantization noise
    /// of its sites.
    pub fn with_sites_of(self, model: &Model) -> Candidate {
        Candidate { measured: Some(model.clone()), ..self }
    }

    /// Keeps the hash of the model, by which [`evaluate_shard`](crate::evaluate_shard()) tells the parts of
    /// one evaluation from others.
    ///
    /// # Errors
    /// The errors of [`QuantizedModel::fingerprint`](swinq_model::QuantizedModel::fingerprint).
    #[cfg(feature = "float")]
    pub fn with_hash_of(self, model: &Model) -> Result<Candidate, Error> {
        Ok(Candidate { fingerprint: Some(model.as_quantized().fingerprint()?), ..self })
    }

    /// The hash, if [`Candidate::with_hash_of`] was called.
    #[cfg(feature = "float")]
    pub(crate) fn fingerprint(&self) -> Option<&str> {
        self.fingerprint.as_deref()
    }

    /// The model, if [`Candidate::with_sites_of`] was called.
    pub fn model(&self) -> Option<&Model> {
        self.measured.as_ref()
    }

    /// Records the file or directory that the model was read from: its path, its hash, and the histograms and
    /// the noise of weights of its calibration if they lie beside it. Returns a remark for the reader if the
    /// histograms belong to another calibration, and are therefore left out.
    ///
    /// # Errors
    /// An error if the file cannot be read, or if the file of histograms is damaged.
    pub fn record_file(&mut self, path: &Path) -> Result<Option<String>, Error> {
        self.result.path = Some(path.display().to_string());
        if path.is_file() {
            self.result.sha256 = Some(sha256_of(path).map_err(Error::io(path))?);
            self.result.file_bytes = Some(path.metadata().map_err(Error::io(path))?.len());
        }
        let ranges = RangeFile::beside(path);
        let Some(origin) = &mut self.result.origin else { return Ok(None) };
        let Some(file) = RangeFile::read(&ranges)? else { return Ok(None) };
        if origin.calibration.as_ref().map(|set| &set.sha256) != Some(&file.calibration_sha256) {
            let problem = "belongs to another calibration, so its histograms are left out";
            return Ok(Some(format!("{} {problem}", ranges.display())));
        }
        origin.command = file.command;
        let mut sites = file.sites;
        for site in &mut self.result.sites {
            site.histogram = sites.remove(&site.site);
            site.sqnr_db = file.weights.get(&site.site).copied();
        }
        Ok(None)
    }

    /// The classes that the model predicted in the last evaluation; `None` before it.
    pub fn predicted(&self) -> Option<&Predicted> {
        self.predicted.as_ref()
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        self.config.num_classes
    }

    /// Class names by class index; `None` if they are not known.
    pub fn labels(&self) -> Option<&[String]> {
        self.labels.as_deref()
    }

    /// SHA-256 of the float file that the model was made from, or of its own if it is float, hexadecimal;
    /// empty for a model that was made from no file.
    pub fn source_sha256(&self) -> &str {
        &self.source_sha256
    }

    /// The preprocessing of images.
    pub fn transform(&self) -> &Transform {
        &self.transform
    }

    /// The naming convention of the float file that the model was made from.
    pub(crate) fn dialect(&self) -> &str {
        &self.dialect
    }

    /// The architecture.
    pub fn config(&self) -> &SwinConfig {
        &self.config
    }

    /// Runs the candidate on `images` and stores their number, and its accuracy if they have labels.
    pub(super) fn collect(
        &mut self,
        images: &Images,
        read: &ReadOptions,
        observer: &mut dyn Observer,
    ) -> Result<Collected, Error> {
        let (collected, skipped) = self.run(images, read, observer)?;
        let collected = collected.checked().map_err(|source| self.failed(source))?;
        let accuracy = self.result.set_own_figures(&collected)?;
        self.predicted = Some(Predicted::of(&collected));
        observer.evaluated(&self.result, accuracy.as_ref(), &skipped);
        Ok(collected)
    }

    /// Runs the candidate on `images`, and stores nothing. Returns the logits, of which there may be none,
    /// and the error messages of the corrupt images that were left out.
    pub(crate) fn run(
        &self,
        images: &Images,
        read: &ReadOptions,
        observer: &mut dyn Observer,
    ) -> Result<(Collected, Vec<String>), Error> {
        let mut batches = images.batches(&self.transform, read)?;
        observer.begin(&self.result, images.len());
        let mut on_images = |done: usize, total: usize| observer.images(done, total);
        let collected = swinq_eval::collect_any(&self.runner, &mut batches, &mut on_images);
        let collected = collected.map_err(|source| self.failed(source))?;
        Ok((collected, batches.skipped().to_vec()))
    }

    pub(super) fn failed(&self, source: EvalError) -> Error {
        Error::Evaluating { model: self.result.name.clone(), source }
    }

    /// Stores the candidate's agreement with the baseline.
    pub(super) fn compare(
        &mut self,
        baseline: &Collected,
        own: &Collected,
        images: &Images,
    ) -> Result<(), Error> {
        Ok(self.result.set_figures_against(baseline, own, &|id| images.name_of(id))?)
    }

    /// Measures the time of each launch for a batch of `batch_size` images, and stores it. Does nothing for a
    /// candidate that does not run on an engine, for batches that the engine splits, and for a backbone,
    /// whose images have other sizes than the network's own.
    pub(super) fn profile(&mut self, batch_size: usize) -> Result<(), Error> {
        /// Number of inferences that are timed on a CPU, after those that warm it up.
        const RUNS: usize = 20;
        let CandidateRunner::Engine(engine) = &self.runner else { return Ok(()) };
        if batch_size > engine.max_batch() || self.config.is_backbone() {
            return Ok(());
        }
        let batch = super::noise(&**engine, batch_size)?;
        engine.profile(batch.size, &batch.pixels, RUNS / 8)?;
        let launch = |launch: swinq_int8_runtime::LaunchProfile| LaunchResult {
            name: launch.name,
            detail: launch.detail,
            ms: 1e3 * launch.time.as_secs_f64(),
            macs: launch.macs,
        };
        let launches = engine.profile(batch.size, &batch.pixels, RUNS)?.into_iter().map(launch).collect();
        self.result.profile = Some(Profile { batch: batch_size, launches });
        Ok(())
    }

    #[cfg(feature = "float")]
    pub(super) fn set_noise(&mut self, site: &str, db: f64) {
        if let Some(result) = self.result.sites.iter_mut().find(|result| result.site == site) {
            result.sqnr_db = Some(db);
        }
    }
}

/// The customary name of an architecture, such as `Swin-T`, or the name of its configuration.
fn architecture(config: &SwinConfig) -> String {
    let size = match (config.embed_dim, config.depths.as_slice()) {
        (96, [2, 2, 6, 2]) => "T",
        (96, [2, 2, 18, 2]) => "S",
        (128, [2, 2, 18, 2]) => "B",
        (192, [2, 2, 18, 2]) => "L",
        _ => return config.name.clone(),
    };
    format!("Swin-{size}")
}
