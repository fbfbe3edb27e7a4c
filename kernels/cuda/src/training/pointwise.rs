//! GELU, its gradient, and AdamW.

use cudarc::driver::{CudaSlice, CudaView, CudaViewMut};

use super::{Call, THREADS, Training, uint};
pub use crate::params::train_pointwise::AdamWStep;
use crate::params::train_pointwise::Params;
use crate::{CudaError, LaunchConfig, Program};

/// Maximum number of blocks; beyond it, a thread processes several values.
const BLOCKS: u32 = 8192;

/// Bytes of the coefficients of GELU's tail.
const TAIL_BYTES: u32 = 4 * 96;

/// The program of `entry`: `gelu_forward`, `gelu_backward` or `adamw`.
pub fn pointwise_program(entry: &'static str) -> Program {
    Program::new("train_pointwise.cu", entry).define("THREADS", THREADS.into())
}

/// Launch configuration for `count` values.
pub fn pointwise_launch(count: usize) -> LaunchConfig {
    let blocks = uint(count).div_ceil(THREADS).min(BLOCKS);
    LaunchConfig { shared: TAIL_BYTES, ..LaunchConfig::linear(blocks, THREADS) }
}

impl Training {
    /// GELU of every value, defined by the error function.
    ///
    /// # Errors
    /// The kernel does not compile, or the driver fails.
    pub fn gelu(&self, x: &CudaView<'_, f32>) -> Result<CudaSlice<f32>, CudaError> {
        self.pointwise("gelu_forward", x, None)
    }

    /// `grad * gelu'(x)`, elementwise.
    ///
    /// # Errors
    /// The kernel does not compile, or the driver fails.
    ///
    /// # Panics
    /// If `grad` has another length.
    pub fn gelu_gradient(
        &self,
        x: &CudaView<'_, f32>,
        grad: &CudaView<'_, f32>,
    ) -> Result<CudaSlice<f32>, CudaError> {
        self.pointwise("gelu_backward", x, Some(grad))
    }

    fn pointwise(
        &self,
        entry: &'static str,
        x: &CudaView<'_, f32>,
        grad: Option<&CudaView<'_, f32>>,
    ) -> Result<CudaSlice<f32>, CudaError> {
        let count = x.len();
        let mut out = self.allocate(count)?;
        let mut call = Call::new(self);
        let params = Params {
            x: call.read(entry, x, count),
            grad: call.read(entry, grad, count),
            out: call.write(&mut out),
            count: uint(count),
            ..Params::default()
        };
        // SAFETY: `Params` is the kernel's parameter; every array that `entry` uses has `count`
        // values.
        unsafe { self.launch(&pointwise_program(entry), pointwise_launch(count), &params)? };
        drop(call);
        Ok(out)
    }

    /// Updates a parameter and the two moments of its gradient in place.
    ///
    /// # Errors
    /// The kernel does not compile, or the driver fails.
    ///
    /// # Panics
    /// If lengths differ, or memory is on another GPU.
    pub fn adamw(
        &self,
        [mut parameter, mut first, mut second]: [CudaViewMut<'_, f32>; 3],
        grad: &CudaView<'_, f32>,
        step: AdamWStep,
    ) -> Result<(), CudaError> {
        let count = grad.len();
        self.expect("adamw: the parameter", &parameter, count);
        self.expect("adamw: the mean", &first, count);
        self.expect("adamw: the mean square", &second, count);
        let mut call = Call::new(self);
        let params = Params {
            grad: call.read("adamw", grad, count),
            out: call.write(&mut parameter),
            first: call.write(&mut first),
            second: call.write(&mut second),
            count: uint(count),
            step,
            ..Params::default()
        };
        let config = pointwise_launch(count);
        // SAFETY: `Params` is the kernel's parameter. The four arrays have `count` values; three of
        // them are borrowed mutably, so they do not overlap.
        unsafe { self.launch(&pointwise_program("adamw"), config, &params) }
    }
}
