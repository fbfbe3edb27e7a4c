//! Histograms depend only on the values, not on their order or on how they were split and merged.

use crate::common::histogram;
use proptest::prelude::*;
use swinq_calib::Histogram;

/// Values of many magnitudes, including zeros and powers of two, which are edges of bins.
fn value() -> impl Strategy<Value = f32> {
    prop_oneof![
        Just(0.0f32),
        (-60i32..60).prop_map(|e| 2f32.powi(e)),
        -4f32..4f32,
        any::<f32>().prop_filter("finite", |v| v.is_finite()),
        (-149i32..128, -1f32..1f32).prop_map(|(e, m)| m * 2f32.powi(e)),
    ]
}

proptest! {
    #[test]
    fn splits_and_orders_do_not_matter(
        values in prop::collection::vec(value(), 0..400),
        cuts in prop::collection::vec(0usize..400, 0..6),
        order in any::<prop::sample::Index>(),
        reverse in any::<bool>(),
    ) {
        let whole = histogram(&values);
        let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(values.len())).chain([0, values.len()]).collect();
        cuts.sort_unstable();
        let mut parts: Vec<Histogram> = cuts.windows(2).map(|c| histogram(&values[c[0]..c[1]])).collect();
        let first = order.index(parts.len());
        parts.rotate_left(first);
        if reverse {
            parts.reverse();
        }
        let mut merged = Histogram::new();
        parts.iter().for_each(|part| merged.merge(part));
        prop_assert_eq!(&merged, &whole);

        // Pairwise instead of one after another.
        while parts.len() > 1 {
            let last = parts.pop().unwrap();
            let middle = parts.len() / 2;
            parts[middle].merge(&last);
        }
        prop_assert_eq!(&parts[0], &whole);

        // Value by value into one histogram.
        let mut streamed = Histogram::new();
        values.iter().rev().for_each(|v| streamed.add(&[*v]).unwrap());
        prop_assert_eq!(&streamed, &whole);
    }

    #[test]
    fn bins_equal_those_of_division(values in prop::collection::vec(value(), 1..300)) {
        let histogram = histogram(&values);
        let mut expected = vec![0u64; histogram.counts().len()];
        for v in &values {
            expected[(f64::from(v.abs()) / histogram.width()) as usize] += 1;
        }
        prop_assert_eq!(histogram.counts(), &expected[..]);
        prop_assert_eq!(histogram.count(), values.len() as u64);
        prop_assert_eq!(histogram.zeros(), values.iter().filter(|v| **v == 0.0).count() as u64);
        prop_assert_eq!(histogram.max(), values.iter().fold(0f32, |m, v| m.max(v.abs())));
        prop_assert!(*histogram.counts().last().unwrap() > 0);
    }
}

#[test]
fn large_slices_are_counted_like_small_ones() {
    let values: Vec<f32> = (0..1_000_003u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) as i32) as f32 * (i as f32 * 1e-12))
        .collect();
    let whole = histogram(&values);
    let mut streamed = Histogram::new();
    values.chunks(997).for_each(|part| streamed.add(part).unwrap());
    assert_eq!(streamed, whole);
    assert_eq!(whole.counts().iter().sum::<u64>(), values.len() as u64);
    assert!(whole.counts().iter().filter(|n| **n > 0).count() > 1000);
}
