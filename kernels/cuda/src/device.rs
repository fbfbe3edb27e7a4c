//! A GPU and its primary context.

use std::collections::HashMap;
use std::ffi::{CStr, c_int, c_uint};
use std::fmt;
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};

use super::CudaError;
use super::error::{check, describe};
use super::kernel::Module;
use super::library::{self, Library};
use super::program::Unit;

/// The oldest supported CUDA version of the driver: it has all functions used here.
const OLDEST_DRIVER: (u32, u32) = (12, 0);

/// The retained primary context of a device. Everything that is created in the context holds it.
pub(crate) struct Context {
    device: sys::CUdevice,
    handle: sys::CUcontext,
}

// SAFETY: the driver's functions are thread-safe, and a context may be current on any number of threads. The
// handle is valid until `drop`, which runs when the last holder is gone.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    fn retain(device: sys::CUdevice) -> Result<Context, CudaError> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: `device` comes from cuDeviceGet, and the driver writes one handle.
        check("cuDevicePrimaryCtxRetain", unsafe { sys::cuDevicePrimaryCtxRetain(&mut handle, device) })?;
        Ok(Context { device, handle })
    }

    /// Makes the context current on this thread.
    pub(crate) fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: the handle is retained by `self`.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.handle) })
    }

    /// Makes the context current on this thread until the result is dropped.
    pub(crate) fn bound(&self) -> Result<KeepContext, CudaError> {
        let before = KeepContext::here()?;
        self.bind()?;
        Ok(before)
    }

    /// Whether both are the same driver context.
    pub(crate) fn same(&self, other: &Context) -> bool {
        self.handle == other.handle
    }

    /// Whether `handle` is this context.
    pub(crate) fn is(&self, handle: sys::CUcontext) -> bool {
        self.handle == handle
    }

    /// Free and total bytes.
    pub(crate) fn memory(&self) -> Result<(usize, usize), CudaError> {
        let _bound = self.bound()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: a context is current; the driver writes two sizes.
        check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok((free, total))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once in `retain`. Everything created in the context holds an `Arc` of `self`, so
        // nothing is left.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// Restores the context that was current on this thread, when dropped. Libraries that share the thread, such
/// as PyTorch, take the current context for that of their device.
pub struct KeepContext {
    before: sys::CUcontext,
}

impl KeepContext {
    /// Remembers the current context. A device must be open.
    ///
    /// # Errors
    /// The driver fails.
    pub fn new(_of: &Device) -> Result<KeepContext, CudaError> {
        KeepContext::here()
    }

    /// [`KeepContext::new`] where a device is open.
    fn here() -> Result<KeepContext, CudaError> {
        let mut before = std::ptr::null_mut();
        // SAFETY: a device is open, so the driver is initialised; it writes one handle.
        check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut before) })?;
        Ok(KeepContext { before })
    }
}

impl Drop for KeepContext {
    fn drop(&mut self) {
        // SAFETY: the context was current, and null stands for none. A context that was destroyed since is an
        // error of the driver.
        let _ = unsafe { sys::cuCtxSetCurrent(self.before) };
    }
}

/// Compute capability of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arch {
    /// Major version: the GPU's generation.
    pub major: u32,
    /// Minor version.
    pub minor: u32,
}

impl Arch {
    /// The oldest supported GPU: kernels need INT8 tensor cores and `ldmatrix`.
    pub const OLDEST: Arch = Arch { major: 7, minor: 5 };

    /// The name of the architecture to compile for; on Hopper it includes the architecture-specific
    /// instructions (`sm_90a`).
    pub fn target(self) -> String {
        if self == (Arch { major: 9, minor: 0 }) { "sm_90a".to_owned() } else { self.to_string() }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}{}", self.major, self.minor)
    }
}

/// An open GPU. Clones refer to the same device; threads may share it.
#[derive(Clone)]
pub struct Device {
    inner: Arc<Inner>,
}

struct Inner {
    context: Arc<Context>,
    facts: Facts,
    modules: Mutex<HashMap<Unit, Arc<Module>>>,
}

struct Facts {
    name: String,
    uuid: String,
    arch: Arch,
    multiprocessors: u32,
    shared_per_block: u32,
    l2_bytes: u32,
    clock_khz: u32,
    memory_clock_khz: u32,
    bus_width_bits: u32,
}

impl Device {
    /// Returns the number of GPUs of this machine; 0 if there is none.
    ///
    /// # Errors
    /// The driver is missing, too old, or does not start.
    pub fn count() -> Result<usize, CudaError> {
        library::require(Library::Driver)?;
        if let Some((major, minor)) = library::driver_version()
            && (major, minor) < OLDEST_DRIVER
        {
            let what =
                format!("the NVIDIA driver is for CUDA {major}.{minor}; install 525 (CUDA 12.0) or newer");
            return Err(CudaError::Unsupported(what));
        }
        // SAFETY: the driver is loaded; the flags must be 0.
        match unsafe { sys::cuInit(0) } {
            CUresult::CUDA_SUCCESS => {}
            CUresult::CUDA_ERROR_NO_DEVICE => return Ok(0),
            error => {
                return Err(CudaError::NoDevice(format!("the driver does not start: {}", describe(error))));
            }
        }
        let mut count: c_int = 0;
        // SAFETY: the driver is initialised and writes one int.
        check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut count) })?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// Opens GPU `ordinal`, in the order of the driver, which depends on `CUDA_VISIBLE_DEVICES`.
    ///
    /// # Errors
    /// There is no such GPU, it is older than [`Arch::OLDEST`], or the driver fails.
    pub fn open(ordinal: usize) -> Result<Device, CudaError> {
        let count = Device::count()?;
        let index = c_int::try_from(ordinal).ok().filter(|_| ordinal < count).ok_or_else(|| {
            CudaError::NoDevice(format!(
                "GPU {ordinal} is asked for and there are {count} (CUDA_VISIBLE_DEVICES)"
            ))
        })?;
        let mut device = 0;
        // SAFETY: the driver is initialised and writes one handle.
        check("cuDeviceGet", unsafe { sys::cuDeviceGet(&mut device, index) })?;
        let facts = Facts::read(device)?;
        if facts.arch < Arch::OLDEST {
            let what = format!("{} is {}; {} or newer is needed", facts.name, facts.arch, Arch::OLDEST);
            return Err(CudaError::Unsupported(what));
        }
        let context = Arc::new(Context::retain(device)?);
        Ok(Device { inner: Arc::new(Inner { context, facts, modules: Mutex::default() }) })
    }

    /// Makes the device's context current on this thread. The functions of this module call it themselves;
    /// those that free, and [`Device::memory`] and [`Device::holds`], restore the context that was current
    /// before.
    ///
    /// # Errors
    /// The driver fails.
    pub fn bind(&self) -> Result<(), CudaError> {
        self.inner.context.bind()
    }

    /// Product name.
    pub fn name(&self) -> &str {
        &self.inner.facts.name
    }

    /// Unique identifier, as `nvidia-smi -L` prints it.
    pub fn uuid(&self) -> &str {
        &self.inner.facts.uuid
    }

    /// Compute capability.
    pub fn arch(&self) -> Arch {
        self.inner.facts.arch
    }

    /// Number of multiprocessors.
    pub fn multiprocessors(&self) -> u32 {
        self.inner.facts.multiprocessors
    }

    /// Maximum bytes of shared memory of a block.
    pub fn shared_per_block(&self) -> u32 {
        self.inner.facts.shared_per_block
    }

    /// Bytes of the L2 cache.
    pub fn l2_bytes(&self) -> u32 {
        self.inner.facts.l2_bytes
    }

    /// Maximum clock of the multiprocessors.
    pub fn clock_khz(&self) -> u32 {
        self.inner.facts.clock_khz
    }

    /// Maximum clock of the memory.
    pub fn memory_clock_khz(&self) -> u32 {
        self.inner.facts.memory_clock_khz
    }

    /// Width of the memory bus.
    pub fn bus_width_bits(&self) -> u32 {
        self.inner.facts.bus_width_bits
    }

    /// Free and total bytes of memory.
    ///
    /// # Errors
    /// The driver fails.
    pub fn memory(&self) -> Result<(usize, usize), CudaError> {
        self.inner.context.memory()
    }

    /// Waits until all work on the device is done.
    ///
    /// # Errors
    /// The driver fails, or earlier work on the device failed.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.bind()?;
        // SAFETY: a context is current.
        check("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() })
    }

    /// Whether `ptr` is an address of this GPU's memory, or of memory that the driver moves between the GPUs
    /// and the host.
    pub fn holds(&self, ptr: u64) -> bool {
        use sys::CUpointer_attribute as Pointer;
        let Ok(_bound) = self.inner.context.bound() else { return false };
        let get = |attribute| {
            let mut value: c_int = -1;
            // SAFETY: a context is current; the driver writes at most one int, and fails for an address that
            // it does not know.
            let status = unsafe { sys::cuPointerGetAttribute((&raw mut value).cast(), attribute, ptr) };
            (status == CUresult::CUDA_SUCCESS).then_some(value)
        };
        let is_managed =
            get(Pointer::CU_POINTER_ATTRIBUTE_IS_MANAGED).is_some_and(|managed| managed & 0xff == 1);
        let on_device = get(Pointer::CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
            == Some(sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as c_int);
        is_managed
            || (on_device
                && get(Pointer::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) == Some(self.inner.context.device))
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.inner.context
    }

    pub(crate) fn modules(&self) -> &Mutex<HashMap<Unit, Arc<Module>>> {
        &self.inner.modules
    }
}

impl Facts {
    fn read(device: sys::CUdevice) -> Result<Facts, CudaError> {
        let get = |attribute| -> Result<u32, CudaError> {
            let mut value: c_int = 0;
            // SAFETY: `device` comes from cuDeviceGet, and the driver writes one int.
            let status = unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, device) };
            check("cuDeviceGetAttribute", status)?;
            Ok(c_uint::try_from(value).unwrap_or(0))
        };
        Ok(Facts {
            name: name(device)?,
            uuid: uuid(device)?,
            arch: Arch {
                major: get(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                minor: get(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            },
            multiprocessors: get(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            shared_per_block: get(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            l2_bytes: get(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
            clock_khz: get(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
            memory_clock_khz: get(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
            bus_width_bits: get(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?,
        })
    }
}

fn name(device: sys::CUdevice) -> Result<String, CudaError> {
    let mut bytes = [0_u8; 256];
    // SAFETY: `device` comes from cuDeviceGet; the driver writes at most 256 bytes, including the terminating
    // zero.
    let status = unsafe { sys::cuDeviceGetName(bytes.as_mut_ptr().cast(), 256, device) };
    check("cuDeviceGetName", status)?;
    let name = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
    Ok(name.to_string_lossy().into_owned())
}

fn uuid(device: sys::CUdevice) -> Result<String, CudaError> {
    let mut uuid = MaybeUninit::<sys::CUuuid>::zeroed();
    // SAFETY: `device` comes from cuDeviceGet, and the driver writes 16 bytes.
    check("cuDeviceGetUuid", unsafe { sys::cuDeviceGetUuid_v2(uuid.as_mut_ptr(), device) })?;
    // SAFETY: the 16 bytes were zeroed before the driver wrote them.
    let bytes = unsafe { uuid.assume_init() }.bytes;
    let mut text = "GPU".to_owned();
    for (i, byte) in bytes.iter().enumerate() {
        if [0, 4, 6, 8, 10].contains(&i) {
            text.push('-');
        }
        text.push_str(&format!("{:02x}", byte.to_ne_bytes()[0]));
    }
    Ok(text)
}
