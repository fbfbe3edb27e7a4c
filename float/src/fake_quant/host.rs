//! The simulation in host memory, with the reference's functions.

use candle_core::Tensor;
use swinq_numerics::reference::{attention_window, code, epilogue_i8};
use swinq_numerics::{AttentionQuant, Gelu, Quantizer};

use super::{LinearInput, matrix_of_codes, multipliers};
use crate::error::FloatError;
use crate::ops::with_values;
use crate::threads::{map_each, zeros};
use crate::{Attention, LinearWeights};
use swinq_model::quantized::Int8Weight;

/// Rows of a task.
const ROWS: usize = 64;

/// A linear layer on codes.
pub(super) struct QuantizedLinear {
    /// The weight's codes as f32, `[out, in]`.
    codes: Tensor,
    input: LinearInput,
    multipliers: Vec<f32>,
}

impl QuantizedLinear {
    pub fn new(weight: &Int8Weight, input: LinearInput) -> candle_core::Result<QuantizedLinear> {
        Ok(QuantizedLinear {
            codes: matrix_of_codes(weight)?,
            multipliers: multipliers(weight, &input),
            input,
        })
    }

    /// Runs the layer with output site, bias and `gelu`: `[rows, in]` to `[rows, out]`. `x` is the result of
    /// the input site.
    pub fn run(
        &self,
        x: &Tensor,
        layer: &LinearWeights,
        output: Option<Quantizer>,
        gelu: Option<Gelu>,
    ) -> Result<Tensor, FloatError> {
        let (rows, columns) = (x.dim(0)?, self.multipliers.len());
        let sums = exact_product(&codes_of(x, &self.input)?, &self.codes, self.input.exact())?;
        let bias = match &layer.bias {
            Some(bias) => bias.to_vec1::<f32>()?,
            None => vec![0.0; columns],
        };
        let mut values = vec![0.0; sums.len()];
        let finish = |(values, sums): (&mut [f32], &[i32])| {
            let channels = self.multipliers.iter().zip(&bias);
            for ((value, &sum), (&multiplier, &bias)) in values.iter_mut().zip(sums).zip(channels) {
                *value = epilogue_i8(sum, multiplier, bias, output, gelu);
            }
        };
        map_each(values.chunks_mut(ROWS * columns).zip(sums.chunks(ROWS * columns)), |(values, sums)| {
            values.chunks_mut(columns).zip(sums.chunks(columns)).for_each(finish);
        });
        Ok(Tensor::from_vec(values, (rows, columns), x.device())?)
    }
}

/// The codes, minus their zero points, of values that the site `input` has rounded: whole numbers, as f32.
fn codes_of(x: &Tensor, input: &LinearInput) -> Result<Tensor, FloatError> {
    let recip = input.quantizer.recip();
    let part = ROWS * x.dim(1)?;
    let mut codes = zeros(x.elem_count());
    with_values(x, |x| match &input.channels {
        None => map_each(codes.chunks_mut(part).zip(x.chunks(part)), |(codes, x)| {
            codes.iter_mut().zip(x).for_each(|(to, &x)| *to = f32::from(code(x * recip)));
        }),
        // A value is a scale times a whole number of magnitude up to 255, which rounding finds again.
        Some(columns) => map_each(codes.chunks_mut(part).zip(x.chunks(part)), |(codes, x)| {
            let recips = columns.recips().iter().cycle();
            codes.iter_mut().zip(x).zip(recips).for_each(|((to, &x), r)| *to = (x * r).round_ties_even());
        }),
    })?;
    Ok(Tensor::from_vec(codes, x.shape(), x.device())?)
}

/// `codes` `[rows, in]` times `weight` `[out, in]` transposed, exactly: sums of up to `exact` products are
/// exact in f32, and are added as integers.
fn exact_product(codes: &Tensor, weight: &Tensor, exact: usize) -> Result<Vec<i32>, FloatError> {
    let width = codes.dim(1)?;
    let mut sums = vec![0; codes.dim(0)? * weight.dim(0)?];
    for start in (0..width).step_by(exact) {
        let len = exact.min(width - start);
        let [codes, weight] = [codes.narrow(1, start, len)?, weight.narrow(1, start, len)?];
        let part = codes.contiguous()?.matmul(&weight.t()?.contiguous()?)?;
        with_values(&part, |part| sums.iter_mut().zip(part).for_each(|(sum, &part)| *sum += part as i32))?;
    }
    Ok(sums)
}

/// Attention of every window and head, by [`attention_window`].
pub(super) fn attention(
    attention: &Attention<'_>,
    [q, k, v]: &[Tensor; 3],
    quant: &AttentionQuant,
) -> Result<Tensor, FloatError> {
    let (_, heads, n, d) = q.dims4()?;
    let bias = attention.bias.flatten_all()?.to_vec1::<f32>()?;
    let mask = attention.mask.map(|mask| mask.flatten_all()?.to_vec1::<f32>()).transpose()?;
    let heads_scores = attention.head_scores()?;
    let mut out = vec![0.0; q.elem_count()];
    let mut run = |q: &[f32], k: &[f32], v: &[f32]| {
        map_each(out.chunks_mut(n * d).enumerate(), |(index, out)| {
            let part = index * n * d..(index + 1) * n * d;
            let mut bias = bias[index % heads * n * n..][..n * n].to_vec();
            if let Some(mask) = &mask {
                let window = index / heads % (mask.len() / (n * n));
                bias.iter_mut().zip(&mask[window * n * n..]).for_each(|(bias, mask)| *bias += mask);
            }
            attention_window(
                n,
                d,
                (&q[part.clone()], &k[part.clone()], &v[part]),
                heads_scores[index % heads],
                &bias,
                quant,
                out,
            );
        });
    };
    with_values(q, |q| with_values(k, |k| with_values(v, |v| run(q, k, v))))???;
    Ok(Tensor::from_vec(out, q.shape(), q.device())?)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::super::{EXACT, EXACT_WIDE};
    use super::*;

    #[test]
    fn sums_beyond_the_range_of_exact_f32_are_exact() {
        let wide = |rows: usize, value: f32| Tensor::full(value, (rows, 3072), &Device::Cpu).unwrap();
        let mut odd = vec![127.0f32; 3072];
        odd[3071] = 126.0;
        let odd = Tensor::from_vec(odd, (1, 3072), &Device::Cpu).unwrap();
        assert_eq!(exact_product(&wide(2, 127.0), &odd, EXACT).unwrap(), [3072 * 127 * 127 - 127; 2]);
        assert_eq!(exact_product(&wide(1, -128.0), &wide(1, 127.0), EXACT).unwrap(), [-3072 * 128 * 127]);
        let product = exact_product(&wide(1, 255.0), &odd, EXACT_WIDE).unwrap();
        assert_eq!(product, [3072 * 255 * 127 - 255]);
    }
}
