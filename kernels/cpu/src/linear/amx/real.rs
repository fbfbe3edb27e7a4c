//! The tile registers of the processor.
//!
//! Stable Rust has no intrinsics for AMX, so each instruction is assembly. A tile keeps its value from one
//! `asm!` to the next. This is sound although the compiler does not know of it: no Rust type lives in a tile
//! register (the class `tmm_reg` can only be clobbered), so compiled code never touches one. Called functions
//! could, as the calling convention lets them, but between configuration and release only functions of this
//! crate, which use tiles nowhere else, and the standard library's `memcpy`, which does not use AMX, are
//! called. The operating system saves and restores tiles when it switches threads or delivers a signal.

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

    /// With debug assertions, checks that tile `tile` lies within `len` elements of type `E` from element
    /// `at` on.
    #[inline(always)]
    fn check<E>(&self, tile: usize, len: usize, at: usize, stride: usize) {
        if cfg!(debug_assertions) {
            let shape = self.shapes.expect("tiles are configured")[tile];
            shape.check(stride, (len - at) * size_of::<E>());
        }
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

/// Loads tile `$t` from elements `$e` by `$instruction`, with the arguments and the promise of
/// [`Tiles::load`].
macro_rules! load {
    ($instruction:literal, $t:ident, $e:ident, $tiles:ident, $from:ident, $at:ident, $stride:ident) => {{
        $tiles.check::<$e>($t, $from.len(), $at, $stride);
        // SAFETY: `Real::assume`; by the caller's promise the tile is configured, and all of its bytes are
        // inside `from`.
        unsafe {
            tiles!(
                concat!($instruction, " tmm{t}, [{from} + {stride}*1]"),
                t = const $t,
                from = in(reg) $from.as_ptr().add($at),
                stride = in(reg) $stride,
                options(nostack, preserves_flags, readonly),
            );
        }
    }};
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
    unsafe fn load<const T: usize, E: Element>(&mut self, from: &[E], at: usize, stride: usize) {
        load!("tileloadd", T, E, self, from, at, stride);
    }

    #[inline(always)]
    unsafe fn load_passing<const T: usize, E: Element>(&mut self, from: &[E], at: usize, stride: usize) {
        load!("tileloaddt1", T, E, self, from, at, stride);
    }

    #[inline(always)]
    unsafe fn dot<const C: usize, const A: usize, const B: usize>(&mut self) {
        const { assert!(C != A && A != B && B != C, "distinct tiles") };
        if cfg!(debug_assertions) {
            let [c, a, b] = [C, A, B].map(|tile| self.shapes.expect("tiles are configured")[tile]);
            assert!(c.rows == a.rows && c.row_bytes == b.row_bytes && a.row_bytes == 4 * b.rows);
        }
        // SAFETY: `Real::assume`; changes tiles only, which are distinct and match by the caller's promise.
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
    unsafe fn store<const T: usize, E: Element>(&mut self, to: &mut [E], at: usize, stride: usize) {
        self.check::<E>(T, to.len(), at, stride);
        // SAFETY: `Real::assume`; by the caller's promise the tile is configured, and all of its bytes are
        // inside `to`. Any bytes are values of `E`.
        unsafe {
            tiles!(
                "tilestored [{to} + {stride}*1], tmm{t}",
                t = const T,
                to = in(reg) to.as_mut_ptr().add(at),
                stride = in(reg) stride,
                options(nostack, preserves_flags),
            );
        }
    }
}
