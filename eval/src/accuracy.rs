//! Top-1 and top-5, in whole images.

use crate::collected::Collected;
use crate::error::EvalError;

/// How many images were classified correctly.
///
/// The rank of a label is the number of classes that score higher, plus those of a lower index that score the same:
/// ties go to the lowest class index. An image is top-k correct if the rank of its label is below k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accuracy {
    /// Images evaluated.
    pub images: usize,
    /// Images whose label has the highest score.
    pub top1_correct: usize,
    /// Images whose label is among the five highest scores.
    pub top5_correct: usize,
}

impl Accuracy {
    /// Top-1 in percent.
    pub fn top1_percent(&self) -> f64 {
        percent(self.top1_correct, self.images)
    }

    /// Top-5 in percent.
    pub fn top5_percent(&self) -> f64 {
        percent(self.top5_correct, self.images)
    }
}

/// `100 part / whole`.
pub(crate) fn percent(part: usize, whole: usize) -> f64 {
    100.0 * part as f64 / whole as f64
}

/// Counts the correct images of `collected`.
///
/// # Errors
/// [`EvalError::NoLabels`], or what [`Collected::check`] finds (a NaN among the logits is one such).
pub fn accuracy(collected: &Collected) -> Result<Accuracy, EvalError> {
    let ranks = ranks(collected)?;
    let within = |k: usize| ranks.iter().filter(|&&rank| rank < k).count();
    Ok(Accuracy { images: ranks.len(), top1_correct: within(1), top5_correct: within(5) })
}

/// Rank of each image's label, 0 the best.
pub(crate) fn ranks(collected: &Collected) -> Result<Vec<usize>, EvalError> {
    collected.check()?;
    if collected.labels.is_empty() {
        return Err(EvalError::NoLabels);
    }
    let rows = collected.logits.rows().zip(&collected.labels);
    Ok(rows.map(|(row, &label)| rank(row, label as usize)).collect())
}

fn rank(row: &[f32], label: usize) -> usize {
    let score = row[label];
    let ahead = |(class, &value): (usize, &f32)| value > score || (value == score && class < label);
    row.iter().enumerate().filter(|&entry| ahead(entry)).count()
}

/// Class of the highest score, the lowest index among equals.
pub(crate) fn argmax(row: &[f32]) -> usize {
    let better = |best: usize, class: usize| if row[class] > row[best] { class } else { best };
    (1..row.len()).fold(0, better)
}
