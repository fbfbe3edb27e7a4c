//! Whether this process may use the processor's tiles, and whether they give the right results.

use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::io;
use std::sync::OnceLock;

use super::real::Real;
use super::self_test::self_test;
use super::tile::{ROW_BYTES, TILE_ROWS, TILES};

/// Why tiles are not used.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("the processor has no INT8 tiles (CPUID: amx-tile, amx-int8)")]
    NoInstructions,
    #[error("the operating system does not save tiles (XCR0 bits 17 and 18)")]
    NotSaved,
    #[error("the processor's tiles are not eight of 16 rows by 64 bytes (CPUID: palette 1)")]
    OtherTiles,
    #[error("the operating system refused the use of tiles: {0}")]
    NotPermitted(io::Error),
    #[error("the tiles failed the self-test: {0}")]
    WrongResults(String),
}

/// The answers of CPUID and XCR0 about tiles.
#[derive(Clone, Copy)]
pub(super) struct Features {
    /// The processor has `amx-tile` and `amx-int8`.
    pub(super) instructions: bool,
    /// The operating system saves the configuration and the data of tiles.
    pub(super) saved: bool,
    /// Palette 1 has the sizes that [`Config`](super::tile::Config) assumes.
    pub(super) palette: bool,
}

impl Features {
    /// The features of this processor.
    fn detect() -> Features {
        let none = Features { instructions: false, saved: false, palette: false };
        if __cpuid(0).eax < 7 {
            return none;
        }
        let bit = |register: u32, bit: u32| register >> bit & 1 == 1;
        let edx = __cpuid_count(7, 0).edx;
        if !(bit(edx, 24) && bit(edx, 25)) {
            return none;
        }
        // SAFETY: bit 27 (OSXSAVE) says that the processor has `xgetbv` and that it is enabled.
        let xcr0 = if bit(__cpuid(1).ecx, 27) { unsafe { xcr0() } } else { 0 };
        Features { instructions: true, saved: xcr0 >> 17 & 3 == 3, palette: has_palette() }
    }
}

#[target_feature(enable = "xsave")]
fn xcr0() -> u64 {
    // SAFETY: XCR0 exists wherever the instruction does.
    unsafe { _xgetbv(0) }
}

/// Whether palette 1 has eight tiles of 16 rows by 64 bytes. Leaf 0x1d exists if `amx-tile` does.
fn has_palette() -> bool {
    if __cpuid(0).eax < 0x1d || __cpuid_count(0x1d, 0).eax < 1 {
        return false;
    }
    let palette = __cpuid_count(0x1d, 1);
    let halves = |register: u32| ((register & 0xffff) as usize, (register >> 16) as usize);
    halves(palette.eax) == (TILES * TILE_ROWS * ROW_BYTES, TILE_ROWS * ROW_BYTES)
        && halves(palette.ebx) == (ROW_BYTES, TILES)
        && halves(palette.ecx).0 == TILE_ROWS
}

/// Checks `features`, then asks for the permission by `permit`, then runs `test`.
pub(super) fn examine(
    features: Features,
    permit: impl FnOnce() -> io::Result<()>,
    test: impl FnOnce() -> Result<(), String>,
) -> Result<(), Refusal> {
    if !features.instructions {
        return Err(Refusal::NoInstructions);
    }
    if !features.saved {
        return Err(Refusal::NotSaved);
    }
    if !features.palette {
        return Err(Refusal::OtherTiles);
    }
    permit().map_err(Refusal::NotPermitted)?;
    test().map_err(Refusal::WrongResults)
}

/// Asks Linux for the use of tiles by all threads of this process. Linux allocates a thread's memory for
/// tiles when the thread first uses them. It refuses if a thread has a signal stack that is too small to save
/// them.
#[cfg(target_os = "linux")]
fn request_permission() -> io::Result<()> {
    /// From `asm/prctl.h`.
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    /// The state component of tile data.
    const XTILEDATA: libc::c_long = 18;
    // SAFETY: takes two integers, and accesses no memory of this process.
    match unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(not(target_os = "linux"))]
fn request_permission() -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "swinq asks for it on Linux only"))
}

/// The result for this process. The first call asks for the permission and runs the self-test.
fn result() -> &'static Result<(), Refusal> {
    static RESULT: OnceLock<Result<(), Refusal>> = OnceLock::new();
    RESULT.get_or_init(|| {
        // SAFETY: runs after all other checks have passed; nothing else on this thread uses tiles.
        let test = || self_test(|| unsafe { Real::assume() });
        examine(Features::detect(), request_permission, test)
    })
}

/// Why this process cannot use the processor's tiles, or `None` if it can.
pub(super) fn refusal() -> Option<String> {
    result().as_ref().err().map(ToString::to_string)
}
