//! Scalar functions that compile to vector code inside [`vectorised`].

/// Runs `f` compiled for the best instruction set of this processor. What `f` calls must be `#[inline(always)]` to
/// be compiled so too.
#[inline]
pub(super) fn vectorised<R>(f: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(f)
}

/// `e^x`, within 2 units in the last place for `x` in [-87, 88]; smaller `x` give at most `e^-87`.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let x = x.clamp(-87.0, 88.0);
    let n = x.mul_add(std::f32::consts::LOG2_E, ROUND) - ROUND;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x));
    // Taylor's series: |r| <= ln(2) / 2, so the first term left out is below 6e-9.
    let p = r.mul_add(1.0 / 5040.0, 1.0 / 720.0);
    let p = r.mul_add(p, 1.0 / 120.0);
    let p = r.mul_add(p, 1.0 / 24.0);
    let p = r.mul_add(p, 1.0 / 6.0);
    let p = r.mul_add(p, 0.5);
    let p = r.mul_add(p, 1.0);
    let p = r.mul_add(p, 1.0);
    p * f32::from_bits((((n + ROUND).to_bits() & 0x1ff).wrapping_add(127) & 0xff) << 23)
}

/// `x / 2 * (1 + erf(x / sqrt 2))`, with an error below `4e-7 |x|`.
///
/// erfc by Abramowitz and Stegun, "Handbook of Mathematical Functions", 7.1.26.
#[inline(always)]
pub(super) fn gelu(x: f32) -> f32 {
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / z.mul_add(0.327_591_1, 1.0);
    let p = t.mul_add(1.061_405_4, -1.453_152);
    let p = t.mul_add(p, 1.421_413_7);
    let p = t.mul_add(p, -0.284_496_72);
    let p = t.mul_add(p, 0.254_829_6);
    let half_erfc = 0.5 * t * p * exp(-z * z);
    x * if x < 0.0 { half_erfc } else { 1.0 - half_erfc }
}

/// Sum in 16 independent lanes, combined in a fixed order.
#[inline(always)]
pub(super) fn sum(values: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; 16];
    let chunks = values.chunks_exact(16);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane += f(value);
        }
    }
    for (lane, &value) in lanes.iter_mut().zip(rest) {
        *lane += f(value);
    }
    lanes.iter().sum()
}

/// The largest value, in 16 independent lanes; NaN values are passed over.
#[inline(always)]
pub(super) fn max(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; 16];
    let chunks = values.chunks_exact(16);
    let rest = chunks.remainder();
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, value);
        }
    }
    for (lane, &value) in lanes.iter_mut().zip(rest) {
        *lane = larger(*lane, value);
    }
    lanes.into_iter().fold(f32::NEG_INFINITY, larger)
}

#[cfg(test)]
mod tests {
    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        for i in -86_999..=87_999 {
            let x = i as f32 * 1e-3;
            let (got, want) = (super::exp(x), f64::from(x).exp());
            let error = (f64::from(got) - want).abs() / want;
            assert!(error < 2.0 * f64::from(f32::EPSILON), "exp({x}) = {got}, not {want}");
        }
        assert!(super::exp(f32::NEG_INFINITY) < 1e-37);
        assert!(super::exp(f32::NAN).is_nan());
    }

    #[test]
    fn gelu_is_accurate_relative_to_its_argument() {
        for i in -12_000..=12_000 {
            let x = i as f32 * 1e-3;
            let want = libm_gelu(f64::from(x));
            let error = (f64::from(super::gelu(x)) - want).abs();
            assert!(error <= 4e-7 * f64::from(x.abs()) + 1e-30, "gelu({x}) is off by {error}");
        }
        assert!(super::gelu(f32::NAN).is_nan());
    }

    /// GELU by the Maclaurin series of erf, which converges fast enough for the arguments tested.
    fn libm_gelu(x: f64) -> f64 {
        let z = (x.abs() / std::f64::consts::SQRT_2).min(6.0);
        let (mut term, mut erf) = (z, z);
        for n in 1..200 {
            term *= -z * z / f64::from(n);
            erf += term / f64::from(2 * n + 1);
        }
        let erf = (erf * std::f64::consts::FRAC_2_SQRT_PI).copysign(x);
        if z > 4.5 { if x < 0.0 { 0.0 } else { x } } else { 0.5 * x * (1.0 + erf) }
    }
}
