//! Accuracy, fidelity, distortion and latency against brute-force definitions, and every error.

use std::ops::ControlFlow;

use proptest::prelude::*;
use swinq_eval::{
    Accuracy, Collected, Distortion, EvalError, Latency, LatencyOptions, Step, accuracy, collect, fidelity,
    measure, measure_interleaved, top1_difference,
};
use swinq_model::{Batch, BatchSource, BoxError, Classifier, Logits, Size};

fn collected(classes: usize, values: Vec<f32>, labels: Vec<u32>) -> Collected {
    let n = values.len() / classes;
    Collected { logits: Logits { values, classes }, labels, ids: (0..n).collect() }
}

/// Top-k correct images by sorting classes by descending score, then by index.
fn brute_force(collected: &Collected, k: usize) -> usize {
    let mut correct = 0;
    for (row, &label) in collected.logits.rows().zip(&collected.labels) {
        let mut order: Vec<usize> = (0..row.len()).collect();
        order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
        correct += usize::from(order[..k.min(order.len())].contains(&(label as usize)));
    }
    correct
}

/// Labelled scores of few distinct values, so that ties are common.
fn scores() -> impl Strategy<Value = Collected> {
    (1usize..9, 1usize..20).prop_flat_map(|(classes, n)| {
        let values = prop::collection::vec((-3i8..4).prop_map(f32::from), n * classes);
        let labels = prop::collection::vec(0..classes as u32, n);
        (Just(classes), values, labels)
            .prop_map(|(classes, values, labels)| collected(classes, values, labels))
    })
}

proptest! {
    #[test]
    fn accuracy_equals_that_of_a_stable_sort(collected in scores()) {
        let expected = Accuracy {
            images: collected.images(),
            top1_correct: brute_force(&collected, 1),
            top5_correct: brute_force(&collected, 5),
        };
        prop_assert_eq!(accuracy(&collected).unwrap(), expected);
    }

    #[test]
    fn the_difference_equals_that_of_the_counts(a in scores(), shift in 0usize..5) {
        let mut b = a.clone();
        b.logits.values.rotate_left(shift % a.logits.values.len());
        let interval = top1_difference(&a, &b).unwrap();
        let (x, y) = (accuracy(&a).unwrap(), accuracy(&b).unwrap());
        let expected = (y.top1_correct as f64 - x.top1_correct as f64) / a.images() as f64;
        prop_assert!((interval.difference - expected).abs() < 1e-12);
        prop_assert!(interval.low <= expected + 1e-12 && expected <= interval.high + 1e-12);
        prop_assert!(interval.low >= -1.0 - 1e-12 && interval.high <= 1.0 + 1e-12);
        prop_assert!(interval.low < interval.high);
    }

    #[test]
    fn distortion_is_the_sum_over_elements_for_every_split(
        pairs in prop::collection::vec((-50i8..50, -50i8..50), 1..60), cut in 0usize..60
    ) {
        let r: Vec<f32> = pairs.iter().map(|p| f32::from(p.0)).collect();
        let y: Vec<f32> = pairs.iter().map(|p| f32::from(p.1)).collect();
        let mut whole = Distortion::default();
        whole.update(&r, &y).unwrap();
        let cut = cut.min(r.len());
        let (mut first, mut second) = (Distortion::default(), Distortion::default());
        first.update(&r[..cut], &y[..cut]).unwrap();
        second.update(&r[cut..], &y[cut..]).unwrap();
        first.merge(&second);
        // Sums of integers are exact, so the split must not change them.
        prop_assert_eq!(first, whole);

        let of = |f: &dyn Fn(f64, f64) -> f64| -> f64 {
            pairs.iter().map(|&(r, y)| f(f64::from(r), f64::from(y))).sum()
        };
        prop_assert_eq!(whole.count, pairs.len() as u64);
        prop_assert_eq!(whole.exact as f64, of(&|r, y| f64::from(u8::from(r == y))));
        prop_assert_eq!(whole.rounded_to_zero as f64, of(&|r, y| f64::from(u8::from(r != 0.0 && y == 0.0))));
        prop_assert_eq!(whole.sign_flips as f64, of(&|r, y| f64::from(u8::from(r * y < 0.0))));
        prop_assert_eq!(whole.l1, of(&|r, y| (r - y).abs()));
        let noise = of(&|r, y| (r - y) * (r - y));
        let signal = of(&|r, _| r * r);
        if noise > 0.0 && signal > 0.0 {
            prop_assert!((whole.sqnr_db() - 10.0 * (signal / noise).log10()).abs() < 1e-9);
        }
        let norms = (signal * of(&|_, y| y * y)).sqrt();
        if norms > 0.0 {
            prop_assert!((whole.cosine() - of(&|r, y| r * y) / norms).abs() < 1e-12);
        }
    }

    #[test]
    fn percentiles_equal_numpys(samples in prop::collection::vec(0.001f64..100.0, 1..40), p in 0.0f64..=100.0) {
        let latency = Latency::from_samples(samples.clone()).unwrap();
        // numpy's definition, with interpolation weights for all order statistics instead of two.
        let mut sorted = samples.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = p / 100.0 * (samples.len() - 1) as f64;
        let weight = |i: usize| (1.0 - (rank - i as f64).abs()).max(0.0);
        let expected: f64 = sorted.iter().enumerate().map(|(i, x)| weight(i) * x).sum();
        prop_assert!((latency.percentile(p) - expected).abs() < 1e-9);
        prop_assert_eq!(latency.samples_ms(), &samples[..]);
        prop_assert!(latency.min() <= latency.median() && latency.median() <= latency.max());
    }
}

#[test]
fn ties_go_to_the_lowest_class() {
    let tied = |label| collected(3, vec![1.0, 1.0, 0.0], vec![label]);
    assert_eq!(accuracy(&tied(0)).unwrap().top1_correct, 1);
    assert_eq!(accuracy(&tied(1)).unwrap().top1_correct, 0);
    // Of six equal scores, class 5 has the sixth rank.
    let six = |label| collected(6, vec![2.0; 6], vec![label]);
    assert_eq!(accuracy(&six(4)).unwrap().top5_correct, 1);
    assert_eq!(accuracy(&six(5)).unwrap().top5_correct, 0);
}

#[test]
fn fidelity_equals_values_computed_by_hand() {
    let a = collected(2, vec![3.0, 4.0, 1.0, 0.0], vec![]);
    let b = collected(2, vec![4.0, 3.0, 1.0, 0.0], vec![]);
    let found = fidelity(&a, &b).unwrap();
    assert_eq!(found.agreement, 0.5);
    assert!((found.sqnr_db - 10.0 * 13f64.log10()).abs() < 1e-12);
    assert!((found.cosine - 25.0 / 26.0).abs() < 1e-12);
    let same = fidelity(&a, &a).unwrap();
    assert_eq!((same.agreement, same.sqnr_db, same.cosine), (1.0, f64::INFINITY, 1.0));
}

#[test]
fn distortion_of_zeros_and_of_non_finite_values() {
    let mut zeros = Distortion::default();
    assert_eq!((zeros.sqnr_db(), zeros.cosine(), zeros.mean_abs()), (f64::INFINITY, 1.0, 0.0));
    zeros.update(&[0.0, 0.0], &[0.0, 2.0]).unwrap();
    assert_eq!((zeros.sqnr_db(), zeros.cosine(), zeros.mean_abs()), (f64::NEG_INFINITY, 0.0, 1.0));
    let before = zeros;
    for (r, y) in [(f32::NAN, 0.0), (0.0, f32::INFINITY)] {
        let error = zeros.update(&[1.0, r], &[2.0, y]).unwrap_err();
        assert!(matches!(error, EvalError::NonFinite { index: 1, .. }), "{error}");
    }
    assert!(matches!(zeros.update(&[1.0], &[]), Err(EvalError::Length { left: 1, right: 0, .. })));
    assert_eq!(zeros, before);
}

#[test]
fn invalid_logits_and_labels_are_refused() {
    let good = collected(2, vec![0.0, 1.0, 1.0, 0.0], vec![1, 0]);
    let mut nan = good.clone();
    nan.logits.values[3] = f32::NAN;
    assert!(matches!(accuracy(&nan), Err(EvalError::NonFiniteLogit { image: 1, class: 1, .. })));
    assert!(matches!(fidelity(&good, &nan), Err(EvalError::NonFiniteLogit { .. })));
    let mut infinite = good.clone();
    infinite.logits.values[0] = f32::INFINITY;
    assert!(matches!(accuracy(&infinite), Err(EvalError::NonFiniteLogit { image: 0, class: 0, .. })));
    let unlabelled = collected(2, vec![0.0, 1.0], vec![]);
    assert!(matches!(accuracy(&unlabelled), Err(EvalError::NoLabels)));
    let wrong = collected(2, vec![0.0, 1.0], vec![2]);
    assert!(matches!(accuracy(&wrong), Err(EvalError::Label { image: 0, label: 2, classes: 2 })));
    assert!(matches!(accuracy(&collected(2, vec![], vec![])), Err(EvalError::NoImages)));
    let short = collected(2, vec![0.0, 1.0, 1.0, 0.0], vec![1]);
    assert!(matches!(accuracy(&short), Err(EvalError::Length { left: 1, right: 2, .. })));
    let classless = Collected { logits: Logits { values: vec![], classes: 0 }, labels: vec![], ids: vec![0] };
    assert!(accuracy(&classless).is_err());

    let mut others = vec![good.clone(); 4];
    others[0].ids.swap(0, 1);
    others[1].labels[0] = 0;
    others[2] = collected(4, good.logits.values.clone(), vec![1]);
    others[3] = collected(2, vec![0.0, 1.0], vec![1]);
    for other in &others {
        assert!(matches!(fidelity(&good, other), Err(EvalError::Mismatch { .. })), "{other:?}");
        assert!(matches!(top1_difference(&good, other), Err(EvalError::Mismatch { .. })), "{other:?}");
    }
}

/// A data set of `total` images in batches of `size`; the pixel bytes of image `i` are `i`.
struct Images {
    total: usize,
    size: usize,
    labels: bool,
}

impl BatchSource for Images {
    fn batches(&self) -> usize {
        self.total.div_ceil(self.size)
    }

    fn images(&self) -> usize {
        self.total
    }

    fn batch(&mut self, epoch: u64, index: usize) -> Result<Batch, BoxError> {
        assert_eq!(epoch, 0);
        let ids: Vec<usize> = (index * self.size..self.total.min((index + 1) * self.size)).collect();
        let pixels = ids.iter().flat_map(|&id| [id as u8; 12]).collect();
        let labels = if self.labels { ids.iter().map(|&id| id as u32 % 3).collect() } else { vec![] };
        Ok(Batch { pixels, labels, ids, ..Batch::empty(Size::square(2), 3) })
    }
}

/// A classifier of three classes that chooses the image's byte modulo 3.
struct Modulo {
    /// Images from this one on get a NaN.
    broken: usize,
    /// The input size that it declares.
    input: usize,
    /// Number of logits that it returns per image.
    columns: usize,
}

impl Classifier for Modulo {
    fn classes(&self) -> usize {
        3
    }

    fn input_size(&self) -> Size {
        Size::square(self.input)
    }

    fn channels(&self) -> usize {
        3
    }

    fn infer(&self, batch: &Batch) -> Result<Logits, BoxError> {
        let columns = self.columns;
        let mut values = vec![0.0; batch.len() * columns];
        for (row, image) in values.chunks_exact_mut(columns).zip(batch.pixels.chunks_exact(12)) {
            row[usize::from(image[0]) % 3] = 5.0;
            if usize::from(image[0]) >= self.broken {
                row[0] = f32::NAN;
            }
        }
        Ok(Logits { values, classes: columns })
    }
}

const SOUND: Modulo = Modulo { broken: usize::MAX, input: 2, columns: 3 };

#[test]
fn collects_every_image_in_order_and_reports_progress() {
    let mut seen = Vec::new();
    let mut progress = |done, total| {
        seen.push((done, total));
        ControlFlow::Continue(())
    };
    let mut images = Images { total: 10, size: 4, labels: true };
    let all = collect(&SOUND, &mut images, &mut progress).unwrap();
    assert_eq!(seen, [(0, 10), (4, 10), (8, 10), (10, 10)]);
    assert_eq!(all.ids, (0..10).collect::<Vec<_>>());
    assert_eq!(all.logits.values.len(), 30);
    let expected = Accuracy { images: 10, top1_correct: 10, top5_correct: 10 };
    assert_eq!(accuracy(&all).unwrap(), expected);

    let mut unlabelled = Images { labels: false, ..images };
    let all = collect(&SOUND, &mut unlabelled, &mut |_, _| ControlFlow::Continue(())).unwrap();
    assert!(all.labels.is_empty());
}

#[test]
fn collecting_stops_at_errors() {
    let go = &mut |_, _| ControlFlow::Continue(());
    let images = || Images { total: 10, size: 4, labels: true };
    let stop = &mut |done, _| if done >= 4 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    let found = collect(&SOUND, &mut images(), stop);
    assert!(matches!(found, Err(EvalError::Interrupted { done: 4, total: 10 })), "{found:?}");
    let found = collect(&Modulo { broken: 9, ..SOUND }, &mut images(), go);
    assert!(matches!(found, Err(EvalError::NonFiniteLogit { image: 9, class: 0, .. })), "{found:?}");
    let found = collect(&Modulo { input: 4, ..SOUND }, &mut images(), go);
    assert!(matches!(found, Err(EvalError::Batch { batch: 0, .. })), "{found:?}");
    let found = collect(&Modulo { columns: 4, ..SOUND }, &mut images(), go);
    assert!(matches!(found, Err(EvalError::Batch { batch: 0, .. })), "{found:?}");
    let found = collect(&SOUND, &mut Images { total: 0, size: 4, labels: true }, go);
    assert!(matches!(found, Err(EvalError::NoImages)), "{found:?}");
}

#[test]
fn measuring_uses_the_real_clock_and_reports_failing_steps() {
    let options = LatencyOptions { warmup_ms: 1.0, min_ms: 10.0, min_runs: 3 };
    let sleep = |ms| std::thread::sleep(std::time::Duration::from_millis(ms));
    let latency = measure(
        &mut || {
            sleep(2);
            Ok(())
        },
        &options,
    )
    .unwrap();
    assert!(latency.runs() >= 3 && latency.min() >= 2.0 && latency.total() >= 10.0);
    assert!(latency.images_per_second(8) <= 4000.0);

    let mut steps: Vec<Step<'_>> = vec![Box::new(|| Ok(())), Box::new(|| Err("no such device".into()))];
    let error = measure_interleaved(&mut steps, &options).unwrap_err();
    assert!(matches!(error, EvalError::Step { step: 1, .. }));
    assert_eq!(error.to_string(), "measuring, step 1: no such device");
    let endless = LatencyOptions { min_ms: f64::INFINITY, ..options };
    assert!(matches!(measure_interleaved(&mut steps, &endless), Err(EvalError::Samples { .. })));
    for samples in [vec![], vec![1.0, f64::NAN], vec![-1.0], vec![0.0, 0.0]] {
        assert!(matches!(Latency::from_samples(samples), Err(EvalError::Samples { .. })));
    }
}
