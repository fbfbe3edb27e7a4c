//! Names of the CUDA libraries' files, and where they come from. cudarc opens the driver, NVRTC and cuBLAS,
//! by names of its own.
//!
//! The loader of Linux looks in `LD_LIBRARY_PATH`, that of Windows in `PATH`. macOS has no CUDA.

use super::Library;

/// A library as this system has it.
pub(super) struct Names {
    /// File name, without version where the system has such a name.
    pub(super) file: &'static str,
    /// Package to install.
    pub(super) package: &'static str,
}

#[cfg(not(windows))]
pub(super) fn of(library: Library) -> Names {
    let (file, package) = match library {
        Library::Driver => ("libcuda.so", "the NVIDIA driver, 525 or newer"),
        Library::Nvrtc => (
            "libnvrtc.so",
            "the CUDA toolkit 12 or 13, or its part: nvidia-cuda-nvrtc from PyPI, libnvrtc12 from Debian",
        ),
        Library::CublasLt => (
            "libcublasLt.so",
            "the CUDA toolkit 12 or 13, or its part: nvidia-cublas from PyPI, libcublaslt12 from Debian",
        ),
        Library::Cublas => (
            "libcublas.so",
            "the CUDA toolkit 12 or 13, or its part: nvidia-cublas from PyPI, libcublas12 from Debian",
        ),
        Library::Nccl => (
            "libnccl.so.2",
            "nvidia-nccl-cu13 or nvidia-nccl-cu12 from PyPI, libnccl2 from NVIDIA's packages",
        ),
        Library::Nvtx => (
            "libnvtx3interop.so",
            "nvidia-nvtx from PyPI; libnvToolsExt.so of the CUDA toolkit 12 does as well",
        ),
    };
    Names { file, package }
}

/// cudarc knows NVRTC of CUDA 13 only by its name on Windows.
#[cfg(windows)]
pub(super) fn of(library: Library) -> Names {
    let (file, package) = match library {
        Library::Driver => ("nvcuda.dll", "the NVIDIA driver, 580 or newer"),
        Library::Nvrtc => (
            "nvrtc64_130_0.dll",
            "the CUDA toolkit 13, or nvidia-cuda-nvrtc from PyPI with its folder nvidia\\cu13\\bin\\x86_64 in PATH",
        ),
        Library::CublasLt => (
            "cublasLt64_13.dll",
            "the CUDA toolkit 13, or nvidia-cublas from PyPI with its folder nvidia\\cu13\\bin\\x86_64 in PATH",
        ),
        Library::Cublas => (
            "cublas64_13.dll",
            "the CUDA toolkit 13, or nvidia-cublas from PyPI with its folder nvidia\\cu13\\bin\\x86_64 in PATH",
        ),
        Library::Nccl => ("nccl.dll", "NCCL is for Linux; train on one GPU"),
        Library::Nvtx => ("nvToolsExt64_1.dll", "the CUDA toolkit 12's NVTX"),
    };
    Names { file, package }
}

/// The variable that names folders in which the loader looks.
pub(crate) const LOADER_PATH: &str = if cfg!(windows) { "PATH" } else { "LD_LIBRARY_PATH" };

/// Names under which NCCL is opened.
pub(crate) const NCCL: &[&str] = if cfg!(windows) { &[] } else { &["libnccl.so.2", "libnccl.so"] };

/// Names under which NVTX is opened: version 3, and the older library that CUDA 12 still includes.
pub(crate) const NVTX: &[&str] = if cfg!(windows) {
    &["nvtx3interop.dll", "nvToolsExt64_1.dll"]
} else {
    &["libnvtx3interop.so.1", "libnvtx3interop.so", "libnvToolsExt.so.1", "libnvToolsExt.so"]
};
