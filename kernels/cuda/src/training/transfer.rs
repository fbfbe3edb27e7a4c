//! Copies to and within a GPU, on the stream of the training.

use cudarc::driver::{CudaView, CudaViewMut, DevicePtrMut, DeviceRepr};

use super::Training;
use crate::error::{check, failed};
use crate::{CudaError, Event, PinnedBuf};
use cudarc::driver::sys;

impl Training {
    /// Copies a few values to the GPU. `values` may change as soon as this returns.
    ///
    /// # Errors
    /// The stream is being captured, or the driver fails.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn upload<T: DeviceRepr>(&self, values: &[T], mut to: CudaViewMut<'_, T>) -> Result<(), CudaError> {
        self.expect("upload", &to, values.len());
        let copy =
            || self.cuda.memcpy_htod(values, &mut to).map_err(|error| failed("cuMemcpyHtoDAsync", error));
        self.stream.submit_now("a copy from pageable memory", copy)
    }

    /// Copies values within the GPU. May be captured.
    ///
    /// # Errors
    /// The driver fails.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn copy<T: DeviceRepr>(
        &self,
        from: &CudaView<'_, T>,
        mut to: CudaViewMut<'_, T>,
    ) -> Result<(), CudaError> {
        self.expect("copy", &to, from.len());
        self.expect("copy", from, from.len());
        self.cuda.memcpy_dtod(from, &mut to).map_err(|error| failed("cuMemcpyDtoDAsync", error))
    }
}

/// Page-locked host memory for the pixels of one batch, from which the GPU copies while the host goes on.
pub struct Staging {
    memory: PinnedBuf,
    /// The end of the latest copy.
    copied: Event,
    in_flight: bool,
}

impl Staging {
    /// Memory for `bytes` bytes.
    ///
    /// # Errors
    /// The system cannot lock that much memory.
    pub fn new(training: &Training, bytes: usize) -> Result<Staging, CudaError> {
        let memory = PinnedBuf::new(&training.device, bytes)?;
        Ok(Staging { memory, copied: Event::new(&training.device)?, in_flight: false })
    }

    /// Stores `bytes` at the start of the memory, after the copy that reads it.
    ///
    /// # Errors
    /// The driver fails.
    ///
    /// # Panics
    /// If the memory is too small.
    pub fn fill(&mut self, bytes: &[u8]) -> Result<(), CudaError> {
        self.wait()?;
        self.memory.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    /// Starts to copy the first bytes to `to`, on the stream of `training`.
    ///
    /// # Errors
    /// The stream is being captured, or the driver fails.
    ///
    /// # Panics
    /// If `to` is longer than the memory.
    pub fn send(&mut self, training: &Training, mut to: CudaViewMut<'_, u8>) -> Result<(), CudaError> {
        self.wait()?;
        let bytes = to.len();
        training.expect("staging", &to, bytes);
        let from = self.memory.as_slice::<u8>()[..bytes].as_ptr();
        let (address, _to) = to.device_ptr_mut(&training.cuda);
        // SAFETY: both sides have `bytes` bytes. The memory is neither written nor freed before the event
        // behind the copy is reached (`wait`), and no graph repeats the copy (`submit_now`).
        let copy =
            || unsafe { sys::cuMemcpyHtoDAsync_v2(address, from.cast(), bytes, training.stream.handle()) };
        training.stream.submit_now("a copy of a batch", || check("cuMemcpyHtoDAsync", copy()))?;
        self.in_flight = true;
        self.copied.record(&training.stream)
    }

    fn wait(&mut self) -> Result<(), CudaError> {
        if std::mem::take(&mut self.in_flight) {
            self.copied.synchronize()?;
        }
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // An error here belongs to the work before the copy and is ignored.
        let _ = self.wait();
    }
}
