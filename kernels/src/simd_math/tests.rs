//! Compares the reference with f64, where the error of a naive f32 implementation sets the bound, and the
//! vector versions with the reference, bit for bit.

use crate::cpu::Cpu;
use crate::lanes::{Kernel, Lanes, dispatch};
use crate::reference;

/// A function of `reference`.
#[derive(Clone, Copy, Debug)]
enum Of {
    Gelu,
    GeluQuadratic,
    Exp,
    /// In [-11, 0].
    Exp255,
}

impl Of {
    fn reference(self) -> fn(f32) -> f32 {
        match self {
            Of::Gelu => reference::gelu,
            Of::GeluQuadratic => reference::gelu_quadratic,
            Of::Exp => reference::exp,
            Of::Exp255 => reference::exp_255,
        }
    }
}

/// The function of every value, in place.
struct Function<'a> {
    of: Of,
    x: &'a mut [f32],
}

impl Kernel for Function<'_> {
    fn scalar(self) {
        let f = self.of.reference();
        self.x.iter_mut().for_each(|x| *x = f(*x));
    }

    #[inline(always)]
    fn vector<L: Lanes>(self, lanes: L) {
        for x in self.x.chunks_mut(L::N) {
            let value = lanes.load_part(x);
            let value = match self.of {
                Of::Gelu => lanes.gelu(value),
                Of::GeluQuadratic => lanes.gelu_quadratic(value),
                Of::Exp => lanes.exp(value),
                Of::Exp255 => lanes.exp_255(value),
            };
            lanes.store_part(x, value);
        }
    }
}

fn implementations(of: Of, x: &[f32]) -> Vec<(Cpu, Vec<f32>)> {
    let available = Cpu::available();
    eprintln!("implementations: {available:?}");
    let run = |cpu| {
        let mut y = x.to_vec();
        dispatch(cpu, Function { of, x: &mut y });
        (cpu, y)
    };
    available.into_iter().map(run).collect()
}

fn grid(low: f32, high: f32, points: usize) -> Vec<f32> {
    (0..points).map(|i| low + (high - low) * i as f32 / (points - 1) as f32).collect()
}

/// Arguments with every exponent, both signs and every special value, and around every interval of both
/// functions.
fn arguments() -> Vec<f32> {
    let mut x: Vec<f32> = (0..=u32::MAX).step_by(4093).map(f32::from_bits).collect();
    x.extend([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE, f32::MAX, f32::MIN]);
    x.extend(grid(-8.0, 8.0, 400_003));
    x.extend(grid(-110.0, 95.0, 400_003));
    x
}

#[test]
fn vectors_give_the_bits_of_the_reference() {
    let all = arguments();
    let falling: Vec<f32> = all.iter().copied().filter(|x| (-11.0..=0.0).contains(x)).collect();
    let cases = [(Of::Gelu, &all), (Of::GeluQuadratic, &all), (Of::Exp, &all), (Of::Exp255, &falling)];
    for (of, x) in cases {
        for (cpu, y) in implementations(of, x) {
            assert_eq!(y.len(), x.len());
            for (&x, &y) in x.iter().zip(&y) {
                let want = of.reference()(x);
                let same = y.to_bits() == want.to_bits() || (y.is_nan() && want.is_nan());
                assert!(same, "{cpu}: {of:?}({x:e}) = {y:e}, not {want:e}");
            }
        }
    }
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
