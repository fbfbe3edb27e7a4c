//! Fake quantization with a fixed scale.

use candle_core::{Result, Tensor, bail};
use swinq_numerics::{ColumnQuantizers, Quantizer};

use super::{Pass, each_part, each_row, row, vectorised};

/// The fake-quantized value of `x`, `code(x) * scale`, computed without a branch.
#[inline(always)]
pub(in crate::ops) fn rounded(x: f32, scale: f32, recip: f32) -> f32 {
    let code = (x * recip).clamp(-128.0, 127.0).round_ties_even() * scale;
    if code.is_nan() { 0.0 } else { code }
}

/// Fake quantization of a tensor of any shape: `code(x) * scale`; NaN becomes 0.
///
/// # Errors
/// The tensor is not in host memory.
pub fn fake_quantize(x: &Tensor, quantizer: Quantizer) -> Result<Tensor> {
    let (scale, recip) = (quantizer.scale(), quantizer.recip());
    Pass::new("fake_quantize", x.shape(), |arguments: &[&[f32]], out: &mut [f32]| {
        each_part(out, 1, |range, out| {
            let x = &arguments[0][range];
            vectorised(
                #[inline(always)]
                || {
                    // Local copies: the compiler would load captured references again for each value.
                    let (scale, recip) = (scale, recip);
                    for (out, &x) in out.iter_mut().zip(x) {
                        *out = rounded(x, scale, recip);
                    }
                },
            );
        });
    })
    .on(&[x])
}

/// Fake quantization of rows: every column of `x` `[rows, columns]` with its own quantizer. The code of a NaN
/// is 0.
///
/// # Errors
/// The tensor is not in host memory, or has another number of columns.
pub fn fake_quantize_columns(x: &Tensor, columns: &ColumnQuantizers) -> Result<Tensor> {
    let (_, width) = x.dims2()?;
    if width != columns.len() {
        bail!("fake_quantize_columns: {} quantizers for {width} columns", columns.len());
    }
    Pass::new("fake_quantize_columns", x.shape(), |arguments: &[&[f32]], out: &mut [f32]| {
        each_row(
            out,
            width,
            #[inline(always)]
            |i, out| fake_row(row(arguments[0], width, i), columns, out),
        );
    })
    .on(&[x])
}

/// `out[c] = columns.fake(c, x[c])`, computed without a branch.
#[inline(always)]
fn fake_row(x: &[f32], columns: &ColumnQuantizers, out: &mut [f32]) {
    let quantizers = columns.recips().iter().zip(columns.zero_points()).zip(columns.scales());
    for ((out, &x), ((&recip, &zero_point), &scale)) in out.iter_mut().zip(x).zip(quantizers) {
        let code = x.mul_add(recip, zero_point).clamp(-128.0, 127.0).round_ties_even();
        let code = if code.is_nan() { 0.0 } else { code };
        *out = (code - zero_point) * scale;
    }
}
