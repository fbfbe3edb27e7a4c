//! Classifies images: their logits, and the best classes by name.

use std::ops::ControlFlow;

use swinq_eval::{Collected, EvalError, collect_any};
use swinq_int8_runtime::{Engine, RuntimeError};
use swinq_model::{Logits, Scores, SwinConfig};

use crate::{Error, Images, ReadOptions};

/// The best classes of one image.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// The kind of the scores of the classes.
    pub scores: Scores,
    /// The classes with the largest scores, the largest first. Classes with equal scores are in the order of
    /// their indices.
    pub classes: Vec<ClassScore>,
}

/// One class of a prediction.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassScore {
    /// Class index.
    pub index: usize,
    /// Class name, if the model has names.
    pub label: Option<String>,
    /// A probability in 0..=1 or, of a regression, the number itself ([`Prediction::scores`]).
    pub score: f64,
}

/// The scores of images ([`infer_images`]).
#[derive(Clone, Debug)]
pub struct Inferred {
    /// The logits, in the order of the images, with the labels and positions of the images that could be
    /// read.
    pub scores: Collected,
    /// The error messages of the corrupt images that were left out ([`ReadOptions::skip_corrupt`]).
    pub skipped: Vec<String>,
}

/// Classifies `images`. Returns the best `k` classes of each image, or all classes if there are fewer.
///
/// # Errors
/// Those of [`infer_images`] and [`top_k`].
pub fn predict(engine: &Engine, images: &Images, k: usize) -> Result<Vec<Prediction>, Error> {
    let found = infer_images(engine, images, &ReadOptions::default(), &mut |_, _| ControlFlow::Continue(()))?;
    top_k(engine, &found.scores.logits, k)
}

/// The logits of `images`. `progress` is called before the first batch and after every batch with the number
/// of images done and the number of all images; `Break` stops the run.
///
/// # Errors
/// [`Error::Backbone`]; [`Error::Interrupted`] if `progress` stops the run; [`Error::Data`] for an image that
/// cannot be read; the errors of [`Images::batches`]; [`Error::Runtime`].
pub fn infer_images(
    engine: &Engine,
    images: &Images,
    read: &ReadOptions,
    progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
) -> Result<Inferred, Error> {
    Error::check_classifier(engine.config())?;
    let mut batches = images.batches(engine.transform(), read)?;
    let scores = collect_any(engine, &mut batches, progress).map_err(cause)?;
    Ok(Inferred { scores, skipped: batches.skipped().to_vec() })
}

/// The cause of an error in a run of one engine, which needs no position of a batch.
fn cause(error: EvalError) -> Error {
    match error {
        EvalError::Interrupted { .. } => Error::Interrupted,
        EvalError::Data { source, .. } => Error::batch(source),
        EvalError::Infer { source, .. } => match source.downcast::<RuntimeError>() {
            Ok(error) => Error::Runtime(*error),
            Err(error) => Error::Batch(error),
        },
        error => Error::Eval(error),
    }
}

/// The best `k` classes of every image of `logits`, which `engine` computed, or all classes if there are
/// fewer.
///
/// # Errors
/// [`Error::Argument`] for a `k` of 0, and for logits whose number of classes is not the engine's.
pub fn top_k(engine: &Engine, logits: &Logits, k: usize) -> Result<Vec<Prediction>, Error> {
    best(logits, engine.config(), engine.labels(), k)
}

fn best(
    logits: &Logits,
    config: &SwinConfig,
    labels: Option<&[String]>,
    k: usize,
) -> Result<Vec<Prediction>, Error> {
    let classes = config.num_classes;
    if k == 0 {
        return Err(Error::argument("k", "is 0; ask for at least one class"));
    }
    if logits.classes != classes || !logits.values.len().is_multiple_of(classes) {
        let problem = format!(
            "{} values in rows of {}; the model has {classes} classes",
            logits.values.len(),
            logits.classes
        );
        return Err(Error::argument("logits", problem));
    }
    Ok(logits.rows().map(|row| Prediction::of(row, config.scores(), labels, k)).collect())
}

impl Prediction {
    /// The best `k` classes of the logits `row`.
    fn of(row: &[f32], scores: Scores, labels: Option<&[String]>, k: usize) -> Prediction {
        let each = |score: fn(f64) -> f64| row.iter().map(|&logit| score(f64::from(logit))).collect();
        let all = match scores {
            Scores::Softmax => softmax(row),
            Scores::Sigmoid => each(|logit| 1.0 / (1.0 + libm::exp(-logit))),
            Scores::Number => each(|logit| logit),
        };
        let mut best: Vec<(usize, f64)> = all.into_iter().enumerate().collect();
        best.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        best.truncate(k);
        let label = |index: usize| labels.and_then(|labels| labels.get(index)).cloned();
        let class = |(index, score)| ClassScore { index, label: label(index), score };
        Prediction { scores, classes: best.into_iter().map(class).collect() }
    }
}

fn softmax(scores: &[f32]) -> Vec<f64> {
    let max = f64::from(scores.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let exps: Vec<f64> = scores.iter().map(|&score| libm::exp(f64::from(score) - max)).collect();
    let total: f64 = exps.iter().sum();
    exps.iter().map(|exp| exp / total).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use swinq_model::Problem;

    fn classes(num_classes: usize, problem: Problem) -> SwinConfig {
        SwinConfig { num_classes, problem, ..SwinConfig::default() }
    }

    #[test]
    fn scores_are_those_of_the_problem() {
        let scores = |values: &[f32], problem| {
            let config = classes(values.len(), problem);
            let logits = Logits { values: values.to_vec(), classes: values.len() };
            let found = best(&logits, &config, None, 9).unwrap().remove(0);
            (found.scores, found.classes.into_iter().map(|class| class.score).collect::<Vec<_>>())
        };
        let near =
            |found: &[f64], wanted: &[f64]| found.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-6);
        // torch.sigmoid(torch.tensor([2.0, -1.0])), and softmax of the same.
        let (kind, found) = scores(&[2.0, -1.0], Problem::MultiLabel);
        assert!(kind == Scores::Sigmoid && near(&found, &[0.880797, 0.268941]), "{found:?}");
        let (kind, found) = scores(&[2.0, -1.0], Problem::SingleLabel);
        assert!(kind == Scores::Softmax && near(&found, &[0.952574, 0.047426]), "{found:?}");
        assert_eq!(scores(&[2.0, -1.0], Problem::Regression), (Scores::Number, vec![2.0, -1.0]));
        let (kind, found) = scores(&[-1.0], Problem::SingleLabel);
        assert!(kind == Scores::Sigmoid && near(&found, &[0.268941]), "{found:?}");
        assert_eq!(scores(&[-1.0], Problem::Regression), (Scores::Number, vec![-1.0]));
    }

    #[test]
    fn the_best_classes_come_first_and_equal_ones_in_order() {
        let logits = Logits { values: vec![0.0, 2.0, 2.0, 1.0], classes: 4 };
        let names = ["a", "b", "c", "d"].map(str::to_owned);
        let found = best(&logits, &classes(4, Problem::SingleLabel), Some(&names), 3).unwrap();
        let labels: Vec<_> = found[0].classes.iter().map(|c| (c.index, c.label.as_deref())).collect();
        assert_eq!(labels, [(1, Some("b")), (2, Some("c")), (3, Some("d"))]);
        let all = best(&logits, &classes(4, Problem::SingleLabel), None, 9).unwrap();
        let total: f64 = all[0].classes.iter().map(|c| c.score).sum();
        assert!(all[0].classes.len() == 4 && (total - 1.0).abs() < 1e-12);
    }

    #[test]
    fn impossible_requests_are_refused() {
        let logits = Logits { values: vec![0.0; 4], classes: 4 };
        for (count, k) in [(4, 0), (3, 1), (2, 1)] {
            assert!(matches!(
                best(&logits, &classes(count, Problem::SingleLabel), None, k),
                Err(Error::Argument { .. })
            ));
        }
    }
}
