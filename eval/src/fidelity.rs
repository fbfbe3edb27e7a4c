//! Closeness of a model's logits to those of a reference model on the same images.

use crate::accuracy::argmax;
use crate::collected::Collected;
use crate::distortion::Distortion;
use crate::error::EvalError;

/// Closeness of a model's logits to a reference's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fidelity {
    /// Fraction of the images on which both models have the same top-1 class (ties to the lowest index).
    pub agreement: f64,
    /// Signal-to-quantization-noise ratio over all logits, in dB; infinite if they are equal.
    pub sqnr_db: f64,
    /// Cosine similarity of the two vectors of all logits.
    pub cosine: f64,
}

/// Compares `other` with `reference`, image by image in the order given.
///
/// # Errors
/// [`EvalError::Mismatch`] if the two have different images, another order of images, or different numbers of
/// classes; an error of [`Collected::check`] for either.
pub fn fidelity(reference: &Collected, other: &Collected) -> Result<Fidelity, EvalError> {
    check_paired(reference, other)?;
    let rows = reference.logits.rows().zip(other.logits.rows());
    let equal = rows.filter(|(a, b)| argmax(a) == argmax(b)).count();
    let mut distortion = Distortion::default();
    distortion.update(&reference.logits.values, &other.logits.values)?;
    Ok(Fidelity {
        agreement: equal as f64 / reference.images() as f64,
        sqnr_db: distortion.sqnr_db(),
        cosine: distortion.cosine(),
    })
}

/// Checks both, and that they have the same images, labels and number of classes.
pub(crate) fn check_paired(reference: &Collected, other: &Collected) -> Result<(), EvalError> {
    reference.check()?;
    other.check()?;
    let (a, b) = (reference.logits.classes, other.logits.classes);
    if a != b {
        return Err(EvalError::mismatch(format!(
            "{a} classes against {b}; compare models of the same data set"
        )));
    }
    let (a, b) = (reference.images(), other.images());
    if a != b {
        return Err(EvalError::mismatch(format!("{a} images against {b}; use the same limit and split")));
    }
    if let Some(i) = (0..a).find(|&i| reference.ids[i] != other.ids[i]) {
        let (a, b) = (reference.ids[i], other.ids[i]);
        let text = format!(
            "position {i} is image {a} in one and image {b} in the other; use the same seed and limit"
        );
        return Err(EvalError::mismatch(text));
    }
    if reference.labels != other.labels {
        return Err(EvalError::mismatch("the same images have different labels; use one data set for both"));
    }
    Ok(())
}
