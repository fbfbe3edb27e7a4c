//! Tests of gradients and trainings. One program, because each would link everything again.

mod common;
mod gradients;
mod training;
