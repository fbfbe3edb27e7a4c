//! Validation during training, on the engine that will run the trained model.

use std::ops::ControlFlow;

use swinq_eval::{Collected, EvalError, accuracy, collect};
use swinq_model::quantized::Score;
use swinq_model::{BoxError, Logits, QuantizedModel};
use swinq_qat::Validation;
use swinq_qat::job::{Device, Job};

use super::Inputs;
use super::maps::TeacherMaps;
use crate::int8_runtime::cuda::CudaOptions;
use crate::{BackendChoice, Engine, EngineOptions, Error, Images, ReadOptions};

/// Runs models on the validation images of a job.
pub struct Validator {
    engine: EngineOptions,
    images: Images,
    /// Number of images of every validation but the last.
    limit: usize,
    read: ReadOptions,
    teacher: Option<Teacher>,
    /// Of a backbone: the teacher, with which its outputs are compared.
    maps: Option<TeacherMaps>,
}

/// The teacher of a classifier, and its logits of the first images once they are computed.
struct Teacher {
    model: QuantizedModel,
    known: Option<Collected>,
}

impl Validator {
    /// The validator for `job`.
    pub(super) fn new(job: &Job, inputs: &Inputs) -> Result<Validator, Error> {
        let backbone = inputs.float.config.is_backbone();
        let teacher = match &inputs.teacher {
            Some(teacher) if !backbone => {
                Some(Teacher { model: QuantizedModel::from_float(teacher.clone())?, known: None })
            }
            _ => None,
        };
        let maps = inputs.teacher.as_ref().filter(|_| backbone);
        let maps = maps.map(|teacher| TeacherMaps::new(job, teacher, inputs.sizing)).transpose()?;
        let all = inputs.val.len();
        let read = ReadOptions {
            batch_size: job.validate.batch_size,
            threads: job.threads,
            skip_corrupt: job.data.skip_corrupt,
        };
        Ok(Validator {
            engine: engine_options(job),
            images: inputs.val.clone(),
            limit: job.validate.limit.unwrap_or(all).min(all),
            read,
            teacher,
            maps,
        })
    }

    /// Runs `model` on the first images; with `end`, on all of them. `None` if `stop` ended it.
    ///
    /// # Errors
    /// An error of the engine, of the model or of the images.
    pub fn validate(
        &mut self,
        model: &QuantizedModel,
        end: bool,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<Validation>, BoxError> {
        let images = if end { self.images.len() } else { self.limit };
        match self.validated(model, images, stop) {
            Err(error) if stop() && is_interruption(&*error) => Ok(None),
            found => found.map(Some),
        }
    }

    fn validated(
        &mut self,
        model: &QuantizedModel,
        images: usize,
        stop: &dyn Fn() -> bool,
    ) -> Result<Validation, BoxError> {
        if let Some(maps) = &self.maps {
            let engine = Engine::new(model, self.engine.backend()?)?;
            let compared = self.images.first(self.limit);
            return maps.compared_with(&engine, (&self.images.first(images), &compared), &self.read, stop);
        }
        let found = self.run(model, images, stop)?;
        let (accuracy, compared) = (accuracy(&found)?, swinq_eval::accuracy(&first(&found, self.limit))?);
        let of = |accuracy: &swinq_eval::Accuracy| {
            (accuracy.images as u64, Score::Top1(accuracy.top1_percent() / 100.0))
        };
        let mut validation = Validation::new(of(&accuracy), of(&compared));
        validation.top5 = Some(accuracy.top5_percent() / 100.0);
        if let Some(taught) = self.taught(images, stop)? {
            let compared = swinq_eval::fidelity(&taught, &found)?;
            validation.agreement = Some(compared.agreement);
            validation.logit_mse = Some(mean_squared_difference(&taught, &found));
        }
        Ok(validation)
    }

    /// The teacher's logits of the first `images` images. They are computed at the first call.
    fn taught(&mut self, images: usize, stop: &dyn Fn() -> bool) -> Result<Option<Collected>, BoxError> {
        let Some(teacher) = &self.teacher else { return Ok(None) };
        if let Some(known) = teacher.known.as_ref().filter(|known| known.images() >= images) {
            return Ok(Some(first(known, images)));
        }
        let known = self.run(&teacher.model, images, stop)?;
        let found = first(&known, images);
        self.teacher = self.teacher.take().map(|teacher| Teacher { known: Some(known), ..teacher });
        Ok(Some(found))
    }

    fn run(
        &self,
        model: &QuantizedModel,
        images: usize,
        stop: &dyn Fn() -> bool,
    ) -> Result<Collected, BoxError> {
        let mut batches = self.images.first(images).batches(&model.transform, &self.read)?;
        let engine = Engine::new(model, self.engine.backend()?)?;
        let check = |_, _| if stop() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        Ok(collect(&engine, &mut batches, &mut { check })?)
    }
}

fn is_interruption(error: &(dyn std::error::Error + 'static)) -> bool {
    matches!(error.downcast_ref(), Some(EvalError::Interrupted { .. }))
}

/// The options of the engine for the job's device. By default it measures no kernels, which a validation
/// would be too short to win back.
fn engine_options(job: &Job) -> EngineOptions {
    let options = EngineOptions { threads: job.threads, ..EngineOptions::default() };
    match job.device {
        Device::Cpu => EngineOptions { backend: BackendChoice::Cpu, ..options },
        Device::Cuda(device) => EngineOptions {
            backend: BackendChoice::Auto,
            max_batch: job.validate.batch_size,
            cuda: CudaOptions { device, ..CudaOptions::default() },
            ..options
        },
    }
}

fn first(collected: &Collected, images: usize) -> Collected {
    let classes = collected.logits.classes;
    Collected {
        logits: Logits { values: collected.logits.values[..images * classes].to_vec(), classes },
        labels: collected.labels[..images.min(collected.labels.len())].to_vec(),
        ids: collected.ids[..images].to_vec(),
    }
}

fn mean_squared_difference(a: &Collected, b: &Collected) -> f64 {
    let squares = a.logits.values.iter().zip(&b.logits.values).map(|(a, b)| f64::from(a - b).powi(2));
    squares.sum::<f64>() / a.logits.values.len().max(1) as f64
}
