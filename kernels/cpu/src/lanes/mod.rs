//! Vector registers behind one trait, so that LayerNorm and attention are each written once for all
//! instruction sets.
//!
//! A value that implements [`Lanes`] exists only where a [`Cpu`] has proved its instructions, so most of its
//! methods are safe. Everything generic over `Lanes` is `#[inline(always)]` from [`dispatch`] down, so that
//! it is compiled inside a function with the instructions enabled. Closures cannot have this attribute, so
//! they must not use `lanes`.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Neon;

use swinq_numerics::Quantizer;

use crate::cpu::Cpu;
use crate::isa::Isa;

/// Work that is written once for any [`Lanes`] and once in scalar code.
pub(crate) trait Kernel {
    /// Does the work with the reference.
    fn scalar(self);
    /// Does the work with vectors. This function and every function that it calls with `lanes` are
    /// `#[inline(always)]`.
    fn vector<L: Lanes>(self, lanes: L);
}

/// Runs `kernel` with the vector registers of `cpu`.
pub(crate) fn dispatch(cpu: Cpu, kernel: impl Kernel) {
    match cpu.isa() {
        Isa::Scalar => kernel.scalar(),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a `Cpu` of this `Isa` proves AVX2 and FMA.
        Isa::Avx2 => unsafe { avx2::run(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a `Cpu` of this `Isa` proves AVX2, FMA and AVX-VNNI.
        Isa::Avx2Vnni => unsafe { avx2::run_vnni(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a `Cpu` of this `Isa` proves AVX-512 F, BW, DQ, VL and VNNI.
        Isa::Avx512Vnni => unsafe { avx512::run(kernel) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: a `Cpu` of this `Isa` proves NEON and its dot product.
        Isa::Neon => unsafe { neon::run(kernel) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: a `Cpu` of this `Isa` proves NEON, its dot product and I8MM.
        Isa::NeonI8mm => unsafe { neon::run_i8mm(kernel) },
    }
}

/// Registers of `N` f32 or `N` i32, and the instructions on them.
pub(crate) trait Lanes: Copy {
    /// `N` f32.
    type F: Copy;
    /// `N` i32, or `4 N` bytes.
    type I: Copy;
    /// Lanes of a register.
    const N: usize;
    /// Registers side by side in a tile of an outer product with six rows.
    const TILE: usize;

    fn splat(self, x: f32) -> Self::F;
    fn splat_i(self, x: i32) -> Self::I;

    /// The first `N` elements.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline(always)]
    fn load(self, x: &[f32]) -> Self::F {
        assert!(x.len() >= Self::N);
        // SAFETY: in bounds by the assertion.
        unsafe { self.read(x.as_ptr()) }
    }
    /// The first elements, at most `N`; zeros after them.
    fn load_part(self, x: &[f32]) -> Self::F;
    /// The first elements, at most `N`; `fill` after them.
    fn load_or(self, x: &[f32], fill: Self::F) -> Self::F;
    /// Writes the first elements, as many as `out` holds, at most `N`.
    fn store_part(self, out: &mut [f32], x: Self::F);
    /// As `store_part`, for an `out` that usually holds a full register.
    #[inline(always)]
    fn store(self, out: &mut [f32], x: Self::F) {
        if out.len() < Self::N {
            return self.store_part(out, x);
        }
        // SAFETY: in bounds by the comparison.
        unsafe { self.write(out.as_mut_ptr(), x) }
    }
    /// `x` in the first `count` lanes, zeros in the others.
    fn keep(self, x: Self::F, count: usize) -> Self::F;

    /// # Safety
    /// `N` f32 at `at` are readable.
    unsafe fn read(self, at: *const f32) -> Self::F;
    /// # Safety
    /// `N` f32 at `at` are writable.
    unsafe fn write(self, at: *mut f32, x: Self::F);
    /// # Safety
    /// `4 N` bytes at `at` are readable.
    unsafe fn read_i(self, at: *const u8) -> Self::I;
    /// # Safety
    /// `4 N` bytes at `at` are writable.
    unsafe fn write_i(self, at: *mut u8, x: Self::I);
    /// `N` bytes, each widened to 32 bits.
    ///
    /// # Safety
    /// `N` bytes at `at` are readable.
    unsafe fn widen(self, at: *const u8) -> Self::I;
    /// Writes the low byte of each lane; lanes must be in 0..=255.
    ///
    /// # Safety
    /// `N` bytes at `at` are writable.
    unsafe fn narrow(self, at: *mut u8, x: Self::I);
    /// As `narrow`, for as many lanes as `out` holds, at most `N`.
    #[inline(always)]
    fn narrow_all(self, out: &mut [u8], x: Self::I) {
        if out.len() >= Self::N {
            // SAFETY: in bounds by the comparison.
            return unsafe { self.narrow(out.as_mut_ptr(), x) };
        }
        const { assert!(Self::N <= 16) };
        let mut bytes = [0; 16];
        // SAFETY: `bytes` holds N bytes.
        unsafe { self.narrow(bytes.as_mut_ptr(), x) };
        out.copy_from_slice(&bytes[..out.len()]);
    }
    /// Writes bytes `code + 128` of values already multiplied by the reciprocal scale.
    ///
    /// # Safety
    /// `N` bytes at `at` are writable.
    unsafe fn write_codes(self, at: *mut u8, scaled: Self::F);
    /// As `write_codes`, for as many lanes as `out` holds, at most `N`.
    #[inline(always)]
    fn store_codes(self, out: &mut [u8], scaled: Self::F) {
        if out.len() >= Self::N {
            // SAFETY: in bounds by the comparison.
            return unsafe { self.write_codes(out.as_mut_ptr(), scaled) };
        }
        const { assert!(Self::N <= 16) };
        let mut bytes = [0; 16];
        // SAFETY: `bytes` holds N bytes.
        unsafe { self.write_codes(bytes.as_mut_ptr(), scaled) };
        out.copy_from_slice(&bytes[..out.len()]);
    }
    /// `write_codes` of two registers, one after the other.
    ///
    /// # Safety
    /// `2 N` bytes at `at` are writable.
    unsafe fn write_codes2(self, at: *mut u8, scaled: [Self::F; 2]);
    /// `write_codes` of four registers, one after the other.
    ///
    /// # Safety
    /// `4 N` bytes at `at` are writable.
    #[inline(always)]
    unsafe fn write_codes4(self, at: *mut u8, scaled: [Self::F; 4]) {
        let [a, b, c, d] = scaled;
        // SAFETY: the caller's promise.
        unsafe {
            self.write_codes2(at, [a, b]);
            self.write_codes2(at.add(2 * Self::N), [c, d]);
        }
    }

    /// `write_codes2` at each of two places, of numbers with magnitudes below 2^31.
    ///
    /// # Safety
    /// `2 N` bytes at each address are writable.
    #[inline(always)]
    unsafe fn write_pair_of_codes_of_numbers(self, at: [*mut u8; 2], scaled: [[Self::F; 2]; 2]) {
        // SAFETY: the caller's promise.
        unsafe {
            self.write_codes2(at[0], scaled[0]);
            self.write_codes2(at[1], scaled[1]);
        }
    }

    /// Prefetches the cache line at `at`, which may be any address, where there is an instruction for it.
    #[inline(always)]
    fn prefetch(self, _at: *const f32) {}

    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    fn sqrt(self, x: Self::F) -> Self::F;
    /// The larger; `b` if either is a NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// [`fold`](swinq_numerics::reference::fold) of sixteen lanes: the lanes of both registers, or of the
    /// first alone if it has sixteen.
    fn fold(self, x: [Self::F; 2]) -> f32;
    /// The fold of each register: the upper half of its lanes is added to the lower, down to one.
    fn folds(self, x: [Self::F; 16]) -> [f32; 16];
    /// The largest lane; there must be no NaN.
    fn highest(self, x: Self::F) -> f32;
    /// [`exp`](swinq_numerics::reference::exp) of each lane.
    fn exp(self, x: Self::F) -> Self::F;
    /// [`exp`](swinq_numerics::reference::exp) of lanes in [-87, 0]; a NaN stays a NaN.
    fn exp_falling(self, x: Self::F) -> Self::F;
    /// [`exp_255`](swinq_numerics::reference::exp_255) of lanes in [-11, 0].
    fn exp_255(self, x: Self::F) -> Self::F;
    /// [`gelu`](swinq_numerics::reference::gelu) of each lane.
    fn gelu(self, x: Self::F) -> Self::F;
    /// [`gelu_quadratic`](swinq_numerics::reference::gelu_quadratic) of each lane.
    fn gelu_quadratic(self, x: Self::F) -> Self::F;
    /// `h(|x|)` of [`tail`](swinq_numerics::reference::math::tail) of each lane: the standard normal
    /// distribution at `-|x|`.
    fn gelu_tail(self, x: Self::F) -> Self::F;

    fn add_i(self, a: Self::I, b: Self::I) -> Self::I;
    fn sub_i(self, a: Self::I, b: Self::I) -> Self::I;
    fn xor_i(self, a: Self::I, b: Self::I) -> Self::I;
    fn sum_i(self, x: Self::I) -> i32;
    /// [`Lanes::highest`] of each register.
    #[inline(always)]
    fn highest4(self, x: [Self::F; 4]) -> [f32; 4] {
        [self.highest(x[0]), self.highest(x[1]), self.highest(x[2]), self.highest(x[3])]
    }
    /// [`Lanes::sum_i`] of each register.
    #[inline(always)]
    fn sum4_i(self, x: [Self::I; 4]) -> [i32; 4] {
        [self.sum_i(x[0]), self.sum_i(x[1]), self.sum_i(x[2]), self.sum_i(x[3])]
    }
    /// `x << 7`.
    fn times_128(self, x: Self::I) -> Self::I;
    /// `a | b << 8 | c << 16 | d << 24`, of lanes in 0..=255.
    fn interleave(self, bytes: [Self::I; 4]) -> Self::I;
    /// Each lane of `acc` plus the four products of the unsigned bytes of `u` with the signed bytes of `s`,
    /// exactly.
    fn dot(self, acc: Self::I, u: Self::I, s: Self::I) -> Self::I;

    /// Sixteen bytes of `N` rows, `stride` apart from `at` on; row `last` stands in for rows after it. Lane
    /// `r` of register `i` is bytes `4 i..4 i + 4` of row `r`.
    ///
    /// # Safety
    /// Sixteen bytes of rows `0..=last.min(N - 1)` are readable.
    unsafe fn transpose(self, at: *const u8, stride: usize, last: usize) -> [Self::I; 4];
    /// The lanes, which are in 0..=255, as bytes: lanes `4 j..4 j + 4` of register `i` become the four bytes
    /// from `16 j + 4 i` on.
    fn pack(self, x: [Self::I; 4]) -> Self::I;
    /// `2 N` bytes of four rows, one column in each lane (row 0 in its low byte), *interleaved*: lanes
    /// `4 j..4 j + 4` are columns `8 j..8 j + 4` in the first register, `8 j + 4..8 j + 8` in the second.
    ///
    /// # Safety
    /// `2 N` bytes at each pointer are readable.
    unsafe fn interleave_rows(self, rows: [*const u8; 4]) -> [Self::I; 2];
    /// Puts interleaved columns back in their order.
    fn deinterleave(self, x: [Self::F; 2]) -> [Self::F; 2];
    /// [`Lanes::write_codes`] of `2 N` interleaved columns, in their order. There must be no NaN.
    ///
    /// # Safety
    /// `2 N` bytes at `at` are writable.
    unsafe fn write_interleaved_codes(self, at: *mut u8, scaled: [Self::F; 2]);
    /// [`Lanes::write_interleaved_codes`] of two rows, whose magnitudes are below 2^31.
    ///
    /// # Safety
    /// `2 N` bytes at each address are writable.
    #[inline(always)]
    unsafe fn write_interleaved_codes_of_numbers(self, at: [*mut u8; 2], scaled: [[Self::F; 2]; 2]) {
        // SAFETY: the caller's promise.
        unsafe {
            self.write_interleaved_codes(at[0], scaled[0]);
            self.write_interleaved_codes(at[1], scaled[1]);
        }
    }

    fn float(self, x: Self::I) -> Self::F;
    /// To the nearest integer, ties to even.
    fn round(self, x: Self::F) -> Self::I;
    /// Clamped to [-128, 127]; 0 for a NaN.
    fn clamp(self, x: Self::F) -> Self::F;

    /// The values that the codes of `quantizer` represent.
    #[inline(always)]
    fn fake(self, x: Self::F, quantizer: Quantizer) -> Self::F {
        let codes = self.round(self.clamp(self.mul(x, self.splat(quantizer.recip()))));
        self.mul(self.float(codes), self.splat(quantizer.scale()))
    }
}
