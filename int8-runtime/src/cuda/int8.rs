//! The INT8 layers that fused launches compute.

use swinq_cuda::ops::Int8Linear;
use swinq_plan::{Linear, Weight};

/// Whether the layer is INT8 without an `.output` site. Its input may have zero points.
pub(super) fn is_int8(linear: &Linear<'_>) -> bool {
    // A new field must be computed by the fused launches, or refused here.
    let Linear { layer: _, n: _, k: _, weight, bias: _, output, gelu: _, order: _ } = linear;
    output.is_none() && matches!(weight, Weight::Int8 { .. })
}

/// Whether the layer [`is_int8`], and its input has no zero points.
pub(super) fn is_plain(linear: &Linear<'_>) -> bool {
    is_int8(linear) && matches!(linear.weight, Weight::Int8 { zero_points: [], .. })
}

/// The layer, which [`is_int8`], for a fused launch; `bias` is its bias.
pub(super) fn int8_linear<'a>(linear: &'a Linear<'_>, bias: Option<&'a [f32]>) -> Int8Linear<'a> {
    let Weight::Int8 { codes, input, multiplier, .. } = &linear.weight else { unreachable!("an INT8 layer") };
    Int8Linear { codes: &codes.codes, multiplier, bias, input: *input }
}
