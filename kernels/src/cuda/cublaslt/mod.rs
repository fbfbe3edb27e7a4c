//! Matrix products of cuBLASLt, typed: INT8 for the engine, float for comparison.
//!
//! All products are `D[m, n] = A[m, k] * W[n, k]^T`, row-major and without gaps. For cuBLAS, whose matrices are
//! column-major, `W` is its transposed A, `A` its B, and `D` its n x m result.

mod plan;
mod problem;
mod verify;

use cudarc::cublaslt::sys::{self, cublasStatus_t};

pub use plan::LtPlan;

use super::library::{self, Library};
use super::{CudaError, Device, DeviceBuf, DeviceSlice};

/// Bytes of scratch that algorithms may use.
const WORKSPACE: usize = 32 << 20;

/// What an INT8 product becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// The exact INT32 sums.
    S32,
    /// `clamp(round(alpha[column] * sum), -128, 127)`, ties to even.
    S8,
}

/// Types of a product in float.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FloatKind {
    /// f32 throughout.
    F32,
    /// f32, whose operands are rounded to TF32.
    Tf32,
    /// Half precision in and out, f32 sums.
    F16,
    /// Half precision in, f32 sums and out.
    F16ToF32,
}

/// A handle of cuBLASLt with its scratch memory, which one stream at a time may use: an engine has its own `Lt`.
pub struct Lt {
    handle: sys::cublasLtHandle_t,
    workspace: DeviceSlice,
    device: Device,
}

// SAFETY: functions on a handle are thread-safe, and it is valid until `drop`.
unsafe impl Send for Lt {}
// SAFETY: as above.
unsafe impl Sync for Lt {}

impl Lt {
    /// A handle on `device`.
    ///
    /// # Errors
    /// cuBLASLt is missing or does not start, or the device has too little memory for the scratch.
    pub fn new(device: &Device) -> Result<Lt, CudaError> {
        library::require(Library::CublasLt)?;
        let workspace = DeviceBuf::new(device, WORKSPACE)?.all();
        device.bind()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the library is loaded, a context is current, and it writes one handle.
        check("cublasLtCreate", unsafe { sys::cublasLtCreate(&mut handle) })?;
        Ok(Lt { handle, workspace, device: device.clone() })
    }
}

impl Drop for Lt {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: created in `new`, destroyed here alone.
            let _ = unsafe { sys::cublasLtDestroy(self.handle) };
        }
    }
}

/// The status of a call as an error that names it.
fn check(call: &'static str, status: cublasStatus_t) -> Result<(), CudaError> {
    match status {
        cublasStatus_t::CUBLAS_STATUS_SUCCESS => Ok(()),
        other => Err(CudaError::CublasLt { call, status: format!("{other:?}") }),
    }
}
