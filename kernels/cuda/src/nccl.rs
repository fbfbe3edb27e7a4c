//! Sums over the GPUs of several processes by NCCL, which is opened when it is first used.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys::{self, CUevent_flags, CUstream_flags};
use cudarc::driver::{CudaViewMut, DevicePtrMut};
use libloading::Library as Opened;

use super::CudaError;
use super::device::Context;
use super::error::check;
use super::library::{self, Library, names};
use super::training::Training;

/// The status of success.
const SUCCESS: c_int = 0;
/// `ncclFloat32` and `ncclSum`.
const FLOAT32: c_int = 7;
const SUM: c_int = 0;

/// The id of a communicator (`ncclUniqueId`), which one process makes and sends to the others.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId([u8; UniqueId::BYTES]);

/// NCCL's handle of a communicator (`ncclComm_t`).
type Comm = *mut c_void;

/// The functions of the library. They stay valid because the library is never closed.
struct Functions {
    get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    init_rank: unsafe extern "C" fn(*mut Comm, c_int, UniqueId, c_int) -> c_int,
    all_reduce:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, sys::CUstream) -> c_int,
    async_error: unsafe extern "C" fn(Comm, *mut c_int) -> c_int,
    destroy: unsafe extern "C" fn(Comm) -> c_int,
    abort: unsafe extern "C" fn(Comm) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    version: unsafe extern "C" fn(*mut c_int) -> c_int,
}

impl Functions {
    fn load() -> Option<Functions> {
        // SAFETY: this loads the library, which runs NVIDIA's initialisers; the user's loader path selects
        // the file.
        let library = names::NCCL.iter().find_map(|file| unsafe { Opened::new(*file) }.ok())?;
        let library: &'static Opened = Box::leak(Box::new(library));
        // SAFETY: each name has the type that nccl.h (2.18 and newer) declares.
        unsafe {
            Some(Functions {
                get_unique_id: *library.get(b"ncclGetUniqueId\0").ok()?,
                init_rank: *library.get(b"ncclCommInitRank\0").ok()?,
                all_reduce: *library.get(b"ncclAllReduce\0").ok()?,
                async_error: *library.get(b"ncclCommGetAsyncError\0").ok()?,
                destroy: *library.get(b"ncclCommDestroy\0").ok()?,
                abort: *library.get(b"ncclCommAbort\0").ok()?,
                error_string: *library.get(b"ncclGetErrorString\0").ok()?,
                version: *library.get(b"ncclGetVersion\0").ok()?,
            })
        }
    }

    /// The functions, if the library can be loaded.
    fn find() -> Option<&'static Functions> {
        static FOUND: OnceLock<Option<Functions>> = OnceLock::new();
        FOUND.get_or_init(Functions::load).as_ref()
    }

    fn get() -> Result<&'static Functions, CudaError> {
        library::require(Library::Nccl)?;
        Ok(Functions::find().expect("it is present"))
    }

    fn check(&self, call: &'static str, status: c_int) -> Result<(), CudaError> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: the function returns a text that lives as long as the library.
        let text = unsafe { CStr::from_ptr((self.error_string)(status)) };
        Err(CudaError::Driver { call, what: text.to_string_lossy().into_owned() })
    }
}

/// Whether NCCL can be loaded; [`library::present`] tells it.
pub(super) fn loaded() -> bool {
    Functions::find().is_some()
}

/// Version of NCCL (major, minor, patch); `None` if it is missing.
pub fn version() -> Option<(u32, u32, u32)> {
    let functions = Functions::find()?;
    let mut version = 0;
    // SAFETY: the function writes one int.
    functions.check("ncclGetVersion", unsafe { (functions.version)(&mut version) }).ok()?;
    let version = u32::try_from(version).ok()?;
    Some((version / 10_000, version / 100 % 100, version % 100))
}

impl UniqueId {
    /// Number of bytes.
    pub const BYTES: usize = 128;

    /// The id of a new communicator.
    ///
    /// # Errors
    /// NCCL is missing or fails.
    pub fn new() -> Result<UniqueId, CudaError> {
        let functions = Functions::get()?;
        let mut id = UniqueId([0; UniqueId::BYTES]);
        // SAFETY: the function writes one `ncclUniqueId`, which `UniqueId` has the size of.
        functions.check("ncclGetUniqueId", unsafe { (functions.get_unique_id)(&mut id) })?;
        Ok(id)
    }

    /// The bytes, for the other processes.
    pub fn bytes(&self) -> &[u8; UniqueId::BYTES] {
        &self.0
    }

    /// The id that another process made.
    pub fn from_bytes(bytes: [u8; UniqueId::BYTES]) -> UniqueId {
        UniqueId(bytes)
    }
}

/// A communicator: the GPUs of several processes, as one of them sees them. Sums run on its stream beside
/// other work. A graph that has recorded a sum must be dropped, and the stream that it ran on synchronised,
/// before the communicator is dropped: NCCL waits for that.
pub struct Communicator {
    functions: &'static Functions,
    handle: Comm,
    context: Arc<Context>,
    stream: sys::CUstream,
    /// Mark the points where the stream of the sums and that of the training wait for each other.
    events: [sys::CUevent; 2],
    /// Whether a sum was started since the last [`Communicator::join`].
    started: bool,
}

// SAFETY: NCCL's communicators, and the driver's streams and events, may be used from any thread, one at a
// time, which `&mut self` ensures.
unsafe impl Send for Communicator {}

impl Communicator {
    /// Joins the other processes on the GPU of `training`, as rank `rank` of `size`. Returns when all of them
    /// have.
    ///
    /// # Errors
    /// NCCL is missing or fails.
    pub fn new(
        training: &Training,
        id: UniqueId,
        rank: usize,
        size: usize,
    ) -> Result<Communicator, CudaError> {
        let functions = Functions::get()?;
        training.device().bind()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the GPU's context is current, and the function writes one handle.
        let status = unsafe { (functions.init_rank)(&mut handle, size as c_int, id, rank as c_int) };
        functions.check("ncclCommInitRank", status)?;
        let mut created = Communicator {
            functions,
            handle,
            context: Arc::clone(training.device().context()),
            stream: std::ptr::null_mut(),
            events: [std::ptr::null_mut(); 2],
            started: false,
        };
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: a context is current, and the driver writes one handle each.
        unsafe {
            check("cuStreamCreate", sys::cuStreamCreate(&mut created.stream, flags))?;
            for event in &mut created.events {
                let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
                check("cuEventCreate", sys::cuEventCreate(event, flags))?;
            }
        }
        Ok(created)
    }

    /// Starts to replace `values` with their sums over all processes, after the work on the stream of
    /// `training`. They must not be used before [`Communicator::join`]. May be captured with that stream.
    ///
    /// # Errors
    /// NCCL or the driver fails.
    pub fn sum(&mut self, training: &Training, mut values: CudaViewMut<'_, f32>) -> Result<(), CudaError> {
        let count = values.len();
        let address = values.device_ptr_mut(training.cuda()).0;
        self.follow(training.stream().handle(), self.stream, 0)?;
        // SAFETY: `count` values at `address`, which the caller does not use before `join`, after which the
        // stream of the training waits for the sum; memory is freed in the order of that stream.
        let status = unsafe {
            let values = address as *mut c_void;
            (self.functions.all_reduce)(values, values, count, FLOAT32, SUM, self.handle, self.stream)
        };
        self.started = true;
        self.functions.check("ncclAllReduce", status)
    }

    /// Makes later work on the stream of `training` wait for the sums.
    ///
    /// # Errors
    /// The driver fails.
    pub fn join(&mut self, training: &Training) -> Result<(), CudaError> {
        if std::mem::take(&mut self.started) {
            self.follow(self.stream, training.stream().handle(), 1)?;
        }
        Ok(())
    }

    /// The error that NCCL met while it computed, if there is one.
    ///
    /// # Errors
    /// That error.
    pub fn health(&self) -> Result<(), CudaError> {
        let mut status = SUCCESS;
        // SAFETY: the communicator is alive, and the function writes one status.
        let asked = unsafe { (self.functions.async_error)(self.handle, &mut status) };
        self.functions.check("ncclCommGetAsyncError", asked)?;
        self.functions.check("ncclAllReduce", status)
    }

    /// Ends sums that wait for a process that is gone; they are not usable. NCCL returns only when no graph
    /// has recorded its work any more, so that a thread of its own waits for it.
    pub fn abort(mut self) {
        let handle = std::mem::replace(&mut self.handle, std::ptr::null_mut());
        let (abort, handle) = (self.functions.abort, handle as usize);
        // SAFETY: the communicator is alive, and only this thread uses it from now on. A failure has no
        // remedy.
        std::thread::spawn(move || unsafe { abort(handle as Comm) });
    }

    /// Makes later work on the stream `to` wait for the work on `from`.
    fn follow(&self, from: sys::CUstream, to: sys::CUstream, event: usize) -> Result<(), CudaError> {
        self.context.bind()?;
        let event = self.events[event];
        // SAFETY: both streams and the event are alive.
        unsafe {
            check("cuEventRecord", sys::cuEventRecord(event, from))?;
            check("cuStreamWaitEvent", sys::cuStreamWaitEvent(to, event, 0))
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        let Ok(_bound) = self.context.bound() else { return };
        // SAFETY: each handle was created in `new` and is destroyed only here. NCCL waits for its own work.
        unsafe {
            if !self.handle.is_null() {
                let _ = (self.functions.destroy)(self.handle);
            }
            for event in self.events.into_iter().filter(|event| !event.is_null()) {
                let _ = sys::cuEventDestroy_v2(event);
            }
            if !self.stream.is_null() {
                let _ = sys::cuStreamDestroy_v2(self.stream);
            }
        }
    }
}
