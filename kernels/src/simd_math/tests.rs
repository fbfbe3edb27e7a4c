//! Compares the reference with f64, where the error of a naive f32 implementation sets the bound, and the
//! vector versions with the reference, bit for bit.

use crate::cpu::Cpu;
use crate::lanes::{Kernel, Lanes, dispatch};
use crate::reference;

/// GELU or exp of every value, in place.
struct Function<'a> {
    gelu: bool,
    x: &'a mut [f32],
}

impl Kernel for Function<'_> {
    fn scalar(self) {
        let f = if self.gelu { reference::gelu } else { reference::exp };
        self.x.iter_mut().for_each(|x| *x = f(*x));
    }

    #[inline(always)]
    fn vector<L: Lanes>(self, lanes: L) {
        for x in self.x.chunks_mut(L::N) {
            let value = lanes.load_part(x);
            lanes.store_part(x, if self.gelu { lanes.gelu(value) } else { lanes.exp(value) });
        }
    }
}

fn implementations(gelu: bool, x: &[f32]) -> Vec<(Cpu, Vec<f32>)> {
    let available = Cpu::available();
    eprintln!("implementations: {available:?}");
    let run = |cpu| {
        let mut y = x.to_vec();
        dispatch(cpu, Function { gelu, x: &mut y });
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
    let x = arguments();
    for (name, gelu, reference) in
        [("gelu", true, reference::gelu as fn(f32) -> f32), ("exp", false, reference::exp)]
    {
        for (cpu, y) in implementations(gelu, &x) {
            assert_eq!(y.len(), x.len());
            for (&x, &y) in x.iter().zip(&y) {
                let want = reference(x);
                let same = y.to_bits() == want.to_bits() || (y.is_nan() && want.is_nan());
                assert!(same, "{cpu}: {name}({x:e}) = {y:e}, not {want:e}");
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

#[test]
fn exp_is_within_one_unit_in_the_last_place() {
    for x in grid(-103.9, 88.7, 500_001) {
        let (y, truth) = (reference::exp(x), libm::exp(f64::from(x)));
        let unit = libm::exp2(libm::log2(truth).floor().max(-126.0) - 23.0);
        assert!((f64::from(y) - truth).abs() <= unit, "exp({x}) = {y:e}, not {truth:e}");
    }
}

#[test]
fn limits_and_nans() {
    let inf = f32::INFINITY;
    let gelu = [-inf, -1e30, -104.0, 1e30, inf].map(reference::gelu);
    assert_eq!(gelu, [0.0, 0.0, 0.0, 1e30, inf]);
    assert_eq!([0.0, -0.0].map(|x| reference::gelu(x).to_bits()), [0, 1 << 31]);
    let exp = [-inf, -1e30, -104.0, -0.0, 0.0, 1e30, inf].map(reference::exp);
    assert_eq!(exp, [0.0, 0.0, 0.0, 1.0, 1.0, inf, inf]);
    assert!(reference::gelu(f32::NAN).is_nan() && reference::exp(f32::NAN).is_nan());
}
