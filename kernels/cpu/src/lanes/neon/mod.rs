//! NEON with the dot product: eight lanes, in two registers of four. The 32 registers of AArch64 then hold as
//! many lanes as the 16 registers of AVX2.

mod bytes;
mod sums;

use std::arch::aarch64::*;

use super::{Kernel, Lanes};
use crate::simd_math::neon as math;

/// Proof of NEON and of its dot product (`sdot`), and of `usdot` (I8MM) if `I8MM`.
#[derive(Clone, Copy)]
pub(crate) struct Neon<const I8MM: bool>(());

impl<const I8MM: bool> Neon<I8MM> {
    /// # Safety
    /// The processor has NEON and its dot product, and I8MM if `I8MM`.
    #[inline(always)]
    pub(crate) unsafe fn assume() -> Neon<I8MM> {
        Neon(())
    }
}

/// # Safety
/// The processor has NEON and its dot product.
#[target_feature(enable = "neon,dotprod")]
pub(super) fn run(kernel: impl Kernel) {
    kernel.vector(Neon::<false>(()));
}

/// # Safety
/// The processor has NEON, its dot product and I8MM.
#[target_feature(enable = "neon,dotprod,i8mm")]
pub(super) fn run_i8mm(kernel: impl Kernel) {
    kernel.vector(Neon::<true>(()));
}

type F = [float32x4_t; 2];
type I = [int32x4_t; 2];

/// An instruction on the first registers and on the second registers of its operands, which are variables.
macro_rules! both {
    ($instruction:path, $($x:expr),+) => { [$instruction($($x[0]),+), $instruction($($x[1]),+)] };
}

/// All ones in the first `count` lanes.
#[inline]
#[target_feature(enable = "neon")]
fn first(count: usize) -> [uint32x4_t; 2] {
    const LANES: [u32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
    // SAFETY: two registers.
    let lanes = unsafe { [vld1q_u32(LANES.as_ptr()), vld1q_u32(LANES[4..].as_ptr())] };
    lanes.map(|lanes| vcltq_u32(lanes, vdupq_n_u32(count.min(8) as u32)))
}

#[inline]
#[target_feature(enable = "neon")]
fn keep(x: float32x4_t, mask: uint32x4_t) -> float32x4_t {
    vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), mask))
}

/// The first elements, at most eight; those of `fill` after them.
#[inline]
#[target_feature(enable = "neon")]
fn load_or(x: &[f32], fill: F) -> F {
    let mut all = array(fill);
    all.iter_mut().zip(x).for_each(|(to, &x)| *to = x);
    // SAFETY: two registers.
    unsafe { [vld1q_f32(all.as_ptr()), vld1q_f32(all[4..].as_ptr())] }
}

#[inline]
#[target_feature(enable = "neon")]
fn array(x: F) -> [f32; 8] {
    let mut all = [0.0; 8];
    // SAFETY: two registers.
    unsafe {
        vst1q_f32(all.as_mut_ptr(), x[0]);
        vst1q_f32(all[4..].as_mut_ptr(), x[1]);
    }
    all
}

/// `a` where it is the larger, otherwise `b`.
#[inline]
#[target_feature(enable = "neon")]
fn max(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    vbslq_f32(vcgtq_f32(a, b), a, b)
}

/// Clamped to [-128, 127]; 0 for a NaN.
#[inline]
#[target_feature(enable = "neon")]
fn clamp(x: float32x4_t) -> float32x4_t {
    let number = vandq_u32(vreinterpretq_u32_f32(x), vceqq_f32(x, x));
    vminq_f32(vmaxq_f32(vreinterpretq_f32_u32(number), vdupq_n_f32(-128.0)), vdupq_n_f32(127.0))
}

/// The bodies of methods that are one expression of instructions.
macro_rules! instructions {
    ($($(#[$doc:meta])* fn $name:ident(self $(, $arg:ident: $type:ty)*) -> $out:ty { $body:expr })*) => {$(
        $(#[$doc])*
        #[inline(always)]
        fn $name(self $(, $arg: $type)*) -> $out {
            // SAFETY: a `Neon` proves the instructions.
            unsafe { $body }
        }
    )*};
}

impl<const I8MM: bool> Lanes for Neon<I8MM> {
    type F = F;
    type I = I;
    const N: usize = 8;
    const TILE: usize = 2;

    instructions! {
        fn splat(self, x: f32) -> F { [vdupq_n_f32(x); 2] }
        fn splat_i(self, x: i32) -> I { [vdupq_n_s32(x); 2] }
        fn keep(self, x: F, count: usize) -> F {
            {
                let mask = first(count);
                both!(keep, x, mask)
            }
        }
        fn load_part(self, x: &[f32]) -> F { load_or(x, [vdupq_n_f32(0.0); 2]) }
        fn load_or(self, x: &[f32], fill: F) -> F { load_or(x, fill) }
        fn add(self, a: F, b: F) -> F { both!(vaddq_f32, a, b) }
        fn sub(self, a: F, b: F) -> F { both!(vsubq_f32, a, b) }
        fn mul(self, a: F, b: F) -> F { both!(vmulq_f32, a, b) }
        fn div(self, a: F, b: F) -> F { both!(vdivq_f32, a, b) }
        fn fma(self, a: F, b: F, c: F) -> F { both!(vfmaq_f32, c, a, b) }
        fn sqrt(self, x: F) -> F { both!(vsqrtq_f32, x) }
        fn max(self, a: F, b: F) -> F { both!(max, a, b) }
        fn fold(self, x: [F; 2]) -> f32 { sums::fold(x) }
        fn highest(self, x: F) -> f32 { vmaxvq_f32(vmaxq_f32(x[0], x[1])) }
        fn exp(self, x: F) -> F { both!(math::exp, x) }
        fn exp_falling(self, x: F) -> F { both!(math::exp_falling, x) }
        fn exp_255(self, x: F) -> F { both!(math::exp_255, x) }
        fn gelu(self, x: F) -> F { both!(math::gelu, x) }
        fn gelu_quadratic(self, x: F) -> F { both!(math::gelu_quadratic, x) }
        fn gelu_tail(self, x: F) -> F { [math::tail(x[0]).1, math::tail(x[1]).1] }
        fn add_i(self, a: I, b: I) -> I { both!(vaddq_s32, a, b) }
        fn sub_i(self, a: I, b: I) -> I { both!(vsubq_s32, a, b) }
        fn xor_i(self, a: I, b: I) -> I { both!(veorq_s32, a, b) }
        fn sum_i(self, x: I) -> i32 { vaddvq_s32(vaddq_s32(x[0], x[1])) }
        fn times_128(self, x: I) -> I { both!(vshlq_n_s32::<7>, x) }
        fn interleave(self, x: [I; 4]) -> I {
            both!(bytes::interleave, x[0], x[1], x[2], x[3])
        }
        fn dot(self, acc: I, u: I, s: I) -> I {
            if I8MM { both!(bytes::usdot, acc, u, s) } else { both!(bytes::usdot_by_signed, acc, u, s) }
        }
        fn pack(self, x: [I; 4]) -> I { both!(bytes::pack, x[0], x[1], x[2], x[3]) }
        fn float(self, x: I) -> F { both!(vcvtq_f32_s32, x) }
        fn round(self, x: F) -> I { both!(vcvtnq_s32_f32, x) }
        fn clamp(self, x: F) -> F { both!(clamp, x) }
    }

    #[inline(always)]
    fn deinterleave(self, [a, b]: [F; 2]) -> [F; 2] {
        [[a[0], b[0]], [a[1], b[1]]]
    }

    #[inline(always)]
    fn folds(self, x: [F; 16]) -> [f32; 16] {
        let mut out = [0.0; 16];
        for (x, out) in x.as_chunks::<4>().0.iter().zip(out.as_chunks_mut::<4>().0) {
            // SAFETY: a `Neon` proves the instructions; four f32.
            unsafe { vst1q_f32(out.as_mut_ptr(), sums::folds(x)) };
        }
        out
    }

    #[inline(always)]
    fn store_part(self, out: &mut [f32], x: F) {
        // SAFETY: a `Neon` proves the instructions.
        let all = unsafe { array(x) };
        out.iter_mut().zip(all).for_each(|(out, x)| *out = x);
    }

    #[inline(always)]
    unsafe fn read(self, at: *const f32) -> F {
        // SAFETY: a `Neon` proves the instructions; readable by the caller's promise.
        unsafe { [vld1q_f32(at), vld1q_f32(at.add(4))] }
    }

    #[inline(always)]
    unsafe fn write(self, at: *mut f32, x: F) {
        // SAFETY: a `Neon` proves the instructions; writable by the caller's promise.
        unsafe {
            vst1q_f32(at, x[0]);
            vst1q_f32(at.add(4), x[1]);
        }
    }

    #[inline(always)]
    unsafe fn read_i(self, at: *const u8) -> I {
        // SAFETY: a `Neon` proves the instructions; readable by the caller's promise.
        unsafe { [vreinterpretq_s32_u8(vld1q_u8(at)), vreinterpretq_s32_u8(vld1q_u8(at.add(16)))] }
    }

    #[inline(always)]
    unsafe fn write_i(self, at: *mut u8, x: I) {
        // SAFETY: a `Neon` proves the instructions; writable by the caller's promise.
        unsafe {
            vst1q_u8(at, vreinterpretq_u8_s32(x[0]));
            vst1q_u8(at.add(16), vreinterpretq_u8_s32(x[1]));
        }
    }

    #[inline(always)]
    unsafe fn widen(self, at: *const u8) -> I {
        // SAFETY: a `Neon` proves the instructions; readable by the caller's promise.
        unsafe {
            let words = vmovl_u8(vld1_u8(at));
            let (low, high) = (vmovl_u16(vget_low_u16(words)), vmovl_high_u16(words));
            [vreinterpretq_s32_u32(low), vreinterpretq_s32_u32(high)]
        }
    }

    #[inline(always)]
    unsafe fn narrow(self, at: *mut u8, x: I) {
        // SAFETY: a `Neon` proves the instructions; writable by the caller's promise.
        unsafe {
            let [low, high] = both!(vreinterpretq_u16_s32, x);
            vst1_u8(at, vmovn_u16(vuzp1q_u16(low, high)));
        }
    }

    #[inline(always)]
    unsafe fn write_codes(self, at: *mut u8, scaled: F) {
        // SAFETY: a `Neon` proves the instructions; writable by the caller's promise.
        unsafe { vst1_u8(at, bytes::codes(scaled[0], scaled[1])) }
    }

    #[inline(always)]
    unsafe fn write_codes2(self, at: *mut u8, [a, b]: [F; 2]) {
        // SAFETY: a `Neon` proves the instructions; writable by the caller's promise.
        unsafe { vst1q_u8(at, vcombine_u8(bytes::codes(a[0], a[1]), bytes::codes(b[0], b[1]))) }
    }

    #[inline(always)]
    unsafe fn transpose(self, at: *const u8, stride: usize, last: usize) -> [I; 4] {
        // SAFETY: a `Neon` proves the instructions; readable by the caller's promise.
        let [a, b] =
            unsafe { [bytes::transpose(at, stride, last, 0), bytes::transpose(at, stride, last, 4)] };
        [[a[0], b[0]], [a[1], b[1]], [a[2], b[2]], [a[3], b[3]]]
    }

    #[inline(always)]
    unsafe fn interleave_rows(self, rows: [*const u8; 4]) -> [I; 2] {
        // SAFETY: a `Neon` proves the instructions; readable by the caller's promise.
        unsafe { bytes::interleave_rows(rows) }
    }

    #[inline(always)]
    unsafe fn write_interleaved_codes(self, at: *mut u8, scaled: [F; 2]) {
        // SAFETY: the caller's promise.
        unsafe { self.write_codes2(at, self.deinterleave(scaled)) }
    }
}
