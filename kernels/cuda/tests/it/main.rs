//! Tests of the CUDA kernels and their host side. One program, because each would link everything again.

mod cuda_compile;
mod cuda_device;
mod cuda_launches;
mod cuda_linears;
mod cuda_mlp;
mod cuda_programs;
mod cuda_sizes;
mod host_kernels;
