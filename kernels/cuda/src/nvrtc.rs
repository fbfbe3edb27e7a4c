//! Compiles kernels with NVRTC. It runs on any machine that has NVRTC; neither a GPU nor a driver is needed.

use std::ffi::{CString, c_char, c_int};

use cudarc::nvrtc::sys;

use super::library::{self, Library};
use super::{CudaError, Program, sources};

/// The oldest supported version of NVRTC: it has all functions used here, and C++17.
const OLDEST: (u32, u32) = (12, 0);

/// A compiled program.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// Machine code (an ELF file), or PTX that the driver compiles, if NVRTC does not know the GPU yet.
    pub cubin: Vec<u8>,
    /// NVRTC's log: warnings, and the registers and memory of each kernel.
    pub log: String,
}

/// Compiles `program` for `arch`, such as `sm_80` or `sm_90a` ([`Arch::target`](super::Arch::target)).
///
/// # Errors
/// NVRTC is missing, too old or too new for `arch`, or the source does not compile.
pub fn compile(program: &Program, arch: &str) -> Result<Compiled, CudaError> {
    let text = sources::source(program.file).ok_or_else(|| {
        CudaError::Unsupported(format!("{} is not among the kernels' sources", program.file))
    })?;
    compile_text(program, text, arch)
}

/// As [`compile`], but compiles `text` instead of the file's text.
///
/// # Errors
/// As [`compile`].
pub fn compile_text(program: &Program, text: &str, arch: &str) -> Result<Compiled, CudaError> {
    let target = Target::of(arch)?;
    let failed = |log: String| CudaError::Compile {
        file: program.file.to_owned(),
        entry: format!("{program} {arch}"),
        log,
    };
    let unit = Handle::create(program.file, text).map_err(|e| failed(format!("{e:?}")))?;
    let mut flags = program.flags();
    flags.push(format!("--gpu-architecture={}", target.name));
    let status = unit.compile(&flags);
    let log = unit.log();
    status.map_err(|e| failed(if log.is_empty() { format!("{e:?}") } else { log.clone() }))?;
    let cubin = if target.ptx { unit.ptx() } else { unit.cubin() }.map_err(|e| failed(format!("{e:?}")))?;
    Ok(Compiled { cubin, log })
}

/// Target of a compilation.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    name: String,
    ptx: bool,
}

impl Target {
    fn of(arch: &str) -> Result<Target, CudaError> {
        library::require(Library::Nvrtc)?;
        match library::nvrtc_version() {
            Some(version) if version >= OLDEST => Target::among(arch, &supported()?),
            version => {
                let (major, minor) = version.unwrap_or_default();
                let what =
                    format!("{} is version {major}.{minor}; install 12.0 or newer", Library::Nvrtc.file());
                Err(CudaError::Unsupported(what))
            }
        }
    }

    /// `arch` itself if NVRTC knows it, else PTX for the newest older architecture.
    fn among(arch: &str, supported: &[u32]) -> Result<Target, CudaError> {
        let unknown =
            || CudaError::Unsupported(format!("`{arch}` is no architecture; write sm_80 or sm_90a"));
        let number = arch.strip_prefix("sm_").ok_or_else(unknown)?;
        let number = number.trim_end_matches(|c: char| c.is_ascii_lowercase());
        let number: u32 = number.parse().map_err(|_| unknown())?;
        if supported.contains(&number) {
            return Ok(Target { name: arch.to_owned(), ptx: false });
        }
        let newest = supported.iter().copied().filter(|n| *n < number).max().ok_or_else(|| {
            let oldest = supported.iter().min().copied().unwrap_or_default();
            CudaError::Unsupported(format!(
                "this NVRTC compiles for sm_{oldest} and newer, not for {arch}; install one of an older CUDA toolkit"
            ))
        })?;
        Ok(Target { name: format!("compute_{newest}"), ptx: true })
    }
}

/// The architectures that NVRTC can compile for, as `10 major + minor`.
fn supported() -> Result<Vec<u32>, CudaError> {
    let failed = |e| CudaError::Unsupported(format!("NVRTC does not list its architectures: {e:?}"));
    let mut count: c_int = 0;
    // SAFETY: NVRTC is loaded (`Target::of`) and writes one int.
    unsafe { sys::nvrtcGetNumSupportedArchs(&mut count) }.result().map_err(failed)?;
    let mut archs: Vec<c_int> = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: NVRTC writes as many ints as it reported above.
    unsafe { sys::nvrtcGetSupportedArchs(archs.as_mut_ptr()) }.result().map_err(failed)?;
    Ok(archs.into_iter().filter_map(|n| u32::try_from(n).ok()).collect())
}

type Status<T> = Result<T, cudarc::nvrtc::result::NvrtcError>;

/// An NVRTC program.
struct Handle(sys::nvrtcProgram);

impl Handle {
    /// Creates the program with the headers of the sources. `Target::of` must have loaded NVRTC before.
    fn create(name: &str, text: &str) -> Status<Handle> {
        let c = |text: &str| CString::new(text).map_err(|_| invalid());
        let (text, name) = (c(text)?, c(name)?);
        let names: Vec<CString> = sources::headers().map(|(name, _)| c(name)).collect::<Status<_>>()?;
        let texts: Vec<CString> = sources::headers().map(|(_, text)| c(text)).collect::<Status<_>>()?;
        let name_pointers: Vec<*const c_char> = names.iter().map(|n| n.as_ptr()).collect();
        let text_pointers: Vec<*const c_char> = texts.iter().map(|t| t.as_ptr()).collect();
        let mut program = std::ptr::null_mut();
        // SAFETY: all strings end with a zero byte and outlive the call, in which NVRTC copies them. Both
        // arrays have the given number of entries. NVRTC writes one handle.
        let status = unsafe {
            sys::nvrtcCreateProgram(
                &mut program,
                text.as_ptr(),
                name.as_ptr(),
                names.len() as c_int,
                text_pointers.as_ptr(),
                name_pointers.as_ptr(),
            )
        };
        status.result()?;
        Ok(Handle(program))
    }

    fn compile(&self, flags: &[String]) -> Status<()> {
        let flags: Vec<CString> =
            flags.iter().map(|f| CString::new(f.as_str()).map_err(|_| invalid())).collect::<Status<_>>()?;
        let pointers: Vec<*const c_char> = flags.iter().map(|f| f.as_ptr()).collect();
        // SAFETY: the program is alive; the strings end with a zero byte and outlive the call.
        unsafe { sys::nvrtcCompileProgram(self.0, pointers.len() as c_int, pointers.as_ptr()) }.result()
    }

    fn cubin(&self) -> Status<Vec<u8>> {
        let mut size = 0;
        // SAFETY: the program is alive, and NVRTC writes one size.
        unsafe { sys::nvrtcGetCUBINSize(self.0, &mut size) }.result()?;
        let mut bytes = vec![0_u8; size];
        // SAFETY: NVRTC writes as many bytes as it reported.
        unsafe { sys::nvrtcGetCUBIN(self.0, bytes.as_mut_ptr().cast()) }.result()?;
        Ok(bytes)
    }

    /// PTX, including the zero byte at its end.
    fn ptx(&self) -> Status<Vec<u8>> {
        let mut size = 0;
        // SAFETY: the program is alive, and NVRTC writes one size.
        unsafe { sys::nvrtcGetPTXSize(self.0, &mut size) }.result()?;
        let mut bytes = vec![0_u8; size];
        // SAFETY: NVRTC writes as many bytes as it reported.
        unsafe { sys::nvrtcGetPTX(self.0, bytes.as_mut_ptr().cast()) }.result()?;
        Ok(bytes)
    }

    /// The log; empty if there is none.
    fn log(&self) -> String {
        let mut size = 0;
        // SAFETY: the program is alive, and NVRTC writes one size.
        let sized = unsafe { sys::nvrtcGetProgramLogSize(self.0, &mut size) }.result();
        let mut bytes = vec![0_u8; if sized.is_ok() { size } else { 0 }];
        if bytes.is_empty() {
            return String::new();
        }
        // SAFETY: NVRTC writes as many bytes as it reported.
        let written = unsafe { sys::nvrtcGetProgramLog(self.0, bytes.as_mut_ptr().cast()) }.result();
        let text = String::from_utf8_lossy(&bytes);
        if written.is_ok() { text.trim_matches(['\0', '\n', ' ']).to_owned() } else { String::new() }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: created in `create` and destroyed only here.
        let _ = unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
    }
}

fn invalid() -> cudarc::nvrtc::result::NvrtcError {
    cudarc::nvrtc::result::NvrtcError(sys::nvrtcResult::NVRTC_ERROR_INVALID_INPUT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_architecture_that_is_too_new_becomes_ptx_of_the_newest_known() {
        let supported = [75, 80, 86, 90];
        let target = |arch| Target::among(arch, &supported);
        let sm = |name: &str| Target { name: name.to_owned(), ptx: false };
        assert_eq!(target("sm_80").unwrap(), sm("sm_80"));
        assert_eq!(target("sm_90a").unwrap(), sm("sm_90a"));
        assert_eq!(target("sm_120").unwrap(), Target { name: "compute_90".to_owned(), ptx: true });
        assert_eq!(target("sm_89").unwrap(), Target { name: "compute_86".to_owned(), ptx: true });
        assert!(target("sm_70").unwrap_err().to_string().contains("sm_75 and newer"));
        assert!(target("hopper").is_err());
    }
}
