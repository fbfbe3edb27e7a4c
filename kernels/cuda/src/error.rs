//! Errors of the CUDA backend.

use cudarc::driver::result::DriverError;
use cudarc::driver::sys::CUresult;

use super::library::names::LOADER_PATH;

/// An error of a CUDA library, or of a request that it cannot fulfil.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// A library is not on the loader's path.
    #[error(
        "{library} is not found; install it ({package}), and set {LOADER_PATH} to its directory if the loader \
         does not look there"
    )]
    MissingLibrary {
        /// File name of the library.
        library: &'static str,
        /// Package that contains the library.
        package: &'static str,
    },
    /// There is no usable GPU.
    #[error("no usable CUDA device: {0}")]
    NoDevice(String),
    /// A call of the driver failed.
    #[error("{call}: {what}")]
    Driver {
        /// The function.
        call: &'static str,
        /// Name and description of the error.
        what: String,
    },
    /// The device has too little free memory.
    #[error(
        "the GPU cannot allocate {bytes} bytes: {free} of {total} are free; use a smaller batch, or stop other \
         programs on this GPU"
    )]
    OutOfMemory {
        /// Requested bytes.
        bytes: usize,
        /// Free bytes, possibly fragmented.
        free: usize,
        /// Total bytes of the device.
        total: usize,
    },
    /// A driver call needs more memory than is free on the device.
    #[error(
        "{call}: the GPU has too little free memory; use a smaller batch, or stop other programs on this GPU"
    )]
    DeviceMemory {
        /// The function.
        call: &'static str,
    },
    /// The system cannot start threads that copy inputs.
    #[error(
        "the system refuses the threads that copy inputs to the GPU ({0}); raise the limit of processes (ulimit -u)"
    )]
    CopyingThreads(String),
    /// The system cannot give page-locked memory.
    #[error(
        "the system cannot lock {bytes} bytes of host memory for copies to the GPU; use a smaller batch, or raise the \
         limit of locked memory (ulimit -l)"
    )]
    HostMemory {
        /// Requested bytes.
        bytes: usize,
    },
    /// A kernel does not compile.
    #[error("{file} ({entry}) does not compile:\n{log}")]
    Compile {
        /// The source file.
        file: String,
        /// The requested entry, with its defines.
        entry: String,
        /// NVRTC's log.
        log: String,
    },
    /// The device, the driver or a library does not support the request.
    #[error("{0}")]
    Unsupported(String),
    /// A launch that is not possible.
    #[error("kernel {entry} cannot be launched: {what}")]
    Launch {
        /// The kernel.
        entry: &'static str,
        /// The reason.
        what: String,
    },
    /// A call of cuBLASLt failed.
    #[error("{call}: {status}")]
    CublasLt {
        /// The function.
        call: &'static str,
        /// Its status.
        status: String,
    },
    /// cuBLASLt returned a wrong product.
    #[error("cuBLASLt computes a wrong product: {0}; use another version of libcublasLt")]
    WrongProduct(String),
    /// The bytes are not a cubin, or a cubin of a version that this reader does not support.
    #[error("not a readable cubin: {0}")]
    Cubin(&'static str),
}

/// Turns the result of a driver call into an error that names the call.
pub(crate) fn check(call: &'static str, result: CUresult) -> Result<(), CudaError> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(CudaError::DeviceMemory { call }),
        error => Err(CudaError::Driver { call, what: describe(error) }),
    }
}

/// Turns an error of `cudarc` into one that names the call.
pub(crate) fn failed(call: &'static str, error: DriverError) -> CudaError {
    CudaError::Driver { call, what: describe(error.0) }
}

/// Name and description of a driver error.
pub(crate) fn describe(error: CUresult) -> String {
    let error = DriverError(error);
    let text = |found: Result<&std::ffi::CStr, _>| found.map(|t| t.to_string_lossy().into_owned()).ok();
    let name = text(error.error_name()).unwrap_or_else(|| format!("error {}", error.0 as u32));
    match text(error.error_string()) {
        Some(what) => format!("{name}: {what}"),
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_without_memory_says_what_to_do() {
        check("cuGraphUpload", CUresult::CUDA_SUCCESS).unwrap();
        let error = check("cuGraphUpload", CUresult::CUDA_ERROR_OUT_OF_MEMORY).unwrap_err().to_string();
        assert!(error.contains("cuGraphUpload") && error.contains("smaller batch"), "{error}");
    }
}
