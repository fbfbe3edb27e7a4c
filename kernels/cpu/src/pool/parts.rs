//! A slice whose disjoint parts are written by the tasks of one job.

use std::marker::PhantomData;

/// A mutable slice whose disjoint parts are written by the tasks of one job. A copy refers to the same slice.
#[derive(Clone, Copy)]
pub(crate) struct Parts<'a, T> {
    data: *mut T,
    len: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: memory is only accessible through `get` and `read`, whose callers promise that a part that may be
// written overlaps no other part in use. `T: Send + Sync` permits other threads to use parts and to read them
// at the same time.
unsafe impl<T: Send + Sync> Sync for Parts<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Parts<'a, T> {
        Parts { data: slice.as_mut_ptr(), len: slice.len(), life: PhantomData }
    }

    /// The address of element `index`, which may lie outside of the slice.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn address(&self, index: usize) -> *const T {
        self.data.wrapping_add(index)
    }

    /// The elements `start..start + len`.
    ///
    /// # Safety
    /// No two parts alive at the same time may overlap.
    ///
    /// # Panics
    /// Outside the slice.
    #[allow(clippy::mut_from_ref)] // The point of the type; see the safety section.
    pub(crate) unsafe fn get(&self, start: usize, len: usize) -> &mut [T] {
        // SAFETY: in bounds by `start_of`; the slice that `new` borrowed is alive for `'a`; disjoint from
        // other parts by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start_of(start, len), len) }
    }

    /// The elements `start..start + len`, for reading.
    ///
    /// # Safety
    /// Nobody writes any of them while the result is alive.
    ///
    /// # Panics
    /// Outside the slice.
    pub(crate) unsafe fn read(&self, start: usize, len: usize) -> &'a [T] {
        // SAFETY: in bounds by `start_of`; the slice that `new` borrowed is alive for `'a`; the caller
        // promises that nobody writes the elements.
        unsafe { std::slice::from_raw_parts(self.start_of(start, len), len) }
    }

    /// The address of the elements `start..start + len`, which are inside the slice.
    ///
    /// # Panics
    /// Outside the slice.
    #[inline(always)]
    pub(crate) fn start_of(&self, start: usize, len: usize) -> *mut T {
        if start > self.len || len > self.len - start {
            outside(start, len, self.len);
        }
        self.data.wrapping_add(start)
    }
}

/// Not inlined, so that loops over parts do not keep the arguments of the panic message in registers.
#[cold]
#[inline(never)]
fn outside(start: usize, len: usize, total: usize) -> ! {
    panic!("part {start}+{len} of {total}")
}
