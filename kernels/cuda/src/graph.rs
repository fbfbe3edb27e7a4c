//! CUDA graphs: work that is recorded once and launched as a unit.

use std::sync::{Arc, Mutex, MutexGuard};

use cudarc::driver::sys::{self, CUstreamCaptureMode};

use super::device::Context;
use super::error::check;
use super::stream::KeepAlive;
use super::{CudaError, Stream};

impl Stream {
    /// Records the work that `record` puts on this stream, without running it. Other threads are not
    /// affected, but must not use this stream during the call.
    ///
    /// # Errors
    /// `record` fails or does something that cannot be captured, or the driver fails. The stream is usable
    /// afterwards.
    pub fn capture<E: From<CudaError>>(&self, record: impl FnOnce() -> Result<(), E>) -> Result<Graph, E> {
        let mut recording = Recording::begin(self)?;
        record()?;
        let (graph, held) = recording.end()?;
        Ok(graph.instantiate(self.context(), held)?)
    }
}

/// A capture in progress. It is ended on every exit path, including unwinding.
struct Recording<'a> {
    stream: &'a Stream,
    open: bool,
}

impl<'a> Recording<'a> {
    fn begin(stream: &'a Stream) -> Result<Recording<'a>, CudaError> {
        stream.bind()?;
        let mut held = stream.held();
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive. The driver refuses a stream that is already being captured.
        check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(stream.handle(), mode) })?;
        *held = Some(Vec::new());
        drop(held);
        Ok(Recording { stream, open: true })
    }

    fn end(&mut self) -> Result<(Captured, Vec<KeepAlive>), CudaError> {
        self.open = false;
        let mut recorded = self.stream.held();
        let held = recorded.take().unwrap_or_default();
        self.stream.bind()?;
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream is alive and `begin` began a capture on it. The driver writes one handle, which
        // is null on errors.
        let status = unsafe { sys::cuStreamEndCapture(self.stream.handle(), &mut graph) };
        drop(recorded);
        let captured = Captured(graph);
        check("cuStreamEndCapture", status)?;
        Ok((captured, held))
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        if self.open {
            // The error that led here is reported, so this one is ignored.
            let _ = self.end();
        }
    }
}

/// A captured graph, before it is instantiated.
struct Captured(sys::CUgraph);

impl Captured {
    fn instantiate(&self, context: &Arc<Context>, held: Vec<KeepAlive>) -> Result<Graph, CudaError> {
        let mut exec = std::ptr::null_mut();
        // SAFETY: the graph is alive, and the driver writes one handle. 0: no flags.
        let status = unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, self.0, 0) };
        check("cuGraphInstantiateWithFlags", status)?;
        let recorded = Recorded { exec: Mutex::new(Exec(exec)), context: Arc::clone(context), _held: held };
        Ok(Graph { recorded: Arc::new(recorded) })
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: created by cuStreamEndCapture and destroyed only here; the graph instantiated from it
            // is independent.
            let _ = unsafe { sys::cuGraphDestroy(self.0) };
        }
    }
}

struct Exec(sys::CUgraphExec);

// SAFETY: the handle is valid until `Recorded::drop`, and any thread may use it, one at a time.
unsafe impl Send for Exec {}

/// Recorded work. It keeps alive the kernels and the device memory of safe functions, and everything that was
/// passed to [`Stream::hold`]. A launch waits for the previous launch of the same graph.
pub struct Graph {
    /// A stream that the graph was launched on shares this until the stream has been synchronised.
    recorded: Arc<Recorded>,
}

struct Recorded {
    /// The lock is needed because the driver does not lock graphs itself.
    exec: Mutex<Exec>,
    context: Arc<Context>,
    _held: Vec<KeepAlive>,
}

impl Graph {
    /// Puts the work on `stream`.
    ///
    /// # Errors
    /// The driver fails.
    pub fn launch(&self, stream: &Stream) -> Result<(), CudaError> {
        let exec = self.recorded.lock();
        // SAFETY: both are alive, and the lock makes this the only use of the graph. `self` holds the memory
        // that the graph uses; for `unsafe` functions that recorded work, their callers guarantee it.
        let launch = || check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(exec.0, stream.handle()) });
        stream.submit_now("a launch of a graph", launch)?;
        stream.keep_busy(Arc::clone(&self.recorded) as KeepAlive);
        Ok(())
    }

    /// Prepares the device for launches; without this call the first launch does it.
    ///
    /// # Errors
    /// The driver fails.
    pub fn upload(&self, stream: &Stream) -> Result<(), CudaError> {
        let exec = self.recorded.lock();
        // SAFETY: both are alive; the lock makes this the only use of the graph.
        let upload = || check("cuGraphUpload", unsafe { sys::cuGraphUpload(exec.0, stream.handle()) });
        stream.submit_now("an upload of a graph", upload)
    }
}

impl Recorded {
    fn lock(&self) -> MutexGuard<'_, Exec> {
        self.exec.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        let exec = self.exec.get_mut().unwrap_or_else(|e| e.into_inner());
        if let Ok(_bound) = self.context.bound() {
            // SAFETY: instantiated once and destroyed only here. No launch is in flight: streams share `self`
            // until they have been synchronised.
            let _ = unsafe { sys::cuGraphExecDestroy(exec.0) };
        }
    }
}
