//! Top-1 and top-5 accuracy, as numbers of images.

use crate::collected::Collected;
use crate::error::EvalError;

/// Number of images that were classified correctly.
///
/// The rank of a label is the number of classes with a higher score, plus the number of classes with the same
/// score and a lower index: ties go to the lowest class index. An image is top-k correct if the rank of its
/// label is below k.
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

/// Significance level of the test [`near_chance`].
const IMPROBABLE: f64 = 1e-3;

/// Whether an accuracy is that of guessing among `classes` classes, by two exact binomial tests: guessing
/// would get as many images right in more than one of 1,000 samples, and a model halfway between guessing and
/// certainty would get as few right in less than one. On few images both numbers may come from a good and
/// from a bad model, and the answer is no. The fewest images that tell are 5 wrong ones of 5 among 2 classes,
/// 9 among 10 and 10 among 1,000.
fn is_near_chance(accuracy: &Accuracy, classes: usize) -> bool {
    let useful = (1.0 + 1.0 / classes as f64) / 2.0;
    classes > 1
        && !is_above_chance(accuracy, classes)
        && at_most(accuracy.top1_correct, accuracy.images, useful) < IMPROBABLE
}

/// Whether guessing among `classes` classes would get as many images right in less than one of 1,000 samples,
/// by an exact binomial test.
pub fn is_above_chance(accuracy: &Accuracy, classes: usize) -> bool {
    let guessed = |fewer| 1.0 - at_most(fewer, accuracy.images, 1.0 / classes as f64);
    classes > 1 && accuracy.top1_correct.checked_sub(1).is_some_and(|fewer| guessed(fewer) < IMPROBABLE)
}

/// The probability that at most `right` of `images` independent images are right, if each is with probability
/// `p`, which is above 0 and below 1.
fn at_most(right: usize, images: usize, p: f64) -> f64 {
    let odds = (p / (1.0 - p)).ln();
    let mut log = images as f64 * (1.0 - p).ln();
    let mut sum = 0.0;
    for i in 0..=right.min(images) {
        sum += log.exp();
        log += ((images - i) as f64 / (i + 1) as f64).ln() + odds;
    }
    sum.min(1.0)
}

/// A remark on an accuracy that guessing among `classes` classes gives, too. `None` for a better accuracy,
/// and for too few images to tell.
pub fn near_chance(accuracy: &Accuracy, classes: usize) -> Option<String> {
    is_near_chance(accuracy, classes).then(|| {
        format!(
            "{}; do the labels of the images follow the model's order of classes, and is the preprocessing the model's own?",
            guessed(accuracy, classes)
        )
    })
}

/// [`near_chance`] for a model that is compared with `baseline`, a model whose accuracy on the same images
/// [is better](is_above_chance).
/// `same_source` says whether both were made from one file.
pub fn near_chance_beside(
    accuracy: &Accuracy,
    classes: usize,
    baseline: &str,
    same_source: bool,
) -> Option<String> {
    let cause = if same_source {
        "and was made from the same file; was this model calibrated on images like these, with a recipe that suits it \
         (`swinq sensitivity` shows what each layer costs)?"
    } else {
        "so the labels are right; was this model made from another model, or with other classes or another preprocessing \
         (`swinq inspect` shows all three)?"
    };
    is_near_chance(accuracy, classes)
        .then(|| format!("{}, but {baseline} is better, {cause}", guessed(accuracy, classes)))
}

/// The finding of [`near_chance`].
fn guessed(accuracy: &Accuracy, classes: usize) -> String {
    format!(
        "top-1 {:.2} % of {} images is no better than guessing among {classes} classes ({:.2} %)",
        accuracy.top1_percent(),
        accuracy.images,
        100.0 / classes as f64
    )
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

#[cfg(test)]
mod tests {
    use super::*;

    fn warns(top1_correct: usize, images: usize, classes: usize) -> bool {
        near_chance(&Accuracy { images, top1_correct, top5_correct: images }, classes).is_some()
    }

    #[test]
    fn the_binomial_distribution_sums_to_known_values() {
        // From the definition: 11/1024, (1 + 10 + 45)/1024, and 0.9^100.
        for (right, images, p, expected) in [
            (1, 10, 0.5, 11.0 / 1024.0),
            (2, 10, 0.5, 56.0 / 1024.0),
            (10, 10, 0.3, 1.0),
            (0, 100, 0.1, 0.9_f64.powi(100)),
        ] {
            let found = at_most(right, images, p);
            assert!((found - expected).abs() < 1e-12, "{right} of {images}: {found} against {expected}");
        }
        // Symmetry, where the first terms are far below the smallest number.
        let half = at_most(24_999, 50_000, 0.5) + at_most(25_000, 50_000, 0.5);
        assert!((half - 1.0).abs() < 1e-9, "{half}");
    }

    #[test]
    fn few_images_are_judged_only_if_they_tell() {
        // 0.45^9 < 0.001 < 0.45^8: a model that is right on 55 % has so many wrong ones.
        assert!(warns(0, 9, 10) && !warns(0, 8, 10));
        assert!(warns(0, 5, 2) && !warns(0, 4, 2) && warns(0, 10, 1000) && !warns(0, 9, 1000));
        // One of 20 and 3 of 20 are like guessing; 8 of 20 are not.
        assert!(warns(1, 20, 10) && warns(3, 20, 10) && !warns(8, 20, 10));
        assert!(!warns(1, 1, 10) && !warns(0, 1, 1000) && !warns(0, 0, 10));
        assert!(!warns(10, 20, 2), "half of 20 images of 2 classes may be a good model's");
    }

    #[test]
    fn many_images_tell_guessing_from_a_bad_model() {
        assert!(warns(100, 1000, 10) && warns(128, 1000, 10) && !warns(140, 1000, 10));
        assert!(warns(50, 50_000, 1000) && warns(0, 50_000, 1000) && !warns(100, 50_000, 1000));
        assert!(warns(500, 1000, 2) && !warns(600, 1000, 2));
        assert!(!warns(0, 1000, 1), "one class cannot be guessed wrong");
    }

    #[test]
    fn a_model_is_above_chance_only_if_guessing_is_improbable() {
        let above = |top1_correct, images| {
            is_above_chance(&Accuracy { images, top1_correct, top5_correct: images }, 10)
        };
        // Neither like guessing for sure, nor better than it.
        assert!(!above(4, 20) && !warns(4, 20, 10));
        assert!(above(8, 20) && above(3, 3) && !above(2, 3) && !above(0, 0));
    }

    #[test]
    fn a_good_model_beside_it_excludes_the_labels() {
        let accuracy = Accuracy { images: 100, top1_correct: 9, top5_correct: 50 };
        let alone = near_chance(&accuracy, 10).unwrap();
        assert!(alone.contains("follow the model's order"), "{alone}");
        let other = near_chance_beside(&accuracy, 10, "float (fp32, cpu)", false).unwrap();
        assert!(other.contains("float (fp32, cpu) is better, so the labels are right"), "{other}");
        assert!(other.contains("made from another model") && !other.contains("order of classes"), "{other}");
        let same = near_chance_beside(&accuracy, 10, "float", true).unwrap();
        assert!(same.contains("the same file") && same.contains("calibrated on images like these"), "{same}");
        let good = Accuracy { top1_correct: 80, ..accuracy };
        assert_eq!(near_chance_beside(&good, 10, "float", false), None);
    }
}
