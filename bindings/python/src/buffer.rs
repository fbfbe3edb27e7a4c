//! Memory of Python objects, through the buffer protocol: read and written in place, without a copy.

#![allow(unsafe_code)]

use std::ops::Range;

use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A contiguous, row-major array of a Python object. The object cannot free or resize it while this value
/// exists.
///
/// As with every extension that releases the interpreter's lock, no other thread may write to the array
/// during the call; the values that are read are then undefined.
pub struct Array<T: Element> {
    buffer: PyBuffer<T>,
}

impl<T: Element> Array<T> {
    /// The array of `object`; messages name it `what`.
    ///
    /// # Errors
    /// `TypeError` or `ValueError` for an object without a buffer of this type, or whose buffer is not
    /// contiguous.
    pub fn of(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Array<T>> {
        let buffer = PyBuffer::<T>::get(object)?;
        if !buffer.is_c_contiguous() {
            return Err(PyValueError::new_err(format!("{what} is not contiguous")));
        }
        Ok(Array { buffer })
    }

    /// The extent of each dimension.
    pub fn shape(&self) -> &[usize] {
        self.buffer.shape()
    }

    /// The addresses of the elements.
    pub fn addresses(&self) -> Range<usize> {
        let Range { start, end } = self.as_slice().as_ptr_range();
        start.addr()..end.addr()
    }

    /// The elements.
    pub fn as_slice(&self) -> &[T] {
        if self.buffer.item_count() == 0 {
            return &[];
        }
        let pointer = self.buffer.buf_ptr().cast::<T>();
        // SAFETY: `PyBuffer::get` established that the elements are of type `T` and that the pointer is
        // aligned; `of` established that they are contiguous. The view that `buffer` holds keeps them in
        // place. The documentation of the type forbids writes by others during the call.
        unsafe { std::slice::from_raw_parts(pointer, self.buffer.item_count()) }
    }
}

/// A contiguous, writable array of a Python object.
pub struct Output<T: Element> {
    array: Array<T>,
}

impl<T: Element> Output<T> {
    /// The array of `object`; messages name it `what`. `taken` are the addresses of the other arrays of the
    /// call; those of this one are added.
    ///
    /// # Errors
    /// The errors of [`Array::of`], and `ValueError` for an array that is read-only or overlaps another.
    pub fn of(object: &Bound<'_, PyAny>, what: &str, taken: &mut Vec<Range<usize>>) -> PyResult<Output<T>> {
        let array = Array::<T>::of(object, what)?;
        if array.buffer.readonly() {
            return Err(PyValueError::new_err(format!("{what} is read-only")));
        }
        let own = array.addresses();
        if taken.iter().any(|other| other.start < own.end && own.start < other.end) {
            return Err(PyValueError::new_err(format!("{what} overlaps another array of the call")));
        }
        taken.push(own);
        Ok(Output { array })
    }

    /// The extent of each dimension.
    pub fn shape(&self) -> &[usize] {
        self.array.shape()
    }

    /// The elements.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        let buffer = &self.array.buffer;
        if buffer.item_count() == 0 {
            return &mut [];
        }
        let pointer = buffer.buf_ptr().cast::<T>();
        // SAFETY: as in `Array::as_slice`; `of` established that the array is writable and that the other
        // arrays of the call lie elsewhere. `&mut self` excludes a second slice.
        unsafe { std::slice::from_raw_parts_mut(pointer, buffer.item_count()) }
    }
}
