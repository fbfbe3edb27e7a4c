//! Kernels loaded on a device.

use std::collections::HashMap;
use std::ffi::{CString, c_int};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use cudarc::driver::sys::{self, CUfunction_attribute as Attribute};

use super::device::Context;
use super::error::check;
use super::program::Unit;
use super::stream::KeepAlive;
use super::{Arch, CudaError, Device, Program, cache, library};

/// Stack size of a compiling thread: NVRTC's recursion may overflow the standard library's default.
const STACK: usize = 32 << 20;

/// The machine code from a compiling thread, or `None` until the thread is done.
type Slot = Mutex<Option<Result<Vec<u8>, CudaError>>>;

/// A loaded module of kernels.
pub(crate) struct Module {
    context: Arc<Context>,
    handle: sys::CUmodule,
}

// SAFETY: the driver's functions on modules are thread-safe, and the handle is valid until `drop`.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Loads machine code, or PTX that ends with a zero byte.
    fn load(device: &Device, program: &Program, image: &[u8]) -> Result<Module, CudaError> {
        device.bind()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: a context is current. `image` is NVRTC's output: an ELF file, which contains its own size,
        // or PTX that ends with a zero byte. The driver copies it and writes one handle.
        let status = unsafe { sys::cuModuleLoadData(&mut handle, image.as_ptr().cast()) };
        check("cuModuleLoadData", status).map_err(|error| explain(error, device, program))?;
        Ok(Module { context: Arc::clone(device.context()), handle })
    }
}

/// Adds the usual cause to an error of loading.
fn explain(error: CudaError, device: &Device, program: &Program) -> CudaError {
    let version = |v: Option<(u32, u32)>| v.map_or("unknown".to_owned(), |(a, b)| format!("{a}.{b}"));
    match error {
        CudaError::Driver { call, what } => CudaError::Driver {
            call,
            what: format!(
                "{what} ({} for {}, compiled by NVRTC {}, on a driver for CUDA {}: NVRTC must not be newer)",
                program.file,
                device.arch(),
                version(library::nvrtc_version()),
                version(library::driver_version()),
            ),
        },
        other => other,
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if let Ok(_bound) = self.context.bound() {
            // SAFETY: loaded in `load` and unloaded only here. None of its kernels is running: a stream holds
            // its kernels until it has been synchronised (`Stream::submit`), and a graph holds its kernels.
            let _ = unsafe { sys::cuModuleUnload(self.handle) };
        }
    }
}

/// A kernel that can be launched. It keeps its module loaded. It may use as much dynamic shared memory as the
/// device has.
#[derive(Clone)]
pub struct Kernel {
    inner: Arc<Inner>,
}

struct Inner {
    module: Arc<Module>,
    function: sys::CUfunction,
    entry: &'static str,
    arch: Arch,
    registers: u32,
    local_bytes: u32,
    max_threads: u32,
    max_shared: u32,
}

// SAFETY: a function handle is valid as long as its module, which `module` holds. The driver's functions on
// it are thread-safe.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Kernel {
    fn new(device: &Device, module: &Arc<Module>, program: &Program) -> Result<Kernel, CudaError> {
        device.bind()?;
        let name = CString::new(program.entry)
            .map_err(|_| CudaError::Unsupported(format!("{:?} is no name of a kernel", program.entry)))?;
        let mut function = std::ptr::null_mut();
        // SAFETY: the module is loaded, the name ends with a zero byte, and the driver writes one handle.
        let status = unsafe { sys::cuModuleGetFunction(&mut function, module.handle, name.as_ptr()) };
        check("cuModuleGetFunction", status).map_err(|error| match error {
            CudaError::Driver { call, what } => {
                let what = format!("{what} ({} of {})", program.entry, program.file);
                CudaError::Driver { call, what }
            }
            other => other,
        })?;
        let max_shared = allow_shared(device, function)?;
        let inner = Inner {
            module: Arc::clone(module),
            function,
            entry: program.entry,
            arch: device.arch(),
            registers: get(function, Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            local_bytes: get(function, Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
            max_threads: get(function, Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            max_shared,
        };
        Ok(Kernel { inner: Arc::new(inner) })
    }

    /// Name of the kernel.
    pub fn entry(&self) -> &'static str {
        self.inner.entry
    }

    /// Compute capability of the GPU on which it is loaded.
    pub fn arch(&self) -> Arch {
        self.inner.arch
    }

    pub(crate) fn context(&self) -> &Context {
        &self.inner.module.context
    }

    /// Registers per thread.
    pub fn registers(&self) -> u32 {
        self.inner.registers
    }

    /// Bytes of local memory per thread; 0 if all values fit in registers.
    pub fn local_bytes(&self) -> u32 {
        self.inner.local_bytes
    }

    /// Maximum number of threads of a block.
    pub fn max_threads(&self) -> u32 {
        self.inner.max_threads
    }

    /// Maximum bytes of dynamic shared memory of a block.
    pub fn max_shared(&self) -> u32 {
        self.inner.max_shared
    }

    /// Number of blocks of `threads` threads and `shared` bytes of dynamic shared memory that fit on a
    /// multiprocessor at once.
    ///
    /// # Errors
    /// The driver fails.
    pub fn max_blocks_per_multiprocessor(&self, threads: u32, shared: u32) -> Result<u32, CudaError> {
        self.inner.module.context.bind()?;
        let threads = c_int::try_from(threads).unwrap_or(c_int::MAX);
        let mut blocks: c_int = 0;
        // SAFETY: the function's module is loaded, and the driver writes one int.
        let status = unsafe {
            let (f, shared) = (self.inner.function, shared as usize);
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, f, threads, shared)
        };
        check("cuOccupancyMaxActiveBlocksPerMultiprocessor", status)?;
        Ok(u32::try_from(blocks).unwrap_or(0))
    }

    pub(crate) fn function(&self) -> sys::CUfunction {
        self.inner.function
    }

    /// Reference that keeps the kernel loaded.
    pub(crate) fn keep(&self) -> KeepAlive {
        Arc::clone(&self.inner) as KeepAlive
    }
}

/// The kernels of an op, by what they are specialised for. Each is loaded at its first use.
pub(crate) struct Kernels<K> {
    loaded: Mutex<Vec<(K, Kernel)>>,
}

impl<K: Copy + PartialEq> Kernels<K> {
    /// None is loaded.
    pub(crate) fn new() -> Kernels<K> {
        Kernels { loaded: Mutex::default() }
    }

    /// The kernel for `key`, from `load` at the first use.
    ///
    /// # Errors
    /// Those of `load`.
    pub(crate) fn get(
        &self,
        key: K,
        load: impl FnOnce() -> Result<Kernel, CudaError>,
    ) -> Result<Kernel, CudaError> {
        let mut loaded = self.loaded.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((_, kernel)) = loaded.iter().find(|(known, _)| *known == key) {
            return Ok(kernel.clone());
        }
        let kernel = load()?;
        loaded.push((key, kernel.clone()));
        Ok(kernel)
    }
}

/// Permits the kernel to use all shared memory of the device except its static part, and returns that size in
/// bytes.
fn allow_shared(device: &Device, function: sys::CUfunction) -> Result<u32, CudaError> {
    let attribute = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    let fixed = get(function, Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
    let limit = device.shared_per_block();
    let set = |bytes: u32| {
        // SAFETY: the function belongs to a module that the caller holds; the driver refuses impossible
        // values.
        let status = unsafe { sys::cuFuncSetAttribute(function, attribute, bytes as c_int) };
        check("cuFuncSetAttribute", status).map(|()| bytes)
    };
    // On sm_90 and newer the static part includes 1 KiB reserved by the system, which the limit does not
    // include.
    let system = if device.arch().major >= 9 { fixed.min(1024) } else { 0 };
    set((limit + system).saturating_sub(fixed)).or_else(|_| set(limit.saturating_sub(fixed)))
}

fn get(function: sys::CUfunction, attribute: Attribute) -> Result<u32, CudaError> {
    let mut value: c_int = 0;
    // SAFETY: the function belongs to a module that the caller holds, and the driver writes one int.
    let status = unsafe { sys::cuFuncGetAttribute(&mut value, attribute, function) };
    check("cuFuncGetAttribute", status)?;
    Ok(u32::try_from(value).unwrap_or(0))
}

impl Device {
    /// Returns the kernel of `program`: already loaded, from the cache on disk, or newly compiled.
    ///
    /// # Errors
    /// NVRTC is missing, the source does not compile, or the driver fails.
    pub fn kernel(&self, program: &Program) -> Result<Kernel, CudaError> {
        Kernel::new(self, &self.load(std::slice::from_ref(program))?[0], program)
    }

    /// Returns the kernels of `programs`, in their order. Missing kernels are compiled in parallel.
    ///
    /// # Errors
    /// As [`Device::kernel`].
    pub fn kernels(&self, programs: &[Program]) -> Result<Vec<Kernel>, CudaError> {
        let modules = self.load(programs)?;
        programs.iter().zip(&modules).map(|(program, module)| Kernel::new(self, module, program)).collect()
    }

    /// Compiles the missing kernels among `programs` in parallel. A program that does not compile or load is
    /// not reported here but by [`Device::kernel`].
    pub fn prefetch(&self, programs: &[Program]) {
        let missing = missing(&self.lock_modules().clone(), programs);
        for (program, image) in missing.iter().zip(self.images(&missing)) {
            if let Ok(module) = image.and_then(|image| Module::load(self, program, &image)) {
                self.lock_modules().entry(program.unit()).or_insert(Arc::new(module));
            }
        }
    }

    /// Unloads the kernels that are no longer in use.
    pub fn unload_unused(&self) {
        self.lock_modules().retain(|_, module| Arc::strong_count(module) > 1);
    }

    fn lock_modules(&self) -> MutexGuard<'_, HashMap<Unit, Arc<Module>>> {
        self.modules().lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Returns the modules of `programs`.
    fn load(&self, programs: &[Program]) -> Result<Vec<Arc<Module>>, CudaError> {
        // These references keep the modules loaded, because another thread may unload unused modules.
        let mut modules: HashMap<Unit, Arc<Module>> = self.lock_modules().clone();
        let missing = missing(&modules, programs);
        for (program, image) in missing.iter().zip(self.images(&missing)) {
            let module = Arc::new(Module::load(self, program, &image?)?);
            // If another thread has loaded the same module first, that module is used.
            let module = Arc::clone(self.lock_modules().entry(program.unit()).or_insert(module));
            modules.insert(program.unit(), module);
        }
        Ok(programs.iter().map(|program| Arc::clone(&modules[&program.unit()])).collect())
    }

    /// Returns the machine code of each program, compiled on as many threads as there are cores.
    fn images(&self, programs: &[&Program]) -> Vec<Result<Vec<u8>, CudaError>> {
        let target = self.arch().target();
        let next = AtomicUsize::new(0);
        let results: Vec<Slot> = programs.iter().map(|_| Mutex::new(None)).collect();
        let work = || {
            while let Some(i) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|i| *i < programs.len()) {
                let result = cache::cubin(programs[i], &target);
                *results[i].lock().unwrap_or_else(|e| e.into_inner()) = Some(result);
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(programs.len());
        std::thread::scope(|scope| {
            for _ in 0..threads {
                let builder = std::thread::Builder::new().stack_size(STACK);
                builder.spawn_scoped(scope, work).expect("the system can start a thread");
            }
        });
        let take = |slot: Slot| slot.into_inner().unwrap_or_else(|e| e.into_inner());
        results.into_iter().map(|slot| take(slot).expect("every program was taken")).collect()
    }
}

/// The `programs` that are not among `loaded`, one for each unit.
fn missing<'a>(loaded: &HashMap<Unit, Arc<Module>>, programs: &'a [Program]) -> Vec<&'a Program> {
    let mut missing = HashMap::new();
    for program in programs.iter().filter(|program| !loaded.contains_key(&program.unit())) {
        missing.entry(program.unit()).or_insert(program);
    }
    missing.into_values().collect()
}
