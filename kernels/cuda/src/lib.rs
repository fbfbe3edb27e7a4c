//! NVIDIA GPUs: detection of libraries at run time, devices, memory, kernels compiled from
//! `kernels/cuda/sources`, launches, graphs, and the matrix products of cuBLASLt.
//!
//! Building needs no CUDA toolkit, and a machine without CUDA runs everything else. [`library`] detects the
//! installed libraries. A function that needs a missing library returns [`CudaError::MissingLibrary`].
//!
//! Work is put on a [`Stream`] and runs in its order. Functions that keep the memory they use alive are safe.
//! Functions that cannot do this ([`launch()`], copies with pinned memory) are `unsafe`, and their
//! documentation says what the caller must keep alive.

pub mod cache;
mod capture;
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
pub mod nccl;
mod nvrtc;
mod nvtx;
pub mod ops;
/// The structs of kernels' parameters, as `build.rs` declares them: `rows::Params` is `Params` of rows.cuh.
mod params {
    include!(concat!(env!("OUT_DIR"), "/params.rs"));
}
mod pinned;
mod pipeline;
mod plain;
mod program;
mod resources;
pub mod sources;
mod stream;
mod tensor_map;
pub mod training;

pub use capture::{Capture, Relaxed};
pub use cublaslt::{FloatKind, Lt, LtPlan, Output};
pub use device::{Arch, Device, KeepContext};
pub use error::CudaError;
pub use graph::Graph;
pub use kernel::Kernel;
pub use launch::{LaunchConfig, Params, launch};
pub use library::{Library, Missing};
pub use memory::{DeviceBuf, DeviceSlice, Upload};
pub use nvrtc::{Compiled, compile, compile_text};
pub use nvtx::{Nvtx, Range};
pub use pinned::PinnedBuf;
pub use pipeline::{Pipeline, Transfer};
pub use plain::Plain;
pub use program::Program;
pub use resources::{Resources, resources};
pub use stream::{Event, Stream};
pub use tensor_map::TensorMap;
