//! Against f64 truth, with the error of a naive f32 implementation as the measure.

use std::arch::x86_64::*;

use crate::isa::{Cpu, Isa};
use crate::reference;

/// `f` of every value, by the vector functions of `cpu`; `None` when it has none.
fn vector(cpu: Cpu, gelu: bool, x: &[f32]) -> Option<Vec<f32>> {
    #[target_feature(enable = "avx512f")]
    fn avx512(gelu: bool, x: &[f32]) -> Vec<f32> {
        let lanes = |x: &[f32]| {
            let mut lanes = [0.0f32; 16];
            lanes[..x.len()].copy_from_slice(x);
            // SAFETY: both arrays hold 16 f32.
            unsafe {
                let x = _mm512_loadu_ps(lanes.as_ptr());
                let y = if gelu { super::avx512::gelu(x) } else { super::avx512::exp(x) };
                _mm512_storeu_ps(lanes.as_mut_ptr(), y);
            }
            lanes.into_iter().take(x.len())
        };
        x.chunks(16).flat_map(lanes).collect()
    }
    #[target_feature(enable = "avx2,fma")]
    fn avx2(gelu: bool, x: &[f32]) -> Vec<f32> {
        let lanes = |x: &[f32]| {
            let mut lanes = [0.0f32; 8];
            lanes[..x.len()].copy_from_slice(x);
            // SAFETY: both arrays hold 8 f32.
            unsafe {
                let x = _mm256_loadu_ps(lanes.as_ptr());
                let y = if gelu { super::avx2::gelu(x) } else { super::avx2::exp(x) };
                _mm256_storeu_ps(lanes.as_mut_ptr(), y);
            }
            lanes.into_iter().take(x.len())
        };
        x.chunks(8).flat_map(lanes).collect()
    }
    match cpu.isa() {
        Isa::Scalar => None,
        // SAFETY: the token proves AVX2 and FMA.
        Isa::Avx2 | Isa::AvxVnni => Some(unsafe { avx2(gelu, x) }),
        // SAFETY: the token proves AVX-512 F.
        Isa::Avx512Vnni => Some(unsafe { avx512(gelu, x) }),
    }
}

fn implementations(gelu: bool, x: &[f32]) -> Vec<(Isa, Vec<f32>)> {
    let all: Vec<_> =
        Cpu::available().into_iter().filter_map(|cpu| Some((cpu.isa(), vector(cpu, gelu, x)?))).collect();
    eprintln!("implementations: {:?}", all.iter().map(|(isa, _)| isa.name()).collect::<Vec<_>>());
    all
}

fn grid(low: f32, high: f32, points: usize) -> Vec<f32> {
    (0..points).map(|i| low + (high - low) * i as f32 / (points - 1) as f32).collect()
}

#[test]
fn gelu_errs_no_more_than_twice_the_reference_anywhere() {
    let x = grid(-8.0, 8.0, 400_003);
    let truth = |x: f32| 0.5 * f64::from(x) * libm::erfc(-f64::from(x) * std::f64::consts::FRAC_1_SQRT_2);
    for (isa, y) in implementations(true, &x) {
        for (xs, ys) in x.chunks(10_000).zip(y.chunks(10_000)) {
            let worst = |y: &dyn Fn(usize) -> f32| {
                (0..xs.len()).map(|i| (f64::from(y(i)) - truth(xs[i])).abs()).fold(0.0, f64::max)
            };
            let (ours, naive) = (worst(&|i| ys[i]), worst(&|i| reference::gelu(xs[i])));
            assert!(ours <= 2.0 * naive + 1e-12, "{isa} from {}: {ours:e} against {naive:e}", xs[0]);
        }
    }
}

#[test]
fn exp_is_within_one_unit_in_the_last_place() {
    let x = grid(-87.3, 88.7, 500_001);
    for (isa, y) in implementations(false, &x) {
        for (&x, &y) in x.iter().zip(&y) {
            let truth = libm::exp(f64::from(x));
            let unit = f64::from(f32::EPSILON) * libm::exp2(libm::log2(truth).floor());
            assert!((f64::from(y) - truth).abs() <= unit, "{isa}: exp({x}) = {y:e}, not {truth:e}");
        }
    }
}

#[test]
fn limits_and_nans() {
    let inf = f32::INFINITY;
    let x = [-inf, -1e30, -104.0, -100.0, 0.0, 1e30, inf, f32::NAN, -0.0];
    for (isa, y) in implementations(true, &x) {
        assert_eq!(y[..3], [0.0; 3], "{isa}");
        assert_eq!((y[4], y[5], y[6], y[8]), (0.0, 1e30, inf, 0.0), "{isa}");
        assert!(y[7].is_nan(), "{isa}");
    }
    for (isa, y) in implementations(false, &x) {
        assert_eq!(y[..3], [0.0; 3], "{isa}");
        let ratio = f64::from(y[3]) / libm::exp(-100.0);
        assert!((ratio - 1.0).abs() < 0.05, "{isa}: subnormal {:e}", y[3]);
        assert_eq!((y[4], y[5], y[6], y[8]), (1.0, inf, inf, 1.0), "{isa}");
        assert!(y[7].is_nan(), "{isa}");
    }
}
