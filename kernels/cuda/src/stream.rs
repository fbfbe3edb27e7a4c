//! Streams, which order work, and events, which mark a point in a stream.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use cudarc::driver::CudaStream;
use cudarc::driver::sys::{self, CUevent_flags, CUresult, CUstream_flags};

use super::device::Context;
use super::error::check;
use super::{CudaError, Device, DeviceSlice};

/// An object that a graph or a stream keeps alive.
pub(crate) type KeepAlive = Arc<dyn Send + Sync>;

/// A queue of work that runs in order, and independently of other streams. Threads may share it: each piece
/// of work is added as a unit.
pub struct Stream {
    context: Arc<Context>,
    handle: sys::CUstream,
    owner: Owner,
    /// While the stream is captured: the objects that the graph must keep alive. Locked whenever work is put
    /// on the stream.
    held: Mutex<Option<Vec<KeepAlive>>>,
    /// Objects that the work on the stream needs, by address. They are released when the stream has been
    /// synchronised.
    busy: Mutex<BTreeMap<usize, KeepAlive>>,
}

/// The owner of a driver's stream.
enum Owner {
    /// The object of this crate.
    This,
    /// `cudarc`.
    Cudarc(#[expect(dead_code, reason = "it keeps the stream alive")] Arc<CudaStream>),
    /// The program that calls this library.
    Caller,
}

// SAFETY: the driver's functions on streams are thread-safe, and the handle is valid until `drop`.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// Creates a stream that does not wait for the default stream.
    ///
    /// # Errors
    /// The driver fails.
    pub fn new(device: &Device) -> Result<Stream, CudaError> {
        device.bind()?;
        let mut handle = std::ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: a context is current, and the driver writes one handle.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut handle, flags) })?;
        Ok(Stream::with(Arc::clone(device.context()), handle, Owner::This))
    }

    /// Wraps a stream that the caller owns, a `cudaStream_t` or `CUstream` of the primary context of
    /// `device`; 0 is the default stream. Dropping the object waits for nothing, and leaves the stream as it
    /// is.
    ///
    /// # Safety
    /// - `handle` is 0, or a stream of the primary context of `device` that lives as long as this object.
    /// - What is put on the stream through this object uses kernels, graphs and memory that live until the
    ///   work is done. This object keeps nothing alive.
    pub unsafe fn of_caller(device: &Device, handle: u64) -> Stream {
        Stream::with(Arc::clone(device.context()), handle as sys::CUstream, Owner::Caller)
    }

    /// Wraps a stream with another owner, in the context of `device`, and keeps it alive.
    ///
    /// # Errors
    /// The stream belongs to another context.
    pub(crate) fn shared(device: &Device, owner: &Arc<CudaStream>) -> Result<Stream, CudaError> {
        if !device.context().is(owner.context().cu_ctx()) {
            return Err(CudaError::Unsupported(
                "a stream of another context than its device's primary".into(),
            ));
        }
        let (context, handle) = (Arc::clone(device.context()), owner.cu_stream());
        Ok(Stream::with(context, handle, Owner::Cudarc(Arc::clone(owner))))
    }

    fn with(context: Arc<Context>, handle: sys::CUstream, owner: Owner) -> Stream {
        Stream { context, handle, owner, held: Mutex::default(), busy: Mutex::default() }
    }

    /// Waits until all work on the stream is done.
    ///
    /// # Errors
    /// The driver fails, earlier work on the stream failed, or the stream is being captured.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.bind()?;
        // New work adds to an empty map, so that only objects of finished work are released below.
        let done = std::mem::take(&mut *self.busy());
        // SAFETY: the stream is alive.
        let status = check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.handle) });
        if status.is_err() {
            self.busy().extend(done);
        }
        status
    }

    /// Whether all work on the stream is done.
    ///
    /// # Errors
    /// Earlier work on the stream failed, or the driver fails.
    pub fn is_idle(&self) -> Result<bool, CudaError> {
        self.bind()?;
        // SAFETY: the stream is alive.
        match unsafe { sys::cuStreamQuery(self.handle) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            status => check("cuStreamQuery", status).map(|()| true),
        }
    }

    /// Makes later work on the stream wait for `event`.
    ///
    /// # Errors
    /// The stream is being captured, or the driver fails.
    pub fn wait(&self, event: &Event) -> Result<(), CudaError> {
        // SAFETY: both are alive. Flags are 0.
        let wait =
            || check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.handle, event.handle, 0) });
        self.submit_now("a wait for an event", wait)
    }

    /// Checks that `slice` is on this stream's GPU. During [`Stream::capture`], the graph then keeps it
    /// alive.
    ///
    /// # Panics
    /// If it is on another GPU.
    pub fn hold(&self, slice: &DeviceSlice) {
        assert!(slice.context().same(&self.context), "memory of another GPU than the stream's");
        if let Some(held) = self.held().as_mut() {
            held.push(slice.keep());
        }
    }

    /// Keeps `kept` alive until the work that follows on the stream is done.
    pub(crate) fn keep<T: Send + Sync + 'static>(&self, kept: &Arc<T>) -> Result<(), CudaError> {
        self.submit_with(Arc::clone(kept) as KeepAlive, || Ok(()))
    }

    /// As [`Stream::submit`], for work that needs `kept` until it is done.
    pub(crate) fn submit_with(
        &self,
        kept: KeepAlive,
        call: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        self.bind()?;
        let mut held = self.held();
        match held.as_mut() {
            Some(held) => held.push(kept),
            None => self.keep_busy(kept),
        }
        call()
    }

    /// Keeps `kept` alive until the stream has been synchronised, unless the caller of [`Stream::of_caller`]
    /// does.
    pub(crate) fn keep_busy(&self, kept: KeepAlive) {
        if !matches!(self.owner, Owner::Caller) {
            self.busy().insert(Arc::as_ptr(&kept).cast::<()>() as usize, kept);
        }
    }

    /// The stream's identity among those of its device. The driver may use that of a stream that is destroyed
    /// again.
    pub fn id(&self) -> u64 {
        self.handle as u64
    }

    /// Whether the stream is on `device`.
    pub fn is_on(&self, device: &Device) -> bool {
        self.context.same(device.context())
    }

    /// Puts work on the stream by `call`, with the context current. If the stream is captured, the graph
    /// keeps the objects that `keep` adds. One lock covers both, so that no capture can begin between them.
    pub(crate) fn submit(
        &self,
        keep: impl FnOnce(&mut Vec<KeepAlive>),
        call: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        self.bind()?;
        let mut held = self.held();
        if let Some(held) = held.as_mut() {
            keep(held);
        }
        call()
    }

    /// Puts work on the stream by `call`, with the context current; fails if the stream is being captured.
    pub(crate) fn submit_now(
        &self,
        what: &str,
        call: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        self.bind()?;
        let held = self.held();
        if held.is_some() {
            return Err(CudaError::Unsupported(format!("{what} cannot be captured in a graph")));
        }
        call()
    }

    pub(crate) fn held(&self) -> MutexGuard<'_, Option<Vec<KeepAlive>>> {
        self.held.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn busy(&self) -> MutexGuard<'_, BTreeMap<usize, KeepAlive>> {
        self.busy.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(crate) fn bind(&self) -> Result<(), CudaError> {
        self.context.bind()
    }

    pub(crate) fn handle(&self) -> sys::CUstream {
        self.handle
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let (is_busy, is_own) = (!self.busy().is_empty(), matches!(self.owner, Owner::This));
        if !is_busy && !is_own {
            return;
        }
        let Ok(_bound) = self.context.bound() else { return };
        if is_busy {
            // Kernels must stay loaded until they are done. An error here belongs to the work and is ignored.
            let _ = self.synchronize();
        }
        if is_own {
            // SAFETY: created in `new` and destroyed only here; the driver finishes the work that is on it.
            let _ = unsafe { sys::cuStreamDestroy_v2(self.handle) };
        }
    }
}

/// A point in the work of a stream, with its time.
pub struct Event {
    context: Arc<Context>,
    handle: sys::CUevent,
}

// SAFETY: the driver's functions on events are thread-safe, and the handle is valid until `drop`.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// Creates an event that is not recorded yet.
    ///
    /// # Errors
    /// The driver fails.
    pub fn new(device: &Device) -> Result<Event, CudaError> {
        Event::with(device, CUevent_flags::CU_EVENT_DEFAULT)
    }

    /// Creates an event without a time, which costs less. It is not recorded yet.
    ///
    /// # Errors
    /// The driver fails.
    pub fn untimed(device: &Device) -> Result<Event, CudaError> {
        Event::with(device, CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    fn with(device: &Device, flags: CUevent_flags) -> Result<Event, CudaError> {
        device.bind()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: a context is current, and the driver writes one handle.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut handle, flags as u32) })?;
        Ok(Event { context: Arc::clone(device.context()), handle })
    }

    /// Marks the point after all work that is currently on `stream`.
    ///
    /// # Errors
    /// The stream is being captured (recording could draw another stream into the capture), or the driver
    /// fails.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both are alive.
        let record = || check("cuEventRecord", unsafe { sys::cuEventRecord(self.handle, stream.handle) });
        stream.submit_now("an event", record)
    }

    /// Waits until the work before the event is done.
    ///
    /// # Errors
    /// The driver fails, or the work before the event failed.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: the event is alive.
        check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.handle) })
    }

    /// Milliseconds from `start` to `end`, which must both be recorded and reached.
    ///
    /// # Errors
    /// An event is not recorded or not reached, or the driver fails.
    pub fn elapsed_ms(start: &Event, end: &Event) -> Result<f32, CudaError> {
        start.context.bind()?;
        let elapsed = elapsed_time()?;
        let mut ms = 0.0;
        // SAFETY: both events are alive, and the driver writes one float.
        check("cuEventElapsedTime", unsafe { elapsed(&mut ms, start.handle, end.handle) })?;
        Ok(ms)
    }
}

#[cfg(not(feature = "linked"))]
type Elapsed = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> sys::CUresult;
#[cfg(feature = "linked")]
type Elapsed = unsafe fn(*mut f32, sys::CUevent, sys::CUevent) -> sys::CUresult;

/// The driver's `cuEventElapsedTime`. The bindings have only its second version, which drivers before 570
/// lack.
#[cfg(not(feature = "linked"))]
fn elapsed_time() -> Result<impl std::ops::Deref<Target = Elapsed>, CudaError> {
    // SAFETY: every driver since 2.0 exports this function with this type. An event exists, so a driver is
    // loaded.
    let found = unsafe { sys::culib().get::<Elapsed>(b"cuEventElapsedTime\0") };
    found.map_err(|_| CudaError::Unsupported("the driver has no cuEventElapsedTime".into()))
}

/// A program that is linked with the driver's library uses the second version.
#[cfg(feature = "linked")]
fn elapsed_time() -> Result<Elapsed, CudaError> {
    Ok(sys::cuEventElapsedTime_v2)
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_bound) = self.context.bound() {
            // SAFETY: created in `new` and destroyed only here; the driver permits this before the event is
            // reached.
            let _ = unsafe { sys::cuEventDestroy_v2(self.handle) };
        }
    }
}
