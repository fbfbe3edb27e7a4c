//! Settings of the process's memory, and requests for pages. Systems other than Linux have no such requests
//! for memory that is already mapped; there the functions do nothing.

use std::ops::Range;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
use std::sync::atomic::{AtomicBool, Ordering};

use memmap2::MmapRaw;

/// Bytes of a large page.
pub(crate) const LARGE_PAGE: usize = 2 << 20;

/// Memory that the process keeps after it is freed, in bytes.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const KEPT: i32 = 256 << 20;
/// Larger blocks are given back to the system at once, in bytes.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE: i32 = 64 << 20;

/// Whether [`keep_freed_memory`] is in effect.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
static KEEPS: AtomicBool = AtomicBool::new(false);

/// Keeps up to 256 MiB of freed memory for later allocations, in blocks of up to 64 MiB, instead of giving it
/// back to the system. A float forward allocates every result; with glibc's defaults a fifth of its time is
/// spent on pages that the system takes back and clears again.
///
/// For programs, at the start of `main`: it does nothing if the process already has several threads, or
/// another allocator than glibc's. Returns whether the setting is in effect.
pub fn keep_freed_memory() -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        let threads = std::fs::read_dir("/proc/self/task").map_or(0, |tasks| tasks.count());
        // SAFETY: `mallopt` takes integers and changes settings that allocations read. No allocation runs at
        // the same time, because this is the only thread.
        let keeps = threads == 1
            && unsafe {
                libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT) == 1
                    && libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE) == 1
            };
        KEEPS.fetch_or(keeps, Ordering::Relaxed);
        keeps
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    false
}

/// Gives back the freed memory that [`keep_freed_memory`] has kept so far. What was needed to read a model is
/// not needed to run it.
pub fn give_back_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if KEEPS.load(Ordering::Relaxed) {
        // SAFETY: `malloc_trim` locks the allocator and returns pages that hold no allocation.
        unsafe { libc::malloc_trim(0) };
    }
}

/// Asks for large pages for the parts of `memory` that fill them, before it is used. A system without large
/// pages refuses, which changes nothing.
pub(crate) fn ask_for_large_pages<T>(memory: *const [T]) {
    #[cfg(target_os = "linux")]
    {
        let start = memory.cast::<u8>().cast_mut();
        let skipped = start.align_offset(LARGE_PAGE);
        let whole = (memory.len() * size_of::<T>()).saturating_sub(skipped) / LARGE_PAGE * LARGE_PAGE;
        if whole > 0 {
            // SAFETY: the advice changes the pages of an address, not their values, and is refused for an
            // address without memory.
            unsafe { libc::madvise(start.wrapping_add(skipped).cast(), whole, libc::MADV_HUGEPAGE) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = memory;
}

/// Gives the pages `bytes` of the anonymous `memory` back to the system, and keeps their addresses. A refusal
/// changes nothing.
///
/// # Safety
/// `bytes` are whole pages within `memory`, and nothing reads them before they are written again.
pub(crate) unsafe fn give_back_pages(memory: &MmapRaw, bytes: Range<usize>) {
    #[cfg(target_os = "linux")]
    {
        let advice = memmap2::UncheckedAdvice::DontNeed;
        // SAFETY: the caller's promise.
        let _ = unsafe { memory.unchecked_advise_range(advice, bytes.start, bytes.len()) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (memory, bytes);
}
