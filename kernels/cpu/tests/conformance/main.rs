//! The conformance suites. One program, because each would link everything again.

mod attention;
mod fused_block;
mod layer_norm;
mod linear;
mod patches;
mod qk_norm;
mod rows_f32;
mod sizes;
mod support;
