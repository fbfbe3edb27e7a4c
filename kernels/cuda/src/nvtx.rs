//! Named ranges on the timeline of a profiler such as Nsight Systems, by NVTX. The library is loaded on first
//! use. Without a profiler a range costs two calls that do nothing.

use std::ffi::{CString, c_char, c_int};
use std::marker::PhantomData;
use std::sync::OnceLock;

use super::CudaError;
use super::library::{self, Library, names};

type Push = unsafe extern "C" fn(*const c_char) -> c_int;
type Pop = unsafe extern "C" fn() -> c_int;

/// The loaded NVTX library. It stays loaded until the process ends.
#[derive(Clone, Copy)]
pub struct Nvtx {
    push: Push,
    pop: Pop,
}

impl Nvtx {
    /// Loads the library.
    ///
    /// # Errors
    /// The library is missing.
    pub fn new() -> Result<Nvtx, CudaError> {
        library::require(Library::Nvtx)?;
        Ok(loaded().expect("just found"))
    }

    /// Opens a range, which ends when the result is dropped. The ranges of a thread are nested.
    pub fn range(self, name: &str) -> Range {
        let text: Vec<u8> = name.bytes().take_while(|byte| *byte != 0).collect();
        let text = CString::new(text).expect("cut at the first zero");
        // SAFETY: the library stays loaded, exports this function with this type, and copies the text, which
        // ends with a zero byte.
        unsafe { (self.push)(text.as_ptr()) };
        Range { nvtx: self, of_this_thread: PhantomData }
    }
}

/// A range that is open on this thread.
#[must_use = "a range ends when it is dropped"]
pub struct Range {
    nvtx: Nvtx,
    /// Not `Send`, because the library keeps a stack of ranges for each thread.
    of_this_thread: PhantomData<*const ()>,
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: the library stays loaded and exports this function with this type; `range` pushed on this
        // thread.
        unsafe { (self.nvtx.pop)() };
    }
}

/// The library's functions; `None` if it is missing.
pub(super) fn loaded() -> Option<Nvtx> {
    static FOUND: OnceLock<Option<Nvtx>> = OnceLock::new();
    *FOUND.get_or_init(|| names::NVTX.iter().find_map(|file| load(file)))
}

fn load(file: &str) -> Option<Nvtx> {
    // SAFETY: this runs NVIDIA's initialisers; the user's loader path selects the file.
    let library = unsafe { libloading::Library::new(file) }.ok()?;
    // SAFETY: every version of NVTX exports both functions with these types.
    let functions =
        unsafe { (library.get::<Push>(b"nvtxRangePushA\0"), library.get::<Pop>(b"nvtxRangePop\0")) };
    let found = Nvtx { push: *functions.0.ok()?, pop: *functions.1.ok()? };
    // Leak the library: it is never unloaded, so its functions stay valid.
    std::mem::forget(library);
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_nest_or_the_library_is_named_with_its_package() {
        match Nvtx::new() {
            Ok(nvtx) => {
                let outer = nvtx.range("outer");
                drop(nvtx.range("inner, cut\0here"));
                drop(outer);
            }
            Err(error) => {
                println!("SKIPPED: {error}");
                let text = error.to_string();
                assert!(
                    text.contains(Library::Nvtx.file()) && text.contains(Library::Nvtx.package()),
                    "{text}"
                );
            }
        }
    }
}
