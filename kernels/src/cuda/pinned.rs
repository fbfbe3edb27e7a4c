//! Host memory that a device copies from and to by itself.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult};

use super::device::Context;
use super::error::check;
use super::{CudaError, Device, DeviceSlice, Plain, Stream};

/// A block of page-locked host memory, aligned to a page. Always initialised.
pub struct PinnedBuf {
    context: Arc<Context>,
    data: *mut u8,
    bytes: usize,
}

// SAFETY: the memory is owned by this value alone; it is read through `&self` and written through `&mut self`. Copies
// by a device are `unsafe`, and their callers promise not to break that.
unsafe impl Send for PinnedBuf {}
// SAFETY: as above.
unsafe impl Sync for PinnedBuf {}

impl PinnedBuf {
    /// `bytes` zero bytes.
    ///
    /// # Errors
    /// The system cannot lock that much memory.
    pub fn new(device: &Device, bytes: usize) -> Result<PinnedBuf, CudaError> {
        device.bind()?;
        let mut data = std::ptr::null_mut();
        // SAFETY: a context is current; the driver refuses 0 bytes, so there is at least one; it writes one address.
        match unsafe { sys::cuMemHostAlloc(&mut data, bytes.max(1), 0) } {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => return Err(CudaError::HostMemory { bytes }),
            status => check("cuMemHostAlloc", status)?,
        }
        let data = data.cast::<u8>();
        // SAFETY: `bytes` bytes at `data` were allocated above, and nobody else knows them yet.
        unsafe { data.write_bytes(0, bytes) };
        Ok(PinnedBuf { context: Arc::clone(device.context()), data, bytes })
    }

    /// Bytes held.
    pub fn len_bytes(&self) -> usize {
        self.bytes
    }

    /// The block as values; bytes after the last whole one are left out.
    ///
    /// # Panics
    /// `T` has no size.
    pub fn as_slice<T: Plain>(&self) -> &[T] {
        // SAFETY: allocated and initialised in `new`, alive as long as `self`, aligned to a page, which is enough for
        // the numbers that are `Plain`; any bytes are values.
        unsafe { std::slice::from_raw_parts(self.data.cast(), self.bytes / size_of::<T>()) }
    }

    /// The block as values; bytes after the last whole one are left out.
    ///
    /// # Panics
    /// `T` has no size.
    pub fn as_mut_slice<T: Plain>(&mut self) -> &mut [T] {
        // SAFETY: as in `as_slice`, and `&mut self` makes the view unique.
        unsafe { std::slice::from_raw_parts_mut(self.data.cast(), self.bytes / size_of::<T>()) }
    }

    fn part(&self, range: Range<usize>, bytes: usize) -> *mut u8 {
        let fits = range.start <= range.end && range.end <= self.bytes && range.len() == bytes;
        assert!(fits, "bytes {range:?} of {} pinned ones, and {bytes} on the device", self.bytes);
        // SAFETY: in bounds by the assertion.
        unsafe { self.data.add(range.start) }
    }
}

impl Drop for PinnedBuf {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: allocated in `new`, freed here alone; the callers of the copies promised that none is on its way.
            let _ = unsafe { sys::cuMemFreeHost(self.data.cast()) };
        }
    }
}

impl DeviceSlice {
    /// Starts to copy the bytes `range` of `source` here, in the order of `stream`. May be captured.
    ///
    /// # Errors
    /// The driver fails.
    ///
    /// # Panics
    /// The range is outside `source`, or not as long as this slice.
    ///
    /// # Safety
    /// Until the copy is done (the stream synchronised, or an event after it), `source` lives and is not written.
    /// When captured: the same from each launch of the graph until it is done.
    pub unsafe fn copy_from_pinned(
        &self,
        stream: &Stream,
        source: &PinnedBuf,
        range: Range<usize>,
    ) -> Result<(), CudaError> {
        let host = source.part(range, self.bytes());
        if self.bytes() == 0 {
            return Ok(());
        }
        // SAFETY: both sides have `bytes` bytes (`part`); the caller keeps the host's, this slice the device's, and a
        // graph that this is captured in holds the device's.
        let copy =
            || unsafe { sys::cuMemcpyHtoDAsync_v2(self.ptr(), host.cast(), self.bytes(), stream.handle()) };
        stream.submit(|held| held.push(self.keep()), || check("cuMemcpyHtoDAsync", copy()))
    }

    /// Starts to copy these bytes to the bytes `range` of `dest`, in the order of `stream`. May be captured.
    ///
    /// # Errors
    /// The driver fails.
    ///
    /// # Panics
    /// The range is outside `dest`, or not as long as this slice.
    ///
    /// # Safety
    /// Until the copy is done (the stream synchronised, or an event after it), `dest` lives and is neither read nor
    /// written, nor a reference to its values held. When captured: the same from each launch of the graph until it is
    /// done.
    pub unsafe fn copy_to_pinned(
        &self,
        stream: &Stream,
        dest: &PinnedBuf,
        range: Range<usize>,
    ) -> Result<(), CudaError> {
        let host = dest.part(range, self.bytes());
        if self.bytes() == 0 {
            return Ok(());
        }
        // SAFETY: both sides have `bytes` bytes (`part`); the caller keeps the host's for this copy alone, and its
        // pointer comes from the allocation, not from a reference; this slice keeps the device's, and a graph that this
        // is captured in holds it.
        let copy =
            || unsafe { sys::cuMemcpyDtoHAsync_v2(host.cast(), self.ptr(), self.bytes(), stream.handle()) };
        stream.submit(|held| held.push(self.keep()), || check("cuMemcpyDtoHAsync", copy()))
    }
}
