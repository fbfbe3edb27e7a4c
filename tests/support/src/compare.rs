//! Comparisons whose failure messages name the difference.

/// The largest absolute difference between elements of two slices.
///
/// # Panics
/// If their lengths differ.
pub fn max_error(a: &[f32], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(&a, &b)| (f64::from(a) - b).abs()).fold(0.0, f64::max)
}

/// The relative L2 distance of `found` from `expected`.
///
/// # Panics
/// If their lengths differ.
pub fn relative_distance(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let square = |value: f32| f64::from(value).powi(2);
    let error: f64 = found.iter().zip(expected).map(|(a, b)| square(a - b)).sum();
    (error / expected.iter().map(|&value| square(value)).sum::<f64>()).sqrt()
}

/// The signal-to-noise ratio of `found` in dB, where `expected` is exact; infinite if they are equal.
///
/// # Panics
/// If their lengths differ.
pub fn sqnr_db(found: &[f32], expected: &[f32]) -> f64 {
    -20.0 * relative_distance(found, expected).log10()
}

/// Compares two slices bit for bit. All NaNs count as equal.
///
/// # Panics
/// If the slices differ, or if all elements of a slice of at least 8 are equal.
pub fn assert_same(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (a, b)) in got.iter().zip(want).enumerate() {
        assert!(
            a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()),
            "{what}, element {i}: {a:e}, not {b:e}"
        );
    }
    assert_varied(want, what);
}

/// Checks that the elements of `x` are not all equal.
///
/// # Panics
/// If there are at least 8 elements and all are equal.
pub fn assert_varied<T: PartialEq>(x: &[T], what: &str) {
    assert!(x.len() < 8 || x.iter().any(|v| *v != x[0]), "{what}: all outputs are equal");
}
