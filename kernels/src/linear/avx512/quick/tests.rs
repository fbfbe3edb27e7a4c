use super::*;
use crate::isa::Isa;
use crate::simd_math::avx512::gelu;

/// Numbers of wrong codes and of uncertain codes.
#[derive(Debug, Default, PartialEq)]
struct Count {
    wrong: u32,
    uncertain: u64,
}

impl Count {
    /// Adds the counts of 16 arguments.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn add(&mut self, fit: &Fit, registers: &Registers, recip: f32, y: __m512) {
        let w = if fit.is_far() { registers.w::<true>(y, 0) } else { registers.w::<false>(y, 0) };
        // Four times the same half row, of which the first is read.
        let got = _mm512_castsi512_si128(registers.bytes([w; 4]));
        let scaled = _mm512_mul_ps(gelu(y), _mm512_set1_ps(recip));
        let scaled = _mm512_min_ps(_mm512_max_ps(scaled, _mm512_set1_ps(-128.0)), _mm512_set1_ps(127.0));
        let want = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(scaled));
        let differ = _mm_cmpneq_epi8_mask(got, _mm_xor_si128(want, _mm_set1_epi8(-128)));
        let certain = registers.certain(w);
        self.wrong += (differ & certain).count_ones();
        self.uncertain += u64::from((!certain).count_ones());
    }
}

/// The cubics for a reciprocal scale, and their centre before them.
fn fit(recip: f32, input_error: f64) -> Option<(f32, Fit)> {
    let intervals = Intervals::new(recip)?;
    Some((intervals.centre, intervals.fit(input_error)?))
}

/// The constants of an evaluation whose accumulators are GELU's arguments.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn of_arguments(centre: f32, fit: &Fit) -> Registers {
    Registers::new(&[1.0; COLUMNS], &[-centre; COLUMNS], fit)
}

/// Counts over every f32 except NaNs.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn of_every_f32(recip: f32) -> Count {
    let (centre, fit) = fit(recip, INPUT_ERROR).expect("a step of a layer");
    let registers = of_arguments(centre, &fit);
    let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let mut count = Count::default();
    for sign in [0, 1 << 31] {
        for bits in (0..=f32::INFINITY.to_bits()).step_by(16) {
            let infinity = _mm512_set1_epi32(f32::INFINITY.to_bits() as i32);
            let bits = _mm512_min_epu32(_mm512_add_epi32(_mm512_set1_epi32(bits as i32), lanes), infinity);
            let y = _mm512_castsi512_ps(_mm512_or_si512(bits, _mm512_set1_epi32(sign)));
            count.add(&fit, &registers, recip, y);
        }
    }
    count
}

/// Counts over evenly spaced arguments from -9 to beyond the largest code.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn of_a_step(recip: f32) -> Count {
    let (centre, fit) = fit(recip, INPUT_ERROR).expect("a step of a layer");
    let registers = of_arguments(centre, &fit);
    let mut count = Count::default();
    let end = centre + 1.1 * fit.limit;
    for i in 0..20_000 {
        let at = |lane: i32| -9.0 + (end + 9.0) * (16 * i + lane) as f32 / 320_000.0;
        let y: [f32; 16] = std::array::from_fn(|lane| at(lane as i32));
        // SAFETY: 16 values.
        count.add(&fit, &registers, recip, unsafe { _mm512_loadu_ps(y.as_ptr()) });
    }
    count
}

#[test]
fn codes_that_are_certain_are_the_references_for_every_f32() {
    if !Isa::Avx512Vnni.is_available() {
        return;
    }
    // Scales whose intervals end before the largest code and scales whose intervals reach it; without and
    // with a code of -1, down to codes of -126.
    std::thread::scope(|scope| {
        for recips in [[2.0, 2.9, 9.0], [3.0, 30.0, 740.0]] {
            scope.spawn(move || {
                for recip in recips {
                    // SAFETY: the processor has the features, as just checked.
                    let count = unsafe { of_every_f32(recip) };
                    assert_eq!(count.wrong, 0, "reciprocal step {recip}");
                    assert!(count.uncertain > 1000, "reciprocal step {recip}: {count:?}");
                }
            });
        }
    });
}

#[test]
fn every_step_of_a_layer_has_cubics_and_they_hold() {
    let steps = || (0..).map(|i| 1.007f32.powi(i)).take_while(|&recip| recip < 740.0);
    assert!(steps().map(|recip| fit(recip, GREATEST_ERROR)).all(|fit| fit.is_some()));
    if Isa::Avx512Vnni.is_available() {
        for recip in steps() {
            // SAFETY: the processor has the features, as just checked.
            assert_eq!(unsafe { of_a_step(recip) }.wrong, 0, "reciprocal step {recip}");
        }
    }
    for recip in [0.0, -30.0, 0.9, 1000.0, f32::INFINITY, f32::NAN] {
        assert!(fit(recip, INPUT_ERROR).is_none(), "{recip}");
    }
}

#[test]
fn columns_like_a_layers_are_floats() {
    let mut near = 0;
    for i in 0..3000 {
        // Factors from 5e-6 to 5e-4 whose lowest bit is set, unlike powers of two, and biases of magnitude up
        // to 6.
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
