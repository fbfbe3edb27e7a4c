//! GELU and the exponential on vector registers, for the epilogues and attention of each instruction set.
//!
//! Both are inlined into loops that hold their constants in registers.
//!
//! ```text
//! gelu(x) = max(x, 0) - a * h(a)      a = |x|,  h(a) = erfc(a / sqrt(2)) / 2
//! exp(x)  = 2^n * p(x - n * ln(2))    n = round(x / ln(2))
//! ```
//! `h` is a polynomial per interval; it goes to zero without cancellation, so that GELU keeps its accuracy in the
//! negative tail. From |x| = 5.6 on `h` is 0, where `a * h(a)` is below 6.1e-8. `p` has degree 6.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;

/// `p` of `exp`, lowest power first: least maximal relative error over [-ln(2) / 2, ln(2) / 2].
#[cfg(target_arch = "x86_64")]
const EXP: [f32; 7] = [1.0, 1.0, 0.499_999_9, 0.166_664_2, 0.041_668_23, 0.008_374_857, 0.001_383_679_2];

/// The leading bits of ln(2): its product with any exponent of an f32 is exact.
#[cfg(target_arch = "x86_64")]
const LN2_HIGH: f32 = 0.693_359_4;

/// What is left of ln(2).
#[cfg(target_arch = "x86_64")]
const LN2_LOW: f32 = -0.000_212_194_44;

/// Arguments outside these give 0 and infinity.
#[cfg(target_arch = "x86_64")]
const EXP_RANGE: (f32, f32) = (-104.0, 89.0);

/// 2^23: adding it rounds a small non-negative f32 to an integer, held in the low bits of the sum.
#[cfg(target_arch = "x86_64")]
const ROUNDER: f32 = 8_388_608.0;

/// Coefficients of `h`, one row per power, one column per interval. Column `i` is the Chebyshev interpolant of `h` in
/// `u = a * per_unit - i`, |u| <= 1/2; the last column is the zero beyond the range.
#[cfg(target_arch = "x86_64")]
#[repr(C, align(64))]
struct Tail<const COLUMNS: usize, const POWERS: usize> {
    powers: [[f32; COLUMNS]; POWERS],
    per_unit: f32,
    /// `a` at the last column, to which greater ones are clamped.
    last: f32,
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests;
