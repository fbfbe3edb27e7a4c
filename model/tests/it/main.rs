//! Tests of checkpoints, parts and files. One program, because each would link everything again.

mod atomic;
mod checkpoints;
mod parts;
mod quantized_file;
mod residual;
