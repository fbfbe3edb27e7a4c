//! The CUDA backend: runs the plan's steps as fused launches on one GPU, recorded as a graph for each number
//! of images of each size.

mod engine;
mod geometry;
mod host;
mod int8;
mod launches;
mod lower;
mod memory;
mod mlp;
mod on_stream;
mod options;
mod packed;
mod pool;
mod prepare;
mod sizes;
mod step;
mod table;
mod tune;
mod when;
mod window_block;

pub(crate) use engine::CudaRunner;
pub use launches::DeviceLaunches;
pub(crate) use on_stream::{Given, Targets};
pub use options::{Autotune, CudaOptions, Gemm, ResidualType, residual_type};
pub use packed::check_architecture;
pub(crate) use packed::{Packed, check_position};
pub(crate) use pool::{Pool, Shared};
pub use table::{compile_tiles, measure_tiles};
