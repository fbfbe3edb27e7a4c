//! What can go wrong on the way to a GPU.

use cudarc::driver::result::DriverError;
use cudarc::driver::sys::CUresult;

/// An error of a CUDA library, or of what is asked of one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// A library is not on the loader's path.
    #[error(
        "{library} is not found; install it ({package}), and set LD_LIBRARY_PATH to its directory if the loader \
         does not look there"
    )]
    MissingLibrary {
        /// File name of the library.
        library: &'static str,
        /// What to install.
        package: &'static str,
    },
    /// There is no GPU that can be used.
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
        /// Bytes asked for.
        bytes: usize,
        /// Bytes free, in pieces.
        free: usize,
        /// Bytes of the device.
        total: usize,
    },
    /// A call of the driver found too little free memory on the device.
    #[error(
        "{call}: the GPU has too little free memory; use a smaller batch, or stop other programs on this GPU"
    )]
    DeviceMemory {
        /// The function.
        call: &'static str,
    },
    /// The system cannot give page-locked memory.
    #[error(
        "the system cannot lock {bytes} bytes of host memory for copies to the GPU; use a smaller batch, or raise the \
         limit of locked memory (ulimit -l)"
    )]
    HostMemory {
        /// Bytes asked for.
        bytes: usize,
    },
    /// A kernel does not compile.
    #[error("{file} ({entry}) does not compile:\n{log}")]
    Compile {
        /// The source file.
        file: String,
        /// The entry that was asked for, with its defines.
        entry: String,
        /// What NVRTC says.
        log: String,
    },
    /// The device, the driver or a library cannot do what is asked.
    #[error("{0}")]
    Unsupported(String),
    /// A launch that cannot be: the kernel and the reason.
    #[error("kernel {entry} cannot be launched: {what}")]
    Launch {
        /// The kernel.
        entry: &'static str,
        /// What is wrong.
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
    /// Bytes that are no cubin, or not one that this reader knows.
    #[error("not a readable cubin: {0}")]
    Cubin(&'static str),
}

/// The result of a driver call as an error that names it.
pub(crate) fn check(call: &'static str, result: CUresult) -> Result<(), CudaError> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(CudaError::DeviceMemory { call }),
        error => Err(CudaError::Driver { call, what: describe(error) }),
    }
}

/// An error of `cudarc`'s own types as one that names the call.
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
