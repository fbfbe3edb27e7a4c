//! GELU and its codes in packed halves, with an f16 residual: for which scales, and the constants of the
//! kernels.

use half::f16;

/// Reciprocals of the scale of codes without a zero point for which GELU may be in halves: no code is less
/// than -128 (GELU is -0.17 at least), and the reciprocal is a normal f16.
const RECIPS: std::ops::RangeInclusive<f32> = 1e-3..=750.0;
/// The same for codes with zero points, which are clamped to -128.
const CHANNEL_RECIPS: std::ops::RangeInclusive<f32> = 1e-3..=65504.0;
/// The last place of a half from 1024 to 2048 is 1, so that adding this much rounds a half to a whole number.
const ROUNDING: f32 = 1536.0;
/// GELU in halves takes half of its argument.
const ARGUMENT: f32 = 0.5;

/// Whether codes with these reciprocals and no zero points may be computed in halves.
pub(super) fn suits(recips: &[f32]) -> bool {
    recips.iter().all(|recip| RECIPS.contains(recip))
}

/// Whether codes with these reciprocals and with zero points may be computed in halves.
pub(super) fn suits_channels(recips: &[f32]) -> bool {
    recips.iter().all(|recip| CHANNEL_RECIPS.contains(recip))
}

/// Rewrites the factor and the bias of a column for GELU in halves. It does not pass on a NaN, so a column
/// with a NaN gets zeros, because the code of a NaN is 0.
pub(super) fn argument(factor: &mut f32, bias: &mut f32) {
    let number = !factor.is_nan() && !bias.is_nan();
    (*factor, *bias) = if number { (ARGUMENT * *factor, ARGUMENT * *bias) } else { (0.0, 0.0) };
}

/// The `HalfCodes` of every two columns, as bits in floats: two reciprocals in a word, then 1536 plus the two
/// zero points. A missing last column counts as zeros.
pub fn half_codes(recips: &[f32], zero_points: &[f32]) -> Vec<f32> {
    assert_eq!(recips.len(), zero_points.len(), "half codes: quantizers");
    let word = |pair: &[f32], add: f32| {
        let half = |i: usize| u32::from(f16::from_f32(pair.get(i).map_or(0.0, |x| x + add)).to_bits());
        f32::from_bits(half(0) | half(1) << 16)
    };
    let pairs = recips.chunks(2).zip(zero_points.chunks(2));
    pairs.flat_map(|(recips, zeros)| [word(recips, 0.0), word(zeros, ROUNDING)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_codes_are_pairs_of_reciprocals_and_of_rounding_zero_points() {
        let words: Vec<u32> =
            half_codes(&[1.0, 2.0, 0.5], &[0.0, -128.0, 127.0]).iter().map(|x| x.to_bits()).collect();
        // 1.0 is 0x3c00, 1536 is 0x6600, and the last place of both zero points is 1.
        assert_eq!(words, [0x4000_3c00, 0x6580_6600, 0x0000_3800, 0x0000_667f]);
    }
}
