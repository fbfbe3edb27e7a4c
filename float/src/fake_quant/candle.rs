//! The simulation in candle's operations, on any device.
//!
//! Codes and their sums are whole numbers in f32, which adds them without rounding up to 2^24. Longer sums
//! are split into parts that are exact.

use candle_core::{D, DType, Device, Result, Tensor};
use swinq_numerics::reference::{CODE_FLOOR, EXP_255, FLOOR, QUADRATIC, QUADRATIC_LAST, QUADRATIC_PER_UNIT};
use swinq_numerics::{AttentionQuant, ColumnQuantizers, Probs, Quantizer};

use super::{EXACT, EXACT_WIDE, LinearInput, matrix_of_codes, multipliers};
use crate::Attention;
use crate::error::FloatError;
use crate::ops::candle::{logits, probs_times_values, round_ties_even, scores as scores_of};
use swinq_model::quantized::Int8Weight;

/// Rounds to whole numbers, ties to even; NaN becomes 0. Magnitudes must be at most 2^22.
fn round(x: &Tensor) -> Result<Tensor> {
    round_ties_even(&x.eq(x)?.where_cond(x, &x.zeros_like()?)?)
}

/// Signed codes of values that are already multiplied by the reciprocal of the scale.
fn round_and_clamp(scaled: &Tensor) -> Result<Tensor> {
    round(&scaled.clamp(-128f32, 127f32)?)
}

/// Codes of `x`.
fn codes(x: &Tensor, q: Quantizer) -> Result<Tensor> {
    round_and_clamp(&times(x, q.recip())?)
}

/// Fake quantization of `x`: codes times the scale.
pub(super) fn fake(x: &Tensor, q: Quantizer) -> Result<Tensor> {
    times(&codes(x, q)?, q.scale())
}

/// Fake quantization of `x` `[rows, columns]` with the quantizer of each column. The product with the
/// reciprocal is rounded before the zero point is added.
pub(super) fn fake_columns(x: &Tensor, columns: &ColumnQuantizers) -> Result<Tensor> {
    let zero_points = vector(columns.zero_points(), x)?;
    let scaled = x.broadcast_mul(&vector(columns.recips(), x)?)?.broadcast_add(&zero_points)?;
    round_and_clamp(&scaled)?.broadcast_sub(&zero_points)?.broadcast_mul(&vector(columns.scales(), x)?)
}

/// `values` on the device of `x`.
fn vector(values: &[f32], x: &Tensor) -> Result<Tensor> {
    Tensor::new(values, x.device())
}

fn times(x: &Tensor, factor: f32) -> Result<Tensor> {
    x.affine(f64::from(factor), 0.0)
}

/// The sum of tensors of whole numbers, rounded to f32 once.
fn sum_of_parts(parts: impl IntoIterator<Item = Result<Tensor>>) -> Result<Tensor> {
    let mut parts = parts.into_iter();
    let first = parts.next().expect("at least one part")?;
    let Some(second) = parts.next() else { return Ok(first) };
    let mut sum = (first.to_dtype(DType::F64)? + second?.to_dtype(DType::F64)?)?;
    for part in parts {
        sum = (sum + part?.to_dtype(DType::F64)?)?;
    }
    sum.to_dtype(DType::F32)
}

/// [`reference::gelu_quadratic`](swinq_numerics::reference::gelu_quadratic), but products are rounded before
/// they are added.
pub(super) fn gelu_quadratic(x: &Tensor) -> Result<Tensor> {
    let a = x.abs()?.clamp(0f32, QUADRATIC_LAST)?;
    let intervals = round(&times(&a, QUADRATIC_PER_UNIT)?)?.to_dtype(DType::U32)?.flatten_all()?;
    let power = |row: usize| vector(&QUADRATIC.0[row], x)?.index_select(&intervals, 0)?.reshape(x.shape());
    let h = ((((power(2)? * &a)? + power(1)?)? * &a)? + power(0)?)?;
    x.relu()? - a * h
}

/// A linear layer on codes, up to its output site.
pub(super) struct QuantizedLinear {
    /// The weight's codes, transposed and split along its inputs: f32 `[up to the input's exact length, out]`
    /// each.
    parts: Vec<Tensor>,
    input: LinearInput,
    /// Factors of the sums, `[out]`. They include the reciprocal of the output's scale if the output is
    /// quantized.
    multipliers: Tensor,
    output: Option<Quantizer>,
}

impl QuantizedLinear {
    pub fn new(
        weight: &Int8Weight,
        input: LinearInput,
        output: Option<Quantizer>,
        device: &Device,
    ) -> Result<QuantizedLinear> {
        let matrix = matrix_of_codes(weight)?;
        let part = |(start, len)| matrix.narrow(1, start, len)?.t()?.contiguous()?.to_device(device);
        let mut multipliers = multipliers(weight, &input);
        if let Some(output) = output {
            multipliers.iter_mut().for_each(|m| *m *= output.recip());
        }
        Ok(QuantizedLinear {
            parts: parts(matrix.dim(1)?, input.exact()).map(part).collect::<Result<_>>()?,
            input,
            multipliers: Tensor::new(multipliers, device)?,
            output,
        })
    }

    /// Runs the layer up to its output site: `[rows, in]` to `[rows, out]`. `x` is the result of the input
    /// site.
    pub fn run(&self, x: &Tensor) -> Result<Tensor> {
        let codes = match &self.input.channels {
            None => codes(x, self.input.quantizer)?,
            // The codes minus their zero points: a value is a scale times such a number.
            Some(columns) => round(&x.broadcast_mul(&vector(columns.recips(), x)?)?)?,
        };
        let scaled = self.sums(&codes)?.broadcast_mul(&self.multipliers)?;
        match self.output {
            Some(output) => times(&round_and_clamp(&scaled)?, output.scale()),
            None => Ok(scaled),
        }
    }

    fn sums(&self, codes: &Tensor) -> Result<Tensor> {
        let width = codes.dim(1)?;
        let part = |((start, len), weight)| codes.narrow(1, start, len)?.contiguous()?.matmul(weight);
        sum_of_parts(parts(width, self.input.exact()).zip(&self.parts).map(part))
    }
}

/// Start and length of each part of `width`.
fn parts(width: usize, longest: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..width).step_by(longest).map(move |start| (start, longest.min(width - start)))
}

/// Attention of every window and head, as [`attention_window`](swinq_numerics::reference::attention_window)
/// defines it.
pub(super) fn attention(
    attention: &Attention<'_>,
    [q, k, v]: &[Tensor; 3],
    quant: &AttentionQuant,
) -> std::result::Result<Tensor, FloatError> {
    let Attention { bias, mask, .. } = attention;
    let scales = attention.scales()?;
    let (scores, factors) = match (quant.q, quant.k) {
        (Some(s_q), Some(s_k)) => {
            let sums = integer_scores(attention, [(q, s_q), (k, s_k)])?;
            let dequantize = s_q.scale() * s_k.scale();
            match quant.scores {
                Some(site) => (fake(&times(&sums, dequantize)?, site)?, scales),
                None => (sums, scales.iter().map(|scale| dequantize * scale).collect()),
            }
        }
        (s_q, s_k) => {
            let scores = scores_of(&fake_if(q, s_q)?, &fake_if(k, s_k)?)?;
            (fake_if(&scores, quant.scores)?, scales)
        }
    };
    let logits = logits(&scores, &factors, bias, *mask)?;
    Ok(softmax_times_values(&logits, v, quant)?)
}

/// The products of codes of queries and keys. Heads with hi and lo codes add the products of codes with lo
/// codes, divided by 256.
fn integer_scores(
    attention: &Attention<'_>,
    [(q, s_q), (k, s_k)]: [(&Tensor, Quantizer); 2],
) -> std::result::Result<Tensor, FloatError> {
    let (q_codes, k_codes) = (codes(q, s_q)?, codes(k, s_k)?);
    let sums = scores_of(&q_codes, &k_codes)?;
    let two: Vec<f32> = attention.head_scores()?.iter().map(|head| f32::from(u8::from(head.hi_lo))).collect();
    if two.iter().all(|&two| two == 0.0) {
        return Ok(sums);
    }
    let low = |x: &Tensor, codes: &Tensor, site: Quantizer| -> Result<Tensor> {
        let rest = times(&(times(x, site.recip())? - codes)?, 256.0)?;
        round(&rest.clamp(-127.0, 127.0)?)
    };
    let with_low =
        (scores_of(&q_codes, &low(k, &k_codes, s_k)?)? + scores_of(&low(q, &q_codes, s_q)?, &k_codes)?)?;
    let shares = Tensor::new(two, q.device())?.affine(1.0 / 256.0, 0.0)?.reshape((1, (), 1, 1))?;
    Ok((sums + with_low.broadcast_mul(&shares)?)?)
}

/// Fake quantization of `x`, if its site is on.
pub(super) fn fake_if(x: &Tensor, q: Option<Quantizer>) -> Result<Tensor> {
    q.map_or(Ok(x.clone()), |q| fake(x, q))
}

/// [`exp_255`](swinq_numerics::reference::exp_255), with products and sums that are rounded separately.
fn exp_255(x: &Tensor) -> Result<Tensor> {
    let exponent = times(x, std::f32::consts::LOG2_E)?;
    let whole = exponent.round()?;
    let rest = (exponent - &whole)?;
    let [low @ .., highest] = &EXP_255;
    let mut sum = rest.affine(0.0, f64::from(*highest))?;
    for &coefficient in low.iter().rev() {
        sum = (sum * &rest)?.affine(1.0, f64::from(coefficient))?;
    }
    sum * times(&whole, std::f32::consts::LN_2)?.exp()?
}

/// Softmax of `logits` times the values, with the quantization of both.
fn softmax_times_values(logits: &Tensor, v: &Tensor, quant: &AttentionQuant) -> Result<Tensor> {
    let below = logits.broadcast_sub(&logits.max_keepdim(D::Minus1)?)?;
    let exps = || below.maximum(FLOOR)?.exp();
    let sum = |x: &Tensor| x.sum_keepdim(D::Minus1);
    match (quant.probs, quant.v) {
        (Probs::Float, site) => {
            let exps = exps()?;
            probs_times_values(&exps, &fake_if(v, site)?)?.broadcast_div(&sum(&exps)?)
        }
        (Probs::U8, site) => {
            let weights = round(&exp_255(&below.maximum(CODE_FLOOR)?)?)?;
            let total = sum(&weights)?;
            match site {
                Some(s_v) => {
                    let factor = (total.affine(0.0, f64::from(s_v.scale()))? / &total)?;
                    sum_of_codes(&weights, &codes(v, s_v)?, EXACT_WIDE)?.broadcast_mul(&factor)
                }
                None => probs_times_values(&weights, v)?.broadcast_div(&total),
            }
        }
        (Probs::S8(s_p), site) => {
            let exps = exps()?;
            let weights = codes(&exps.broadcast_mul(&sum(&exps)?.recip()?)?, s_p)?;
            match site {
                Some(s_v) => {
                    let sums = sum_of_codes(&weights, &codes(v, s_v)?, EXACT)?;
                    times(&sums, s_p.scale() * s_v.scale())
                }
                None => times(&probs_times_values(&weights, v)?, s_p.scale()),
            }
        }
    }
}

/// The exact product of codes: `weights` `[windows, heads, n, n]` times `values` `[windows, heads, n, d]`;
/// `longest` is the length of an exact sum.
fn sum_of_codes(weights: &Tensor, values: &Tensor, longest: usize) -> Result<Tensor> {
    let part =
        |(start, len)| probs_times_values(&weights.narrow(3, start, len)?, &values.narrow(2, start, len)?);
    sum_of_parts(parts(weights.dim(3)?, longest).map(part))
}

#[cfg(test)]
mod tests {
    use swinq_numerics::reference::code;

    use super::*;

    fn values(tensor: &Tensor) -> Vec<f32> {
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    fn quantizer(scale: f32) -> Quantizer {
        Quantizer::new(scale).unwrap()
    }

    #[test]
    fn codes_are_the_references() {
        let mut x: Vec<f32> = (-2700..2700).map(|i| i as f32 * 0.05).collect();
        x.extend((-600..600).map(|i| i as f32 * 0.5));
        x.extend([1e-40, -1e-40, 0.5f32.next_down(), 0.5f32.next_up(), 126.5, 127.5, -127.5, -128.5, 1e30]);
        x.extend([f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN]);
        let tensor = Tensor::new(x.as_slice(), &Device::Cpu).unwrap();
        for q in [1.0, 0.5, 0.037, 3.3e-3, 11.7].map(quantizer) {
            let want: Vec<f32> = x.iter().map(|&x| f32::from(q.code(x))).collect();
            assert_eq!(values(&codes(&tensor, q).unwrap()), want, "scale {}", q.scale());
            let want: Vec<f32> = x.iter().map(|&x| q.fake(x)).collect();
            assert_eq!(values(&fake(&tensor, q).unwrap()), want, "scale {}", q.scale());
        }
    }

    #[test]
    fn unsigned_codes_round_ties_to_even() {
        let x = Tensor::new(&[0f32, 0.5, 1.5, 2.5, 126.5, 253.5, 254.5, 255.0], &Device::Cpu).unwrap();
        assert_eq!(values(&round(&x).unwrap()), [0.0, 0.0, 2.0, 2.0, 126.0, 254.0, 254.0, 255.0]);
    }

    /// A weight with one output channel per code in `of_channels`: `width - 1` such codes, then `last`.
    fn weight(width: usize, of_channels: &[i8], last: i8) -> Int8Weight {
        let mut codes: Vec<i8> = of_channels.iter().flat_map(|&code| vec![code; width]).collect();
        codes.chunks_exact_mut(width).for_each(|row| row[width - 1] = last);
        Int8Weight {
            shape: vec![of_channels.len(), width],
            codes,
            scales: (0..of_channels.len()).map(|i| 0.01 + i as f32).collect(),
        }
    }

    #[test]
    fn sums_beyond_the_range_of_exact_f32_are_rounded_once() {
        // Codes minus their zero points reach 255.
        for (x, channels, zero_point) in [
            (127, [127i8, -127, 1], None),
            (-128, [127, -127, 3], None),
            (255, [127, -127, 1], Some(-128)),
            (-255, [127, -127, 3], Some(127)),
        ] {
            for width in [1, 7, EXACT, EXACT + 1, 3072, 6144] {
                let columns = |z| ColumnQuantizers::channels(0.25, &vec![1.0; width], &vec![z; width]);
                let input =
                    || LinearInput { quantizer: quantizer(0.25), channels: zero_point.and_then(columns) };
                let weight = weight(width, &channels, 126);
                let acts = Tensor::full(x as f32 * 0.25, (2, width), &Device::Cpu).unwrap();
                let sum = |code: i8| x * (i32::from(code) * (width as i32 - 1) + 126);
                let sums = channels.map(sum);
                for output in [None, Some(quantizer(37.0))] {
                    let prepared = QuantizedLinear::new(&weight, input(), output, &Device::Cpu).unwrap();
                    let one = |(i, &sum): (usize, &i32)| {
                        let multiplier = 0.25 * weight.scale(i);
                        match output {
                            None => sum as f32 * multiplier,
                            Some(q) => f32::from(code(sum as f32 * (multiplier * q.recip()))) * q.scale(),
                        }
                    };
                    let want: Vec<f32> = sums.iter().enumerate().map(one).collect();
                    assert_eq!(values(&prepared.run(&acts).unwrap()), want.repeat(2), "{width} times {x}");
                }
            }
        }
    }

    #[test]
    fn products_of_weights_and_values_are_exact_in_parts() {
        let n = 2 * EXACT_WIDE + 3;
        let weights = Tensor::full(255f32, (1, 1, 1, n), &Device::Cpu).unwrap();
        let values_of = Tensor::full(-127f32, (1, 1, n, 2), &Device::Cpu).unwrap();
        let found = values(&sum_of_codes(&weights, &values_of, EXACT_WIDE).unwrap());
        assert_eq!(found, [(-127 * 255 * n as i32) as f32; 2]);
    }
}
