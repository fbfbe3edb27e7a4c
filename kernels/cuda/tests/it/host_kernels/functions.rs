//! Compares conversions and the functions of `prelude.cuh` with the reference.

use half::f16;
use swinq_numerics::reference;
use swinq_testing::{Rng, assert_same};

use super::compiler::Compiler;
use super::launch::{bytes, floats, words};
use super::linear::{FAST_GELU_ERROR, gelu};
use super::primitives::{launch, program};

/// The bits of the half nearest to `x`, ties to even.
pub fn nearest_half(x: f32) -> u16 {
    if x.is_nan() { 0x7fff } else { f16::from_f32(x).to_bits() }
}

/// Values of every magnitude, including ties, clamps, limits and NaN.
fn values() -> Vec<f32> {
    let mut rng = Rng(7);
    let mut x: Vec<f32> = (0..4000).map(|_| f32::from_bits(rng.next() as u32)).collect();
    x.extend((0..2000).map(|_| rng.float() * 8.0));
    x.extend((-600..600).map(|i| i as f32 * 0.25));
    x.extend([
        0.0,
        -0.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        2147483648.0,
        -2147483648.0,
        2147483520.0,
        5.6,
        65519.0,
    ]);
    x.extend([
        65520.0,
        65535.0,
        5.96e-8,
        2.98e-8,
        2.99e-8,
        6.1e-5,
        6.09e-5,
        f32::MIN_POSITIVE,
        1e-45,
        -60.0,
        -60.5,
    ]);
    // Values halfway between two halves, and their neighbours.
    for half in (0..0x7bff_u16).step_by(61) {
        let middle = (f16::from_bits(half).to_f32() + f16::from_bits(half + 1).to_f32()) / 2.0;
        x.extend([middle, middle.next_up(), -middle.next_down()]);
    }
    x
}

/// The nearest integer, saturated.
fn nearest_integer(x: f32) -> i32 {
    x.round_ties_even() as i32
}

#[test]
fn conversions_round_as_the_contract_says() {
    let Some(compiler) = Compiler::get() else { return };
    let x = values();
    let launch = launch(&program("conversions", 64), 2, x.len(), &bytes(&x), &vec![0; 24 * x.len()]);
    let got = words(&launch.run(compiler)[1]);
    for (i, (&x, got)) in x.iter().zip(got.as_chunks::<6>().0).enumerate() {
        let half = nearest_half(x);
        assert_eq!(got[0], u32::from(half), "{x:e}");
        let back = f32::from_bits(got[1]);
        assert!(
            back.to_bits() == f16::from_bits(half).to_f32().to_bits() || (back.is_nan() && x.is_nan()),
            "{x:e}"
        );
        assert_eq!(got[2].cast_signed(), nearest_integer(x), "{x:e}");
        assert_eq!(f32::from_bits(got[3]), f32::from(reference::code(x)), "{x:e}");
        let other = values_at(i + 1);
        check_order(x, other, f32::from_bits(got[4]), f32::from_bits(got[5]));
    }
}

/// The value at `i`, wrapping around at the end.
fn values_at(i: usize) -> f32 {
    static VALUES: std::sync::LazyLock<Vec<f32>> = std::sync::LazyLock::new(values);
    VALUES[i % VALUES.len()]
}

fn check_order(a: f32, b: f32, least: f32, largest: f32) {
    if a.is_nan() || b.is_nan() {
        let other = if a.is_nan() { b } else { a };
        for got in [least, largest] {
            assert!(
                got.to_bits() == other.to_bits() || (got.is_nan() && other.is_nan()),
                "{a:e} {b:e}: {got:e}"
            );
        }
        return;
    }
    let mut sorted = [a, b];
    sorted.sort_by(f32::total_cmp);
    assert_eq!([least, largest].map(f32::to_bits), sorted.map(f32::to_bits), "{a:e} {b:e}");
}

#[test]
fn four_codes_are_packed_and_saturated() {
    let Some(compiler) = Compiler::get() else { return };
    let mut x = values();
    x.truncate(x.len() / 4 * 4);
    let n = x.len() / 4;
    let launch = launch(&program("packs", 64), 1, n, &bytes(&x), &vec![0; 12 * n]);
    let got = words(&launch.run(compiler)[1]);
    for (x, got) in x.as_chunks::<4>().0.iter().zip(got.as_chunks::<3>().0) {
        let codes = x.map(|x| reference::code(x).cast_unsigned());
        assert_eq!(got[0].to_le_bytes(), codes, "{x:?}");
        // The second variant does not support NaN.
        for (i, x) in x.iter().enumerate().filter(|(_, x)| !x.is_nan()) {
            assert_eq!(got[1].to_le_bytes()[i], codes[i], "{x:e}");
        }
        let unsigned = x.map(|x| nearest_integer(x).clamp(0, 255) as u8);
        assert_eq!(got[2].to_le_bytes(), unsigned, "{x:?}");
    }
}

#[test]
fn gelu_and_the_exponentials_are_the_reference() {
    let Some(compiler) = Compiler::get() else { return };
    let x = values();
    let launch = launch(&program("functions", 64), 2, x.len(), &bytes(&x), &vec![0; 16 * x.len()]);
    let got = floats(&launch.run(compiler)[1]);
    let column = |i: usize| got.iter().copied().skip(i).step_by(4).collect::<Vec<f32>>();
    let [gelu, quadratic, exp, exp_255] = [0, 1, 2, 3].map(column);
    let want: Vec<f32> = x.iter().map(|&x| reference::gelu(x)).collect();
    assert_same(&gelu, &want, "GELU");
    let want: Vec<f32> = x.iter().map(|&x| reference::gelu_quadratic(x)).collect();
    assert_same(&quadratic, &want, "quadratic GELU");
    // A NaN becomes the floor, as in the reference's comparison `below > FLOOR`.
    let want = x.iter().map(|&x| reference::exp((-x.abs()).max(-60.0)));
    assert_same(&exp, &want.collect::<Vec<f32>>(), "exponential");
    let want = x.iter().map(|&x| reference::exp_255((-x.abs()).max(-11.0)));
    assert_same(&exp_255, &want.collect::<Vec<f32>>(), "255 times the exponential");
}

/// `gelu_fast` stays within its error bound of GELU in f64 for all values. 2^x stays within two units in the
/// last place plus the rounding.
#[test]
fn the_exponential_unit_is_near_the_functions() {
    let Some(compiler) = Compiler::get() else { return };
    let mut x: Vec<f32> = (-60_000..=60_000).map(|i| i as f32 / 5000.0).collect();
    x.extend(values());
    let launch = launch(&program("fast", 64), 2, x.len(), &bytes(&x), &vec![0; 12 * x.len()]);
    let got = words(&launch.run(compiler)[1]);
    for (i, (&x, got)) in x.iter().zip(got.as_chunks::<3>().0).enumerate() {
        let [fast, power] = [got[0], got[1]].map(f32::from_bits);
        let sum = x.to_bits().to_le_bytes().iter().map(|b| u32::from(*b)).sum::<u32>();
        assert_eq!(got[2], sum + i as u32, "{x:e}");
        if x.is_nan() {
            assert!(power.is_nan());
            continue;
        }
        // For infinities the result is the value itself, or zero.
        let want = if x.is_finite() { gelu(x) } else { f64::from(x.max(0.0)) };
        let error = (f64::from(fast) - want).abs();
        let allowed = FAST_GELU_ERROR + want.abs() * 2f64.powi(-24);
        assert!(f64::from(fast) == want || error <= allowed, "GELU of {x:e}: {fast:e}, not {want:e}");
        let want = f64::from(x).exp2();
        let near = (f64::from(power) - want).abs() <= want * 2f64.powi(-21);
        let tiny = want < f64::from(f32::MIN_POSITIVE) * (1.0 + 1e-6) && power == 0.0;
        let huge = want >= f64::from(f32::MAX) && power == f32::INFINITY;
        assert!(near || tiny || huge, "2^{x:e}: {power:e}, not {want:e}");
    }
}
