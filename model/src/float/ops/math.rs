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
}
