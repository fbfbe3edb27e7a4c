//! Top-1 and top-5 accuracy, as numbers of images.

use crate::collected::Collected;
use crate::error::EvalError;

/// Number of images that were classified correctly.
///
/// The rank of a label is the number of classes with a higher score, plus the number of classes with the same
/// score and a lower index: ties go to the lowest class index. An image is top-k correct if the rank of its label
/// is below k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accuracy {
    /// Number of images evaluated.
    pub images: usize,
    /// Number of images whose label has the highest score.
    pub top1_correct: usize,
    /// Number of images whose label is among the five highest scores.
    pub top5_correct: usize,
}

impl Accuracy {
    /// Top-1 accuracy in percent.
    pub fn top1_percent(&self) -> f64 {
        percent(self.top1_correct, self.images)
    }

    /// Top-5 accuracy in percent.
    pub fn top5_percent(&self) -> f64 {
        percent(self.top5_correct, self.images)
    }
}

/// The fewest images on which an accuracy is compared with guessing.
const FEWEST: usize = 50;

/// A remark on an accuracy that guessing among `classes` classes gives, too: within three standard deviations of it.
/// `None` for a better accuracy, and for too few images to tell.
pub fn near_chance(accuracy: &Accuracy, classes: usize) -> Option<String> {
    let (images, chance) = (accuracy.images as f64, 1.0 / classes.max(1) as f64);
    let most = images * chance + 3.0 * (images * chance * (1.0 - chance)).sqrt();
    if accuracy.images < FEWEST || classes < 2 || accuracy.top1_correct as f64 > most {
        return None;
    }
    Some(format!(
        "top-1 {:.2} % of {} images is no better than guessing among {classes} classes ({:.2} %); do the labels of the \
         images follow the model's order of classes, and is the preprocessing the model's own?",
        accuracy.top1_percent(),
        accuracy.images,
        100.0 * chance
    ))
}

/// `100 part / whole`.
pub(crate) fn percent(part: usize, whole: usize) -> f64 {
    100.0 * part as f64 / whole as f64
}

/// Counts the correctly classified images.
///
/// # Errors
/// [`EvalError::NoLabels`], or an error of [`Collected::check`], such as a NaN among the logits.
pub fn accuracy(collected: &Collected) -> Result<Accuracy, EvalError> {
    let ranks = ranks(collected)?;
    let within = |k: usize| ranks.iter().filter(|&&rank| rank < k).count();
    Ok(Accuracy { images: ranks.len(), top1_correct: within(1), top5_correct: within(5) })
}

/// The rank of each image's label among the scores, 0 for the highest score.
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
    let ranks_higher = |(class, &value): (usize, &f32)| value > score || (value == score && class < label);
    row.iter().enumerate().filter(|&entry| ranks_higher(entry)).count()
}

/// The class with the highest score; of equal scores, the lowest class index. `row` has at least one class.
pub fn argmax(row: &[f32]) -> usize {
    let better = |best: usize, class: usize| if row[class] > row[best] { class } else { best };
    (1..row.len()).fold(0, better)
}
