//! Engines: a model, ready to run on a CPU or a GPU.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use swinq_data::RgbImage;
use swinq_eval::Collected;
use swinq_int8_runtime::{Backend, LaunchProfile, Outline, PackedModel, RuntimeError, Traced};
use swinq_kernels::cuda::Device;
use swinq_model::{Batch, BatchSource, BoxError, Classifier, Logits, QuantizedModel, SwinConfig, Transform};

use crate::open::check_sites;
use crate::prediction::{Prediction, top_k};
use crate::{EngineOptions, Error, Images, Model, ReadOptions};

/// A model, ready to run. It owns its buffers and its threads; engines of one [`Model`] share the packed weights.
///
/// An engine may be called from several threads: the calls take turns. For throughput give every thread an engine of
/// its own, made from the same model.
///
/// ```no_run
/// use swinq::{Engine, EngineOptions, Model};
///
/// let engine = Engine::new(&Model::open("swin_t.int8.safetensors")?, &EngineOptions::default())?;
/// for class in &engine.predict(&["cat.jpg"], 5)?[0].classes {
///     println!("{:.1} % {}", 100.0 * class.probability, class.label.as_deref().unwrap_or("?"));
/// }
/// # Ok::<(), swinq::Error>(())
/// ```
pub struct Engine {
    runtime: swinq_int8_runtime::Engine,
    config: SwinConfig,
    transform: Transform,
    labels: Option<Vec<String>>,
}

impl Engine {
    /// Prepares `model` as `options` say.
    ///
    /// # Errors
    /// [`Error::Runtime`] for options out of their bounds, and where the backend cannot be used or cannot run the
    /// model.
    pub fn new(model: &Model, options: &EngineOptions) -> Result<Engine, Error> {
        let backend = options.backend()?;
        let packed = model.packed().get(model.as_quantized(), backend)?;
        Engine::on(&packed, model.as_quantized(), backend)
    }

    /// Prepares a model that is in memory. Its packed weights are this engine's own.
    ///
    /// # Errors
    /// As [`Engine::new`]; what [`QuantizedModel::validate`] refuses.
    pub fn of(model: &QuantizedModel, options: &EngineOptions) -> Result<Engine, Error> {
        let backend = options.backend()?;
        check_sites(model)?;
        Engine::on(&Arc::new(PackedModel::new(model, backend)?), model, backend)
    }

    fn on(packed: &Arc<PackedModel>, model: &QuantizedModel, backend: Backend) -> Result<Engine, Error> {
        Ok(Engine {
            runtime: swinq_int8_runtime::Engine::from_packed(packed, backend)?,
            config: model.config.clone(),
            transform: model.transform.clone(),
            labels: model.labels.clone(),
        })
    }

    /// The engine of the crate [`int8_runtime`](crate::int8_runtime) that this one is made of.
    pub fn runtime(&self) -> &swinq_int8_runtime::Engine {
        &self.runtime
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        self.config.num_classes
    }

    /// Side of the input images in pixels.
    pub fn input_size(&self) -> usize {
        self.config.image_size
    }

    /// Class names by class index, where they are known.
    pub fn labels(&self) -> Option<&[String]> {
        self.labels.as_deref()
    }

    /// The preprocessing of images.
    pub fn transform(&self) -> &Transform {
        &self.transform
    }

    /// Whether a GPU runs the model.
    pub fn on_gpu(&self) -> bool {
        self.device().is_some()
    }

    /// Name of the backend, as results have it: `cpu`, `cuda`, `cuda own`, and so on.
    pub fn backend_name(&self) -> String {
        self.runtime.backend().name()
    }

    /// The network as logical operations.
    pub fn plan(&self) -> &Outline {
        self.runtime.plan()
    }

    /// Threads in use, the caller's included; 1 on a GPU.
    pub fn threads(&self) -> usize {
        self.runtime.threads()
    }

    /// Classifies image files: the best `k` classes of each, all classes where there are fewer.
    ///
    /// # Errors
    /// [`Error::Argument`] for a `k` of 0; [`Error::Data`] for no path, or a file that cannot be read or decoded;
    /// [`Error::Runtime`].
    pub fn predict(&self, paths: &[impl AsRef<Path>], k: usize) -> Result<Vec<Prediction>, Error> {
        self.predict_images(&Images::from_files(paths)?, k)
    }

    /// Classifies decoded images: the best `k` classes of each, all classes where there are fewer.
    ///
    /// # Errors
    /// [`Error::Argument`] for a `k` of 0, for no image, and for an image whose pixels are not `width * height * 3`
    /// bytes; [`Error::Runtime`].
    pub fn classify(&self, images: &[RgbImage], k: usize) -> Result<Vec<Prediction>, Error> {
        self.predict_images(&Images::from_rgb(images.iter().cloned(), &self.transform)?, k)
    }

    fn predict_images(&self, images: &Images, k: usize) -> Result<Vec<Prediction>, Error> {
        let scores =
            self.infer_images(images, &ReadOptions::default(), &mut |_, _| ControlFlow::Continue(()));
        self.top_k(&scores?.logits, k)
    }

    /// Scores of preprocessed images, f32 `[images, classes]`. A batch of any number of images; none gives none.
    ///
    /// # Errors
    /// [`Error::Runtime`] for images of another size than the model's or pixels that are not those of the batch's
    /// images, for a score that is not finite, and where the GPU fails.
    pub fn infer(&self, batch: &Batch) -> Result<Logits, Error> {
        Ok(self.runtime.infer(batch)?)
    }

    /// Scores of preprocessed pixels, u8 `[images, size, size, 3]` (RGB, before normalisation).
    ///
    /// # Errors
    /// [`Error::Argument`] for pixels that are not whole images, at least one; else as [`Engine::infer`].
    pub fn infer_pixels(&self, pixels: &[u8]) -> Result<Logits, Error> {
        let size = self.input_size();
        let image_bytes = size * size * 3;
        let images = pixels.len() / image_bytes;
        if images == 0 || !pixels.len().is_multiple_of(image_bytes) {
            let problem = format!(
                "{} bytes are not whole images of {size} x {size} x 3 = {image_bytes} bytes",
                pixels.len()
            );
            return Err(Error::argument("pixels", problem));
        }
        let classes = self.classes();
        let mut values = vec![0.0; images * classes];
        self.runtime.infer_into(pixels, &mut values)?;
        Ok(Logits { values, classes })
    }

    /// Scores of `images`, in order, with their positions and labels. `progress` is called before every batch with
    /// the images done and the images in all; `Break` stops.
    ///
    /// # Errors
    /// [`Error::Interrupted`] where `progress` stops; [`Error::Data`] for an image that cannot be read; what
    /// [`Images::batches`] and [`Engine::infer`] refuse.
    pub fn infer_images(
        &self,
        images: &Images,
        read: &ReadOptions,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Collected, Error> {
        let mut batches = images.batches(&self.transform, read)?;
        let logits = Logits { values: Vec::new(), classes: self.classes() };
        let mut all = Collected { logits, labels: Vec::new(), ids: Vec::new() };
        for index in 0..batches.batches() {
            if progress(all.ids.len(), images.len()).is_break() {
                return Err(Error::Interrupted);
            }
            let batch = batches.batch(0, index).map_err(Error::batch)?;
            all.logits.values.extend(self.infer(&batch)?.values);
            all.labels.extend(batch.labels);
            all.ids.extend(batch.ids);
        }
        Ok(all)
    }

    /// The best `k` classes of every image of `logits`, all classes where there are fewer.
    ///
    /// # Errors
    /// [`Error::Argument`] for a `k` of 0, and for logits that are not rows of this model's classes.
    pub fn top_k(&self, logits: &Logits, k: usize) -> Result<Vec<Prediction>, Error> {
        top_k(logits, self.classes(), self.labels(), k)
    }

    /// Images run at a time; larger batches are split.
    pub fn max_batch(&self) -> usize {
        self.runtime.max_batch()
    }

    /// The GPU that runs the model; `None` on the CPU.
    pub fn device(&self) -> Option<&Device> {
        self.runtime.device()
    }

    /// Time of each launch of an inference of `pixels` (u8 `[images, size, size, 3]`): on a CPU the mean of `runs`
    /// inferences, on a GPU the median of a fixed number.
    ///
    /// # Errors
    /// [`Error::Runtime`] for pixels that are not whole images, at least one, and where the GPU fails.
    pub fn profile(&self, pixels: &[u8], runs: usize) -> Result<Vec<LaunchProfile>, Error> {
        Ok(self.runtime.profile(pixels, runs)?)
    }

    /// What every launch of an inference of `pixels` (u8 `[images, size, size, 3]`) writes.
    ///
    /// # Errors
    /// [`Error::Runtime`] for pixels that are not whole images, at least one, and where the GPU fails.
    pub fn trace(&self, pixels: &[u8]) -> Result<Vec<Traced>, Error> {
        Ok(self.runtime.trace(pixels)?)
    }

    /// A line for each launch of an inference of `images` images, with the kernel chosen for it.
    ///
    /// # Errors
    /// [`Error::Runtime`] for more images than the engine runs at a time, and where the GPU fails.
    pub fn launches(&self, images: usize) -> Result<Vec<String>, Error> {
        Ok(self.runtime.launches(images)?)
    }

    /// Time of each of `runs` inferences of `images` images that are on the GPU already; `None` on the CPU.
    ///
    /// # Errors
    /// [`Error::Runtime`] for no image, for more images than the engine runs at a time, and where the GPU fails.
    pub fn compute_times(&self, images: usize, runs: usize) -> Result<Option<Vec<Duration>>, Error> {
        Ok(self.runtime.compute_times(images, runs)?)
    }
}

impl Classifier for Engine {
    fn classes(&self) -> usize {
        Engine::classes(self)
    }

    fn input_size(&self) -> usize {
        Engine::input_size(self)
    }

    fn infer(&mut self, batch: &Batch) -> Result<Logits, BoxError> {
        Ok(Engine::infer(self, batch)?)
    }
}

/// The packed weights of a model, one for each backend that an engine in use runs on.
#[derive(Default)]
pub(crate) struct PackedWeights {
    /// Weak, so that the weights go with the last engine that runs on them.
    packed: Mutex<Vec<Weak<PackedModel>>>,
}

impl std::fmt::Debug for PackedWeights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PackedWeights")
    }
}

impl PackedWeights {
    /// The weights of `model` for `backend`: those of an engine in use, or packed now. Engines that are made at the
    /// same time wait here, so that only one packs.
    fn get(&self, model: &QuantizedModel, backend: Backend) -> Result<Arc<PackedModel>, RuntimeError> {
        let mut all = self.packed.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|packed| packed.strong_count() > 0);
        if let Some(packed) = all.iter().filter_map(Weak::upgrade).find(|packed| packed.suits(&backend)) {
            return Ok(packed);
        }
        let packed = Arc::new(PackedModel::new(model, backend)?);
        all.push(Arc::downgrade(&packed));
        Ok(packed)
    }
}
