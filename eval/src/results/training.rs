//! The curves and the job of a training, read from its folder.

use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};
use swinq_model::text_file::{self, MAX_RESULTS};

use crate::error::EvalError;

/// Maximum number of points of a curve.
const POINTS: usize = 240;

/// A training run, for the report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainingRun {
    /// Its folder, as the user gave it.
    pub folder: String,
    /// The effective job, YAML.
    pub job: String,
    /// Means over the iterations since the previous point, at most 240 points.
    pub steps: Vec<StepPoint>,
    /// The validations.
    pub validations: Vec<ValidationPoint>,
}

/// A point of the curves of a training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepPoint {
    /// Number of iterations done.
    pub step: u64,
    /// Epochs passed.
    pub epoch: f64,
    /// The loss; absent if it was not finite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Learning rate of the weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lr: Option<f64>,
    /// Top-1 on the training images, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top1: Option<f64>,
}

/// A validation of a training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ValidationPoint {
    /// Number of iterations done.
    pub step: u64,
    /// Epochs passed.
    pub epoch: f64,
    /// Number of images.
    pub images: u64,
    /// Top-1 of a classifier, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top1: Option<f64>,
    /// Mean SQNR of a backbone's outputs, in dB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sqnr_db: Option<f64>,
    /// Fraction of the images on which the model and the teacher predict the same class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agreement: Option<f64>,
}

/// A line of `log.jsonl`.
#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Line {
    Step(StepPoint),
    Validation(ValidationPoint),
}

/// Reads `job.yaml` and `log.jsonl` of the run in `folder`. An incomplete last line, which a killed process
/// leaves, is ignored.
///
/// # Errors
/// [`EvalError::Io`] for a file that cannot be read; [`EvalError::File`] for a line that is not a record, and
/// for a log without records.
pub fn read_training(folder: &Path) -> Result<TrainingRun, EvalError> {
    let read = |name: &str| {
        let path = folder.join(name);
        let text = text_file::read(&path, MAX_RESULTS).map_err(|source| match source.kind() {
            ErrorKind::NotFound => {
                EvalError::file(&path, "does not exist; give the `output` folder of a `swinq qat` run")
            }
            _ => EvalError::Io { path: path.clone(), source },
        });
        text.map(|text| (path, text))
    };
    let (_, job) = read("job.yaml")?;
    let (path, log) = read("log.jsonl")?;
    let mut run = TrainingRun { folder: folder.display().to_string(), job, ..TrainingRun::default() };
    let mut lines = log.lines().enumerate().peekable();
    while let Some((index, line)) = lines.next() {
        match serde_json::from_str(line) {
            Ok(Line::Step(point)) => run.steps.push(point),
            Ok(Line::Validation(point)) => run.validations.push(point),
            Err(_) if lines.peek().is_none() && !log.ends_with('\n') => {}
            Err(error) => return Err(EvalError::file(&path, format!("line {}: {error}", index + 1))),
        }
    }
    if run.steps.is_empty() && run.validations.is_empty() {
        return Err(EvalError::file(&path, "has no records; the run did not log any iteration"));
    }
    run.steps = thinned(&run.steps);
    Ok(run)
}

/// At most [`POINTS`] points: means over equal numbers of neighbours, at the place of the last of them.
fn thinned(points: &[StepPoint]) -> Vec<StepPoint> {
    let mean = |points: &[StepPoint], value: fn(&StepPoint) -> Option<f64>| {
        let values: Vec<f64> = points.iter().filter_map(value).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    let merge = |points: &[StepPoint]| StepPoint {
        loss: mean(points, |p| p.loss),
        top1: mean(points, |p| p.top1),
        ..points[points.len() - 1]
    };
    points.chunks(points.len().div_ceil(POINTS).max(1)).map(merge).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = concat!(
        "{\"kind\":\"validation\",\"step\":0,\"epoch\":0.0,\"images\":100,\"top1\":0.5,\"top5\":0.9,\"agreement\":0.75,",
        "\"logit_mse\":0.1,\"seconds\":1.0}\n",
        "{\"kind\":\"step\",\"step\":10,\"epoch\":0.5,\"loss\":null,\"labels\":0.3,\"kl\":null,\"features\":null,",
        "\"lr\":0.001,\"lr_scales\":0.0,\"grad_norm\":1.0,\"top1\":0.25,\"images_per_second\":9.0,\"seconds\":2.0,",
        "\"non_finite\":[\"loss\"]}\n",
    );

    fn folder(log: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("job.yaml"), "model: q\n").unwrap();
        std::fs::write(folder.path().join("log.jsonl"), log).unwrap();
        folder
    }

    #[test]
    fn a_log_is_read_without_its_torn_last_line() {
        for log in [LOG.to_owned(), format!("{LOG}{{\"kind\":\"st")] {
            let run = read_training(folder(&log).path()).unwrap();
            assert_eq!(run.job, "model: q\n");
            assert_eq!((run.validations.len(), run.validations[0].agreement), (1, Some(0.75)));
            assert_eq!((run.validations[0].top1, run.validations[0].sqnr_db), (Some(0.5), None));
            assert_eq!((run.steps.len(), run.steps[0].loss, run.steps[0].top1), (1, None, Some(0.25)));
        }
    }

    #[test]
    fn the_validations_of_a_backbone_have_an_sqnr() {
        let log = "{\"kind\":\"validation\",\"step\":0,\"epoch\":0.0,\"images\":9,\"sqnr_db\":38.5,\"sqnr_db.stage1\":40.0,\
                   \"seconds\":1.0}\n";
        let run = read_training(folder(log).path()).unwrap();
        assert_eq!((run.validations[0].top1, run.validations[0].sqnr_db), (None, Some(38.5)));
    }

    #[test]
    fn other_folders_are_refused_with_the_file() {
        for (log, problem) in
            [("", "no records"), ("notes\n{\"kind\":\"step\"}\n", "line 1"), ("{}\n", "line 1")]
        {
            let error = read_training(folder(log).path()).unwrap_err().to_string();
            assert!(error.contains("log.jsonl") && error.contains(problem), "{error}");
        }
        let empty = tempfile::tempdir().unwrap();
        let error = read_training(empty.path()).unwrap_err().to_string();
        assert!(error.contains("job.yaml") && error.contains("`output` folder"), "{error}");
    }

    #[test]
    fn long_curves_are_thinned_to_means() {
        let points: Vec<StepPoint> = (1..=1000)
            .map(|step| StepPoint {
                step,
                loss: (step % 2 == 0).then_some(step as f64),
                ..StepPoint::default()
            })
            .collect();
        let thin = thinned(&points);
        assert_eq!(thin.len(), 200);
        assert_eq!((thin[0].step, thin[0].loss, thin[199].step), (5, Some(3.0), 1000));
        assert_eq!(thinned(&points[..3]), points[..3]);
        assert_eq!(thinned(&[]), []);
    }
}
