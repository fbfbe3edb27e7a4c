//! The loss on logits, and its gradient.
//!
//! `labels * CE + kl * KL`, both averaged over the images of an iteration:
//!
//! ```text
//! CE = -sum t log p          t = (1 - smoothing) onehot(label) + smoothing / classes
//! KL = T^2 sum q log(q / p)  p, q: softmax of the student's and the teacher's logits divided by T
//! ```
//!
//! The divergence and its factor follow Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural
//! Network", 2015. There are few logits, so the loss is computed on the host in f64, whatever the device.

use crate::job::LossKeys;

/// The loss, its parts before their weights, and the student's accuracy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LossParts {
    /// Cross-entropy with the labels.
    pub labels: f64,
    /// Divergence from the teacher.
    pub kl: f64,
    /// Difference from the teacher's block outputs.
    pub features: f64,
    /// The weighted sum of the three parts, which is minimised.
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
        self.features += other.features;
        self.total += other.total;
        self.correct += other.correct;
        self.labelled += other.labelled;
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
    /// The teacher's logits `[images, classes]`, if the divergence has a weight in the loss.
    pub teacher: Option<&'a [f32]>,
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
        if let Some(&label) = targets.labels.get(i) {
            parts.correct += usize::from(is_largest(logits, label as usize));
            if keys.labels > 0.0 {
                parts.labels += factor * cross_entropy(logits, label as usize, keys, &mut sums);
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

fn cross_entropy(logits: &[f32], label: usize, keys: &LossKeys, gradient: &mut [f64]) -> f64 {
    let log = log_softmax(logits, 1.0);
    let spread = keys.smoothing / logits.len() as f64;
    let mut sum = 0.0;
    for (class, (gradient, log)) in gradient.iter_mut().zip(log).enumerate() {
        let target = spread + if class == label { 1.0 - keys.smoothing } else { 0.0 };
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
        LossKeys { labels: 0.7, smoothing: 0.1, kl: 1.3, temperature: 3.0, features: 0.0 }
    }

    fn total(logits: &[f32]) -> f64 {
        let targets = Targets { labels: &[2, 0], teacher: Some(&TEACHER) };
        loss(&keys(), logits, 3, &targets, 0.5).0.total
    }

    /// `torch.nn.functional` in f64: `cross_entropy(x, y, label_smoothing=0.1)`,
    /// `kl_div(log_softmax(x / 3), softmax(t / 3), "batchmean") * 9`.
    #[test]
    fn equals_pytorch() {
        let targets = Targets { labels: &[2, 0], teacher: Some(&TEACHER) };
        let (parts, gradient) = loss(&keys(), &LOGITS, 3, &targets, 0.5);
        let (ce, kl) = (TORCH.0, TORCH.1);
        assert!((parts.labels - 0.5 * ce).abs() < 1e-9, "{parts:?}");
        assert!((parts.kl - 0.5 * kl).abs() < 1e-9, "{parts:?}");
        assert_eq!((parts.correct, parts.labelled), (1, 2));
        for (got, want) in gradient.iter().zip(TORCH.2) {
            assert!((f64::from(*got) - want).abs() < 1e-7, "{gradient:?}");
        }
    }

    #[test]
    fn the_gradient_is_that_of_finite_differences() {
        let targets = Targets { labels: &[2, 0], teacher: Some(&TEACHER) };
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
        let targets = Targets { labels: &[], teacher: Some(&LOGITS) };
        let (parts, gradient) = loss(&keys, &LOGITS, 3, &targets, 1.0);
        assert!(parts.total.abs() < 1e-12 && gradient.iter().all(|g| g.abs() < 1e-9));
    }
}
