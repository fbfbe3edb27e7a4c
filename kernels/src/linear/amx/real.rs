//! The tile registers of the processor.
//!
//! Stable Rust has no intrinsics for AMX, so each instruction is assembly. A tile keeps its value from one
//! `asm!` to the next. This is sound although the compiler does not know of it: no Rust type lives in a tile
//! register (the class `tmm_reg` can only be clobbered), so compiled code never touches one. Called functions
//! could, as the calling convention lets them, but between configuration and release only functions of this
//! crate, which use tiles nowhere else, and the standard library's `memcpy`, which does not use AMX, are called.
//! The operating system saves and restores tiles when it switches threads or delivers a signal.

use std::arch::asm;
use std::marker::PhantomData;

use super::tile::{Config, Element, Shape, TILES, Tiles};

/// The tile registers of this thread. It stays on the thread, as the registers do.
pub(super) struct Real {
    /// `None` unless configured.
    shapes: Option<[Shape; TILES]>,
    thread: PhantomData<*mut ()>,
}

impl Real {
    /// The tiles of this thread, not configured.
    ///
    /// # Safety
    /// The processor has `amx-tile` and `amx-int8`, the operating system has granted this process the use of
    /// tiles, and nothing else on this thread uses them until this value is dropped.
    pub(super) unsafe fn assume() -> Real {
        Real { shapes: None, thread: PhantomData }
    }

    #[inline(always)]
    fn shape(&self, tile: usize) -> Shape {
        self.shapes.expect("tiles are configured")[tile]
    }
}

/// `asm!` that may change every tile.
macro_rules! tiles {
    ($($argument:tt)*) => {
        asm!(
            $($argument)*
            out("tmm0") _,
            out("tmm1") _,
            out("tmm2") _,
            out("tmm3") _,
            out("tmm4") _,
            out("tmm5") _,
            out("tmm6") _,
            out("tmm7") _,
        )
    };
}

impl Tiles for Real {
    fn configure(&mut self, config: &Config) {
        // SAFETY: `Real::assume`; reads the 64 bytes of `config`, which are a valid configuration by
        // `Config::new`.
        unsafe {
            tiles!(
                "ldtilecfg [{config}]",
                config = in(reg) config.0.as_ptr(),
                options(nostack, preserves_flags, readonly),
            );
        }
        self.shapes = Some(config.shapes());
    }

    fn release(&mut self) {
        self.shapes = None;
        // SAFETY: `Real::assume`; changes tiles only.
        unsafe { tiles!("tilerelease", options(nostack, preserves_flags, nomem),) };
    }

    #[inline(always)]
    fn load<const T: usize, E: Element>(&mut self, from: &[E], stride: usize) {
        self.shape(T).check(stride, size_of_val(from));
        // SAFETY: `Real::assume`; the tile is configured, and all of its bytes are inside `from` by the check.
        unsafe {
            tiles!(
                "tileloadd tmm{t}, [{from} + {stride}*1]",
                t = const T,
                from = in(reg) from.as_ptr(),
                stride = in(reg) stride,
                options(nostack, preserves_flags, readonly),
            );
        }
    }

    #[inline(always)]
    fn dot<const C: usize, const A: usize, const B: usize>(&mut self) {
        const { assert!(C != A && A != B && B != C, "distinct tiles") };
        let shapes = self.shapes.as_ref().expect("tiles are configured");
        let (c, a, b) = (shapes[C], shapes[A], shapes[B]);
        assert!(c.rows == a.rows && c.row_bytes == b.row_bytes && a.row_bytes == 4 * b.rows, "tiles match");
        // SAFETY: `Real::assume`; changes tiles only, which are distinct and have matching shapes.
        unsafe {
            tiles!(
                "tdpbusd tmm{c}, tmm{a}, tmm{b}",
                c = const C,
                a = const A,
                b = const B,
                options(nostack, preserves_flags, nomem),
            );
        }
    }

    #[inline(always)]
    fn store<const T: usize, E: Element>(&mut self, to: &mut [E], stride: usize) {
        self.shape(T).check(stride, size_of_val(to));
        // SAFETY: `Real::assume`; the tile is configured, all of its bytes are inside `to` by the check, and
        // any bytes are values of `E`.
        unsafe {
            tiles!(
                "tilestored [{to} + {stride}*1], tmm{t}",
                t = const T,
                to = in(reg) to.as_mut_ptr(),
                stride = in(reg) stride,
                options(nostack, preserves_flags),
            );
        }
    }
}
