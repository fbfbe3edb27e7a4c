//! Converts logits to named classes.

use swinq_model::Logits;

use crate::Error;

/// The best classes of one image.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// The best classes, best first. Classes with equal scores are in the order of their indices.
    pub classes: Vec<ClassScore>,
}

/// One class of a prediction.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassScore {
    /// Class index.
    pub index: usize,
    /// Class name, if the model has names.
    pub label: Option<String>,
    /// Softmax of the logits, in 0..=1.
    pub probability: f64,
}

/// The best `k` classes of every image of `logits`, or all classes if there are fewer.
///
/// # Errors
/// [`Error::Argument`] for a `k` of 0, and for logits whose rows do not have `classes` values.
pub(crate) fn top_k(
    logits: &Logits,
    classes: usize,
    labels: Option<&[String]>,
    k: usize,
) -> Result<Vec<Prediction>, Error> {
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
    Ok(logits.rows().map(|row| Prediction::of(row, labels, k)).collect())
}

impl Prediction {
    /// The best `k` classes of the scores `row`.
    fn of(row: &[f32], labels: Option<&[String]>, k: usize) -> Prediction {
        let mut best: Vec<(usize, f64)> = softmax(row).into_iter().enumerate().collect();
        best.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        best.truncate(k);
        let label = |index: usize| labels.and_then(|labels| labels.get(index)).cloned();
        let class = |(index, probability)| ClassScore { index, label: label(index), probability };
        Prediction { classes: best.into_iter().map(class).collect() }
    }
}

fn softmax(scores: &[f32]) -> Vec<f64> {
    let max = f64::from(scores.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let exps: Vec<f64> = scores.iter().map(|&score| (f64::from(score) - max).exp()).collect();
    let total: f64 = exps.iter().sum();
    exps.iter().map(|exp| exp / total).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_classes_come_first_and_equal_ones_in_order() {
        let logits = Logits { values: vec![0.0, 2.0, 2.0, 1.0], classes: 4 };
        let names = ["a", "b", "c", "d"].map(str::to_owned);
        let found = top_k(&logits, 4, Some(&names), 3).unwrap();
        let labels: Vec<_> = found[0].classes.iter().map(|c| (c.index, c.label.as_deref())).collect();
        assert_eq!(labels, [(1, Some("b")), (2, Some("c")), (3, Some("d"))]);
        let all = top_k(&logits, 4, None, 9).unwrap();
        let total: f64 = all[0].classes.iter().map(|c| c.probability).sum();
        assert!(all[0].classes.len() == 4 && (total - 1.0).abs() < 1e-12);
    }

    #[test]
    fn impossible_requests_are_refused() {
        let logits = Logits { values: vec![0.0; 4], classes: 4 };
        for (classes, k) in [(4, 0), (3, 1), (2, 1)] {
            assert!(matches!(top_k(&logits, classes, None, k), Err(Error::Argument { .. })));
        }
    }
}
