//! Memory of a device: allocations and views of them.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult};

use super::device::Context;
use super::error::check;
use super::stream::Held;
use super::{CudaError, Device, Plain, Stream};

struct Allocation {
    context: Arc<Context>,
    ptr: sys::CUdeviceptr,
    bytes: usize,
}

impl Allocation {
    fn new(context: &Arc<Context>, bytes: usize) -> Result<Allocation, CudaError> {
        context.bind()?;
        let mut ptr = 0;
        // SAFETY: a context is current; the driver refuses 0 bytes, so there is at least one; it writes one address.
        match unsafe { sys::cuMemAlloc_v2(&mut ptr, bytes.max(1)) } {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                let (free, total) = context.memory().unwrap_or((0, 0));
                Err(CudaError::OutOfMemory { bytes, free, total })
            }
            status => {
                check("cuMemAlloc", status)?;
                Ok(Allocation { context: Arc::clone(context), ptr, bytes })
            }
        }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: allocated in `new`, freed here alone. cuMemFree waits for the work that uses the memory.
            let _ = unsafe { sys::cuMemFree_v2(self.ptr) };
        }
    }
}

/// A block of device memory, aligned to 256 bytes. It is freed with the last of its slices. Freeing waits for the
/// device, and within a capture the driver refuses it: drop buffers outside of [`Stream::capture`].
pub struct DeviceBuf {
    all: DeviceSlice,
}

impl DeviceBuf {
    /// `bytes` bytes of any content.
    ///
    /// # Errors
    /// The device has too little free memory, or the driver fails.
    pub fn new(device: &Device, bytes: usize) -> Result<DeviceBuf, CudaError> {
        let allocation = Arc::new(Allocation::new(device.context(), bytes)?);
        Ok(DeviceBuf { all: DeviceSlice { allocation, offset: 0, bytes } })
    }

    /// `bytes` zero bytes.
    ///
    /// # Errors
    /// The device has too little free memory, or the driver fails.
    pub fn zeroed(device: &Device, bytes: usize) -> Result<DeviceBuf, CudaError> {
        let buf = DeviceBuf::new(device, bytes)?;
        if bytes > 0 {
            // SAFETY: `bytes` bytes at the address of an allocation that `buf` holds; its context is current.
            check("cuMemsetD8", unsafe { sys::cuMemsetD8_v2(buf.all.ptr(), 0, bytes) })?;
            settle()?;
        }
        Ok(buf)
    }

    /// A copy of `values`, complete when this returns.
    ///
    /// # Errors
    /// The device has too little free memory, or the driver fails.
    pub fn from_slice<T: Plain>(device: &Device, values: &[T]) -> Result<DeviceBuf, CudaError> {
        let bytes = size_of_val(values);
        let buf = DeviceBuf::new(device, bytes)?;
        if bytes > 0 {
            // SAFETY: both sides have `bytes` bytes, `values` without padding (`Plain`); the context is current.
            let status = unsafe { sys::cuMemcpyHtoD_v2(buf.all.ptr(), values.as_ptr().cast(), bytes) };
            check("cuMemcpyHtoD", status)?;
            settle()?;
        }
        Ok(buf)
    }

    /// Bytes held.
    pub fn len_bytes(&self) -> usize {
        self.all.bytes
    }

    /// All of it.
    pub fn all(&self) -> DeviceSlice {
        self.all.clone()
    }

    /// The bytes `offset..offset + len`.
    ///
    /// # Panics
    /// Outside the buffer.
    pub fn slice(&self, offset: usize, len: usize) -> DeviceSlice {
        self.all.slice(offset, len)
    }
}

/// Waits for the default stream of the current context: its memset, and the last part of a copy from pageable memory,
/// may still be on their way when their functions return, and streams here do not wait for it.
fn settle() -> Result<(), CudaError> {
    // SAFETY: the null stream is the current context's default stream; the callers have made one current.
    check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(std::ptr::null_mut()) })
}

/// A part of a [`DeviceBuf`], which it keeps alive. Slices are views: they may overlap, and what work on different
/// streams does to the same bytes at the same time is undefined in value (any bytes), not in behaviour.
#[derive(Clone)]
pub struct DeviceSlice {
    allocation: Arc<Allocation>,
    offset: usize,
    bytes: usize,
}

impl DeviceSlice {
    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Address on the device of the first byte.
    pub fn ptr(&self) -> u64 {
        self.allocation.ptr + self.offset as u64
    }

    /// The bytes `offset..offset + len` of these.
    ///
    /// # Panics
    /// Outside the slice.
    pub fn slice(&self, offset: usize, len: usize) -> DeviceSlice {
        assert!(
            offset <= self.bytes && len <= self.bytes - offset,
            "bytes {offset}+{len} of a device slice of {}",
            self.bytes
        );
        DeviceSlice { allocation: Arc::clone(&self.allocation), offset: self.offset + offset, bytes: len }
    }

    /// Copies `values` here, after the work on `stream`; the copy is complete when this returns.
    ///
    /// # Errors
    /// The stream is being captured, or the driver fails.
    ///
    /// # Panics
    /// The lengths differ.
    pub fn copy_from<T: Plain>(&self, stream: &Stream, values: &[T]) -> Result<(), CudaError> {
        self.expect_len(size_of_val(values));
        if self.bytes > 0 {
            // SAFETY: both sides have `bytes` bytes, `values` without padding (`Plain`); `values` is borrowed until
            // `synchronize` below has waited for the copy, which no graph repeats (`submit_now`).
            let copy = || unsafe {
                sys::cuMemcpyHtoDAsync_v2(self.ptr(), values.as_ptr().cast(), self.bytes, stream.handle())
            };
            stream.submit_now("a copy from pageable memory", || check("cuMemcpyHtoDAsync", copy()))?;
        }
        stream.synchronize()
    }

    /// Copies these bytes to `values`, after the work on `stream`; the copy is complete when this returns.
    ///
    /// # Errors
    /// The stream is being captured, the driver fails, or work before on the stream did.
    ///
    /// # Panics
    /// The lengths differ.
    pub fn copy_to<T: Plain>(&self, stream: &Stream, values: &mut [T]) -> Result<(), CudaError> {
        self.expect_len(size_of_val(values));
        if self.bytes > 0 {
            // SAFETY: both sides have `bytes` bytes, and any bytes are values (`Plain`); `values` is borrowed until
            // `synchronize` below has waited for the copy, which no graph repeats (`submit_now`).
            let mut copy = || unsafe {
                sys::cuMemcpyDtoHAsync_v2(values.as_mut_ptr().cast(), self.ptr(), self.bytes, stream.handle())
            };
            stream.submit_now("a copy to pageable memory", || check("cuMemcpyDtoHAsync", copy()))?;
        }
        stream.synchronize()
    }

    /// Sets all bytes to 0, in the order of `stream`. May be captured.
    ///
    /// # Errors
    /// The driver fails.
    pub fn fill_zero(&self, stream: &Stream) -> Result<(), CudaError> {
        if self.bytes == 0 {
            return Ok(());
        }
        // SAFETY: `bytes` bytes of an allocation that `self` holds, and that is freed only after the work that uses it
        // (`Allocation::drop`); a graph that this is captured in holds it.
        let fill = || unsafe { sys::cuMemsetD8Async(self.ptr(), 0, self.bytes, stream.handle()) };
        stream.submit(|held| held.push(self.keep()), || check("cuMemsetD8Async", fill()))
    }

    /// Fills these bytes with copies of `pattern`, one after the other, in the order of `stream`.
    ///
    /// # Errors
    /// `pattern` is empty, the stream is being captured, or the driver fails.
    ///
    /// # Panics
    /// `pattern` is on another GPU than the stream.
    pub fn fill_with(&self, stream: &Stream, pattern: &DeviceSlice) -> Result<(), CudaError> {
        if pattern.bytes == 0 {
            return Err(CudaError::Unsupported("memory cannot be filled with an empty pattern".to_owned()));
        }
        [self, pattern].into_iter().for_each(|slice| stream.hold(slice));
        for offset in (0..self.bytes).step_by(pattern.bytes) {
            let bytes = pattern.bytes.min(self.bytes - offset);
            let to = self.ptr() + offset as u64;
            // SAFETY: `bytes` bytes of two allocations that these slices hold and that are freed only after the work
            // that uses them (`Allocation::drop`).
            let copy = || unsafe { sys::cuMemcpyDtoDAsync_v2(to, pattern.ptr(), bytes, stream.handle()) };
            stream.submit_now("a copy on the device", || check("cuMemcpyDtoDAsync", copy()))?;
        }
        Ok(())
    }

    /// What keeps the memory alive.
    pub(crate) fn keep(&self) -> Held {
        Arc::clone(&self.allocation) as Held
    }

    pub(crate) fn context(&self) -> &Context {
        &self.allocation.context
    }

    fn expect_len(&self, bytes: usize) {
        assert_eq!(bytes, self.bytes, "a copy between {bytes} bytes and a device slice");
    }
}

impl fmt::Debug for DeviceSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = self.allocation.bytes;
        write!(f, "DeviceSlice({:#x}: bytes {}+{} of {of})", self.ptr(), self.offset, self.bytes)
    }
}
