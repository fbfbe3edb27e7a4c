//! The record of a training in the file of its model.

use swinq_model::quantized::{FileRecord, TrainingRecord};

use crate::job::{Identity, Job, ScheduleLength};
use crate::progress::Progress;

/// The record of a training with this `identity` that has come to `progress`.
pub fn record(
    job: &Job,
    identity: &Identity,
    length: &ScheduleLength,
    progress: &Progress,
) -> TrainingRecord {
    let file = |path: &std::path::Path, key: &str| FileRecord {
        file: path.display().to_string(),
        sha256: identity.text(key).unwrap_or_default().to_owned(),
    };
    let (loss, parts) = (&job.loss, ["labels", "kl", "outputs", "features"]);
    let parts = parts.into_iter().zip([loss.labels, loss.kl, loss.outputs, loss.features]);
    TrainingRecord {
        job: job.name.clone(),
        job_sha256: identity.sha256(),
        quantized: job.quant,
        start: job.model.as_deref().filter(|_| job.quant).map(|path| file(path, "model")),
        iterations: progress.iteration,
        loss: parts.filter(|(_, w)| *w > 0.0).map(|(part, w)| (part.to_owned(), w)).collect(),
        final_loss: progress.usual_loss,
        teacher: job.teacher_path().map(|path| file(path, "teacher")),
        data: file(&job.data.path, "data.path"),
        images: length.images(),
        seed: job.seed,
        chosen_by: None,
    }
}
