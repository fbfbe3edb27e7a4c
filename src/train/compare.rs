//! The models of a training side by side: before quantization, before the training, and after it.

use std::path::PathBuf;

use swinq_model::QuantizedModel;
use swinq_qat::run::BEST;
use swinq_qat::{QatError, Trainer, Validation};

use super::{Training, Validator};
use crate::Error;

/// A model of a training, and its accuracy on all validation images.
#[derive(Clone, Debug)]
pub struct Compared {
    /// What it is: `FP32`, `PTQ`, `QAT`; `start` or `trained` for a training in float.
    pub kind: &'static str,
    /// Its file.
    pub file: PathBuf,
    /// What has to be said about it, such as that these images chose it; empty if nothing.
    pub note: String,
    /// Its accuracy.
    pub validation: Validation,
}

impl Training {
    /// Validates the models of this training on all validation images: the float model, the calibrated
    /// checkpoint, the trained model, whose validation `last` is known, and the best validated one. `None` if
    /// `stop` ended it.
    ///
    /// # Errors
    /// An error of the engine, of a model or of the images.
    pub fn compare(
        &self,
        validator: &mut Validator,
        trainer: &Trainer,
        last: &Validation,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<Vec<Compared>>, Error> {
        let (job, progress) = (&self.job, trainer.progress());
        let mut rows = Vec::new();
        let mut add = |kind, file: PathBuf, note: String, model: &QuantizedModel| {
            let found = validator.validate(model, true, stop).map_err(QatError::Validation)?;
            rows.extend(found.map(|validation| Compared { kind, file, note, validation }));
            Ok::<bool, Error>(!stop())
        };
        if let Some(path) = &job.float {
            let kind = if job.quant { "FP32" } else { "start" };
            if !add(kind, path.clone(), String::new(), &self.inputs.start(job)?)? {
                return Ok(None);
            }
        }
        if let (Some(model), Some(path)) = (&self.inputs.quantized, &job.model)
            && !add("PTQ", path.clone(), String::new(), model)?
        {
            return Ok(None);
        }
        let kind = if job.quant { "QAT" } else { "trained" };
        let best = progress.best.filter(|best| best.iteration != progress.iteration);
        let note = if best.is_none() { "the last, and the best validated" } else { "the last" };
        let trained = (self.model_path(), note.to_owned(), last.clone());
        if let Some(best) = best {
            let path = job.output.join(BEST);
            let model = QuantizedModel::load(&path)?;
            let note = format!("iteration {}, the best validated: these images chose it", best.iteration);
            if !add(kind, path, note, &model)? {
                return Ok(None);
            }
        }
        let (file, note, validation) = trained;
        let place = rows.len() - usize::from(best.is_some());
        rows.insert(place, Compared { kind, file, note, validation });
        Ok(Some(rows))
    }
}
