use super::*;
use crate::isa::{Cpu, Isa};
use crate::simd_math::avx512::gelu;

/// Wrong codes and uncertain ones of every f32 as the argument but NaNs.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn wrong_and_uncertain(recip: f32) -> (u64, u64) {
    let fit = Fit::new(recip, INPUT_ERROR).expect("a step of a layer");
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
fn every_step_of_a_layer_has_cubics() {
    for error in [INPUT_ERROR, GREATEST_ERROR] {
        let steps = (0..).map(|i| 1.007f32.powi(i)).take_while(|&recip| recip < 740.0);
        assert!(steps.map(|recip| Fit::new(recip, error)).all(|fit| fit.is_some()));
    }
    for recip in [0.0, -30.0, 0.9, 1000.0, f32::INFINITY, f32::NAN] {
        assert!(Fit::new(recip, INPUT_ERROR).is_none(), "{recip}");
    }
}

#[test]
fn columns_like_a_layers_are_floats() {
    let mut near = 0;
    for i in 0..3000 {
        // Factors from 5e-6 to 5e-4, not of a few bits as a power of two is, and biases of up to 6.
        let factor = f32::from_bits((5e-6 * 1.00154f32.powi(i)).to_bits() | 1);
        let bias = (i * 7919 % 1201) as f32 * 0.01 - 6.0;
        let column =
            float_column(factor, bias, 0.63, 4_000_000).unwrap_or_else(|| panic!("{factor}, {bias}"));
        near += i32::from(column.error <= INPUT_ERROR);
        for acc in [-4_000_000, -4_711, 0, 1, 96, 4_000_000] {
            let float = f64::from(f32::from_bits((acc + column.offset) as u32));
            let got = float * f64::from(factor) + f64::from(column.bias);
            let want = f64::from(acc) * f64::from(factor) + f64::from(bias) - f64::from(0.63f32);
            assert!(
                (got - want).abs() <= column.error + 1e-12,
                "{acc} x {factor} + {bias}: {got}, not {want}"
            );
        }
    }
    assert!(near > 2900, "{near} of 3000 as exact as if converted");
    for (factor, bias) in [(f32::NAN, 0.0), (f32::INFINITY, 0.0), (1e-5, f32::NAN), (1.0, 1e9)] {
        assert!(float_column(factor, bias, 0.63, 1000).is_none(), "{factor}, {bias}");
    }
    assert!(float_column(1e-5, 0.0, 0.63, FLOAT_REACH - 1).is_none(), "no room");
}
