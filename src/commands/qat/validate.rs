//! Validation on the engine that will run the model.

use std::ops::ControlFlow;

use swinq_eval::{Collected, accuracy, collect};
use swinq_int8_runtime::CpuOptions;
use swinq_int8_runtime::cuda::{Autotune, Gemm};
use swinq_model::{BoxError, Logits, QuantizedModel, Transform};
use swinq_qat::Validation;
use swinq_qat::job::{Device, Job};

use crate::args::{Backend, BackendArgs, Residual};
use crate::backend::Target;
use crate::data_arg::Sample;

use super::inputs::Inputs;

/// Runs models on the validation images.
pub struct Validator {
    target: Target,
    sample: Sample,
    /// Images of a validation before the end.
    limit: usize,
    batch_size: usize,
    threads: usize,
    skip_corrupt: usize,
    /// The teacher and its logits of all images, once they are known.
    teacher: Option<(QuantizedModel, Option<Collected>)>,
}

impl Validator {
    /// A validator of `job`.
    pub fn new(job: &Job, inputs: &Inputs) -> anyhow::Result<Validator> {
        let target = match job.device {
            Device::Cpu => {
                let options = CpuOptions { threads: job.threads, ..CpuOptions::detect()? };
                Target(swinq_int8_runtime::Backend::Cpu(options))
            }
            Device::Cuda(device) => {
                let args = BackendArgs {
                    backend: Backend::Auto,
                    device,
                    residual: Residual::F16,
                    gemm: vec![Gemm::Auto],
                    autotune: Autotune::Off,
                    nvtx: false,
                };
                Target::one(&args, job.threads, job.validate.batch_size)?
            }
        };
        let teacher = inputs.teacher.as_ref().map(QuantizedModel::from_float).transpose()?;
        let all = inputs.val.ids.len();
        Ok(Validator {
            target,
            sample: Sample { dataset: inputs.val.dataset.clone(), ids: inputs.val.ids.clone() },
            limit: job.validate.limit.unwrap_or(all).min(all),
            batch_size: job.validate.batch_size,
            threads: job.threads,
            skip_corrupt: job.data.skip_corrupt,
            teacher: teacher.map(|teacher| (teacher, None)),
        })
    }

    /// Runs `model` on the images, all of them at the `end`.
    pub fn validate(&mut self, model: &QuantizedModel, end: bool) -> Result<Validation, BoxError> {
        let images = if end { self.sample.ids.len() } else { self.limit };
        let found = self.run(model, images)?;
        let accuracy = accuracy(&found)?;
        let mut validation = Validation {
            images: accuracy.images as u64,
            top1: accuracy.top1_percent() / 100.0,
            top5: Some(accuracy.top5_percent() / 100.0),
            ..Validation::default()
        };
        if let Some(taught) = self.taught(images)? {
            let compared = swinq_eval::fidelity(&taught, &found)?;
            validation.agreement = Some(compared.agreement);
            validation.logit_mse = Some(mean_squared_difference(&taught, &found));
        }
        Ok(validation)
    }

    /// The teacher's logits of the first `images` images, computed when first asked for.
    fn taught(&mut self, images: usize) -> Result<Option<Collected>, BoxError> {
        let Some((teacher, known)) = self.teacher.take() else { return Ok(None) };
        let known = match known.filter(|known| known.images() >= images) {
            Some(known) => known,
            None => self.run(&teacher, images)?,
        };
        let first = first(&known, images);
        self.teacher = Some((teacher, Some(known)));
        Ok(Some(first))
    }

    fn run(&self, model: &QuantizedModel, images: usize) -> Result<Collected, BoxError> {
        let transform: &Transform = &model.transform;
        let first = Sample { dataset: self.sample.dataset.clone(), ids: self.sample.ids[..images].to_vec() };
        let mut loader = first.loader(transform, self.batch_size, self.threads, self.skip_corrupt);
        let mut engine = self.target.engine(model)?;
        Ok(collect(&mut engine, &mut loader, &mut |_, _| ControlFlow::Continue(()))?)
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
