//! A product as cuBLASLt describes it, and the algorithms it proposes for it.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use cudarc::cublaslt::sys::{self, cublasComputeType_t as Compute, cudaDataType_t as Type};
use sys::cublasLtMatmulDescAttributes_t as DescAttribute;
use sys::cublasLtMatmulPreferenceAttributes_t as PreferenceAttribute;

use super::{FloatKind, Lt, Output, check};
use crate::cuda::CudaError;

/// Alignment of all operands in bytes, and what rows must be a multiple of.
pub(super) const ALIGN: usize = 16;

/// Types of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Int(Output),
    Float(FloatKind),
}

impl Kind {
    /// Bytes of an element of the operands, and of the result.
    pub(super) fn element_bytes(self) -> (usize, usize) {
        match self {
            Kind::Int(Output::S32) => (1, 4),
            Kind::Int(Output::S8) => (1, 1),
            Kind::Float(FloatKind::F32 | FloatKind::Tf32) => (4, 4),
            Kind::Float(FloatKind::F16) => (2, 2),
            Kind::Float(FloatKind::F16ToF32) => (2, 4),
        }
    }

    /// Types: how sums are computed, of alpha and beta, of the operands, of the result.
    fn types(self) -> (Compute, Type, Type, Type) {
        let f32s = Type::CUDA_R_32F;
        match self {
            Kind::Int(Output::S32) => {
                (Compute::CUBLAS_COMPUTE_32I, Type::CUDA_R_32I, Type::CUDA_R_8I, Type::CUDA_R_32I)
            }
            Kind::Int(Output::S8) => (Compute::CUBLAS_COMPUTE_32I, f32s, Type::CUDA_R_8I, Type::CUDA_R_8I),
            Kind::Float(FloatKind::F32) => (Compute::CUBLAS_COMPUTE_32F, f32s, f32s, f32s),
            Kind::Float(FloatKind::Tf32) => (Compute::CUBLAS_COMPUTE_32F_FAST_TF32, f32s, f32s, f32s),
            Kind::Float(FloatKind::F16) => {
                (Compute::CUBLAS_COMPUTE_32F, f32s, Type::CUDA_R_16F, Type::CUDA_R_16F)
            }
            Kind::Float(FloatKind::F16ToF32) => (Compute::CUBLAS_COMPUTE_32F, f32s, Type::CUDA_R_16F, f32s),
        }
    }
}

/// A matrix of cuBLASLt.
struct Layout(sys::cublasLtMatrixLayout_t);

impl Layout {
    /// Column-major without gaps; the library is loaded.
    fn new(kind: Type, rows: usize, columns: usize) -> Result<Layout, CudaError> {
        let mut layout = std::ptr::null_mut();
        // SAFETY: an `Lt` exists, so the library is loaded; it writes one handle.
        let status = unsafe {
            sys::cublasLtMatrixLayoutCreate(&mut layout, kind, rows as u64, columns as u64, rows as i64)
        };
        check("cublasLtMatrixLayoutCreate", status)?;
        Ok(Layout(layout))
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed here alone.
        let _ = unsafe { sys::cublasLtMatrixLayoutDestroy(self.0) };
    }
}

/// An operation of cuBLASLt.
struct Desc(sys::cublasLtMatmulDesc_t);

impl Desc {
    fn new(compute: Compute, scale: Type) -> Result<Desc, CudaError> {
        let mut desc = std::ptr::null_mut();
        // SAFETY: an `Lt` exists, so the library is loaded; it writes one handle.
        check("cublasLtMatmulDescCreate", unsafe {
            sys::cublasLtMatmulDescCreate(&mut desc, compute, scale)
        })?;
        Ok(Desc(desc))
    }

    fn set(&self, attribute: DescAttribute, value: u32) -> Result<(), CudaError> {
        // SAFETY: the description is alive; the attributes set here are enumerations of 32 bits.
        let status = unsafe {
            sys::cublasLtMatmulDescSetAttribute(
                self.0,
                attribute,
                (&raw const value).cast(),
                size_of::<u32>(),
            )
        };
        check("cublasLtMatmulDescSetAttribute", status)
    }
}

impl Drop for Desc {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed here alone.
        let _ = unsafe { sys::cublasLtMatmulDescDestroy(self.0) };
    }
}

/// What algorithms may be proposed.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    /// Operands of this alignment, and up to `workspace` bytes of scratch.
    fn new(workspace: usize) -> Result<Preference, CudaError> {
        let mut preference = std::ptr::null_mut();
        // SAFETY: an `Lt` exists, so the library is loaded; it writes one handle.
        let status = unsafe { sys::cublasLtMatmulPreferenceCreate(&mut preference) };
        check("cublasLtMatmulPreferenceCreate", status)?;
        let preference = Preference(preference);
        preference.set(PreferenceAttribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &(workspace as u64))?;
        for attribute in [
            PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ] {
            preference.set(attribute, &(ALIGN as u32))?;
        }
        Ok(preference)
    }

    fn set<T>(&self, attribute: PreferenceAttribute, value: &T) -> Result<(), CudaError> {
        // SAFETY: the preference is alive; the library checks the size of the value, and copies it.
        let status = unsafe {
            let value = std::ptr::from_ref(value).cast();
            sys::cublasLtMatmulPreferenceSetAttribute(self.0, attribute, value, size_of::<T>())
        };
        check("cublasLtMatmulPreferenceSetAttribute", status)
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed here alone.
        let _ = unsafe { sys::cublasLtMatmulPreferenceDestroy(self.0) };
    }
}

/// A product: its sizes, types and descriptions.
pub(super) struct Problem {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) kind: Kind,
    desc: Desc,
    w: Layout,
    a: Layout,
    d: Layout,
}

// SAFETY: descriptions are plain memory of the library, written while `Problem::new` makes them and only read after.
unsafe impl Send for Problem {}
// SAFETY: as above.
unsafe impl Sync for Problem {}

impl Problem {
    /// A product that `_lt`'s library will compute.
    pub(super) fn new(_lt: &Lt, m: usize, n: usize, k: usize, kind: Kind) -> Result<Problem, CudaError> {
        let whole = |size: usize| size > 0 && size.is_multiple_of(ALIGN);
        if m == 0 || !whole(n) || !whole(k) || [m, n, k].iter().any(|size| *size > i32::MAX as usize) {
            return Err(CudaError::Unsupported(format!(
                "a product of {m} x {k} by {k} x {n} with cuBLASLt; columns must be multiples of {ALIGN}"
            )));
        }
        let (compute, scale, operand, result) = kind.types();
        let desc = Desc::new(compute, scale)?;
        let transposed = cudarc::cublas::sys::cublasOperation_t::CUBLAS_OP_T as u32;
        desc.set(DescAttribute::CUBLASLT_MATMUL_DESC_TRANSA, transposed)?;
        if kind == Kind::Int(Output::S8) {
            let vector =
                sys::cublasLtPointerMode_t::CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_HOST as u32;
            desc.set(DescAttribute::CUBLASLT_MATMUL_DESC_POINTER_MODE, vector)?;
        }
        let (w, a) = (Layout::new(operand, k, n)?, Layout::new(operand, k, m)?);
        Ok(Problem { m, n, k, kind, desc, w, a, d: Layout::new(result, n, m)? })
    }

    /// Up to `most` algorithms, the most promising first; none if there is none.
    pub(super) fn algorithms(&self, lt: &Lt, most: usize) -> Result<Vec<Proposal>, CudaError> {
        lt.device.bind()?;
        let preference = Preference::new(lt.workspace.bytes())?;
        let mut found = vec![MaybeUninit::<Proposal>::zeroed(); most];
        let mut count: c_int = 0;
        // SAFETY: all handles are alive; the library writes at most `most` results and their number.
        let status = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                lt.handle,
                self.desc.0,
                self.w.0,
                self.a.0,
                self.d.0,
                self.d.0,
                preference.0,
                most as c_int,
                found.as_mut_ptr().cast(),
                &mut count,
            )
        };
        if status == sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED {
            return Ok(Vec::new());
        }
        check("cublasLtMatmulAlgoGetHeuristic", status)?;
        found.truncate(usize::try_from(count).unwrap_or(0));
        // SAFETY: the library wrote the first `count` results.
        let found = found.into_iter().map(|proposal| unsafe { proposal.assume_init() });
        Ok(found.filter(|p| p.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS).collect())
    }

    /// Starts the product.
    ///
    /// # Safety
    /// `lt` is on the current context, which `stream` and all addresses belong to; the operands have the sizes of the
    /// problem and are aligned to [`ALIGN`]; `alpha` is an address on the device for `S8`, and is not read otherwise;
    /// all of it lives until the product is done. `algo` was proposed for this problem.
    pub(super) unsafe fn start(
        &self,
        lt: &Lt,
        algo: &sys::cublasLtMatmulAlgo_t,
        at: Operands,
    ) -> Result<(), CudaError> {
        let (one_i32, zero_i32, one_f32, zero_f32) = (1_i32, 0_i32, 1_f32, 0_f32);
        let (alpha, beta): (*const std::ffi::c_void, *const std::ffi::c_void) = match self.kind {
            Kind::Int(Output::S32) => ((&raw const one_i32).cast(), (&raw const zero_i32).cast()),
            Kind::Int(Output::S8) => (at.alpha as *const _, (&raw const zero_f32).cast()),
            Kind::Float(_) => ((&raw const one_f32).cast(), (&raw const zero_f32).cast()),
        };
        // SAFETY: the descriptions and the handle are alive; factors on the host have the type of the description's
        // scale and outlive the call, in which they are copied; beta is 0, so that the third operand is not read; the
        // rest is the caller's promise.
        let status = unsafe {
            sys::cublasLtMatmul(
                lt.handle,
                self.desc.0,
                alpha,
                at.w as *const _,
                self.w.0,
                at.a as *const _,
                self.a.0,
                beta,
                at.d as *const _,
                self.d.0,
                at.d as *mut _,
                self.d.0,
                algo,
                lt.workspace.ptr() as *mut _,
                lt.workspace.bytes(),
                at.stream,
            )
        };
        check("cublasLtMatmul", status)
    }
}

/// An algorithm that the library proposes.
pub(super) type Proposal = sys::cublasLtMatmulHeuristicResult_t;

/// Addresses on the device, and the stream.
pub(super) struct Operands {
    pub(super) a: u64,
    pub(super) w: u64,
    pub(super) alpha: u64,
    pub(super) d: u64,
    pub(super) stream: sys::cudaStream_t,
}
