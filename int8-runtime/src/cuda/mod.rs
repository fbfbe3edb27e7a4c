//! The CUDA backend: runs the plan's steps as fused launches on one GPU, recorded as a graph for each batch
//! size.

mod engine;
mod int8;
mod lower;
mod memory;
mod mlp;
mod options;
mod sizes;
mod step;
mod table;
mod tune;
mod window_block;

pub(crate) use engine::{Packed, Runner};
pub use options::{Autotune, CudaOptions, Gemm, StreamType};
pub use table::{compile_tiles, measure_tiles};
