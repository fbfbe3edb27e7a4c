//! The classes and images on which a model differs from the baseline.

use std::collections::BTreeMap;

use crate::accuracy::argmax;
use crate::collected::Collected;
use crate::effect::log_softmax;
use crate::error::EvalError;
use crate::fidelity::check_paired;
use crate::results::{ClassResult, Disagreement, Flips, Guess};

/// Counts the correct images of every class that has images, by ascending class. With `reference`, it also
/// counts the images that only one of the two classifies correctly. Empty if the images have no labels.
///
/// # Errors
/// [`EvalError::Mismatch`] if the two have different images, or an error of [`Collected::check`].
pub fn classes(own: &Collected, reference: Option<&Collected>) -> Result<Vec<ClassResult>, EvalError> {
    own.check()?;
    reference.map_or(Ok(()), |reference| check_paired(reference, own))?;
    let mut found: BTreeMap<usize, ClassResult> = BTreeMap::new();
    for (i, &label) in own.labels.iter().enumerate() {
        let class = label as usize;
        let entry = found.entry(class).or_insert(ClassResult { class, ..ClassResult::default() });
        let right = argmax(row(own, i)) == class;
        let was_right = reference.map_or(right, |reference| argmax(row(reference, i)) == class);
        entry.images += 1;
        entry.top1_correct += usize::from(right);
        entry.gained += usize::from(right && !was_right);
        entry.lost += usize::from(!right && was_right);
    }
    Ok(found.into_values().collect())
}

/// Counts the images whose top-1 class differs from the reference's.
///
/// # Errors
/// [`EvalError::Mismatch`] if the two have different images, or an error of [`Collected::check`].
pub fn flips(reference: &Collected, own: &Collected) -> Result<Flips, EvalError> {
    check_paired(reference, own)?;
    let mut flips = Flips::default();
    for i in 0..own.images() {
        let (before, after) = (argmax(row(reference, i)), argmax(row(own, i)));
        let label = own.labels.get(i).map(|&label| label as usize);
        match label {
            _ if before == after => {}
            Some(label) if after == label => flips.gained += 1,
            Some(label) if before == label => flips.lost += 1,
            _ => flips.other += 1,
        }
    }
    Ok(flips)
}

/// The `count` images on which the two disagree most: images with different top-1 classes come before others,
/// and a larger divergence comes before a smaller one. Images whose logits are equal are left out. Names are
/// left empty.
///
/// # Errors
/// [`EvalError::Mismatch`] if the two have different images, or an error of [`Collected::check`].
pub fn worst(reference: &Collected, own: &Collected, count: usize) -> Result<Vec<Disagreement>, EvalError> {
    check_paired(reference, own)?;
    let differing = (0..own.images()).filter(|&i| row(reference, i) != row(own, i));
    let mut all: Vec<Disagreement> = differing.map(|i| disagreement(reference, own, i)).collect();
    let agrees = |d: &Disagreement| d.baseline.class == d.own.class;
    all.sort_by(|a, b| agrees(a).cmp(&agrees(b)).then(b.kl.total_cmp(&a.kl)).then(a.id.cmp(&b.id)));
    all.truncate(count);
    Ok(all)
}

fn disagreement(reference: &Collected, own: &Collected, i: usize) -> Disagreement {
    let [p, q] = [reference, own].map(|collected| log_softmax(row(collected, i)).collect::<Vec<f64>>());
    let guess = |logs: &[f64], values: &[f32]| {
        let class = argmax(values);
        Guess { class, probability: libm::exp(logs[class]) }
    };
    Disagreement {
        id: own.ids[i],
        image: None,
        label: own.labels.get(i).map(|&label| label as usize),
        baseline: guess(&p, row(reference, i)),
        own: guess(&q, row(own, i)),
        kl: p.iter().zip(&q).map(|(p, q)| libm::exp(*p) * (p - q)).sum::<f64>().max(0.0),
    }
}

fn row(collected: &Collected, i: usize) -> &[f32] {
    let classes = collected.logits.classes;
    &collected.logits.values[i * classes..(i + 1) * classes]
}

#[cfg(test)]
mod tests {
    use super::*;
    use swinq_model::Logits;

    /// Three classes; each image's top-1 class has the logit 2, the others 0.
    fn of(guesses: &[usize], labels: &[u32]) -> Collected {
        let row = |&guess: &usize| (0..3).map(move |class| if class == guess { 2.0 } else { 0.0 });
        Collected {
            logits: Logits { values: guesses.iter().flat_map(row).collect(), classes: 3 },
            labels: labels.to_vec(),
            ids: (10..10 + guesses.len()).collect(),
        }
    }

    #[test]
    fn classes_and_flips_are_counted() {
        let labels = [0, 0, 1, 1, 2];
        let before = of(&[0, 1, 1, 1, 0], &labels);
        let after = of(&[0, 0, 1, 0, 1], &labels);
        let expected = [[0, 2, 2, 1, 0], [1, 2, 1, 0, 1], [2, 1, 0, 0, 0]];
        let expected = expected.map(|[class, images, top1_correct, gained, lost]| ClassResult {
            class,
            images,
            top1_correct,
            gained,
            lost,
        });
        assert_eq!(classes(&after, Some(&before)).unwrap(), expected);
        let alone = classes(&after, None).unwrap();
        assert!(alone.iter().all(|class| class.gained + class.lost == 0));
        let found = flips(&before, &after).unwrap();
        assert_eq!((found, found.total()), (Flips { gained: 1, lost: 1, other: 1 }, 3));
        let unlabelled = |c: &Collected| Collected { labels: Vec::new(), ..c.clone() };
        assert_eq!(flips(&unlabelled(&before), &unlabelled(&after)).unwrap().other, 3);
        assert_eq!(classes(&unlabelled(&after), None).unwrap(), []);
    }

    #[test]
    fn the_worst_images_come_first() {
        let labels = [0, 0, 1, 1];
        let before = of(&[0, 1, 1, 1], &labels);
        let mut after = of(&[0, 0, 1, 1], &labels);
        after.logits.values[0] = 2.5; // image 10 agrees, with another probability
        after.logits.values[9..12].copy_from_slice(&[0.0, 9.0, 0.0]); // image 13 agrees, with a large divergence
        let found = worst(&before, &after, 10).unwrap();
        assert_eq!(found.iter().map(|d| d.id).collect::<Vec<_>>(), [11, 13, 10], "image 12 has equal logits");
        assert_eq!((found[0].baseline.class, found[0].own.class, found[0].label), (1, 0, Some(0)));
        // Softmax of (0, 2, 0) is (a, b, a); the divergence to (b, a, a) is 2 (b - a).
        let (a, b) = (1.0 / (2.0 + 2f64.exp()), 2f64.exp() / (2.0 + 2f64.exp()));
        assert!((found[0].kl - 2.0 * (b - a)).abs() < 1e-12);
        assert!((found[0].own.probability - b).abs() < 1e-12);
        assert_eq!(worst(&before, &after, 1).unwrap().len(), 1);
        assert_eq!(worst(&before, &before, 10).unwrap(), []);
    }
}
