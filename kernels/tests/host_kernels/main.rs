//! The CUDA kernels on this machine's processor: their sources compiled with the primitives of `kernels/cuda/host`, under
//! the address and undefined-behaviour sanitizers, and run in two orders of the threads that must agree.
//!
//! Needs a C++ compiler (`$CXX`, `c++`, `g++` or `clang++`); without one every test says that it is skipped, unless
//! `REQUIRE_IMPL` has `host_kernels`.

mod attention;
mod compiler;
mod dequant;
mod faults;
mod functions;
mod gemm;
mod head;
mod ladder;
mod launch;
mod layouts;
mod linear;
mod norm;
mod patch;
mod primitives;
mod rows;
#[path = "../support/mod.rs"]
mod support;
mod training;
