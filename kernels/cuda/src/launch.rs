//! The only place that launches kernels.

use std::ffi::c_uint;

use cudarc::driver::sys::{self, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue};

use super::error::check;
use super::{Arch, CudaError, Kernel, Stream};

/// Grid and block sizes, shared memory and start condition of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory of a block.
    pub shared: u32,
    /// Whether the kernel may start before the preceding kernel on the stream is done. It must then wait
    /// (`griddepcontrol.wait`) before it accesses memory that earlier work writes or reads. GPUs older than
    /// sm_90 do not support this: there the kernel starts after the preceding one
    /// ([`LaunchConfig::overlaps`]).
    pub pdl: bool,
}

impl LaunchConfig {
    /// A one-dimensional grid without dynamic shared memory, started after all earlier work.
    pub fn linear(blocks: u32, threads: u32) -> LaunchConfig {
        LaunchConfig { grid: [blocks, 1, 1], threads, shared: 0, pdl: false }
    }

    /// Whether a launch on `arch` asks the driver for programmatic dependent launch. Drivers may refuse the
    /// attribute on GPUs older than sm_90.
    pub fn overlaps(&self, arch: Arch) -> bool {
        self.pdl && arch.major >= 9
    }

    /// Checks that `kernel` can be launched with this configuration.
    fn check(&self, kernel: &Kernel, params: usize) -> Result<(), CudaError> {
        let [x, y, z] = self.grid;
        let what =
            if !(1..=0x7fff_ffff).contains(&x) || !(1..=65_535).contains(&y) || !(1..=65_535).contains(&z) {
                format!("a grid of {x} x {y} x {z} blocks; from 1 to 2147483647 x 65535 x 65535 are possible")
            } else if self.threads == 0 || self.threads > kernel.max_threads() {
                format!("{} threads per block; from 1 to {} are possible", self.threads, kernel.max_threads())
            } else if self.shared > kernel.max_shared() {
                format!(
                    "{} bytes of shared memory per block; up to {} are possible",
                    self.shared,
                    kernel.max_shared()
                )
            } else if params == 0 || params > MAX_PARAMS {
                format!("parameters of {params} bytes; from 1 to {MAX_PARAMS} are possible")
            } else {
                return Ok(());
            };
        Err(CudaError::Launch { entry: kernel.entry(), what })
    }
}

/// Maximum bytes of a kernel's parameters, on every architecture.
const MAX_PARAMS: usize = 4096;

/// The single argument of a kernel, passed by value. `build.rs` declares these types.
///
/// # Safety
/// The type is `repr(C)`. Every kernel that is launched with it takes exactly one argument: a struct with the
/// same fields in the same order, and with the same size and alignment.
pub unsafe trait Params: Copy {}

/// Puts a kernel on `stream`. May be captured; the graph then keeps the kernel loaded.
///
/// # Errors
/// The configuration is impossible for this kernel, `stream` is on another GPU, or the driver fails. Errors
/// of the kernel itself are reported when the stream is next synchronised.
///
/// # Safety
/// - `P` is the parameter of this kernel.
/// - With these parameters and this configuration, the kernel accesses only memory that lives until it is
///   done. In a captured graph, the memory lives as long as the graph, which [`Stream::hold`] ensures.
/// - All of that memory belongs to the device on which the kernel was loaded.
pub unsafe fn launch<P: Params>(
    kernel: &Kernel,
    config: LaunchConfig,
    stream: &Stream,
    params: &P,
) -> Result<(), CudaError> {
    config.check(kernel, size_of::<P>())?;
    if !kernel.context().same(stream.context()) {
        let what = "the kernel was loaded on another GPU than the stream's".to_owned();
        return Err(CudaError::Launch { entry: kernel.entry(), what });
    }
    let mut attribute = CUlaunchAttribute {
        id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        pad: [0; 4],
        value: CUlaunchAttributeValue { pad: [0; 64] },
    };
    attribute.value.programmaticStreamSerializationAllowed = 1;
    let ([x, y, z], overlaps) = (config.grid, config.overlaps(kernel.arch()));
    let config = sys::CUlaunchConfig {
        gridDimX: x,
        gridDimY: y,
        gridDimZ: z,
        blockDimX: config.threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: config.shared,
        hStream: stream.handle(),
        attrs: &mut attribute,
        numAttrs: c_uint::from(overlaps),
    };
    let mut arguments = [std::ptr::from_ref(params).cast_mut().cast()];
    // SAFETY: the kernel is loaded (`Kernel` holds its module), and the stream is alive. The attribute, the
    // array of one argument and the argument outlive the call, in which the driver copies them. The kernel
    // takes one argument of this type (`Params` and the caller guarantee it), and the caller guarantees the
    // memory.
    let mut start = || unsafe {
        sys::cuLaunchKernelEx(&config, kernel.function(), arguments.as_mut_ptr(), std::ptr::null_mut())
    };
    stream.submit_with(kernel.keep(), || check("cuLaunchKernelEx", start()))
}
