//! Memory for activations, aligned for vector loads.

use std::collections::TryReserveError;
use std::marker::PhantomData;
use std::ops::Deref;

use crate::memory::ask_for_large_pages;

/// One cache line, zero-initialised.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A block of bytes that starts on a cache line, seen as `u8`, `f32` or `i32`. Always initialised.
#[derive(Clone)]
pub struct AlignedBuf {
    lines: Vec<Line>,
}

impl AlignedBuf {
    /// At least `bytes` zero bytes.
    pub fn new(bytes: usize) -> AlignedBuf {
        AlignedBuf { lines: vec![Line([0; 64]); bytes.div_ceil(64)] }
    }

    /// As [`AlignedBuf::new`], in large pages where possible, but returns an error if the memory is refused.
    ///
    /// # Errors
    /// The system refuses the memory.
    pub fn try_new(bytes: usize) -> Result<AlignedBuf, TryReserveError> {
        let (count, mut lines) = (bytes.div_ceil(64), Vec::new());
        lines.try_reserve_exact(count)?;
        ask_for_large_pages(lines.spare_capacity_mut());
        lines.resize(count, Line([0; 64]));
        Ok(AlignedBuf { lines })
    }

    /// Bytes held.
    pub fn len(&self) -> usize {
        self.lines.len() * 64
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Grows to at least `bytes` and keeps the contents.
    pub fn reserve(&mut self, bytes: usize) {
        if bytes > self.len() {
            self.lines.resize(bytes.div_ceil(64), Line([0; 64]));
        }
    }

    /// The block as bytes.
    pub fn as_u8(&self) -> &[u8] {
        // SAFETY: `lines` owns `len()` contiguous initialised bytes (`Line` is `repr(C)` and has no padding),
        // and any byte is a valid u8.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len()) }
    }

    /// The block as bytes.
    pub fn as_u8_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_u8`, and `&mut self` makes the view unique.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len()) }
    }

    /// The block as i8.
    pub fn as_i8(&self) -> &[i8] {
        // SAFETY: as in `as_u8`; any byte is a valid i8.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len()) }
    }

    /// The block as f32.
    pub fn as_f32(&self) -> &[f32] {
        // SAFETY: as in `as_u8`; 64-byte alignment is enough for f32, and any four bytes are a valid f32.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len() / 4) }
    }

    /// The block as f32.
    pub fn as_f32_mut(&mut self) -> &mut [f32] {
        // SAFETY: as in `as_f32`, and `&mut self` makes the view unique.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len() / 4) }
    }

    /// The block as i32.
    pub fn as_i32_mut(&mut self) -> &mut [i32] {
        // SAFETY: as in `as_f32_mut`; any four bytes are a valid i32.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len() / 4) }
    }
}

/// Values that start on a cache line. A load of a register, or of a row of a tile, that crosses cache lines
/// takes twice the time.
pub(crate) struct Aligned<T> {
    memory: AlignedBuf,
    len: usize,
    of: PhantomData<T>,
}

/// A number in memory.
///
/// # Safety
/// Every pattern of bits is a value, there is no padding, and the alignment is at most that of a cache line.
pub(crate) unsafe trait Element: Copy {}

// SAFETY: a number.
unsafe impl Element for u8 {}
// SAFETY: a number.
unsafe impl Element for i8 {}
// SAFETY: a number.
unsafe impl Element for i32 {}
// SAFETY: a number.
unsafe impl Element for f32 {}

impl<T> Default for Aligned<T> {
    /// No value.
    fn default() -> Aligned<T> {
        Aligned { memory: AlignedBuf::new(0), len: 0, of: PhantomData }
    }
}

impl<T: Element> From<&[T]> for Aligned<T> {
    fn from(values: &[T]) -> Aligned<T> {
        let mut memory = AlignedBuf::new(size_of_val(values));
        // SAFETY: `memory` holds as many bytes as `values`, starts on a cache line, and is borrowed by nobody
        // else; its zeros are values of an `Element`.
        let copies =
            unsafe { std::slice::from_raw_parts_mut(memory.lines.as_mut_ptr().cast(), values.len()) };
        copies.copy_from_slice(values);
        Aligned { memory, len: values.len(), of: PhantomData }
    }
}

impl<T: Element> From<Vec<T>> for Aligned<T> {
    fn from(values: Vec<T>) -> Aligned<T> {
        Aligned::from(values.as_slice())
    }
}

impl<T: Element> FromIterator<T> for Aligned<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Aligned<T> {
        values.into_iter().collect::<Vec<T>>().into()
    }
}

impl<T: Element> Deref for Aligned<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `from` made `memory`, which starts on a cache line, for `len` values of an `Element`.
        unsafe { std::slice::from_raw_parts(self.memory.lines.as_ptr().cast(), self.len) }
    }
}

/// The bytes of `x`.
pub(crate) fn bytes(x: &[f32]) -> &[u8] {
    // SAFETY: the same memory, 4 bytes for each f32, all initialised; any byte is a valid u8.
    unsafe { std::slice::from_raw_parts(x.as_ptr().cast(), size_of_val(x)) }
}

/// The bytes of `x`.
pub(crate) fn bytes_mut(x: &mut [f32]) -> &mut [u8] {
    // SAFETY: as in `bytes`, any four bytes are a valid f32, and the borrow is unique.
    unsafe { std::slice::from_raw_parts_mut(x.as_mut_ptr().cast(), size_of_val(x)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use swinq_numerics::LINE;

    #[test]
    fn aligned_values_are_those_given() {
        for len in [0, 1, 15, 16, 17, 1000] {
            let values: Vec<i32> = (0..len).map(|i| 7 - i * i).collect();
            let aligned = Aligned::from(values.as_slice());
            assert!(*aligned == values && aligned.as_ptr().addr().is_multiple_of(LINE), "{len} values");
        }
    }
}
