//! The loss of an iteration's images, by the kinds of a network's outputs.
//!
//! The loss of logits is `labels * CE + kl * KL`, both averaged over the images of an iteration:
//!
//! ```text
//! CE = -sum t log p          t = (1 - smoothing) onehot(label) + smoothing / classes; of a mixed image the mean
//!                            of two labels, weighted by their shares
//! KL = T^2 sum q log(q / p)  p, q: softmax of the student's and the teacher's logits divided by T
//! ```
//!
//! The divergence and its factor follow Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural
//! Network", 2015. There are few logits, so the loss is computed in f64: here, or by
//! kernels/cuda/sources/train_loss.cu in iterations on a GPU without the host.
//!
//! The loss of feature maps is `outputs * E`, averaged over the images of an iteration:
//!
//! ```text
//! E = sum w_o |x_o - t_o|^2 / |t_o|^2    x_o, t_o: output o of the student and of the teacher; |.|^2 is the sum of the squares of
//!     -------------------------------    all values of an image; w_o: `output_weights`
//!                sum w_o
//! ```
//!
//! A squared difference of feature maps is the loss of Romero et al., "FitNets: Hints for Thin Deep Nets",
//! ICLR 2015. The teacher's squares make it relative, so that each output and each image counts alike,
//! whatever its size and the size of its values: a term is `10^(-SQNR / 10)`, with the
//! signal-to-quantization-noise ratio in dB by which validations compare models.
//! [`relative_errors`](swinq_float::ops::taped::relative_errors) computes it where the maps are, and
//! kernels/cuda/sources/train_maps.cu in iterations on a GPU without the host.

use crate::job::LossKeys;
use crate::mixing::Partners;
use crate::ranks::{ProcessGroup, RankError};

/// The loss, its parts before their weights, and the student's accuracy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LossParts {
    /// Cross-entropy with the labels.
    pub labels: f64,
    /// Divergence from the teacher.
    pub kl: f64,
    /// Relative error of a backbone's outputs.
    pub outputs: f64,
    /// Difference from the teacher's block outputs.
    pub features: f64,
    /// The weighted sum of these parts, which is minimised.
    pub total: f64,
    /// Number of images whose largest logit is the label's.
    pub correct: usize,
    /// Number of images with labels.
    pub labelled: usize,
}

impl LossParts {
    /// Adds the parts of another batch of the same iteration.
    pub fn add(&mut self, other: &LossParts) {
        self.labels += other.labels;
        self.kl += other.kl;
        self.outputs += other.outputs;
        self.features += other.features;
        self.total += other.total;
        self.correct += other.correct;
        self.labelled += other.labelled;
    }

    /// Adds the parts of all processes of a training.
    ///
    /// # Errors
    /// The errors of [`ProcessGroup::sum`].
    pub fn add_up(&mut self, group: &mut ProcessGroup) -> Result<(), RankError> {
        let LossParts { labels, kl, outputs, features, total, correct, labelled } = *self;
        let mut sums = [labels, kl, outputs, features, total, correct as f64, labelled as f64];
        group.sum(&mut sums)?;
        let [labels, kl, outputs, features, total, correct, labelled] = sums;
        let (correct, labelled) = (correct as usize, labelled as usize);
        *self = LossParts { labels, kl, outputs, features, total, correct, labelled };
        Ok(())
    }

    /// Fraction of the images that are classified correctly, in 0..=1.
    pub fn top1(&self) -> f64 {
        self.correct as f64 / self.labelled.max(1) as f64
    }
}

/// The targets of a batch's logits.
pub struct Targets<'a> {
    /// The class of each image; may be empty if the labels have no weight in the loss.
    pub labels: &'a [u32],
    /// The other labels of the images, if they are mixed.
    pub partners: Option<&'a Partners>,
    /// The teacher's logits `[images, classes]`, if the divergence has a weight in the loss.
    pub teacher: Option<&'a [f32]>,
}

/// The classes of an image.
#[derive(Clone, Copy)]
struct Label {
    own: usize,
    /// The class of the image that is mixed into it.
    partner: usize,
    /// The share of `own`; the rest is that of `partner`.
    share: f64,
}

impl Label {
    /// The class with the larger share.
    fn main(self) -> usize {
        if self.share >= 0.5 { self.own } else { self.partner }
    }

    /// The share of `class`.
    fn share_of(self, class: usize) -> f64 {
        let part = |is: bool, share: f64| if is { share } else { 0.0 };
        part(class == self.own, self.share) + part(class == self.partner, 1.0 - self.share)
    }
}

impl Targets<'_> {
    fn label(&self, image: usize) -> Option<Label> {
        let own = *self.labels.get(image)? as usize;
        Some(match self.partners {
            Some(partners) => Label { own, partner: partners.labels[image] as usize, share: partners.share },
            None => Label { own, partner: own, share: 1.0 },
        })
    }
}

/// The loss of `logits` `[images, classes]` and its gradient. Both are multiplied by `share`, the batch's
/// fraction of the iteration.
pub fn loss(
    keys: &LossKeys,
    logits: &[f32],
    classes: usize,
    targets: &Targets<'_>,
    share: f64,
) -> (LossParts, Vec<f32>) {
    let images = logits.len() / classes;
    let factor = share / images as f64;
    let mut parts = LossParts { labelled: images.min(targets.labels.len()), ..LossParts::default() };
    let mut gradient = vec![0.0; logits.len()];
    for (i, (logits, gradient)) in
        logits.chunks_exact(classes).zip(gradient.chunks_exact_mut(classes)).enumerate()
    {
        let mut sums = vec![0.0; classes];
        if let Some(label) = targets.label(i) {
            parts.correct += usize::from(is_largest(logits, label.main()));
            if keys.labels > 0.0 {
                parts.labels += factor * cross_entropy(logits, label, keys, &mut sums);
            }
        }
        if let Some(teacher) = targets.teacher.filter(|_| keys.kl > 0.0) {
            let teacher = &teacher[i * classes..][..classes];
            parts.kl += factor * divergence(logits, teacher, keys, &mut sums);
        }
        gradient.iter_mut().zip(sums).for_each(|(out, sum)| *out = (sum * factor) as f32);
    }
    parts.total = keys.labels * parts.labels + keys.kl * parts.kl;
    (parts, gradient)
}

/// Whether the label's logit is the largest; of equal logits the first counts.
fn is_largest(logits: &[f32], label: usize) -> bool {
    let best = logits.iter().enumerate().fold(0, |best, (i, x)| if *x > logits[best] { i } else { best });
    best == label
}

/// `log(softmax(logits / temperature))`.
fn log_softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
    let scaled: Vec<f64> = logits.iter().map(|&x| f64::from(x) / temperature).collect();
    let max = scaled.iter().fold(f64::NEG_INFINITY, |max, &x| max.max(x));
    let total: f64 = scaled.iter().map(|x| libm::exp(x - max)).sum();
    let log = max + libm::log(total);
    scaled.into_iter().map(|x| x - log).collect()
}

fn cross_entropy(logits: &[f32], label: Label, keys: &LossKeys, gradient: &mut [f64]) -> f64 {
    let log = log_softmax(logits, 1.0);
    let spread = keys.smoothing / logits.len() as f64;
    let mut sum = 0.0;
    for (class, (gradient, log)) in gradient.iter_mut().zip(log).enumerate() {
        let target = spread + (1.0 - keys.smoothing) * label.share_of(class);
        sum -= target * log;
        *gradient += keys.labels * (libm::exp(log) - target);
    }
    sum
}

fn divergence(logits: &[f32], teacher: &[f32], keys: &LossKeys, gradient: &mut [f64]) -> f64 {
    let t = keys.temperature;
    let (log_p, log_q) = (log_softmax(logits, t), log_softmax(teacher, t));
    let mut sum = 0.0;
    for (gradient, (log_p, log_q)) in gradient.iter_mut().zip(log_p.into_iter().zip(log_q)) {
        let q = libm::exp(log_q);
        sum += q * (log_q - log_p);
        *gradient += keys.kl * t * (libm::exp(log_p) - q);
    }
    t * t * sum
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 6] = [1.0, -2.0, 0.5, 3.0, 2.5, -1.0];
    const TEACHER: [f32; 6] = [0.5, -1.0, 1.0, 4.0, 1.5, -2.0];

    const TORCH: (f64, f64, [f64; 6]) = (
        0.853338397421,
        0.330204751887,
        [0.1904035808, -0.0507129007, -0.1396906802, -0.2146082176, 0.1807184560, 0.0338897617],
    );

    fn keys() -> LossKeys {
        LossKeys { labels: 0.7, smoothing: 0.1, kl: 1.3, temperature: 3.0, ..LossKeys::default() }
    }

    fn total(logits: &[f32]) -> f64 {
        let targets = Targets { labels: &[2, 0], partners: None, teacher: Some(&TEACHER) };
        loss(&keys(), logits, 3, &targets, 0.5).0.total
    }

    /// `torch.nn.functional` in f64: `cross_entropy(x, y, label_smoothing=0.1)`,
    /// `kl_div(log_softmax(x / 3), softmax(t / 3), "batchmean") * 9`.
    #[test]
    fn equals_pytorch() {
        let targets = Targets { labels: &[2, 0], partners: None, teacher: Some(&TEACHER) };
        let (parts, gradient) = loss(&keys(), &LOGITS, 3, &targets, 0.5);
        let (ce, kl) = (TORCH.0, TORCH.1);
        assert!((parts.labels - 0.5 * ce).abs() < 1e-9, "{parts:?}");
        assert!((parts.kl - 0.5 * kl).abs() < 1e-9, "{parts:?}");
        assert_eq!((parts.correct, parts.labelled), (1, 2));
        for (got, want) in gradient.iter().zip(TORCH.2) {
            assert!((f64::from(*got) - want).abs() < 1e-7, "{gradient:?}");
        }
    }

    /// The cross-entropy is linear in its target.
    #[test]
    fn the_loss_of_mixed_labels_is_the_mean_of_both() {
        let keys = LossKeys { kl: 0.0, ..keys() };
        let of = |labels: &[u32], partners: Option<&Partners>| {
            loss(&keys, &LOGITS, 3, &Targets { labels, partners, teacher: None }, 1.0)
        };
        let partners = Partners { labels: vec![0, 2], share: 0.3 };
        let (mixed, own, other) = (of(&[2, 0], Some(&partners)), of(&[2, 0], None), of(&[0, 2], None));
        assert!((mixed.0.labels - (0.3 * own.0.labels + 0.7 * other.0.labels)).abs() < 1e-12);
        for i in 0..LOGITS.len() {
            let mean = 0.3 * own.1[i] + 0.7 * other.1[i];
            assert!((mixed.1[i] - mean).abs() < 1e-7, "{:?}", mixed.1);
        }
        // The largest logits are those of class 0 in both images; the larger shares are those of the
        // partners.
        assert_eq!((mixed.0.correct, own.0.correct, other.0.correct), (other.0.correct, 1, 1));
    }

    #[test]
    fn the_gradient_is_that_of_finite_differences() {
        let targets = Targets { labels: &[2, 0], partners: None, teacher: Some(&TEACHER) };
        let (_, gradient) = loss(&keys(), &LOGITS, 3, &targets, 0.5);
        for i in 0..LOGITS.len() {
            let at = |step: f32| {
                let mut moved = LOGITS;
                moved[i] += step;
                total(&moved)
            };
            let numeric = (at(1e-2) - at(-1e-2)) / 2e-2;
            assert!((f64::from(gradient[i]) - numeric).abs() < 1e-5, "{i}: {} and {numeric}", gradient[i]);
        }
    }

    #[test]
    fn a_student_like_its_teacher_has_no_divergence() {
        let keys = LossKeys { labels: 0.0, ..keys() };
        let targets = Targets { labels: &[], partners: None, teacher: Some(&LOGITS) };
        let (parts, gradient) = loss(&keys, &LOGITS, 3, &targets, 1.0);
        assert!(parts.total.abs() < 1e-12 && gradient.iter().all(|g| g.abs() < 1e-9));
    }
}
