//! Distance of a model's outputs from the float model's, as sums that can be added up batch by batch.

use serde::{Deserialize, Serialize};
use swinq_model::Logits;

use crate::accuracy::argmax;
use crate::distortion::Distortion;
use crate::error::EvalError;
use crate::results::OutputResult;
use crate::results::sensitivity::Effect;

/// Sums over images, from which an [`Effect`] follows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EffectSums {
    /// Number of images.
    pub images: usize,
    /// Number of images that have a label.
    labelled: usize,
    top1_changes: usize,
    top1_correct: usize,
    /// Number of images that only one of the two models classifies correctly.
    top1_discordant: usize,
    /// Sum of the images' divergences.
    kl: f64,
    distortion: Distortion,
    /// Names of the outputs of a backbone that count, and their distances. The sums above that are about
    /// classes are 0 then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    outputs: Vec<(String, Distortion)>,
}

impl EffectSums {
    /// Adds images: `reference` holds the float model's logits, `other` the other model's. `labels` holds
    /// their classes, or nothing.
    ///
    /// # Errors
    /// [`EvalError::Length`] for different lengths, [`EvalError::NonFinite`] for NaN or infinity. Nothing is
    /// added then.
    pub fn add(&mut self, reference: &Logits, other: &Logits, labels: &[u32]) -> Result<(), EvalError> {
        self.distortion.update(&reference.values, &other.values)?;
        for (image, (r, y)) in reference.rows().zip(other.rows()).enumerate() {
            let class = argmax(y);
            self.images += 1;
            self.top1_changes += usize::from(argmax(r) != class);
            self.kl += divergence(r, y);
            if let Some(&label) = labels.get(image) {
                let [right, reference] = [class, argmax(r)].map(|class| class == label as usize);
                self.labelled += 1;
                self.top1_correct += usize::from(right);
                self.top1_discordant += usize::from(right != reference);
            }
        }
        Ok(())
    }

    /// Adds `images` images of a backbone: the name of each output that counts, the float model's values and
    /// the other model's.
    ///
    /// # Errors
    /// Those of [`EffectSums::add`].
    pub fn add_maps<'a>(
        &mut self,
        images: usize,
        outputs: impl IntoIterator<Item = (&'a str, &'a [f32], &'a [f32])>,
    ) -> Result<(), EvalError> {
        let mut added = Vec::new();
        for (name, reference, other) in outputs {
            let mut distortion = Distortion::default();
            distortion.update(reference, other)?;
            added.push((name.to_owned(), distortion));
        }
        self.merge(&EffectSums::of_maps(images, added));
        Ok(())
    }

    /// The sums of `images` images of a backbone whose outputs that count have these names and distances.
    pub fn of_maps(images: usize, outputs: Vec<(String, Distortion)>) -> EffectSums {
        EffectSums { images, outputs, ..EffectSums::default() }
    }

    /// Adds the sums of other images. Both must be of the same outputs.
    pub fn merge(&mut self, other: &EffectSums) {
        if self.outputs.is_empty() {
            self.outputs =
                other.outputs.iter().map(|(name, _)| (name.clone(), Distortion::default())).collect();
        }
        self.outputs.iter_mut().zip(&other.outputs).for_each(|((_, sum), (_, own))| sum.merge(own));
        self.images += other.images;
        self.labelled += other.labelled;
        self.top1_changes += other.top1_changes;
        self.top1_correct += other.top1_correct;
        self.top1_discordant += other.top1_discordant;
        self.kl += other.kl;
        self.distortion.merge(&other.distortion);
    }

    /// The standard error of the difference of the two top-1 accuracies, as a fraction: the root of the
    /// number of images that only one model classifies correctly, divided by the number of images. 0 if there
    /// is no such image.
    pub fn top1_standard_error(&self) -> f64 {
        if self.images == 0 { 0.0 } else { (self.top1_discordant as f64).sqrt() / self.images as f64 }
    }

    /// The effect: ratios and means of the sums. The number of correct images is absent unless every image
    /// has a label. The SQNR and the cosine of a backbone are the lowest of its outputs.
    pub fn effect(&self) -> Effect {
        if !self.outputs.is_empty() {
            return self.effect_on_maps();
        }
        Effect {
            sqnr_db: self.distortion.sqnr_db(),
            cosine: self.distortion.cosine(),
            kl: Some(if self.images == 0 { 0.0 } else { self.kl / self.images as f64 }),
            top1_changes: Some(self.top1_changes),
            top1_correct: (self.images > 0 && self.labelled == self.images).then_some(self.top1_correct),
            outputs: Vec::new(),
        }
    }

    fn effect_on_maps(&self) -> Effect {
        let figures = |(name, error): &(String, Distortion)| OutputResult::new(name, error);
        let outputs: Vec<OutputResult> = self.outputs.iter().map(figures).collect();
        let lowest =
            |figure: fn(&OutputResult) -> f64| outputs.iter().map(figure).fold(f64::INFINITY, f64::min);
        Effect {
            sqnr_db: lowest(|output| output.sqnr_db),
            cosine: lowest(|output| output.cosine),
            kl: None,
            top1_changes: None,
            top1_correct: None,
            outputs,
        }
    }
}

/// The Kullback-Leibler divergence from the class probabilities of `reference` to those of `other`, in nats.
fn divergence(reference: &[f32], other: &[f32]) -> f64 {
    let (log_p, log_q) = (log_softmax(reference), log_softmax(other));
    let sum: f64 = log_p.zip(log_q).map(|(p, q)| libm::exp(p) * (p - q)).sum();
    // Rounding can make the sum of equal distributions slightly negative.
    sum.max(0.0)
}

/// Logarithms of the softmax probabilities.
pub(crate) fn log_softmax(row: &[f32]) -> impl Iterator<Item = f64> {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let shifted = move |&x: &f32| f64::from(x) - f64::from(max);
    let log_sum = libm::log(row.iter().map(|x| libm::exp(shifted(x))).sum::<f64>());
    row.iter().map(move |x| shifted(x) - log_sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits(values: &[f32]) -> Logits {
        Logits { values: values.to_vec(), classes: 2 }
    }

    #[test]
    fn the_divergence_is_that_of_the_definition() {
        // P = (3/4, 1/4), Q = (1/2, 1/2): 3/4 ln(3/2) + 1/4 ln(1/2).
        let mut sums = EffectSums::default();
        sums.add(&logits(&[3f32.ln(), 0.0]), &logits(&[5.0, 5.0]), &[]).unwrap();
        let expected = 0.75 * 1.5f64.ln() + 0.25 * 0.5f64.ln();
        assert!((sums.effect().kl.unwrap() - expected).abs() < 1e-7, "{:?}", sums.effect());
        assert_eq!(sums.effect().top1_correct, None);
    }

    #[test]
    fn sums_of_parts_are_the_sums_of_the_whole() {
        let (reference, other) = ([1.0, 2.0, 3.0, 1.0, 0.5, 0.25], [1.5, 1.0, 3.0, 0.5, 0.5, 0.5]);
        let (mut whole, mut first, mut rest) = Default::default();
        EffectSums::add(&mut whole, &logits(&reference), &logits(&other), &[0, 0, 1]).unwrap();
        EffectSums::add(&mut first, &logits(&reference[..4]), &logits(&other[..4]), &[0, 0]).unwrap();
        EffectSums::add(&mut rest, &logits(&reference[4..]), &logits(&other[4..]), &[1]).unwrap();
        // Both add the images in the same order, so the f64 sums are equal.
        first.merge(&rest);
        assert_eq!(first, whole);
        // Image 0 changes from class 1 to 0; the tie of image 2 goes to class 0, in both models.
        let Effect { top1_changes, top1_correct, .. } = whole.effect();
        assert_eq!((top1_changes, top1_correct), (Some(1), Some(2)));
        // Image 0 is wrong in the reference and right in the other model.
        assert_eq!(whole.top1_standard_error(), 1.0 / 3.0);
    }
    #[test]
    fn the_effect_on_maps_is_that_of_the_worst_output() {
        let mut sums = EffectSums::default();
        for scale in [1.0, 2.0] {
            let reference = [scale; 4];
            let [near, far] = [reference.map(|x| 1.01 * x), reference.map(|x| 1.1 * x)];
            sums.add_maps(1, [("stage1", &reference[..], &near[..]), ("stage2", &reference[..], &far[..])])
                .unwrap();
        }
        let effect = sums.effect();
        assert_eq!((sums.images, effect.kl, effect.top1_changes), (2, None, None));
        let dbs: Vec<f64> = effect.outputs.iter().map(|output| output.sqnr_db).collect();
        assert!((dbs[0] - 40.0).abs() < 1e-3 && (dbs[1] - 20.0).abs() < 1e-3, "{dbs:?}");
        assert_eq!(effect.sqnr_db, dbs[1]);
    }
}
