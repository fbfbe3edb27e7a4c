//! Compares the transcendental functions with f64, where the error of a naive f32 implementation sets the
//! bound.

use swinq_numerics::reference;

fn grid(low: f32, high: f32, points: usize) -> Vec<f32> {
    (0..points).map(|i| low + (high - low) * i as f32 / (points - 1) as f32).collect()
}

#[test]
fn gelu_errs_no_more_than_twice_a_naive_one_anywhere() {
    let x = grid(-8.0, 8.0, 400_003);
    let truth = |x: f32| 0.5 * f64::from(x) * libm::erfc(-f64::from(x) * std::f64::consts::FRAC_1_SQRT_2);
    let naive = |x: f32| 0.5 * x * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2));
    for x in x.chunks(10_000) {
        let worst =
            |f: fn(f32) -> f32| x.iter().map(|&x| (f64::from(f(x)) - truth(x)).abs()).fold(0.0, f64::max);
        let (ours, naive) = (worst(reference::gelu), worst(naive));
        assert!(ours <= 2.0 * naive + 1e-12, "from {}: {ours:e} against {naive:e}", x[0]);
    }
}

/// The bound that docs/inference.md states. A step of the codes is some thousand times larger.
#[test]
fn quadratic_gelu_errs_by_less_than_its_bound_anywhere() {
    let truth = |x: f32| 0.5 * f64::from(x) * libm::erfc(-f64::from(x) * std::f64::consts::FRAC_1_SQRT_2);
    let error = |x: &f32| (f64::from(reference::gelu_quadratic(*x)) - truth(*x)).abs();
    let worst = grid(-8.0, 8.0, 2_000_003).iter().map(error).fold(0.0, f64::max);
    assert!((6e-6..6.4e-6).contains(&worst), "{worst:e}");
    // Exact from the last interval on.
    for x in [4.7f32, 5.0, 1e6, f32::MAX] {
        assert_eq!((reference::gelu_quadratic(x), reference::gelu_quadratic(-x)), (x, 0.0));
    }
}

#[test]
fn exp_is_within_one_unit_in_the_last_place() {
    for x in grid(-103.9, 88.7, 500_001) {
        let (y, truth) = (reference::exp(x), libm::exp(f64::from(x)));
        let unit = libm::exp2(libm::log2(truth).floor().max(-126.0) - 23.0);
        assert!((f64::from(y) - truth).abs() <= unit, "exp({x}) = {y:e}, not {truth:e}");
    }
}

#[test]
fn exp_255_errs_by_less_than_its_bound() {
    let error = |&x: &f32| f64::from(reference::exp_255(x)) / (255.0 * libm::exp(f64::from(x))) - 1.0;
    let worst = grid(-11.0, 0.0, 500_001).iter().map(|x| error(x).abs()).fold(0.0, f64::max);
    assert!((2.5e-6..3e-6).contains(&worst), "{worst:e}");
    assert_eq!([0.0, -0.0, -11.0].map(|x| libm::rintf(reference::exp_255(x))), [255.0, 255.0, 0.0]);
}

/// The sums lie close to the middle between two numbers of f32, and rounding them to f64 first gives the
/// middle.
#[test]
fn fma_is_rounded_once() {
    let (square, tiny) = (1.0 + 2f32.powi(-12), 2f32.powi(-60));
    let below = 1.0 + 2f32.powi(-11);
    assert_eq!([tiny, -tiny].map(|c| reference::fma(square, square, c)), [below.next_up(), below]);
}

#[test]
fn limits_and_nans() {
    let inf = f32::INFINITY;
    for gelu in [reference::gelu, reference::gelu_quadratic] {
        assert_eq!([-inf, -1e30, -104.0, 1e30, inf].map(gelu), [0.0, 0.0, 0.0, 1e30, inf]);
        assert_eq!([0.0, -0.0].map(|x| gelu(x).to_bits()), [0, 1 << 31]);
        assert!(gelu(f32::NAN).is_nan());
    }
    let exp = [-inf, -1e30, -104.0, -0.0, 0.0, 1e30, inf].map(reference::exp);
    assert_eq!(exp, [0.0, 0.0, 0.0, 1.0, 1.0, inf, inf]);
    assert!(reference::exp(f32::NAN).is_nan());
}
