//! The scalar definition of every op. It is always built, and it is the contract: every other implementation is a
//! claim of being equal to it (bit for bit where only integers and one rounding are involved; within stated bounds
//! where LayerNorm, `exp` or `erf` are).

mod attention;
mod layer_norm;
mod linear;

pub use attention::{AttentionQuant, Probs, attention_row_u8, attention_window};
pub use layer_norm::layer_norm_row;
pub use linear::{accumulate_f32, accumulate_i8, epilogue_f32, epilogue_i8};

/// Round to nearest, ties to even, of a value already multiplied by the reciprocal of the step; clamped to
/// [-128, 127] as f32 before the conversion. A NaN has code 0.
pub fn code(scaled: f32) -> i8 {
    if scaled.is_nan() {
        return 0;
    }
    libm::rintf(scaled.clamp(-128.0, 127.0)) as i8
}

/// GELU by the error function: `x / 2 * (1 + erf(x / sqrt(2)))`.
pub fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2))
}
