//! Engines: models that are ready to run on a CPU or a GPU.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use swinq_cuda::Device;
use swinq_data::RgbImage;
use swinq_eval::Collected;
use swinq_int8_runtime::{Backend, LaunchProfile, Outline, PackedModel, RuntimeError, Traced};
use swinq_model::{Batch, BatchSource, BoxError, Classifier, Logits, QuantizedModel, SwinConfig, Transform};

use crate::prediction::{Prediction, top_k};
use crate::{EngineOptions, Error, Images, Model, ReadOptions};

/// A model that is ready to run. The engine owns its buffers and threads; engines of one [`Model`] share the
/// packed weights.
///
/// Several threads may call one engine, but their calls run one after another. For throughput, give every
/// thread its own engine of the same model.
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
    /// Prepares `model` with `options`.
    ///
    /// # Errors
    /// [`Error::Runtime`] for options outside their limits, or if the backend cannot be used or cannot run
    /// the model.
    pub fn new(model: &Model, options: &EngineOptions) -> Result<Engine, Error> {
        let backend = options.backend()?;
        let packed = model.packed().get(model.as_quantized(), backend)?;
        Engine::on(&packed, model.as_quantized(), backend)
    }

    /// Prepares a model that is in memory. The engine does not share its packed weights.
    ///
    /// # Errors
    /// The errors of [`Engine::new`] and of [`QuantizedModel::validate`].
    pub fn of(model: &QuantizedModel, options: &EngineOptions) -> Result<Engine, Error> {
        let backend = options.backend()?;
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

    /// The engine of the crate [`int8_runtime`](crate::int8_runtime) that this engine wraps.
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

    /// Class names by class index; `None` if they are not known.
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

    /// Name of the backend, as it appears in results: `cpu`, `cuda`, `cuda own`, and so on.
    pub fn backend_name(&self) -> String {
        self.runtime.backend().name()
    }

    /// The network as logical operations.
    pub fn plan(&self) -> &Outline {
        self.runtime.plan()
    }

    /// Number of threads in use, including the caller's; 1 on a GPU.
    pub fn threads(&self) -> usize {
        self.runtime.threads()
    }

    /// Classifies image files. Returns the best `k` classes of each image, or all classes if there are fewer.
    ///
    /// # Errors
    /// [`Error::Argument`] for a `k` of 0; [`Error::Data`] for an empty list, or a file that cannot be read
    /// or decoded; [`Error::Runtime`].
    pub fn predict(&self, paths: &[impl AsRef<Path>], k: usize) -> Result<Vec<Prediction>, Error> {
        self.predict_images(&Images::from_files(paths)?, k)
    }

    /// Classifies decoded images. Returns the best `k` classes of each image, or all classes if there are
    /// fewer.
    ///
    /// # Errors
    /// [`Error::Argument`] for a `k` of 0, for an empty list, and for an image whose pixels are not `width *
    /// height * 3` bytes; [`Error::Runtime`].
    pub fn classify(&self, images: &[RgbImage], k: usize) -> Result<Vec<Prediction>, Error> {
        self.predict_images(&Images::from_rgb(images, &self.transform)?, k)
    }

    fn predict_images(&self, images: &Images, k: usize) -> Result<Vec<Prediction>, Error> {
        let scores =
            self.infer_images(images, &ReadOptions::default(), &mut |_, _| ControlFlow::Continue(()));
        self.top_k(&scores?.logits, k)
    }

    /// Logits of preprocessed images, f32 `[images, classes]`. The batch may have any number of images,
    /// including 0.
    ///
    /// # Errors
    /// [`Error::Runtime`] if the images do not have the model's input size, if the number of pixels
    /// contradicts the number of images, if a logit is not finite, or if the GPU fails.
    pub fn infer(&self, batch: &Batch) -> Result<Logits, Error> {
        Ok(self.runtime.infer(batch)?)
    }

    /// Logits of preprocessed pixels, u8 `[images, size, size, 3]` (RGB, before normalisation).
    ///
    /// # Errors
    /// [`Error::Argument`] unless the pixels are one or more whole images; the errors of [`Engine::infer`].
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

    /// Logits of `images`, in order, with their positions and labels. `progress` is called before every batch
    /// with the number of images done and the number of all images; `Break` stops the run.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if `progress` stops the run; [`Error::Data`] for an image that cannot be read;
    /// the errors of [`Images::batches`] and [`Engine::infer`].
    pub fn infer_images(
        &self,
        images: &Images,
        read: &ReadOptions,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Collected, Error> {
        Ok(self.infer_readable(images, read, progress)?.0)
    }

    /// As [`Engine::infer_images`], with the messages about the corrupt images that were left out
    /// ([`ReadOptions::skip_corrupt`]).
    ///
    /// # Errors
    /// Those of [`Engine::infer_images`].
    pub fn infer_readable(
        &self,
        images: &Images,
        read: &ReadOptions,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<(Collected, Vec<String>), Error> {
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
        let skipped = batches.skipped().to_vec();
        Ok((all, skipped))
    }

    /// The best `k` classes of every image of `logits`, or all classes if there are fewer.
    ///
    /// # Errors
    /// [`Error::Argument`] for a `k` of 0, and for logits whose number of classes is not this model's.
    pub fn top_k(&self, logits: &Logits, k: usize) -> Result<Vec<Prediction>, Error> {
        top_k(logits, self.classes(), self.labels(), k)
    }

    /// The largest number of images that run at a time; larger batches are split.
    pub fn max_batch(&self) -> usize {
        self.runtime.max_batch()
    }

    /// The GPU that runs the model; `None` on the CPU.
    pub fn device(&self) -> Option<&Device> {
        self.runtime.device()
    }

    /// Time of each launch of an inference of `pixels` (u8 `[images, size, size, 3]`). On a CPU it is the
    /// mean of `runs` inferences, on a GPU the median of a fixed number of inferences.
    ///
    /// # Errors
    /// [`Error::Runtime`] for pixels that are not one or more whole images, or if the GPU fails.
    pub fn profile(&self, pixels: &[u8], runs: usize) -> Result<Vec<LaunchProfile>, Error> {
        Ok(self.runtime.profile(pixels, runs)?)
    }

    /// The tensor that every launch of an inference of `pixels` (u8 `[images, size, size, 3]`) writes.
    ///
    /// # Errors
    /// [`Error::Runtime`] for pixels that are not one or more whole images, or if the GPU fails.
    pub fn trace(&self, pixels: &[u8]) -> Result<Vec<Traced>, Error> {
        Ok(self.runtime.trace(pixels)?)
    }

    /// A line for each launch of an inference of `images` images, with the kernel chosen for it.
    ///
    /// # Errors
    /// [`Error::Runtime`] for more images than the engine runs at a time, or if the GPU fails.
    pub fn launches(&self, images: usize) -> Result<Vec<String>, Error> {
        Ok(self.runtime.launches(images)?)
    }

    /// Time of each of `runs` inferences of `images` images that are already on the GPU; `None` on the CPU.
    ///
    /// # Errors
    /// [`Error::Runtime`] for 0 images, for more images than the engine runs at a time, or if the GPU fails.
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

/// The packed weights of a model: one set for each backend on which an engine exists.
#[derive(Default)]
pub(crate) struct PackedWeights {
    /// The references are weak, so that the weights are freed with the last engine that uses them.
    packed: Mutex<Vec<Weak<PackedModel>>>,
}

impl std::fmt::Debug for PackedWeights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PackedWeights")
    }
}

impl PackedWeights {
    /// The packed weights of `model` for `backend`: shared with an existing engine, or packed now. Threads
    /// that make engines at the same time wait here, so that the weights are packed only once.
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
