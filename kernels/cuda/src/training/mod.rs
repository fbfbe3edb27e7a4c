//! The operations of quantization-aware training on a GPU: fake quantization, LayerNorm, gathers, GELU,
//! window attention and AdamW, forward and backward, in f32. Memory and streams belong to the caller, through
//! `cudarc`.
//!
//! Every function checks the lengths of its arguments, allocates its results and puts its kernels on the
//! stream; none waits. The order of sums depends only on sizes.

mod attention;
mod columns;
mod element;
mod fake;
mod images;
mod loss;
mod maps;
mod norm;
mod pointwise;
mod product;
mod rows;
mod scales;
mod transfer;
mod update;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::result::{device::get_default_mem_pool, mem_pool};
use cudarc::driver::sys::CUmemPool_attribute;
use cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, CudaView, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop,
};

use super::error::failed;
use super::{CudaError, Device, Kernel, LaunchConfig, Params, Program, Stream, launch};

pub use attention::{AttentionGradients, AttentionInputs, AttentionProgram, TrainProbs, WindowAttention};
pub use columns::{Columns, ColumnsProgram, FakeColumns};
pub use element::Element;
pub use fake::{FakeProgram, FakeSteps};
pub use images::{Patches, patches_launch, patches_program};
pub use loss::{LossProgram, LossWeights, Targets};
pub use maps::{MapLoss, MapsProgram};
pub use norm::NormProgram;
pub use pointwise::{AdamWStep, pointwise_launch, pointwise_program};
pub use product::{Product, Products};
pub use rows::{
    RowIndex, column_sums_launch, column_sums_program, gather_launch, gather_program, table_launch,
    table_program,
};
pub use scales::{RowScales, ScalesProgram};
pub use transfer::Staging;
pub use update::{Controls, Flat, Kind, MomentRule, Outcome, UpdateProgram, UpdateRule};

/// Default number of threads per block.
const THREADS: u32 = 256;

/// The training operations on one stream of a GPU.
pub struct Training {
    device: Device,
    stream: Stream,
    cuda: Arc<CudaStream>,
    kernels: Mutex<HashMap<Program, Kernel>>,
    products: Mutex<Option<product::Handle>>,
}

impl Training {
    /// Creates the operations on `stream`, which must be in the primary context of its GPU.
    ///
    /// # Errors
    /// The stream is in another context, the GPU is too old, or the driver fails.
    pub fn new(stream: &Arc<CudaStream>) -> Result<Training, CudaError> {
        let device = Device::open(stream.context().ordinal())?;
        let own = Stream::shared(&device, stream)?;
        keep_freed_memory(stream.context())?;
        // SAFETY: all work on memory of this context, that of its other users included, is put on this one
        // stream, whose order takes the place of events. With events, every allocation makes two, and nothing
        // can be captured.
        unsafe { stream.context().disable_event_tracking() };
        let (kernels, products) = (Mutex::default(), Mutex::default());
        Ok(Training { device, stream: own, cuda: Arc::clone(stream), kernels, products })
    }

    /// The stream, for captures and for work of other kinds.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The stream as its owner has it.
    pub(crate) fn cuda(&self) -> &Arc<CudaStream> {
        &self.cuda
    }

    /// The GPU.
    pub fn device(&self) -> &Device {
        &self.device
    }

    fn kernel(&self, program: &Program) -> Result<Kernel, CudaError> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = kernels.get(program) {
            return Ok(kernel.clone());
        }
        let kernel = self.device.kernel(program)?;
        kernels.insert(program.clone(), kernel.clone());
        Ok(kernel)
    }

    /// Launches `program` on the stream.
    ///
    /// # Safety
    /// As [`launch()`]. Memory must be freed in the order of its stream, which `cudarc`'s types ensure.
    unsafe fn launch<P: Params>(
        &self,
        program: &Program,
        config: LaunchConfig,
        params: &P,
    ) -> Result<(), CudaError> {
        let kernel = self.kernel(program)?;
        // SAFETY: guaranteed by the caller.
        unsafe { launch(&kernel, config, &self.stream, params) }
    }

    /// Allocates memory for `len` values, with undefined content.
    fn allocate(&self, len: usize) -> Result<CudaSlice<f32>, CudaError> {
        self.allocate_as(len)
    }

    /// [`Training::allocate`], for values of another type.
    fn allocate_as<T: Element>(&self, len: usize) -> Result<CudaSlice<T>, CudaError> {
        // SAFETY: any bits are a valid `Element`, and every caller launches a kernel that writes all of them.
        let slice = unsafe { self.cuda.alloc::<T>(len) };
        slice.map_err(|error| failed("cuMemAllocAsync", error))
    }

    /// [`Training::allocate`], for values that kernels pass on to later kernels.
    fn scratch(&self, len: usize) -> Result<CudaSlice<f64>, CudaError> {
        // SAFETY: any bits are a valid f64, and every caller launches a kernel that writes all values before
        // others read them.
        let slice = unsafe { self.cuda.alloc::<f64>(len) };
        slice.map_err(|error| failed("cuMemAllocAsync", error))
    }

    /// Waits for the work on the stream, and returns the memory that it freed to the GPU.
    ///
    /// # Errors
    /// The driver fails, or the work did.
    pub fn trim(&self) -> Result<(), CudaError> {
        self.stream().synchronize()?;
        return_freed_memory(self.cuda.context())
    }

    /// Checks memory that a kernel will use.
    ///
    /// # Panics
    /// If its length is not `len`, or it is on another GPU.
    fn expect<T>(&self, what: &str, values: &impl DeviceSlice<T>, len: usize) {
        assert_eq!(values.len(), len, "{what}: length");
        assert!(values.stream().context() == self.cuda.context(), "{what}: memory of another GPU");
    }
}

/// The memory of launches, whose addresses become parameters. It is dropped after the launches.
struct Call<'a> {
    training: &'a Training,
    /// They order later work on the memory after the launches.
    guards: Vec<SyncOnDrop<'a>>,
}

impl<'a> Call<'a> {
    fn new(training: &'a Training) -> Call<'a> {
        Call { training, guards: Vec::new() }
    }

    /// The address of the `len` values that the kernels read; 0 if there are none.
    ///
    /// # Panics
    /// If the length differs, or the memory is on another GPU.
    fn read<T: 'a>(&mut self, what: &str, values: impl Into<Option<&'a CudaView<'a, T>>>, len: usize) -> u64 {
        values.into().map_or(0, |values| {
            self.training.expect(what, values, len);
            let (address, guard) = values.device_ptr(&self.training.cuda);
            self.guards.push(guard);
            address
        })
    }

    /// The address of values that the kernels write.
    fn write<T>(&mut self, values: &'a mut impl DevicePtrMut<T>) -> u64 {
        let (address, guard) = values.device_ptr_mut(&self.training.cuda);
        self.guards.push(guard);
        address
    }
}

/// Returns the freed memory that the GPU's memory pool keeps.
fn return_freed_memory(context: &CudaContext) -> Result<(), CudaError> {
    if !context.has_async_alloc() {
        return Ok(());
    }
    // SAFETY: the device belongs to a living context, and its default pool lives as long as it does.
    let trimmed =
        unsafe { get_default_mem_pool(context.cu_device()).and_then(|pool| mem_pool::trim_to(pool, 0)) };
    trimmed.map_err(|error| failed("cuMemPoolTrimTo", error))
}

/// Lets the GPU's memory pool keep freed memory. By default the pool returns all of it whenever the host
/// waits for the GPU, that is, in each iteration of a training, and maps it again in the next.
fn keep_freed_memory(context: &CudaContext) -> Result<(), CudaError> {
    if !context.has_async_alloc() {
        return Ok(());
    }
    // SAFETY: the device belongs to a living context.
    let pool = unsafe { get_default_mem_pool(context.cu_device()) };
    let pool = pool.map_err(|error| failed("cuDeviceGetDefaultMemPool", error))?;
    let mut bytes = u64::MAX;
    let threshold = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: a device's default pool lives as long as the device, and this attribute is a 64-bit number.
    let set = unsafe { mem_pool::set_attribute(pool, threshold, (&raw mut bytes).cast()) };
    set.map_err(|error| failed("cuMemPoolSetAttribute", error))
}

/// Converts a size to the type that kernels take.
///
/// # Panics
/// If it is 2^31 or more.
fn int(size: usize) -> i32 {
    super::ops::int(size)
}

/// As [`int`], unsigned.
///
/// # Panics
/// If it is 2^31 or more.
fn uint(size: usize) -> u32 {
    int(size).unsigned_abs()
}

/// Launch configuration of a loop over `count` values. Beyond 16,384 blocks, a thread computes several
/// values.
fn loop_launch(count: usize) -> LaunchConfig {
    LaunchConfig::linear(uint(count).div_ceil(THREADS).min(16_384), THREADS)
}

/// Number of values per access, for rows of `columns` values at `addresses`.
fn vector(columns: usize, addresses: &[u64]) -> usize {
    let aligned = addresses.iter().all(|address| address.is_multiple_of(16));
    if aligned && columns.is_multiple_of(4) { 4 } else { 1 }
}
