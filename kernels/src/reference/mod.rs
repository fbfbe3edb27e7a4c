//! The scalar definition of every op. It is always built, and it is the contract: every other implementation
//! must equal it bit for bit. This is possible for floating point too, because the order of operations is
//! part of each definition, and every operation is one that IEEE 754 rounds correctly (sums, products, fused
//! multiply-adds, quotients, square roots). The payload of a NaN is unspecified.

mod attention;
mod layer_norm;
mod linear;
pub(crate) mod math;
mod normalize;

pub(crate) use attention::FLOOR;
pub use attention::{AttentionQuant, Probs, attention_row_exp, attention_row_u8, attention_window};
pub use layer_norm::{RowNorm, add_layer_norm_row, fold, layer_norm_row, mean_of_rows, moments};
pub use linear::{accumulate_f32, accumulate_i8, correction_i8, epilogue_f32, epilogue_i8};
pub use math::{exp, gelu, gelu_derivative};
pub use normalize::{SHORTEST, inverse_length, normalize};

/// The code of a value that is already multiplied by the reciprocal scale: clamped to [-128, 127] as f32,
/// then rounded to nearest, ties to even. A NaN has code 0.
pub fn code(scaled: f32) -> i8 {
    if scaled.is_nan() {
        return 0;
    }
    libm::rintf(scaled.clamp(-128.0, 127.0)) as i8
}
