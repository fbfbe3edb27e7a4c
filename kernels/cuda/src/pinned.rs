//! Page-locked host memory, which a device can copy from and to directly.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult};

use super::device::Context;
use super::error::check;
use super::{CudaError, Device, DeviceSlice, Plain, Stream};

/// A block of page-locked host memory, aligned to a page. It is always initialised.
pub struct PinnedBuf {
    context: Arc<Context>,
    data: *mut u8,
    bytes: usize,
}

// SAFETY: only this value owns the memory, which is read through `&self` and written through `&mut self`.
// Device copies are `unsafe`, and their callers promise to respect that.
unsafe impl Send for PinnedBuf {}
// SAFETY: as above.
unsafe impl Sync for PinnedBuf {}

impl PinnedBuf {
    /// Allocates `bytes` zero bytes.
    ///
    /// # Errors
    /// The system cannot lock that much memory.
    pub fn new(device: &Device, bytes: usize) -> Result<PinnedBuf, CudaError> {
        device.bind()?;
        let mut data = std::ptr::null_mut();
        // SAFETY: a context is current; the driver refuses 0 bytes, so there is at least one; it writes one
        // address.
        match unsafe { sys::cuMemHostAlloc(&mut data, bytes.max(1), 0) } {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => return Err(CudaError::HostMemory { bytes }),
            status => check("cuMemHostAlloc", status)?,
        }
        let data = data.cast::<u8>();
        // SAFETY: `bytes` bytes at `data` were allocated above, and nothing else refers to them yet.
        unsafe { data.write_bytes(0, bytes) };
        Ok(PinnedBuf { context: Arc::clone(device.context()), data, bytes })
    }

    /// Size in bytes.
    pub fn len_bytes(&self) -> usize {
        self.bytes
    }

    /// The address of the first byte, for the host and for the device.
    pub(crate) fn address(&self) -> *mut u8 {
        self.data
    }

    /// The block as values of type `T`; bytes that do not fill a value are left out.
    ///
    /// # Panics
    /// If `T` has size zero.
    pub fn as_slice<T: Plain>(&self) -> &[T] {
        // SAFETY: allocated and initialised in `new`, and alive as long as `self`. The memory is aligned to a
        // page, which is enough for every `Plain` type, and any bytes are valid values.
        unsafe { std::slice::from_raw_parts(self.data.cast(), self.bytes / size_of::<T>()) }
    }

    /// The block as values of type `T`; bytes that do not fill a value are left out.
    ///
    /// # Panics
    /// If `T` has size zero.
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
        if let Ok(_bound) = self.context.bound() {
            // SAFETY: allocated in `new` and freed only here; the callers of the copies promised that none is
            // in flight.
            let _ = unsafe { sys::cuMemFreeHost(self.data.cast()) };
        }
    }
}

impl DeviceSlice {
    /// Starts to copy the bytes `range` of `source` to this slice, in the order of `stream`. May be captured.
    ///
    /// # Errors
    /// The driver fails.
    ///
    /// # Panics
    /// If the range is outside `source`, or not as long as this slice.
    ///
    /// # Safety
    /// Until the copy is done (the stream or a later event is synchronised), `source` must live and must not
    /// be written. If captured, the same holds from each launch of the graph until that launch is done.
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
        // SAFETY: both sides have `bytes` bytes (`part`). The caller keeps the host memory alive and this
        // slice the device memory, which a capturing graph holds too.
        let copy =
            || unsafe { sys::cuMemcpyHtoDAsync_v2(self.ptr(), host.cast(), self.bytes(), stream.handle()) };
        stream.submit(|held| held.push(self.keep()), || check("cuMemcpyHtoDAsync", copy()))
    }

    /// Starts to copy this slice to the bytes `range` of `dest`, in the order of `stream`. May be captured.
    ///
    /// # Errors
    /// The driver fails.
    ///
    /// # Panics
    /// If the range is outside `dest`, or not as long as this slice.
    ///
    /// # Safety
    /// Until the copy is done (the stream or a later event is synchronised), `dest` must live and must be
    /// neither read nor written, and no reference to its values may exist. If captured, the same holds from
    /// each launch of the graph until that launch is done.
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
        // SAFETY: both sides have `bytes` bytes (`part`). The caller reserves the host memory for this copy,
        // and its pointer comes from the allocation, not from a reference. This slice keeps the device memory
        // alive, and a capturing graph holds it too.
        let copy =
            || unsafe { sys::cuMemcpyDtoHAsync_v2(host.cast(), self.ptr(), self.bytes(), stream.handle()) };
        stream.submit(|held| held.push(self.keep()), || check("cuMemcpyDtoHAsync", copy()))
    }
}
