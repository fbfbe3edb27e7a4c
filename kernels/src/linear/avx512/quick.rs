//! Codes of GELU from a cheaper GELU, where they provably are the same.
//!
//! ```text
//! g = max(y, 0) - q(a)             a = min(|y|, last),  q(a) = c0 + a (c1 + a (c2 + a c3)) by 32 intervals of a
//! v = g * recip + 128.5 + margin   as a fixed-point number of 13 fractional bits
//! ```
//! `g` is within [`ERROR`] of the reference's GELU, so that `v - margin` is within `margin` of the product that the
//! reference rounds. Then `floor(v)` is the reference's `code + 128` unless the fraction of `v` is below twice the
//! margin: a pair of rows in which one value's is (a pair in sixty) goes the reference's way.

use std::arch::x86_64::*;
use std::sync::LazyLock;

use super::super::epilogue::Epilogue;
use super::super::spec::Store;
use super::COLUMNS;

/// The greatest difference between `g` and the reference's GELU. Checked for every f32 by a test.
const ERROR: f64 = 5.5e-7;

/// Intervals for each unit of `a`.
const PER_UNIT: f32 = 5.75;

/// `a` at the last interval, to which greater ones are clamped: there `q` is 0, instead of less than [`ERROR`].
const LAST: f32 = 31.0 / PER_UNIT;

/// Fractional bits of `v`.
const FRACTION: u32 = 13;

/// `v` is computed as `2 + v / 2^9`: in [2, 4) the last place of an f32 is 2^-22. The exponent is above the integer part of
/// `v` and ends in zeros there; what is beyond has a greater one, so that it is greater than any code, too.
const SCALE: f32 = 1.0 / 512.0;

/// The margin, in last places of `v`.
const MARGIN: f64 = 1.0;

/// `c0` to `c3` of each interval.
#[repr(C, align(64))]
struct Table([[f32; 32]; 4]);

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let mut table = Table([[0.0; 32]; 4]);
    for i in 0..31 {
        for (row, c) in table.0.iter_mut().zip(cubic(f64::from(i as f32 / PER_UNIT))) {
            row[i] = c as f32;
        }
    }
    table
});

/// The cubic through `a erfc(a / sqrt(2)) / 2` at the Chebyshev points of the interval around `centre`, as
/// coefficients of `a`.
fn cubic(centre: f64) -> [f64; 4] {
    let half = 0.5 / f64::from(PER_UNIT);
    let (low, high) = ((centre - half).max(0.0), centre + half);
    let x = [7.0, 5.0, 3.0, 1.0]
        .map(|i: f64| (low + high) / 2.0 + (high - low) / 2.0 * libm::cos(i * std::f64::consts::PI / 8.0));
    // Newton's divided differences, then multiplied out.
    let mut d = x.map(|a| a * libm::erfc(a * std::f64::consts::FRAC_1_SQRT_2) / 2.0);
    for order in 1..4 {
        for i in (order..4).rev() {
            d[i] = (d[i] - d[i - 1]) / (x[i] - x[i - order]);
        }
    }
    (0..3).rev().fold([d[3], 0.0, 0.0, 0.0], |p, i| {
        [d[i] - x[i] * p[0], p[0] - x[i] * p[1], p[1] - x[i] * p[2], p[2] - x[i] * p[3]]
    })
}

/// Whether the epilogue's codes can be had this way.
pub(in super::super) fn suits(epilogue: &Epilogue) -> bool {
    let Store::Codes(recip) = &epilogue.store else { return false };
    let places = f64::from(1u32 << FRACTION);
    // The rounding of `v`, and that of the reference's product below 128.
    let rounding = 0.5 + 128.0 * places / f64::from(1u32 << 24);
    let near = |&recip: &f32| recip > 1e-30 && ERROR * f64::from(recip) * places + rounding < MARGIN;
    // From below `g` is above -0.2, so that `v` is positive. Tame products of up to 2^30 give `2 + v / 2^9` an exponent
    // whose last five bits stay clear of the sign of a word.
    epilogue.tame && epilogue.gelu && recip[..epilogue.n].iter().all(near)
}

/// What the evaluation takes, in registers.
pub(super) struct Quick {
    table: [[__m512; 2]; 4],
    recip: [__m512; 2],
}

impl Quick {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub(super) fn new(recip: [__m512; 2]) -> Quick {
        // SAFETY: a row is two registers.
        let row =
            |row: &[f32; 32]| unsafe { [_mm512_loadu_ps(row.as_ptr()), _mm512_loadu_ps(row[16..].as_ptr())] };
        let [c0, c1, c2, c3] = &TABLE.0;
        let scale = _mm512_set1_ps(SCALE);
        Quick {
            table: [row(c0), row(c1), row(c2), row(c3)],
            recip: [_mm512_mul_ps(recip[0], scale), _mm512_mul_ps(recip[1], scale)],
        }
    }

    /// `g`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn gelu(&self, y: __m512) -> __m512 {
        let a = _mm512_range_ps::<0b1010>(y, _mm512_set1_ps(LAST));
        // 2^23 rounds to an integer in the low bits.
        let interval = _mm512_fmadd_ps(a, _mm512_set1_ps(PER_UNIT), _mm512_set1_ps(8_388_608.0));
        let interval = _mm512_castps_si512(interval);
        let [c0, c1, c2, c3] = self.table.map(|[low, high]| _mm512_permutex2var_ps(low, interval, high));
        let q = _mm512_fmadd_ps(_mm512_fmadd_ps(_mm512_fmadd_ps(c3, a, c2), a, c1), a, c0);
        _mm512_sub_ps(_mm512_max_ps(_mm512_setzero_ps(), y), q)
    }

    /// `2 + v / 2^9` as bits, of the values `y` of half `half` of the columns; clears the lanes of `sure` whose code is
    /// not certain.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub(super) fn fixed(&self, y: __m512, half: usize, sure: &mut __mmask16) -> __m512i {
        const OFFSET: f32 = 2.0 + SCALE * (128.5 + MARGIN as f32 / (1 << FRACTION) as f32);
        const FAR: i32 = (1 << FRACTION) - 2 * MARGIN as i32;
        let v = _mm512_fmadd_ps(self.gelu(y), self.recip[half], _mm512_set1_ps(OFFSET));
        let v = _mm512_castps_si512(v);
        *sure = _mm512_mask_test_epi32_mask(*sure, v, _mm512_set1_epi32(FAR));
        v
    }
}

/// The codes of two rows, as bytes `code + 128`, one row after the other, from what [`Quick::fixed`] gave for their halves.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn bytes([upper, lower]: [[__m512i; 2]; 2]) -> __m512i {
    // Words: a column of the low half, then one of the high half.
    let words = |[low, high]: [__m512i; 2]| {
        let low = _mm512_srli_epi32::<FRACTION>(low);
        let high = _mm512_slli_epi32::<{ 16 - FRACTION }>(high);
        // Where the mask is set the second, else the first.
        _mm512_ternarylogic_epi32::<0xCA>(_mm512_set1_epi32(!0xffff), high, low)
    };
    let bytes = _mm512_packus_epi16(words(upper), words(lower));
    // In each lane the even bytes of a row, then the odd ones: four columns of the low half, four of the high half.
    let even_odd = _mm512_set4_epi32(0x0f0d_0b09, 0x0e0c_0a08, 0x0705_0301, 0x0604_0200);
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_permutexvar_epi32(order, _mm512_shuffle_epi8(bytes, even_odd))
}

const _: () = assert!(COLUMNS == 32, "a pair of rows is one register of bytes");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::{Cpu, Isa};
    use crate::simd_math::avx512::gelu;

    /// Calls `check` with 16 f32 at a time, so that every f32 but NaNs comes.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn every_f32(mut check: impl FnMut(__m512)) {
        let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        for sign in [0, 1 << 31] {
            for bits in (0..=f32::INFINITY.to_bits()).step_by(16) {
                let bits = _mm512_add_epi32(_mm512_set1_epi32((sign | bits) as i32), lanes);
                let infinity = _mm512_set1_epi32((sign | f32::INFINITY.to_bits()) as i32);
                check(_mm512_castsi512_ps(_mm512_min_epu32(bits, infinity)));
            }
        }
    }

    #[test]
    fn it_is_near_the_references_gelu_for_every_f32() {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
        fn greatest() -> f32 {
            let quick = Quick::new([_mm512_setzero_ps(); 2]);
            let mut greatest = _mm512_setzero_ps();
            every_f32(|y| {
                // Of infinity less itself a NaN, which the maximum passes over.
                let difference = _mm512_abs_ps(_mm512_sub_ps(quick.gelu(y), gelu(y)));
                greatest = _mm512_max_ps(difference, greatest);
            });
            _mm512_reduce_max_ps(greatest)
        }
        if Cpu::with(Isa::Avx512Vnni).is_ok() {
            // SAFETY: the token proves the features.
            let greatest = unsafe { greatest() };
            // The difference itself is rounded.
            assert!(f64::from(greatest) < ERROR * 0.999, "{greatest:e}");
            assert!(f64::from(greatest) > ERROR * 0.5, "{greatest:e}: the bound could be lower");
        }
    }

    #[test]
    fn codes_that_are_sure_are_the_references_for_every_f32() {
        /// Wrong codes and unsure ones, of the tame.
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
        fn wrong_and_unsure(recip: f32) -> (u64, u64) {
            let (mut wrong, mut unsure) = (0, 0);
            let recips = _mm512_set1_ps(recip);
            let quick = Quick::new([recips; 2]);
            let bound = _mm512_set1_ps((1u32 << 30) as f32 / recip);
            every_f32(|y| {
                if _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(_mm512_abs_ps(y), bound) != 0 {
                    return;
                }
                let mut sure = !0;
                let v = [quick.fixed(y, 0, &mut sure), quick.fixed(y, 1, &mut sure)];
                // Twice the low half, twice the high one.
                let got = bytes([v, v]);
                let want = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(gelu(y), recips)));
                let want = _mm512_broadcast_i32x4(_mm_xor_si128(want, _mm_set1_epi8(-128)));
                let differ = _mm512_cmpneq_epi8_mask(got, want);
                let differ = (0..4).fold(0, |all, half| all | (differ >> (16 * half)) as u16);
                wrong += u64::from((differ & sure).count_ones());
                unsure += u64::from((!sure).count_ones());
            });
            (wrong, unsure)
        }
        if Cpu::with(Isa::Avx512Vnni).is_ok() {
            for recip in [7.3, 90.0] {
                // SAFETY: the token proves the features.
                let (wrong, unsure) = unsafe { wrong_and_unsure(recip) };
                assert_eq!(wrong, 0, "step {}", 1.0 / recip);
                assert!(unsure > 1000, "{unsure} unsure of step {}", 1.0 / recip);
            }
        }
    }
}
