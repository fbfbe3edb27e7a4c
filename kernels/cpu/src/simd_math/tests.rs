//! Compares the vector versions with the reference, bit for bit.

use swinq_numerics::reference;

use crate::cpu::Cpu;
use crate::lanes::{Kernel, Lanes, dispatch};

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
