//! NVIDIA GPUs: libraries found at run time, devices, memory, kernels compiled from `kernels/cuda`, launches, graphs,
//! and the INT8 products of cuBLASLt.
//!
//! Nothing of CUDA is needed to build, and a machine without it runs everything else: [`library`] says what is there,
//! and whatever needs a library that is missing returns [`CudaError::MissingLibrary`].
//!
//! Work is put on a [`Stream`] and is done in its order. Functions are safe where they keep the memory that they use
//! alive by themselves; those that cannot ([`launch()`], copies with pinned memory) are `unsafe` and say what to keep.

pub mod cache;
pub mod contract;
pub mod cublaslt;
mod device;
mod error;
mod graph;
mod kernel;
pub mod ladder;
pub mod launch;
pub mod library;
mod memory;
mod nvrtc;
mod nvtx;
pub mod ops;
mod pinned;
mod pipeline;
mod plain;
mod program;
mod resources;
pub mod sources;
mod stream;
pub mod training;

pub use cublaslt::{FloatKind, Lt, LtPlan, Output};
pub use device::{Arch, Device};
pub use error::CudaError;
pub use graph::Graph;
pub use kernel::Kernel;
pub use launch::{LaunchConfig, Params, launch};
pub use library::{Library, Missing};
pub use memory::{DeviceBuf, DeviceSlice};
pub use nvrtc::{Compiled, compile, compile_text};
pub use nvtx::{Nvtx, Range};
pub use pinned::PinnedBuf;
pub use pipeline::Pipeline;
pub use plain::Plain;
pub use program::Program;
pub use resources::{Resources, resources};
pub use stream::{Event, Stream};
