//! Detects which CUDA libraries this machine has. They are loaded from the loader's path when first used. A
//! program that is linked with them (feature `linked`) loads all of them except NCCL and NVTX when it starts.

use std::ffi::c_int;
use std::sync::OnceLock;

use cudarc::{cublaslt, driver, nvrtc};

use super::{CudaError, nccl, nvtx};

pub(crate) mod names;

/// A library that is loaded at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Library {
    /// The driver.
    Driver,
    /// The kernel compiler.
    Nvrtc,
    /// Matrix products.
    CublasLt,
    /// The older BLAS library, for the products of training.
    Cublas,
    /// Sums over the GPUs of several processes, for training.
    Nccl,
    /// Named ranges for profilers.
    Nvtx,
}

/// A missing library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// File name of the library.
    pub library: &'static str,
    /// Package that contains the library.
    pub package: &'static str,
}

impl Library {
    /// The libraries that an engine on a GPU needs.
    pub const NEEDED: [Library; 3] = [Library::Driver, Library::Nvrtc, Library::CublasLt];

    /// File name without version.
    pub fn file(self) -> &'static str {
        names::of(self).file
    }

    /// Package to install.
    pub fn package(self) -> &'static str {
        names::of(self).package
    }
}

/// Whether `library` can be loaded. It is loaded at most once, so the answer does not change.
pub fn present(library: Library) -> bool {
    static FOUND: [OnceLock<bool>; 6] = [const { OnceLock::new() }; 6];
    *FOUND[library as usize].get_or_init(|| match library {
        Library::Nccl => nccl::loaded(),
        Library::Nvtx => nvtx::loaded().is_some(),
        _ => can_be_opened(library),
    })
}

/// The program is linked with these libraries, so it would not have started without them.
#[cfg(feature = "linked")]
fn can_be_opened(_: Library) -> bool {
    true
}

#[cfg(not(feature = "linked"))]
fn can_be_opened(library: Library) -> bool {
    // SAFETY: this only loads the library, which runs NVIDIA's initialisers; the user's loader path selects
    // the file.
    unsafe {
        match library {
            Library::Driver => driver::sys::is_culib_present(),
            Library::Nvrtc => nvrtc::sys::is_culib_present(),
            Library::CublasLt => cublaslt::sys::is_culib_present(),
            Library::Cublas => cudarc::cublas::sys::is_culib_present(),
            Library::Nccl | Library::Nvtx => false,
        }
    }
}

/// Checks that `library` is present.
///
/// # Errors
/// It is missing.
pub fn require(library: Library) -> Result<(), CudaError> {
    if present(library) {
        return Ok(());
    }
    Err(CudaError::MissingLibrary { library: library.file(), package: library.package() })
}

/// The required libraries that are missing.
pub fn missing() -> Vec<Missing> {
    let absent = Library::NEEDED.into_iter().filter(|library| !present(*library));
    absent.map(|library| Missing { library: library.file(), package: library.package() }).collect()
}

/// CUDA version (major, minor) that the driver supports; `None` if there is no driver.
pub fn driver_version() -> Option<(u32, u32)> {
    let mut version: c_int = 0;
    if !present(Library::Driver) {
        return None;
    }
    // SAFETY: the driver is loaded; this function needs no initialisation and writes one int.
    let status = unsafe { driver::sys::cuDriverGetVersion(&mut version) };
    let version = u32::try_from(version).ok().filter(|v| *v > 0 && status.result().is_ok())?;
    Some((version / 1000, version % 1000 / 10))
}

/// Version of NVRTC (major, minor); `None` if it is missing.
pub fn nvrtc_version() -> Option<(u32, u32)> {
    let (mut major, mut minor): (c_int, c_int) = (0, 0);
    if !present(Library::Nvrtc) {
        return None;
    }
    // SAFETY: NVRTC is loaded; this function writes two ints.
    unsafe { nvrtc::sys::nvrtcVersion(&mut major, &mut minor) }.result().ok()?;
    Some((u32::try_from(major).ok()?, u32::try_from(minor).ok()?))
}

/// Version of cuBLASLt (major, minor, patch); `None` if it is missing.
pub fn cublaslt_version() -> Option<(u32, u32, u32)> {
    if !present(Library::CublasLt) {
        return None;
    }
    // SAFETY: cuBLASLt is loaded; this function takes no arguments.
    let version = u32::try_from(unsafe { cublaslt::sys::cublasLtGetVersion() }).ok()?;
    Some((version / 10_000, version / 100 % 100, version % 100))
}
