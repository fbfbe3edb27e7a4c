//! The constants of the number contract that Python's training computes with (docs/inference.md, sections 2
//! and 6).

use pyo3::prelude::*;
use swinq::float::ops::taped::EDGE;
use swinq::model::{arch, position};
use swinq::numerics::Int8;
use swinq::numerics::reference::{CODE_FLOOR, LO_STEPS, math};

/// The constants, as the decimals that the contract states: each is the shortest that rounds to the `f32` of
/// the engine.
#[pyclass(frozen, get_all)]
pub struct Contract {
    /// Range of signed codes.
    code_min: f64,
    code_max: f64,
    /// Tolerance at the ends of a range in gradients, as a factor.
    edge: f64,
    /// Adding and subtracting it rounds to an integer, ties to even.
    signed_rounder: f64,
    /// The same for numbers that are not negative, whose integer is then in the low bits.
    rounder: f64,
    /// GELU of quantized models: intervals of its table per unit, and the largest argument.
    gelu_per_unit: f64,
    gelu_last: f64,
    /// The coefficients of `exp_255`, highest power first.
    exp_255: [f64; 5],
    log2_e: f64,
    /// Logits whose exponentials become codes are clamped to this difference from the largest one.
    code_floor: f64,
    /// Steps of a lo code in one hi code, and the least factor of `q k^T` of a Swin V2 with lo codes.
    lo_steps: f64,
    hi_lo_from: f64,
    /// The largest factor of `q k^T`, and the largest position bias, of a Swin V2.
    largest_scale: f64,
    largest_bias: f64,
    /// The number that is added to a logit whose tokens lie in different regions, unless the model says
    /// otherwise.
    mask: f64,
}

/// The constants of the contract.
#[pyfunction]
pub fn contract() -> Contract {
    let mut exp_255 = math::EXP_255.map(decimal);
    exp_255.reverse();
    Contract {
        code_min: decimal(Int8::MIN),
        code_max: decimal(Int8::MAX),
        edge: f64::from(EDGE),
        signed_rounder: decimal(math::SIGNED_ROUNDER),
        rounder: decimal(math::ROUNDER),
        gelu_per_unit: decimal(math::QUADRATIC_PER_UNIT),
        gelu_last: decimal(math::QUADRATIC_LAST),
        exp_255,
        log2_e: std::f64::consts::LOG2_E,
        code_floor: decimal(CODE_FLOOR),
        lo_steps: decimal(LO_STEPS),
        hi_lo_from: decimal(position::TWO_CODES_FROM),
        largest_scale: position::LARGEST_SCALE,
        largest_bias: position::LARGEST_BIAS,
        mask: arch::MASK,
    }
}

/// The shortest decimal that rounds to `x`, as `f64`.
fn decimal(x: f32) -> f64 {
    x.to_string().parse().expect("a decimal")
}
