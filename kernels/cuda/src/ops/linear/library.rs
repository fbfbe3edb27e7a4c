//! A linear layer whose GEMM cuBLASLt computes. Its INT8 products have no epilogue, so a second launch runs
//! the epilogue.

use std::sync::Arc;

use super::{Call, DeviceLinear, LinearKind, PlainWeight, Target, int};
use crate::params::dequant::Params;
use crate::{
    CudaError, DeviceBuf, DeviceSlice, FloatKind, Kernel, LaunchConfig, Lt, LtPlan, Output, Program, Stream,
    launch,
};

/// Threads per block of the epilogue launch.
const THREADS: u32 = 256;

/// A linear layer computed by one of cuBLASLt's algorithms, followed by one of our launches for bias, GELU,
/// quantization or residual addition.
pub struct LibraryLinear {
    lt: Arc<Lt>,
    plan: LtPlan,
    kernel: Kernel,
    /// Whether the GEMM's results are the INT8 codes of the `.output` site.
    codes: bool,
    m: usize,
    /// The unpacked weight, shared by the algorithms of a layer.
    weight: Arc<DeviceSlice>,
}

impl LinearKind {
    /// The program of the epilogue launch. `codes` says that the GEMM's results are codes of the `.output`
    /// site.
    pub fn finish_program(&self, codes: bool) -> Program {
        let program = Program::new("dequant.cu", "dequant")
            .define("THREADS", THREADS.into())
            .define("CODES_IN", codes.into());
        self.define(program)
    }
}

impl DeviceLinear {
    /// cuBLASLt's algorithms for `m` rows, the most promising first. Results are s32 (f32 for f16 operands);
    /// if there is an `.output` site, algorithms with s8 results are included too. Empty if n or k is not a
    /// multiple of 16, and for [`LinearStore::Heads`](super::LinearStore::Heads), which the second launch
    /// does not compute.
    ///
    /// # Errors
    /// cuBLASLt fails, a kernel does not compile, or the device has too little memory.
    pub fn library(&self, lt: &Arc<Lt>, m: usize) -> Result<Vec<LibraryLinear>, CudaError> {
        if self.kind.heads || !self.n.is_multiple_of(16) || !self.k.is_multiple_of(16) {
            return Ok(Vec::new());
        }
        let mut linears = Vec::new();
        if self.kind.integer {
            linears.extend(self.finished(lt, m, LtPlan::new(lt, m, self.n, self.k, Output::S32)?, false)?);
            // Results of type s8 are codes of the `.output` site already, too late to correct the sums.
            if self.kind.output && !self.kind.corrected {
                linears.extend(self.finished(
                    lt,
                    m,
                    LtPlan::new(lt, m, self.n, self.k, Output::S8)?,
                    true,
                )?);
            }
        } else {
            let plans = LtPlan::float(lt, m, self.n, self.k, FloatKind::F16ToF32)?;
            linears.extend(self.finished(lt, m, plans, false)?);
        }
        Ok(linears)
    }

    fn finished(
        &self,
        lt: &Arc<Lt>,
        m: usize,
        plans: Vec<LtPlan>,
        codes: bool,
    ) -> Result<Vec<LibraryLinear>, CudaError> {
        let (kernel, weight) = (self.device.kernel(&self.kind.finish_program(codes))?, self.plain()?);
        let finish = |plan| LibraryLinear {
            lt: Arc::clone(lt),
            plan,
            kernel: kernel.clone(),
            codes,
            m,
            weight: Arc::clone(&weight),
        };
        Ok(plans.into_iter().map(finish).collect())
    }

    /// The unpacked weight on the device.
    fn plain(&self) -> Result<Arc<DeviceSlice>, CudaError> {
        let mut known = self.plain_on_device.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(slice) = known.upgrade() {
            return Ok(slice);
        }
        let buf = match &self.plain_weight {
            PlainWeight::Codes(codes) => DeviceBuf::from_slice(&self.device, codes)?,
            PlainWeight::Half(bits) => DeviceBuf::from_slice(&self.device, bits)?,
        };
        let slice = Arc::new(buf.all());
        *known = Arc::downgrade(&slice);
        Ok(slice)
    }
}

impl LibraryLinear {
    /// Bytes of the GEMM's results, which are stored between the two launches.
    pub fn scratch_bytes(&self, linear: &DeviceLinear) -> usize {
        self.m * linear.n * if self.codes { 1 } else { 4 }
    }

    /// Whether the GEMM's results are INT8.
    pub fn is_s8(&self) -> bool {
        self.codes
    }

    /// The GEMM's algorithm.
    pub fn plan(&self) -> &LtPlan {
        &self.plan
    }

    /// Multiplies the rows of `a` with the weight of `linear`, from which this was created; `scratch` holds
    /// the GEMM's results.
    ///
    /// # Errors
    /// The driver or cuBLASLt fails.
    ///
    /// # Panics
    /// If a slice is too short.
    pub fn run(
        &self,
        linear: &DeviceLinear,
        stream: &Stream,
        a: &DeviceSlice,
        scratch: &DeviceSlice,
        target: Target<'_>,
    ) -> Result<(), CudaError> {
        let (call, element) = (Call(stream), if self.codes { 1 } else { 4 });
        let sums = call.array("linear: the scratch", scratch, &[self.m, linear.n, element]);
        let epilogue = linear.epilogue(&call, self.m, &target);
        let alpha = self.codes.then_some(&linear.epilogue.scale);
        self.plan.run(&self.lt, stream, a, &self.weight, alpha, scratch)?;
        let params = Params { sums, m: int(self.m), ld: int(linear.n), epilogue };
        // The kernel counts groups of eight columns in 32 bits.
        int(self.m * linear.n.div_ceil(8));
        let blocks = (self.m * linear.n.div_ceil(8)).div_ceil(THREADS as usize);
        let config = LaunchConfig { shared: 384, ..LaunchConfig::linear(blocks as u32, THREADS) };
        // SAFETY: `Params` is the kernel's parameter, and the kernel was compiled for the layer's
        // kind. The lengths were checked above, and all slices are held.
        unsafe { launch(&self.kernel, config, stream, &params) }
    }
}
