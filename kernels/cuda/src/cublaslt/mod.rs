//! Typed matrix products of cuBLASLt: INT8 and f16 for the engine, f32 for comparison.
//!
//! All products are `D[m, n] = A[m, k] * W[n, k]^T`, row-major and contiguous. The matrices of cuBLAS are
//! column-major: `W` is passed as its transposed A, `A` as its B, and `D` as its n x m result.

mod plan;
mod problem;
mod verify;

use cudarc::cublaslt::sys::{self, cublasStatus_t};

pub use plan::LtPlan;

use super::library::{self, Library};
use super::{CudaError, Device, DeviceBuf, DeviceSlice};

/// Maximum scratch memory of an algorithm, in bytes.
const WORKSPACE: usize = 32 << 20;

/// Result type of an INT8 product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// The exact INT32 sums.
    S32,
    /// `clamp(round(alpha[column] * sum), -128, 127)`, ties to even.
    S8,
}

/// Element types of a floating-point product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FloatKind {
    /// f32 throughout.
    F32,
    /// f32, with operands rounded to TF32.
    Tf32,
    /// f16 operands and result, f32 sums.
    F16,
    /// f16 operands, f32 sums and result.
    F16ToF32,
}

/// A handle of cuBLASLt with its scratch memory. Only one stream at a time may use the scratch memory, so
/// each engine has its own `Lt`.
pub struct Lt {
    handle: sys::cublasLtHandle_t,
    workspace: DeviceSlice,
    device: Device,
}

// SAFETY: the functions that take a handle are thread-safe, and the handle is valid until `drop`.
unsafe impl Send for Lt {}
// SAFETY: as above.
unsafe impl Sync for Lt {}

impl Lt {
    /// Creates a handle on `device`.
    ///
    /// # Errors
    /// cuBLASLt is missing or does not start, or the device has too little memory for the scratch memory.
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
        if let Ok(_bound) = self.device.context().bound() {
            // SAFETY: created in `new` and destroyed only here.
            let _ = unsafe { sys::cublasLtDestroy(self.handle) };
        }
    }
}

/// Turns the status of a call into an error that names the call.
fn check(call: &'static str, status: cublasStatus_t) -> Result<(), CudaError> {
    match status {
        cublasStatus_t::CUBLAS_STATUS_SUCCESS => Ok(()),
        other => Err(CudaError::CublasLt { call, status: format!("{other:?}") }),
    }
}
