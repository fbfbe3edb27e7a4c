//! Device memory: allocations and slices of them.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult};

use super::device::Context;
use super::error::check;
use super::stream::KeepAlive;
use super::{CudaError, Device, Plain, Stream};

struct Allocation {
    context: Arc<Context>,
    ptr: sys::CUdeviceptr,
    bytes: usize,
    /// Whether the caller of this library owns the memory.
    of_caller: bool,
}

impl Allocation {
    fn new(context: &Arc<Context>, bytes: usize) -> Result<Allocation, CudaError> {
        context.bind()?;
        let mut ptr = 0;
        // SAFETY: a context is current; the driver refuses 0 bytes, so there is at least one; it writes one
        // address.
        match unsafe { sys::cuMemAlloc_v2(&mut ptr, bytes.max(1)) } {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                let (free, total) = context.memory().unwrap_or((0, 0));
                Err(CudaError::OutOfMemory { bytes, free, total })
            }
            status => {
                check("cuMemAlloc", status)?;
                Ok(Allocation { context: Arc::clone(context), ptr, bytes, of_caller: false })
            }
        }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if !self.of_caller
            && let Ok(_bound) = self.context.bound()
        {
            // SAFETY: allocated in `new` and freed only here. cuMemFree waits for the work that uses the
            // memory.
            let _ = unsafe { sys::cuMemFree_v2(self.ptr) };
        }
    }
}

/// A block of device memory, aligned to 256 bytes. It is freed with the last of its slices. Freeing waits for
/// the device, and the driver refuses it within a capture, so drop buffers outside of [`Stream::capture`].
pub struct DeviceBuf {
    all: DeviceSlice,
}

impl DeviceBuf {
    /// Allocates `bytes` bytes with undefined content.
    ///
    /// # Errors
    /// The device has too little free memory, or the driver fails.
    pub fn new(device: &Device, bytes: usize) -> Result<DeviceBuf, CudaError> {
        let allocation = Arc::new(Allocation::new(device.context(), bytes)?);
        Ok(DeviceBuf { all: DeviceSlice { allocation, offset: 0, bytes } })
    }

    /// Allocates `bytes` zero bytes.
    ///
    /// # Errors
    /// The device has too little free memory, or the driver fails.
    pub fn zeroed(device: &Device, bytes: usize) -> Result<DeviceBuf, CudaError> {
        let buf = DeviceBuf::new(device, bytes)?;
        if bytes > 0 {
            // SAFETY: an allocation that `buf` holds has `bytes` bytes at this address; its context is
            // current.
            check("cuMemsetD8", unsafe { sys::cuMemsetD8_v2(buf.all.ptr(), 0, bytes) })?;
            settle()?;
        }
        Ok(buf)
    }

    /// Allocates a copy of `values`. The copy is complete when this returns.
    ///
    /// # Errors
    /// The device has too little free memory, or the driver fails.
    pub fn from_slice<T: Plain>(device: &Device, values: &[T]) -> Result<DeviceBuf, CudaError> {
        let bytes = size_of_val(values);
        let buf = DeviceBuf::new(device, bytes)?;
        if bytes > 0 {
            // SAFETY: both sides have `bytes` bytes, `values` without padding (`Plain`); the context is
            // current.
            let status = unsafe { sys::cuMemcpyHtoD_v2(buf.all.ptr(), values.as_ptr().cast(), bytes) };
            check("cuMemcpyHtoD", status)?;
            settle()?;
        }
        Ok(buf)
    }

    /// Size in bytes.
    pub fn len_bytes(&self) -> usize {
        self.all.bytes
    }

    /// A slice of the whole buffer.
    pub fn all(&self) -> DeviceSlice {
        self.all.clone()
    }

    /// The bytes `offset..offset + len`.
    ///
    /// # Panics
    /// If the range is outside the buffer.
    pub fn slice(&self, offset: usize, len: usize) -> DeviceSlice {
        self.all.slice(offset, len)
    }
}

/// Several arrays that one copy brings to the device, into one allocation.
pub struct Upload {
    to: DeviceSlice,
    bytes: Vec<u8>,
}

impl Upload {
    /// Alignment of an array in the allocation.
    pub const ALIGN: usize = 256;

    /// Allocates room for `most` bytes, the alignment of each array included.
    ///
    /// # Errors
    /// The device has too little free memory, or the driver fails.
    pub fn new(device: &Device, most: usize) -> Result<Upload, CudaError> {
        Ok(Upload { to: DeviceBuf::new(device, most)?.all(), bytes: Vec::with_capacity(most) })
    }

    /// The place of `values` on the device, where they are after [`Upload::finish`].
    ///
    /// # Panics
    /// If there is no room for them.
    pub fn put<T: Plain>(&mut self, values: &[T]) -> DeviceSlice {
        let begin = self.bytes.len().next_multiple_of(Upload::ALIGN);
        self.bytes.resize(begin, 0);
        // SAFETY: the values are borrowed, and have as many bytes, without padding (`Plain`).
        let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) };
        self.bytes.extend_from_slice(bytes);
        self.to.slice(begin, bytes.len())
    }

    /// Copies all arrays to the device. The copy is complete when this returns; it waits for earlier work on
    /// `stream`.
    ///
    /// # Errors
    /// The stream is being captured, or the driver fails.
    pub fn finish(self, stream: &Stream) -> Result<(), CudaError> {
        self.to.slice(0, self.bytes.len()).copy_from(stream, &self.bytes)
    }
}

/// Waits for the default stream of the current context. A memset, and the last part of a copy from pageable
/// memory, may still be in flight when their functions return, and the streams of this crate do not wait for
/// the default stream.
fn settle() -> Result<(), CudaError> {
    // SAFETY: the null stream is the current context's default stream; the callers have made a context
    // current.
    check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(std::ptr::null_mut()) })
}

/// A part of a [`DeviceBuf`], which it keeps alive. Slices are views and may overlap. If different streams
/// access the same bytes at the same time, the values are unspecified, but the behaviour is defined.
#[derive(Clone)]
pub struct DeviceSlice {
    allocation: Arc<Allocation>,
    offset: usize,
    bytes: usize,
}

impl DeviceSlice {
    /// Memory that the caller owns: `bytes` bytes at the address `ptr`. Dropping the slice does not free it.
    ///
    /// # Safety
    /// The bytes are memory that `device` can access. They live until the last work that uses this slice, or
    /// a slice of it, is done; in a captured graph, as long as the graph.
    pub unsafe fn of_caller(device: &Device, ptr: u64, bytes: usize) -> DeviceSlice {
        let allocation = Allocation { context: Arc::clone(device.context()), ptr, bytes, of_caller: true };
        DeviceSlice { allocation: Arc::new(allocation), offset: 0, bytes }
    }

    /// Whether this slice and `other` share bytes.
    pub fn overlaps(&self, other: &DeviceSlice) -> bool {
        let end = |slice: &DeviceSlice| slice.ptr() + slice.bytes as u64;
        self.ptr() < end(other) && other.ptr() < end(self)
    }

    /// Whether the memory is on `device`.
    pub fn is_on(&self, device: &Device) -> bool {
        self.context().same(device.context())
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Device address of the first byte.
    pub fn ptr(&self) -> u64 {
        self.allocation.ptr + self.offset as u64
    }

    /// The bytes `offset..offset + len` of this slice.
    ///
    /// # Panics
    /// If the range is outside the slice.
    pub fn slice(&self, offset: usize, len: usize) -> DeviceSlice {
        assert!(
            offset <= self.bytes && len <= self.bytes - offset,
            "bytes {offset}+{len} of a device slice of {}",
            self.bytes
        );
        DeviceSlice { allocation: Arc::clone(&self.allocation), offset: self.offset + offset, bytes: len }
    }

    /// Copies `values` to this slice, after the work on `stream`. The copy is complete when this returns.
    ///
    /// # Errors
    /// The stream is being captured, or the driver fails.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn copy_from<T: Plain>(&self, stream: &Stream, values: &[T]) -> Result<(), CudaError> {
        self.expect_len(size_of_val(values));
        if self.bytes > 0 {
            // SAFETY: both sides have `bytes` bytes, `values` without padding (`Plain`). `values` is borrowed
            // until `synchronize` below has waited for the copy, and no graph repeats the copy
            // (`submit_now`).
            let copy = || unsafe {
                sys::cuMemcpyHtoDAsync_v2(self.ptr(), values.as_ptr().cast(), self.bytes, stream.handle())
            };
            stream.submit_now("a copy from pageable memory", || check("cuMemcpyHtoDAsync", copy()))?;
        }
        stream.synchronize()
    }

    /// Copies this slice to `values`, after the work on `stream`. The copy is complete when this returns.
    ///
    /// # Errors
    /// The stream is being captured, the driver fails, or earlier work on the stream failed.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn copy_to<T: Plain>(&self, stream: &Stream, values: &mut [T]) -> Result<(), CudaError> {
        self.expect_len(size_of_val(values));
        if self.bytes > 0 {
            // SAFETY: both sides have `bytes` bytes, and any bytes are valid values (`Plain`). `values` is
            // borrowed until `synchronize` below has waited for the copy, and no graph repeats the copy
            // (`submit_now`).
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
        // SAFETY: `self` holds an allocation of `bytes` bytes, which is freed only after the work that uses
        // it (`Allocation::drop`). A graph in which this is captured holds it too.
        let fill = || unsafe { sys::cuMemsetD8Async(self.ptr(), 0, self.bytes, stream.handle()) };
        stream.submit(|held| held.push(self.keep()), || check("cuMemsetD8Async", fill()))
    }

    /// Fills this slice with repeated copies of `pattern`, in the order of `stream`. May be captured.
    ///
    /// # Errors
    /// `pattern` is empty, or the driver fails.
    ///
    /// # Panics
    /// If `pattern` is on another GPU than the stream.
    pub fn fill_with(&self, stream: &Stream, pattern: &DeviceSlice) -> Result<(), CudaError> {
        if pattern.bytes == 0 {
            return Err(CudaError::Unsupported("memory cannot be filled with an empty pattern".to_owned()));
        }
        [self, pattern].into_iter().for_each(|slice| stream.hold(slice));
        for offset in (0..self.bytes).step_by(pattern.bytes) {
            let bytes = pattern.bytes.min(self.bytes - offset);
            let to = self.ptr() + offset as u64;
            // SAFETY: these slices hold two allocations with `bytes` bytes each, which are freed only after
            // the work that uses them (`Allocation::drop`). A graph in which this is captured holds them too.
            let copy = || unsafe { sys::cuMemcpyDtoDAsync_v2(to, pattern.ptr(), bytes, stream.handle()) };
            stream.submit(|_| {}, || check("cuMemcpyDtoDAsync", copy()))?;
        }
        Ok(())
    }

    /// Reference that keeps the memory alive.
    pub(crate) fn keep(&self) -> KeepAlive {
        Arc::clone(&self.allocation) as KeepAlive
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
