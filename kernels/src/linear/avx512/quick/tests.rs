use super::*;
use crate::isa::{Cpu, Isa};
use crate::simd_math::avx512::gelu;

/// Wrong codes and uncertain ones of every f32 as the argument but NaNs.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn wrong_and_uncertain(recip: f32) -> (u64, u64) {
    let fit = Fit::new(recip).expect("a step of a layer");
    let registers = Registers::new(&[1.0; COLUMNS], &[-fit.centre; COLUMNS], &fit);
    let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let (mut wrong, mut uncertain) = (0, 0);
    for sign in [0, 1 << 31] {
        for bits in (0..=f32::INFINITY.to_bits()).step_by(16) {
            let infinity = _mm512_set1_epi32(f32::INFINITY.to_bits() as i32);
            let bits = _mm512_min_epu32(_mm512_add_epi32(_mm512_set1_epi32(bits as i32), lanes), infinity);
            let y = _mm512_castsi512_ps(_mm512_or_si512(bits, _mm512_set1_epi32(sign)));
            let w = if fit.is_far() { registers.w::<true>(y, 0) } else { registers.w::<false>(y, 0) };
            // A row, and again.
            let got = _mm512_castsi512_si128(bytes([w; 4]));
            let scaled = _mm512_mul_ps(gelu(y), _mm512_set1_ps(recip));
            let scaled = _mm512_min_ps(_mm512_max_ps(scaled, _mm512_set1_ps(-128.0)), _mm512_set1_ps(127.0));
            let want = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(scaled));
            let differ = _mm_cmpneq_epi8_mask(got, _mm_xor_si128(want, _mm_set1_epi8(-128)));
            let certain = registers.certain(w);
            wrong += u64::from((differ & certain).count_ones());
            uncertain += u64::from((!certain).count_ones());
        }
    }
    (wrong, uncertain)
}

#[test]
fn codes_that_are_certain_are_the_references_for_every_f32() {
    if Cpu::with(Isa::Avx512Vnni).is_err() {
        return;
    }
    // Far and near ones, without and with a code of -1, up to codes of -126.
    std::thread::scope(|scope| {
        for recips in [[2.0, 2.9, 9.0], [3.0, 30.0, 740.0]] {
            scope.spawn(move || {
                for recip in recips {
                    // SAFETY: the token proves the features.
                    let (wrong, uncertain) = unsafe { wrong_and_uncertain(recip) };
                    assert_eq!(wrong, 0, "reciprocal step {recip}");
                    assert!(uncertain > 1000, "{uncertain} uncertain with the reciprocal step {recip}");
                }
            });
        }
    });
}

#[test]
fn an_argument_is_as_exact_of_a_float_as_of_an_integer() {
    for (factor, bias) in [(1e-5, 0.3), (7.5e-5, -2.0), (0.0, 1.0), (3.1e-4, 0.0), (-2e-5, 0.7)] {
        let (offset, constant) = constants(factor, bias, 0.63, true).expect("near enough");
        for acc in [-3_000_000, -4_711, 0, 1, 96, 1_234_567] {
            let float = f64::from(f32::from_bits((acc + offset) as u32));
            let got = float * f64::from(factor) + f64::from(constant);
            let want = f64::from(acc) * f64::from(factor) + f64::from(bias) - f64::from(0.63f32);
            assert!((got - want).abs() <= INPUT_ERROR, "{acc} x {factor} + {bias}: {got}, not {want}");
        }
    }
    for (factor, bias) in [(f32::NAN, 0.0), (f32::INFINITY, 0.0), (1e-5, f32::NAN), (1.0, 1e9)] {
        assert_eq!(constants(factor, bias, 0.63, true), None, "{factor}, {bias}");
    }
}
