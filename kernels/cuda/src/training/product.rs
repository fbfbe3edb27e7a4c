//! Matrix products by cuBLAS, with f32 sums and results.

use std::ffi::c_int;
use std::sync::PoisonError;

use cudarc::cublas::result as cublas;
use cudarc::cublas::sys::{self, cublasComputeType_t, cublasGemmAlgo_t, cublasHandle_t, cublasOperation_t};
use cudarc::driver::{CudaSlice, CudaView, DevicePtrMut};

use super::{Call, Element, Training, int};
use crate::CudaError;
use crate::error::failed;
use crate::library::{self, Library};

/// Bytes of cuBLAS's workspace; a size of its own keeps it from allocating.
const WORKSPACE: usize = 32 << 20;

/// The arithmetic of products of f32 operands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Products {
    /// f32.
    #[default]
    F32,
    /// TF32: the tensor cores round operands to 10 bits of mantissa.
    Tf32,
}

/// A product `a b` of row-major matrices, `[m, k]` and `[k, n]`.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// Terms of each sum.
    pub k: usize,
    /// Whether `a` is stored transposed, `[k, m]`.
    pub a_transposed: bool,
    /// Whether `b` is stored transposed, `[n, k]`.
    pub b_transposed: bool,
    /// The arithmetic, if the operands are f32.
    pub products: Products,
}

/// A cuBLAS handle on the stream of [`Training`], with its workspace.
pub(super) struct Handle {
    handle: cublasHandle_t,
    _workspace: CudaSlice<u8>,
}

// SAFETY: a cuBLAS handle may be used from any thread, one at a time, which the lock around it ensures.
unsafe impl Send for Handle {}

impl Handle {
    fn new(training: &Training) -> Result<Handle, CudaError> {
        library::require(Library::Cublas)?;
        training.device.bind()?;
        // SAFETY: cuBLAS reads its workspace only after it has written it.
        let workspace = unsafe { training.cuda.alloc::<u8>(WORKSPACE) };
        let mut workspace = workspace.map_err(|error| failed("cuMemAllocAsync", error))?;
        let address = workspace.device_ptr_mut(&training.cuda).0;
        let handle = cublas::create_handle().map_err(|error| wrong("cublasCreate", error))?;
        let created = Handle { handle, _workspace: workspace };
        // SAFETY: the handle was just created. The stream outlives it, because `Training` owns both, and the
        // handle owns the workspace.
        unsafe {
            let stream = training.cuda.cu_stream().cast();
            cublas::set_stream(handle, stream).map_err(|error| wrong("cublasSetStream", error))?;
            let status = sys::cublasSetWorkspace_v2(handle, address as *mut _, WORKSPACE);
            status.result().map_err(|error| wrong("cublasSetWorkspace", error))?;
        }
        Ok(created)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: created in `new` and destroyed only here. The driver frees the workspace after the work on
        // its stream.
        let _ = unsafe { cublas::destroy_handle(self.handle) };
    }
}

fn wrong(call: &'static str, error: cublas::CublasError) -> CudaError {
    CudaError::CublasLt { call, status: format!("{:?}", error.0) }
}

impl Training {
    /// The product of `a` and `b`, `[m, n]`.
    ///
    /// # Errors
    /// cuBLAS is missing or fails.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn product<T: Element>(
        &self,
        a: &CudaView<'_, T>,
        b: &CudaView<'_, T>,
        of: Product,
    ) -> Result<CudaSlice<f32>, CudaError> {
        let Product { m, n, k, a_transposed, b_transposed, products } = of;
        let mut out = self.allocate(m * n)?;
        let mut call = Call::new(self);
        let left = call.read("product: left operand", a, m * k);
        let right = call.read("product: right operand", b, k * n);
        let to = call.write(&mut out);
        let compute = match products {
            Products::Tf32 if T::OUT == f32::OUT => cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
            _ => cublasComputeType_t::CUBLAS_COMPUTE_32F,
        };
        let operation = |transposed| match transposed {
            true => cublasOperation_t::CUBLAS_OP_T,
            false => cublasOperation_t::CUBLAS_OP_N,
        };
        let mut slot = self.products.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.is_none() {
            *slot = Some(Handle::new(self)?);
        }
        let handle = slot.as_ref().expect("just set").handle;
        let [lda, ldb, ldc]: [c_int; 3] =
            [if a_transposed { m } else { k }, if b_transposed { k } else { n }, n].map(int);
        self.device.bind()?;
        // cuBLAS is column-major, so it computes the transposed product from the operands in reverse order.
        // SAFETY: the operands have `m k` and `k n` values and the result `m n`, in rows of these strides;
        // the guards hold them until the work is on the stream, and the stream's order frees them after it.
        unsafe {
            cublas::gemm_ex(
                handle,
                operation(b_transposed),
                operation(a_transposed),
                int(n),
                int(m),
                int(k),
                (&raw const ONE).cast(),
                right as *const _,
                T::KIND,
                ldb,
                left as *const _,
                T::KIND,
                lda,
                (&raw const ZERO).cast(),
                to as *mut _,
                f32::KIND,
                ldc,
                compute,
                cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        }
        .map_err(|error| wrong("cublasGemmEx", error))?;
        drop(call);
        Ok(out)
    }
}

static ONE: f32 = 1.0;
static ZERO: f32 = 0.0;
