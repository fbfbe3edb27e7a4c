//! Fake quantization with a fixed scale.

use candle_core::{Result, Tensor};
use rayon::prelude::*;
use swinq_kernels::Quantizer;

use super::{GRAIN, Pass, vectorised};

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
    let width = x.elem_count().clamp(1, GRAIN);
    Pass::new("fake_quantize", x.shape(), |arguments: &[&[f32]], out: &mut [f32]| {
        out.par_chunks_mut(width).zip(arguments[0].par_chunks(width)).for_each(|(out, x)| {
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
