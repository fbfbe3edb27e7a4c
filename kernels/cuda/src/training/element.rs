//! The types of the operands of matrix products in training.

use cudarc::cublas::sys::cudaDataType;
use cudarc::driver::DeviceRepr;
use half::{bf16, f16};

/// A type of operands. Sums and all other values are f32.
pub trait Element: DeviceRepr + sealed::Sealed {
    /// The type as the define `OUT` of kernels.
    const OUT: i64;
    /// The type as cuBLAS names it.
    const KIND: cudaDataType;
}

impl Element for f32 {
    const OUT: i64 = 0;
    const KIND: cudaDataType = cudaDataType::CUDA_R_32F;
}

impl Element for bf16 {
    const OUT: i64 = 1;
    const KIND: cudaDataType = cudaDataType::CUDA_R_16BF;
}

impl Element for f16 {
    const OUT: i64 = 2;
    const KIND: cudaDataType = cudaDataType::CUDA_R_16F;
}

mod sealed {
    /// Any bits are a valid value of these types.
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::bf16 {}
    impl Sealed for half::f16 {}
}
