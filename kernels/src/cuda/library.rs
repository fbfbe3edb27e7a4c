//! Which CUDA libraries this machine has. They are loaded when first used, from the loader's path; all but NVTX with the
//! program itself where it is linked with them (feature `linked`).

use std::ffi::c_int;
use std::sync::OnceLock;

use cudarc::{cublaslt, driver, nvrtc};

use super::{CudaError, nvtx};

/// A library that is loaded at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Library {
    /// The driver.
    Driver,
    /// The compiler of kernels.
    Nvrtc,
    /// Matrix products.
    CublasLt,
    /// Classic BLAS; nothing here needs it.
    Cublas,
    /// Ranges for profilers.
    Nvtx,
}

/// A library that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// File name of the library.
    pub library: &'static str,
    /// What to install.
    pub package: &'static str,
}

impl Library {
    /// What an engine on a GPU needs.
    pub const NEEDED: [Library; 3] = [Library::Driver, Library::Nvrtc, Library::CublasLt];

    /// File name, without a version.
    pub fn file(self) -> &'static str {
        match self {
            Library::Driver => "libcuda.so",
            Library::Nvrtc => "libnvrtc.so",
            Library::CublasLt => "libcublasLt.so",
            Library::Cublas => "libcublas.so",
            Library::Nvtx => "libnvtx3interop.so",
        }
    }

    /// What to install to have it.
    pub fn package(self) -> &'static str {
        match self {
            Library::Driver => "the NVIDIA driver, 525 or newer",
            Library::Nvrtc => {
                "the CUDA toolkit 12 or 13, or its part: nvidia-cuda-nvrtc from PyPI, libnvrtc12 from Debian"
            }
            Library::CublasLt => {
                "the CUDA toolkit 12 or 13, or its part: nvidia-cublas from PyPI, libcublaslt12 from Debian"
            }
            Library::Cublas => {
                "the CUDA toolkit 12 or 13, or its part: nvidia-cublas from PyPI, libcublas12 from Debian"
            }
            Library::Nvtx => "nvidia-nvtx from PyPI; libnvToolsExt.so of the CUDA toolkit 12 does as well",
        }
    }
}

/// Whether `library` can be loaded. Loaded once and for all; the answer does not change.
pub fn present(library: Library) -> bool {
    static FOUND: [OnceLock<bool>; 5] = [const { OnceLock::new() }; 5];
    *FOUND[library as usize].get_or_init(|| match library {
        Library::Nvtx => nvtx::loaded().is_some(),
        _ => can_be_opened(library),
    })
}

/// The program is linked with them and would not have started without.
#[cfg(feature = "linked")]
fn can_be_opened(_: Library) -> bool {
    true
}

#[cfg(not(feature = "linked"))]
fn can_be_opened(library: Library) -> bool {
    // SAFETY: this only loads the library, whose initialisers are NVIDIA's: the user's loader path chose it.
    unsafe {
        match library {
            Library::Driver => driver::sys::is_culib_present(),
            Library::Nvrtc => nvrtc::sys::is_culib_present(),
            Library::CublasLt => cublaslt::sys::is_culib_present(),
            Library::Cublas => cudarc::cublas::sys::is_culib_present(),
            Library::Nvtx => false,
        }
    }
}

/// Nothing if `library` is there.
///
/// # Errors
/// It is missing.
pub fn require(library: Library) -> Result<(), CudaError> {
    if present(library) {
        return Ok(());
    }
    Err(CudaError::MissingLibrary { library: library.file(), package: library.package() })
}

/// The needed libraries that are not there.
pub fn missing() -> Vec<Missing> {
    let absent = Library::NEEDED.into_iter().filter(|library| !present(*library));
    absent.map(|library| Missing { library: library.file(), package: library.package() }).collect()
}

/// Version of CUDA that the driver supports (major, minor), if there is a driver.
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

/// Version of NVRTC (major, minor), if it is there.
pub fn nvrtc_version() -> Option<(u32, u32)> {
    let (mut major, mut minor): (c_int, c_int) = (0, 0);
    if !present(Library::Nvrtc) {
        return None;
    }
    // SAFETY: NVRTC is loaded; this function writes two ints.
    unsafe { nvrtc::sys::nvrtcVersion(&mut major, &mut minor) }.result().ok()?;
    Some((u32::try_from(major).ok()?, u32::try_from(minor).ok()?))
}

/// Version of cuBLASLt (major, minor, patch), if it is there.
pub fn cublaslt_version() -> Option<(u32, u32, u32)> {
    if !present(Library::CublasLt) {
        return None;
    }
    // SAFETY: cuBLASLt is loaded; this function takes nothing.
    let version = u32::try_from(unsafe { cublaslt::sys::cublasLtGetVersion() }).ok()?;
    Some((version / 10_000, version / 100 % 100, version % 100))
}
