//! Runs the CUDA kernels on this machine's CPU. Their sources are compiled with the primitives of
//! `kernels/cuda/sources/host`, under the address and undefined-behaviour sanitizers. Each kernel runs with
//! two orders of its threads, whose results must agree.
//!
//! A C++ compiler is needed (`$CXX`, `c++`, `g++` or `clang++`). Without one every test says that it is
//! skipped, or fails if `REQUIRE_IMPL` contains `host_kernels`.

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
mod output;
mod patch;
mod primitives;
mod qk_norm;
mod report;
mod rows;
mod tokens;
mod training;
mod window_block;
