//! The INT8 layers that fused launches compute.

use swinq_cuda::ops::Int8Linear;
use swinq_plan::{Linear, Weight};

/// Whether the layer is INT8 without an `.output` site. Its input may have zero points.
pub(super) fn is_int8(linear: &Linear<'_>) -> bool {
    linear.output.is_none() && matches!(linear.weight, Weight::Int8 { .. })
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
