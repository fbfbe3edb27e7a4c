//! Reads and writes through the caller's pointers.
//!
//! Every function is unsafe for one reason: the caller of the C interface must pass pointers to as much
//! memory as the header says, which this crate cannot check. It checks everything else: null, alignment,
//! sizes, UTF-8.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};
use std::fmt::Display;

use crate::status::Failure;

/// Largest number of bytes of an object in memory.
const LARGEST: usize = isize::MAX as usize;

/// A structure of options whose first field is its size in bytes, as the caller's header knows it.
///
/// # Safety
/// The type is `repr(C)`, starts with that `usize`, and its other fields are numbers and pointers, for which
/// every pattern of bytes is valid, or functions that the caller states to be callable.
pub unsafe trait Versioned: Copy {
    /// The defaults, with the size of the type.
    fn defaults() -> Self;
}

/// The text at `pointer`; `None` if it is null.
///
/// # Safety
/// `pointer` is null or points to a string that ends with a zero byte and lives as long as the result.
pub unsafe fn optional_text<'a>(
    pointer: *const c_char,
    what: impl Display,
) -> Result<Option<&'a str>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the pointer is not null; the caller states the rest.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map(Some).map_err(|_| Failure::argument(what, "is not UTF-8"))
}

/// The text at `pointer`.
///
/// # Safety
/// As for [`optional_text`].
pub unsafe fn text<'a>(pointer: *const c_char, what: impl Display) -> Result<&'a str, Failure> {
    // SAFETY: the caller states it.
    unsafe { optional_text(pointer, &what) }?.ok_or_else(|| Failure::null(what))
}

/// The `length` values at `pointer`.
///
/// # Safety
/// `pointer` is null or points to `length` values, to which nothing writes as long as the result lives.
pub unsafe fn slice<'a, T>(pointer: *const T, length: usize, what: impl Display) -> Result<&'a [T], Failure> {
    check(pointer, length, &what)?;
    // SAFETY: `check` established that the pointer is not null and aligned and that the size is not too
    // large; the caller states the rest.
    Ok(unsafe { std::slice::from_raw_parts(pointer, length) })
}

/// The `length` values at `pointer`, to write to.
///
/// # Safety
/// `pointer` is null or points to `length` values, which nothing else reads or writes as long as the result
/// lives.
pub unsafe fn slice_mut<'a, T>(
    pointer: *mut T,
    length: usize,
    what: impl Display,
) -> Result<&'a mut [T], Failure> {
    check(pointer, length, &what)?;
    // SAFETY: as in `slice`.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, length) })
}

/// Writes `value` to `pointer`.
///
/// # Safety
/// `pointer` is null or points to memory for a `T`, which nothing else reads or writes meanwhile.
pub unsafe fn write<T>(pointer: *mut T, value: T, what: impl Display) -> Result<(), Failure> {
    check(pointer, 1, &what)?;
    // SAFETY: `check` established that the pointer is not null and aligned; the caller states the rest.
    unsafe { pointer.write(value) };
    Ok(())
}

/// The options at `pointer`, or the defaults if it is null. Fields beyond the size that the caller states
/// have their defaults, so that programs that were compiled with an older header work.
///
/// # Safety
/// `pointer` is null or points to a structure of as many bytes as its first field says.
pub unsafe fn options<T: Versioned>(pointer: *const T, what: impl Display) -> Result<T, Failure> {
    let mut options = T::defaults();
    if pointer.is_null() {
        return Ok(options);
    }
    check(pointer, 1, &what)?;
    // SAFETY: the pointer is not null and aligned; the structure starts with its size.
    let size = unsafe { pointer.cast::<usize>().read() };
    if size < size_of::<usize>() || size > size_of::<T>() {
        let known = size_of::<T>();
        return Err(Failure::argument(
            what,
            format!("its `size` is {size}; set it to sizeof, at most {known}"),
        ));
    }
    // SAFETY: the caller's structure has `size` bytes, which fit into `options`; `Versioned` states that any
    // bytes are valid.
    unsafe { std::ptr::copy_nonoverlapping(pointer.cast::<u8>(), (&raw mut options).cast::<u8>(), size) };
    Ok(options)
}

/// Writes the first bytes of `value` to the structure at `pointer`, as many as its first field says.
///
/// # Safety
/// As for [`options`], and nothing else reads or writes the structure meanwhile.
pub unsafe fn fill<T: Versioned>(pointer: *mut T, mut value: T, what: impl Display) -> Result<(), Failure> {
    check(pointer, 1, &what)?;
    // SAFETY: as in `options`.
    let size = unsafe { pointer.cast::<usize>().read() };
    if size < size_of::<usize>() || size > size_of::<T>() {
        let known = size_of::<T>();
        return Err(Failure::argument(
            what,
            format!("its `size` is {size}; set it to sizeof, at most {known}"),
        ));
    }
    // SAFETY: `T` starts with a `usize`, and the caller's structure has `size` bytes.
    unsafe {
        (&raw mut value).cast::<usize>().write(size);
        std::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), pointer.cast::<u8>(), size);
    }
    Ok(())
}

fn check<T>(pointer: *const T, length: usize, what: impl Display) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(Failure::null(what));
    }
    if !pointer.is_aligned() {
        return Err(Failure::argument(what, format!("is not aligned to {} bytes", align_of::<T>())));
    }
    match length.checked_mul(size_of::<T>()) {
        Some(bytes) if bytes <= LARGEST => Ok(()),
        _ => Err(Failure::argument(what, format!("{length} values are more than memory can hold"))),
    }
}
