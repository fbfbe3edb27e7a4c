//! A matrix product together with the cuBLASLt algorithm that computes it.

use std::fmt;
use std::sync::Arc;

use cudarc::cublaslt::sys::{self, cublasLtMatmulAlgoConfigAttributes_t as Attribute};
use swinq_numerics::sizes::elements;

use super::problem::{ALIGN, Kind, Operands, Problem, Proposal};
use super::{FloatKind, Lt, Output};
use crate::{CudaError, DeviceSlice, Stream};

/// Number of algorithms to request.
const MOST: usize = 8;

/// A product of given sizes and types, computed by one of cuBLASLt's algorithms. The algorithms of an INT8
/// product differ only in speed.
#[derive(Clone)]
pub struct LtPlan {
    problem: Arc<Problem>,
    algo: sys::cublasLtMatmulAlgo_t,
    workspace_bytes: usize,
}

impl LtPlan {
    /// Returns at least one algorithm for the INT8 product `D[m, n] = A[m, k] * W[n, k]^T`, the most
    /// promising first. `n` and `k` must be multiples of 16.
    ///
    /// # Errors
    /// The sizes are not supported, or cuBLASLt has no algorithm for them.
    pub fn new(lt: &Lt, m: usize, n: usize, k: usize, output: Output) -> Result<Vec<LtPlan>, CudaError> {
        LtPlan::all(lt, m, n, k, Kind::Int(output))
    }

    /// As [`LtPlan::new`], for a floating-point product.
    ///
    /// # Errors
    /// As [`LtPlan::new`].
    pub fn float(lt: &Lt, m: usize, n: usize, k: usize, kind: FloatKind) -> Result<Vec<LtPlan>, CudaError> {
        LtPlan::all(lt, m, n, k, Kind::Float(kind))
    }

    fn all(lt: &Lt, m: usize, n: usize, k: usize, kind: Kind) -> Result<Vec<LtPlan>, CudaError> {
        let problem = Arc::new(Problem::new(lt, m, n, k, kind)?);
        let proposals = problem.algorithms(lt, MOST)?;
        if proposals.is_empty() {
            let what = format!(
                "cuBLASLt has no algorithm on this GPU for a product {kind:?} of {m} x {k} by {k} x {n}"
            );
            return Err(CudaError::Unsupported(what));
        }
        let plan = |p: Proposal| LtPlan {
            problem: Arc::clone(&problem),
            algo: p.algo,
            workspace_bytes: p.workspaceSize,
        };
        Ok(proposals.into_iter().map(plan).collect())
    }

    /// Starts the product on `stream`. May be captured; the graph then keeps the memory alive. `alpha` must
    /// hold n f32 factors on the device for [`Output::S8`], and must be `None` for all other types.
    ///
    /// # Errors
    /// A slice is too short, is not aligned to 16 bytes or is on another device than `lt`; `alpha` is missing
    /// or not expected; or cuBLASLt fails.
    pub fn run(
        &self,
        lt: &Lt,
        stream: &Stream,
        a: &DeviceSlice,
        w: &DeviceSlice,
        alpha: Option<&DeviceSlice>,
        d: &DeviceSlice,
    ) -> Result<(), CudaError> {
        let Problem { m, n, k, kind, .. } = *self.problem;
        let (element, result) = kind.element_bytes();
        let on_device = |name, slice: &DeviceSlice, sizes: &[usize]| {
            operand(lt, name, slice, elements("cuBLASLt", name, sizes))
        };
        on_device("A", a, &[m, k, element])?;
        on_device("W", w, &[n, k, element])?;
        on_device("D", d, &[m, n, result])?;
        if alpha.is_some() != (kind == Kind::Int(Output::S8)) {
            return Err(CudaError::Unsupported(
                "factors per column belong to products with INT8 results".into(),
            ));
        }
        alpha.map_or(Ok(()), |alpha| on_device("alpha", alpha, &[n, 4]))?;
        if !lt.device.context().same(stream.context()) {
            return Err(CudaError::Unsupported("a product on a stream of another GPU".into()));
        }
        let used = [Some(a), Some(w), Some(d), alpha, Some(&lt.workspace)];
        let (alpha, handle) = (alpha.map_or(0, DeviceSlice::ptr), stream.handle().cast());
        let at = Operands { a: a.ptr(), w: w.ptr(), alpha, d: d.ptr(), stream: handle };
        // SAFETY: everything is in the context of `lt`, which is current. Sizes and alignment were checked
        // above. The slices hold their memory, which is freed only after the work that uses it, and a graph
        // holds the slices. `algo` was proposed for this problem in `all`.
        let start = || unsafe { self.problem.start(lt, &self.algo, at) };
        stream.submit(|held| held.extend(used.into_iter().flatten().map(DeviceSlice::keep)), start)
    }

    /// Rows of A and D, rows of W, and columns of A and W.
    pub fn sizes(&self) -> (usize, usize, usize) {
        (self.problem.m, self.problem.n, self.problem.k)
    }

    /// ID of the algorithm.
    pub fn algo_id(&self) -> u32 {
        self.config(Attribute::CUBLASLT_ALGO_CONFIG_ID)
    }

    /// ID of the tile size (`cublasLtMatmulTile_t`).
    pub fn tile_id(&self) -> u32 {
        self.config(Attribute::CUBLASLT_ALGO_CONFIG_TILE_ID)
    }

    /// ID of the number and size of stages (`cublasLtMatmulStages_t`).
    pub fn stages_id(&self) -> u32 {
        self.config(Attribute::CUBLASLT_ALGO_CONFIG_STAGES_ID)
    }

    /// Bytes of scratch memory that the algorithm uses.
    pub fn workspace_bytes(&self) -> usize {
        self.workspace_bytes
    }

    fn config(&self, attribute: Attribute) -> u32 {
        let (mut value, mut written) = (0_u32, 0);
        // SAFETY: an `Lt` created the plan, so the library is loaded; the attributes read here have 32 bits.
        let status = unsafe {
            let value = (&raw mut value).cast();
            sys::cublasLtMatmulAlgoConfigGetAttribute(
                &self.algo,
                attribute,
                value,
                size_of::<u32>(),
                &mut written,
            )
        };
        if status == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS { value } else { 0 }
    }
}

/// Checks that `slice` can be an operand of `len` bytes.
fn operand(lt: &Lt, name: &str, slice: &DeviceSlice, len: usize) -> Result<(), CudaError> {
    let what = if slice.bytes() < len {
        format!("{name} of a product has {} bytes and needs {len}", slice.bytes())
    } else if !slice.ptr().is_multiple_of(ALIGN as u64) {
        format!("{name} of a product is at {:#x}, which is no multiple of {ALIGN}", slice.ptr())
    } else if !lt.device.context().same(slice.context()) {
        format!("{name} of a product is on another GPU")
    } else {
        return Ok(());
    };
    Err(CudaError::Unsupported(what))
}

impl fmt::Debug for LtPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem { m, n, k, kind, .. } = *self.problem;
        let (algo, tile, stages) = (self.algo_id(), self.tile_id(), self.stages_id());
        write!(f, "{kind:?} {m}x{n}x{k}: algorithm {algo}, tile {tile}, stages {stages}, ")?;
        write!(f, "{} bytes of scratch", self.workspace_bytes)
    }
}
