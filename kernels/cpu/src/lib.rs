//! Every hot loop of swinq on CPUs, without knowledge of Swin: linears and their epilogues, LayerNorm with
//! gathers, window attention, patch gathering and pooling.
//!
//! [`swinq_numerics::reference`] is the scalar definition of each op. An op is prepared once, for the kernel
//! that a [`Cpu`] names, and then runs on a [`Pool`] without allocating (except for the scalar reference of
//! attention). No op knows the size of an image: the numbers of rows and tokens, their order and the windows
//! are given to each run.

// Other architectures have no implementation of `lanes`, so the code over them is compiled but never used.
#![cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code))]

pub mod attention;
pub mod buffer;
pub mod cpu;
pub mod fused_block;
pub mod isa;
mod lanes;
pub mod layer_norm;
pub mod linear;
pub mod memory;
pub mod patches;
pub mod pool;
pub mod probe;
pub mod qk_norm;
pub mod quantize;
mod rows;
pub mod rows_f32;
mod simd_math;
mod weights;

pub use attention::{AttentionIn, WindowAttention};
pub use buffer::AlignedBuf;
pub use cpu::{Cpu, CpuError};
pub use fused_block::{BlockOp, FusedBlock, FusedRows};
pub use isa::Isa;
pub use layer_norm::{LayerNorm, MergeNorm, PooledNorm, ResidualNorm};
pub use linear::{LinearF32, LinearI8, LinearOut, LinearSpec, Store, transposed_product};
pub use patches::{Patches, add_table};
pub use pool::{Crew, Pool, Turn};
pub use qk_norm::QkNorm;
pub use quantize::QuantizeRows;
pub use rows::RowOut;
