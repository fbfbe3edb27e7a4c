//! Matrices of bytes as the copy engine (TMA, sm_90) sees them.

use std::ffi::c_void;

use cudarc::driver::sys::{
    self, CUtensorMap, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave,
    CUtensorMapL2promotion, CUtensorMapSwizzle,
};
use swinq_numerics::sizes::elements;

use super::error::check;
use super::{CudaError, DeviceSlice, library};

/// Bytes of a row of a box, which is the width of the 128-byte swizzle.
const BOX_BYTES: u32 = 128;
/// Maximum number of rows of a box.
const MOST_ROWS: u32 = 256;

/// A matrix in device memory, and the box of it that one copy takes (`TensorMap` of mbarrier.cuh). It holds
/// an address: the memory must live as long as launches that have the map among their parameters.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub struct TensorMap {
    words: [u64; 16],
}

impl TensorMap {
    /// Describes the matrix at the beginning of `matrix`: `rows` rows of `bytes` bytes, `stride` bytes apart.
    /// A box has `box_rows` rows of 128 bytes, which are written to shared memory in the 128-byte swizzle;
    /// outside the matrix it has zeros.
    ///
    /// # Errors
    /// The driver is older than CUDA 12 ([`TensorMap::supported`]), or refuses the sizes.
    ///
    /// # Panics
    /// If the matrix is longer than `matrix`, `stride` or the address is not a multiple of 16, or a box has
    /// no row or more than 256.
    pub fn new(
        matrix: &DeviceSlice,
        (rows, bytes, stride): (usize, usize, usize),
        box_rows: u32,
    ) -> Result<TensorMap, CudaError> {
        TensorMap::supported()?;
        assert!((1..=MOST_ROWS).contains(&box_rows), "tensor map: a box of {box_rows} rows");
        assert!(bytes <= stride && stride.is_multiple_of(16), "tensor map: rows {stride} bytes apart");
        let needed = elements("tensor map", "the memory", &[rows, stride]);
        assert!(needed <= matrix.bytes(), "tensor map: {rows} rows are not in the buffer");
        assert!(matrix.ptr().is_multiple_of(16), "tensor map: the address is not aligned");
        let (sizes, strides) = ([bytes as u64, rows as u64], [stride as u64]);
        let (each, steps) = ([BOX_BYTES, box_rows], [1, 1]);
        let mut map = CUtensorMap { opaque: [0; 16] };
        // SAFETY: the driver only encodes its arguments. The arrays have the two dimensions (and, for
        // strides, the one between rows) that the rank states, and outlive the call.
        let result = unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT8,
                2,
                matrix.ptr() as *mut c_void,
                sizes.as_ptr(),
                strides.as_ptr(),
                each.as_ptr(),
                steps.as_ptr(),
                CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        check("cuTensorMapEncodeTiled", result)?;
        Ok(TensorMap { words: map.opaque })
    }

    /// Checks that the driver has the function that encodes matrices.
    ///
    /// # Errors
    /// The driver is older than CUDA 12.
    pub fn supported() -> Result<(), CudaError> {
        match library::driver_version() {
            Some(version) if version >= (12, 0) => Ok(()),
            version => {
                let (major, minor) = version.unwrap_or_default();
                let what =
                    format!("the driver supports CUDA {major}.{minor}; this kernel needs 12.0 or newer");
                Err(CudaError::Unsupported(what))
            }
        }
    }
}
