//! Tests of the engine. One program, because each would link everything again.

mod backbones;
mod callers;
mod common;
mod engine;
mod float_images;
mod odd_shapes;
mod stacks;
mod variants;
