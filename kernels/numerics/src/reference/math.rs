//! GELU and the exponential, as sequences of correctly rounded f32 operations. Any implementation that
//! performs the same operations in the same order produces the same bits.
//!
//! ```text
//! gelu(x) = max(x, 0) - a * h(a)      a = |x|,  h(a) = erfc(a / sqrt(2)) / 2
//! exp(x)  = 2^n * p(x - n * ln(2))    n = round(x / ln(2))
//! ```
//! `h` is a polynomial per interval; it goes to zero without cancellation, so that GELU keeps its accuracy in
//! the negative tail. There are two forms ([`Gelu`]). The accurate one has degree 5, and `h` is 0 from |x| =
//! 5.6 on, where `a * h(a)` is below 6.1e-8. The other one has degree 2; its error, at most 6.4e-6, is far
//! below one step of the codes that follow. `p` has degree 6.

/// Coefficients of `h`, one row per power, one column per interval. Column `i` is the Chebyshev interpolant
/// of `h` in `u = a * TAIL_PER_UNIT - i`, |u| <= 1/2; the last column is the zero beyond the range.
pub static TAIL: Tail = Tail([
    [
        0.5,
        0.34967172,
        0.2199347,
        0.12330542,
        0.061193984,
        0.026739392,
        0.010245292,
        0.003431206,
        0.0010019452,
        2.5460735e-04,
        5.6215587e-05,
        1.0771176e-05,
        1.7891792e-06,
        2.5743756e-07,
        3.206436e-08,
        0.0,
    ],
    [
        -0.15407425,
        -0.14300174,
        -0.114333905,
        -0.07874649,
        -0.046720758,
        -0.023878718,
        -0.010513192,
        -0.0039873165,
        -0.0013027145,
        -3.666404e-04,
        -8.88902e-05,
        -1.856479e-05,
        -3.3400177e-06,
        -5.1764283e-07,
        -6.910897e-08,
        0.0,
    ],
    [
        -5.627412e-08,
        0.010664456,
        0.017053215,
        0.01761811,
        0.013937436,
        0.008904283,
        0.0047044107,
        0.0020815807,
        7.7721174e-04,
        2.4606797e-04,
        6.627968e-05,
        1.5224412e-05,
        2.9873802e-06,
        5.014201e-07,
        7.206368e-08,
        0.0,
    ],
    [
        0.0038306334,
        0.0030246568,
        0.0011465198,
        -6.702422e-04,
        -0.0016103124,
        -0.0016198957,
        -0.0011420117,
        -6.253324e-04,
        -2.7676e-04,
        -1.01001664e-04,
        -3.0748597e-05,
        -7.866936e-06,
        -1.7000258e-06,
        -3.1141298e-07,
        -4.848494e-08,
        0.0,
    ],
    [
        -1.5792099e-06,
        -3.7457835e-04,
        -5.05747e-04,
        -3.616156e-04,
        -1.0729597e-04,
        7.89475e-05,
        1.3748322e-04,
        1.1124969e-04,
        6.3428706e-05,
        2.8007264e-05,
        9.954137e-06,
        2.905338e-06,
        7.0477614e-07,
        1.4320635e-07,
        2.4506914e-08,
        0.0,
    ],
    [
        -8.356974e-05,
        -5.609569e-05,
        4.554972e-06,
        4.707939e-05,
        4.847387e-05,
        2.4232442e-05,
        8.821978e-07,
        -9.192569e-06,
        -8.873173e-06,
        -5.2074897e-06,
        -2.2548954e-06,
        -7.6691845e-07,
        -2.1098029e-07,
        -4.7730254e-08,
        -8.973034e-09,
        0.0,
    ],
]);

/// The type of [`TAIL`]: each row is one cache line.
#[repr(C, align(64))]
pub struct Tail(pub [[f32; 16]; 6]);

/// Coefficients of `h` for [`gelu_quadratic`], one row per power of `a`, one column per interval. Column `i`
/// has the least maximal error of `a * h(a)` for `a * QUADRATIC_PER_UNIT` in [i - 1/2, i + 1/2]; the last
/// column is the zero beyond the range.
pub static QUADRATIC: Quadratic = Quadratic([
    [
        0.50000554,
        0.50022376,
        0.501741,
        0.5052982,
        0.51067734,
        0.51658005,
        0.5208077,
        0.5206933,
        0.51367193,
        0.49783164,
        0.472317,
        0.43750107,
        0.3949048,
        0.34690863,
        0.29634175,
        0.2460481,
        0.19851631,
        0.15563014,
        0.11855861,
        0.087774225,
        0.063163646,
        0.044189293,
        0.030061172,
        0.019889515,
        0.012801541,
        0.008016931,
        0.0048859143,
        0.0028983855,
        0.0016738464,
        9.412302e-04,
        5.1542406e-04,
        0.0,
    ],
    [
        -0.3993793,
        -0.40371308,
        -0.41655067,
        -0.43497327,
        -0.4549909,
        -0.47214404,
        -0.48226738,
        -0.4821754,
        -0.4701298,
        -0.44600534,
        -0.4111638,
        -0.36810225,
        -0.31996745,
        -0.27004775,
        -0.22133487,
        -0.17621616,
        -0.13631904,
        -0.10249828,
        -0.07493052,
        -0.053273544,
        -0.036846496,
        -0.024798548,
        -0.01624454,
        -0.010359449,
        -0.00643286,
        -0.0038903845,
        -0.0022918032,
        -0.0013153115,
        -7.355476e-04,
        -4.0085064e-04,
        -2.1291111e-04,
        0.0,
    ],
    [
        0.00980944,
        0.031609684,
        0.05899371,
        0.08292333,
        0.10157737,
        0.11405103,
        0.12011425,
        0.120136626,
        0.114968985,
        0.10578121,
        0.09388406,
        0.08056658,
        0.06696608,
        0.05398427,
        0.04225123,
        0.032131165,
        0.02375826,
        0.017089851,
        0.011964408,
        0.008155231,
        0.005413907,
        0.0035013244,
        0.0022064913,
        0.0013552128,
        8.1138103e-04,
        4.736108e-04,
        2.6956052e-04,
        1.4961728e-04,
        8.099251e-05,
        4.2764863e-05,
        2.2026528e-05,
        0.0,
    ],
]);

/// The type of [`QUADRATIC`]: each row is two cache lines.
#[repr(C, align(64))]
pub struct Quadratic(pub [[f32; 32]; 3]);

/// Intervals of [`QUADRATIC`] per unit of `a`.
pub const QUADRATIC_PER_UNIT: f32 = 6.5;

/// `a` at the last column, to which larger values are clamped.
pub const QUADRATIC_LAST: f32 = 4.769_231;

/// Intervals of [`TAIL`] per unit of `a`.
pub const TAIL_PER_UNIT: f32 = 2.589_285_6;

/// `a` at the last column, to which larger values are clamped.
pub const TAIL_LAST: f32 = 5.793_103_7;

/// 2^23: adding it rounds a small non-negative f32 to an integer, held in the low bits of the sum.
pub const ROUNDER: f32 = 8_388_608.0;

/// `p` of `exp`, lowest power first: least maximal relative error over [-ln(2) / 2, ln(2) / 2].
pub const EXP: [f32; 7] = [1.0, 1.0, 0.499_999_9, 0.166_664_2, 0.041_668_23, 0.008_374_857, 0.001_383_679_2];

/// 1.5 * 2^23: adding it rounds an f32 of magnitude below 2^22 to an integer, held in the low bits of the
/// sum.
pub const SIGNED_ROUNDER: f32 = 12_582_912.0;

/// `p` of [`exp_255`], lowest power first: least maximal relative error of `255 * 2^f` over [-1/2, 1/2].
pub const EXP_255: [f32; 5] = [254.999_82, 176.746_06, 61.263_1, 14.259_054, 2.440_376];

/// The leading bits of ln(2): its product with any exponent of an f32 is exact.
pub const LN2_HIGH: f32 = 0.693_359_4;

/// The remaining bits of ln(2).
pub const LN2_LOW: f32 = -0.000_212_194_44;

/// Arguments below this range give 0, arguments above it give infinity.
pub const EXP_RANGE: (f32, f32) = (-104.0, 89.0);

/// `a * b + c`, rounded once.
///
/// Where the processor's instruction is not enabled, `f32::mul_add` calls the C runtime, and that of
/// mingw-w64 rounds twice.
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(all(windows, target_env = "gnu")) { libm::fmaf(a, b, c) } else { a.mul_add(b, c) }
}

/// GELU by the error function, `x / 2 * (1 + erf(x / sqrt(2)))` (Hendrycks and Gimpel, 2016).
///
/// ```text
/// a = min(|x|, last)          s = fma(a, per_unit, 2^23)        i = low 4 bits of s
/// u = fma(a, per_unit, -(s - 2^23))
/// h = c5[i];  h = fma(h, u, ck[i]) for k = 4 to 0
/// y = fma(-a, h, max(x, 0))
/// ```
/// Its error is at most twice that of `0.5 * x * (1 + erff(x / sqrt(2)))` in f32. A NaN stays a NaN; the
/// limits at the infinities are 0 and infinity; a zero keeps its sign.
#[inline(always)]
pub fn gelu(x: f32) -> f32 {
    let (a, h) = tail(x);
    let positive = if 0.0 > x { 0.0 } else { x };
    fma(-a, h, positive)
}

/// The form of GELU that a layer computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Gelu {
    /// [`gelu`]: by the error function, up to f32 roundings.
    Erf,
    /// [`gelu_quadratic`]: for values that are quantized next.
    Quadratic,
}

impl Gelu {
    /// GELU of `x` in this form.
    #[inline(always)]
    pub fn of(self, x: f32) -> f32 {
        match self {
            Gelu::Erf => gelu(x),
            Gelu::Quadratic => gelu_quadratic(x),
        }
    }
}

/// GELU with an absolute error of at most 6.4e-6, for values that are quantized next: a step of their codes
/// is some thousand times larger.
///
/// ```text
/// a = min(|x|, last)          i = low 5 bits of fma(a, per_unit, 2^23)
/// h = fma(fma(c2[i], a, c1[i]), a, c0[i])
/// y = fma(-a, h, max(x, 0))
/// ```
/// A NaN stays a NaN; the limits at the infinities are 0 and infinity; a zero keeps its sign.
#[inline(always)]
pub fn gelu_quadratic(x: f32) -> f32 {
    let magnitude = x.abs();
    let a = if magnitude < QUADRATIC_LAST { magnitude } else { QUADRATIC_LAST };
    let column = (fma(a, QUADRATIC_PER_UNIT, ROUNDER).to_bits() & 31) as usize;
    let [c0, c1, c2] = QUADRATIC.0.map(|row| row[column]);
    let h = fma(fma(c2, a, c1), a, c0);
    let positive = if 0.0 > x { 0.0 } else { x };
    fma(-a, h, positive)
}

/// The derivative of [`gelu`]: `P(x) + x p(x)`, with the standard normal distribution `P` and its density
/// `p`, up to a few f32 roundings. It is for training and not part of the contract.
#[inline(always)]
pub fn gelu_derivative(x: f32) -> f32 {
    let (_, h) = tail(x);
    let distribution = if x > 0.0 { 1.0 - h } else { h };
    fma(x, INVERSE_SQRT_TAU * exp(-0.5 * x * x), distribution)
}

/// `1 / sqrt(2 pi)`.
pub const INVERSE_SQRT_TAU: f32 = 0.398_942_3;

/// `a = min(|x|, last)` and `h(a)`.
#[inline(always)]
pub fn tail(x: f32) -> (f32, f32) {
    let magnitude = x.abs();
    let a = if magnitude < TAIL_LAST { magnitude } else { TAIL_LAST };
    let sum = fma(a, TAIL_PER_UNIT, ROUNDER);
    let u = fma(a, TAIL_PER_UNIT, -(sum - ROUNDER));
    let column = (sum.to_bits() & 15) as usize;
    let [low @ .., highest] = &TAIL.0;
    (a, low.iter().rev().fold(highest[column], |h, row| fma(h, u, row[column])))
}

/// `e^x`, within one unit in the last place (one subnormal step where the result is subnormal).
///
/// ```text
/// x = min(max(x, -104), 89)   n = round_ties_even(x * log2(e))
/// r = fma(-n, ln2_low, fma(-n, ln2_high, x))
/// p = c6;  p = fma(p, r, ck) for k = 5 to 0
/// y = p * 2^n                 rounded once
/// ```
/// 0 below -104 and infinity above 89; a NaN stays a NaN.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    if x.is_nan() {
        return x;
    }
    let x = x.clamp(EXP_RANGE.0, EXP_RANGE.1);
    let n = super::rint(x * std::f32::consts::LOG2_E);
    let r = fma(-n, LN2_LOW, fma(-n, LN2_HIGH, x));
    let [low @ .., highest] = &EXP;
    let p = low.iter().rev().fold(*highest, |p, &c| fma(p, r, c));
    // Split 2^n into two factors that do not underflow or overflow unless the product does; the first product
    // is exact.
    let (n, half) = (n as i32, n as i32 >> 1);
    p * power_of_two(half) * power_of_two(n - half)
}

/// `255 e^x` for x in [-11, 0], within a relative error of 3e-6: the weights of attention before they are
/// rounded to codes, which it changes by less than 0.001 of a code.
///
/// ```text
/// s = fma(x, log2(e), 1.5 * 2^23)     n = s - 1.5 * 2^23
/// f = fma(x, log2(e), -n)
/// p = c4;  p = fma(p, f, ck) for k = 3 to 0
/// y = p * 2^n                         exact
/// ```
#[inline(always)]
pub fn exp_255(x: f32) -> f32 {
    let sum = fma(x, std::f32::consts::LOG2_E, SIGNED_ROUNDER);
    let f = fma(x, std::f32::consts::LOG2_E, -(sum - SIGNED_ROUNDER));
    let [low @ .., highest] = &EXP_255;
    let p = low.iter().rev().fold(*highest, |p, &c| fma(p, f, c));
    // The low bits of the sum are n, which is added to the exponent of p.
    f32::from_bits(p.to_bits().wrapping_add(sum.to_bits() << 23))
}

/// `2^n` for n in [-126, 127].
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(((n + 127) << 23).cast_unsigned())
}
