//! Streams of a caller that records a graph of its own: what it records, and until when the graph lives.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::sys::{self, CUstreamCaptureMode, CUstreamCaptureStatus};

use super::error::check;
use super::{CudaError, Stream};

/// A graph that a caller records on a stream.
pub struct Capture {
    graph: sys::CUgraph,
    id: u64,
}

impl Capture {
    /// The identity of the recording, which the driver uses once.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Sets `released` when the graph that is being recorded is destroyed, with all its executable copies.
    /// Call it before the recording ends.
    ///
    /// # Errors
    /// The driver fails.
    pub fn tell_release(&self, released: &Arc<AtomicBool>) -> Result<(), CudaError> {
        let shared = Arc::into_raw(Arc::clone(released)).cast_mut().cast::<c_void>();
        let (mut object, destroy) = (std::ptr::null_mut(), Some(set_released as Destroy));
        let flags = sys::CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as u32;
        // SAFETY: the driver writes one handle. It calls `set_released` once, with the pointer to which the
        // `Arc` above gave one reference, which `set_released` takes.
        let status = unsafe { sys::cuUserObjectCreate(&mut object, shared, destroy, 1, flags) };
        if let Err(error) = check("cuUserObjectCreate", status) {
            // SAFETY: no object has taken the reference.
            drop(unsafe { Arc::from_raw(shared.cast::<AtomicBool>()) });
            return Err(error);
        }
        let moved = sys::CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE as u32;
        // SAFETY: the graph is being recorded, so it is alive; it takes the only reference to the object.
        check("cuGraphRetainUserObject", unsafe {
            sys::cuGraphRetainUserObject(self.graph, object, 1, moved)
        })
    }
}

type Destroy = unsafe extern "C" fn(*mut c_void);

/// # Safety
/// `shared` is from [`Arc::into_raw`], and its reference is used once.
unsafe extern "C" fn set_released(shared: *mut c_void) {
    // SAFETY: as the caller promises.
    let released = unsafe { Arc::from_raw(shared.cast_const().cast::<AtomicBool>()) };
    released.store(true, Ordering::Release);
}

impl Stream {
    /// The recording of a caller of this library on the stream, if there is one.
    ///
    /// # Errors
    /// The driver fails, or the recording has failed.
    pub fn capture_of_caller(&self) -> Result<Option<Capture>, CudaError> {
        self.bind()?;
        let (mut status, mut id) = (CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE, 0);
        let mut graph = std::ptr::null_mut();
        let null = std::ptr::null_mut();
        let info = capture_info()?;
        // SAFETY: the stream is alive; the driver writes a status, a number and a handle, and nothing where
        // the pointer is null.
        let result = unsafe { info(self.handle(), &mut status, &mut id, &mut graph, null, null.cast()) };
        check("cuStreamGetCaptureInfo", result)?;
        match status {
            CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE => Ok(None),
            CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE => Ok(Some(Capture { graph, id })),
            CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED => {
                Err(CudaError::Unsupported("the recording of a graph on this stream has failed".to_owned()))
            }
        }
    }
}

#[cfg(not(feature = "linked"))]
type Info = unsafe extern "C" fn(
    sys::CUstream,
    *mut CUstreamCaptureStatus,
    *mut u64,
    *mut sys::CUgraph,
    *mut *const sys::CUgraphNode,
    *mut usize,
) -> sys::CUresult;

/// The driver's `cuStreamGetCaptureInfo_v2`. The bindings have only its third version, which drivers before
/// CUDA 12.3 lack.
#[cfg(not(feature = "linked"))]
fn capture_info() -> Result<impl std::ops::Deref<Target = Info>, CudaError> {
    // SAFETY: every driver since CUDA 11.3 exports this function with this type. A stream exists, so a driver
    // is loaded.
    let found = unsafe { sys::culib().get::<Info>(b"cuStreamGetCaptureInfo_v2\0") };
    found.map_err(|_| CudaError::Unsupported("the driver has no cuStreamGetCaptureInfo_v2".into()))
}

#[cfg(feature = "linked")]
type Info = unsafe fn(
    sys::CUstream,
    *mut CUstreamCaptureStatus,
    *mut u64,
    *mut sys::CUgraph,
    *mut *const sys::CUgraphNode,
    *mut usize,
) -> sys::CUresult;

/// A program that is linked with the driver's library uses the third version.
#[cfg(feature = "linked")]
fn capture_info() -> Result<Info, CudaError> {
    /// # Safety
    /// As for the driver's function.
    unsafe fn third(
        stream: sys::CUstream,
        status: *mut CUstreamCaptureStatus,
        id: *mut u64,
        graph: *mut sys::CUgraph,
        dependencies: *mut *const sys::CUgraphNode,
        count: *mut usize,
    ) -> sys::CUresult {
        // SAFETY: the caller's; the driver writes no edges where the pointer is null.
        unsafe {
            sys::cuStreamGetCaptureInfo_v3(
                stream,
                status,
                id,
                graph,
                dependencies,
                std::ptr::null_mut(),
                count,
            )
        }
    }
    Ok(third)
}

/// Lets this thread allocate and wait while a stream is recorded; dropping it restores what was allowed
/// before. Use it for work that has nothing to do with the recorded streams.
pub struct Relaxed {
    before: CUstreamCaptureMode,
}

impl Relaxed {
    /// Allows it.
    ///
    /// # Errors
    /// The driver fails.
    pub fn new() -> Result<Relaxed, CudaError> {
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the driver reads and writes one mode.
        check("cuThreadExchangeStreamCaptureMode", unsafe {
            sys::cuThreadExchangeStreamCaptureMode(&mut mode)
        })?;
        Ok(Relaxed { before: mode })
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: as in `new`.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut self.before) };
    }
}
