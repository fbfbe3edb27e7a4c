//! The ladder: one matrix product, one softmax and elementwise ops, from the simplest kernel to the fastest.
//! Each rung is a safe launch on device slices. A timer measures launches with a cold cache. Benchmarks use
//! the ladder; no engine does.

mod col32;
mod elementwise;
mod gemm;
mod output;
mod softmax;
mod timer;

pub use col32::Col32;
pub use elementwise::{Elementwise, ElementwiseOp};
pub use gemm::{FloatGemm, FloatRung};
pub use output::{Elements, Matrix, from_half, half_sum, spread, to_half};
pub use softmax::{Softmax, SoftmaxRung};
pub use timer::Timer;

use super::ops::{expect, int};

/// Converts a number of blocks to the type of a grid size.
///
/// # Panics
/// If it is 2^31 or more.
fn blocks(count: usize) -> u32 {
    int(count).unsigned_abs()
}
