//! The functions and structures of the interface. Their documentation becomes that of the header.
//!
//! # Safety
//! It is the same for every function: each pointer is NULL, which is an error where the description does not
//! allow it, or valid for as much as the description says, and no other thread writes to that memory during
//! the call. Handles are checked.

#![allow(unsafe_code)]
#![allow(non_camel_case_types)]
#![allow(clippy::missing_safety_doc, reason = "it is that of the module, and has no place in the header")]

// In the order of the header, which is that of these lines.
mod model;

mod image;

mod engine;

mod tensor;

mod run;

mod device;

use std::ffi::c_char;

use crate::handles::{self, Object};
use crate::memory;
use crate::status::{Failure, last_message};

pub use device::*;
pub use engine::*;
pub use image::*;
pub use model::*;
pub use run::*;
pub use tensor::*;

/// Version of this interface. It changes with each change that breaks a program, as the major version of the
/// library does.
pub const SWINQ_ABI_VERSION: u32 = 0;

/// A model, float or quantized. Threads may share it.
pub struct swinq_model {
    _opaque: [u8; 0],
}

/// A model that is ready to run, with threads and buffers of its own. Threads may share it; on a CPU their
/// calls run at the same time on the engine's threads, on a GPU those with images in host memory one after
/// another. Engines of one model share its packed weights.
pub struct swinq_engine {
    _opaque: [u8; 0],
}

/// Version of the interface of the library that runs. Compare it with `SWINQ_ABI_VERSION` of the header.
#[unsafe(no_mangle)]
pub extern "C" fn swinq_abi_version() -> u32 {
    SWINQ_ABI_VERSION
}

/// Version of the library, such as `"0.1.0"`. The string is static.
#[unsafe(no_mangle)]
pub extern "C" fn swinq_version() -> *const c_char {
    const VERSION: &std::ffi::CStr =
        match std::ffi::CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => panic!("a version has no zero byte"),
        };
    VERSION.as_ptr()
}

/// What was wrong with the last call of this thread, in UTF-8; empty if it succeeded. The string belongs to
/// the library and is valid until the thread's next call.
#[unsafe(no_mangle)]
pub extern "C" fn swinq_last_error() -> *const c_char {
    last_message()
}

/// Adds `object` to the table and writes its handle to `to`.
///
/// # Safety
/// `to` is null or can be written to.
unsafe fn hand_out<T>(object: Object, to: *mut *mut T, what: &str) -> Result<(), Failure> {
    // Checked first, so that no object is left in the table without a handle.
    // SAFETY: the caller states it.
    unsafe { memory::write(to, std::ptr::null_mut(), what)? };
    let handle = std::ptr::without_provenance_mut(handles::insert(object));
    // SAFETY: as above.
    unsafe { memory::write(to, handle, what) }
}
