//! A matrix product as described to cuBLASLt, and the algorithms that cuBLASLt proposes for it.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use cudarc::cublaslt::sys::{self, cublasComputeType_t as Compute, cudaDataType_t as Type};
use sys::cublasLtMatmulDescAttributes_t as DescAttribute;
use sys::cublasLtMatmulPreferenceAttributes_t as PreferenceAttribute;

use super::{FloatKind, Lt, Output, check};
use crate::CudaError;

/// Alignment of all operands in bytes; `n` and `k` must be multiples of it.
pub(super) const ALIGN: usize = 16;

/// Types of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Int(Output),
    Float(FloatKind),
}

impl Kind {
    /// Bytes per element of the operands and of the result.
    pub(super) fn element_bytes(self) -> (usize, usize) {
        match self {
            Kind::Int(Output::S32) => (1, 4),
            Kind::Int(Output::S8) => (1, 1),
            Kind::Float(FloatKind::F32 | FloatKind::Tf32) => (4, 4),
            Kind::Float(FloatKind::F16) => (2, 2),
            Kind::Float(FloatKind::F16ToF32) => (2, 4),
        }
    }

    /// Types of the computation, of alpha and beta, of the operands, and of the result.
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

/// A cuBLASLt matrix layout.
struct Layout(sys::cublasLtMatrixLayout_t);

impl Layout {
    /// Column-major and contiguous. The library must be loaded.
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
        // SAFETY: created in `new` and destroyed only here.
        let _ = unsafe { sys::cublasLtMatrixLayoutDestroy(self.0) };
    }
}

/// A cuBLASLt operation descriptor.
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
        // SAFETY: the descriptor is alive; the attributes set here are 32-bit enumerations.
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
        // SAFETY: created in `new` and destroyed only here.
        let _ = unsafe { sys::cublasLtMatmulDescDestroy(self.0) };
    }
}

/// Restrictions on the algorithms that may be proposed.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    /// Algorithms for operands of alignment [`ALIGN`] that use at most `workspace` bytes of scratch memory.
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
        // SAFETY: the preference is alive; the library checks the size of the value and copies it.
        let status = unsafe {
            let value = std::ptr::from_ref(value).cast();
            sys::cublasLtMatmulPreferenceSetAttribute(self.0, attribute, value, size_of::<T>())
        };
        check("cublasLtMatmulPreferenceSetAttribute", status)
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: created in `new` and destroyed only here.
        let _ = unsafe { sys::cublasLtMatmulPreferenceDestroy(self.0) };
    }
}

/// A product: its sizes, types and descriptors.
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

// SAFETY: descriptors are plain memory of the library, which is written only in `Problem::new` and only read
// later.
unsafe impl Send for Problem {}
// SAFETY: as above.
unsafe impl Sync for Problem {}

impl Problem {
    /// Describes a product to cuBLASLt. `_lt` proves that the library is loaded.
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

    /// Returns up to `most` algorithms, the most promising first. The result is empty if there is none.
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
    /// `lt` is in the current context, to which `stream` and all addresses belong. The operands have the
    /// sizes of the problem and are aligned to [`ALIGN`]. `alpha` is an address on the device for `S8`; for
    /// other types it is not read. All of this lives until the product is done. `algo` was proposed for this
    /// problem.
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
        // SAFETY: the descriptors and the handle are alive. Factors on the host have the descriptor's scale
        // type and outlive the call, which copies them. beta is 0, so the third operand is not read. The
        // caller guarantees the rest.
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

/// Device addresses of the operands, and the stream.
pub(super) struct Operands {
    pub(super) a: u64,
    pub(super) w: u64,
    pub(super) alpha: u64,
    pub(super) d: u64,
    pub(super) stream: sys::cudaStream_t,
}
