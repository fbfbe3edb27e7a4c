//! The loops of AArch64.

use std::arch::aarch64::*;
use std::arch::asm;
use std::hint::black_box;

use super::{ITERATIONS, Peak};

/// Accumulators, enough to hide the latency of the instructions.
const WIDE: usize = 24;

/// `sdot`.
pub(crate) const INT8_NEON_DOTPROD: Peak = Peak { macs: WIDE * 16, run: int8_neon_dotprod };

/// `usmmla`.
pub(crate) const INT8_NEON_I8MM: Peak = Peak { macs: WIDE * 32, run: int8_neon_i8mm };

/// Fused multiply-adds.
pub(crate) const F32_NEON: Peak = Peak { macs: WIDE * 4, run: f32_neon };

/// A loop of `$instruction` on registers of bytes, with accumulators of i32.
macro_rules! int8_loop {
    ($name:ident, $features:literal, $instruction:literal) => {
        #[target_feature(enable = $features)]
        fn $name() {
            let (a, b) = (black_box(vdupq_n_s8(3)), black_box(vdupq_n_s8(1)));
            // Distinct values, because the compiler would merge equal accumulators.
            let mut acc: [int32x4_t; WIDE] = std::array::from_fn(|i| vdupq_n_s32(black_box(i as i32)));
            for _ in 0..ITERATIONS {
                for acc in &mut acc {
                    // SAFETY: only registers are read and written; the processor has the instruction by this
                    // function's features.
                    unsafe {
                        asm!(
                            concat!($instruction, " {acc:v}.4s, {a:v}.16b, {b:v}.16b"),
                            acc = inout(vreg) *acc,
                            a = in(vreg) a,
                            b = in(vreg) b,
                            options(pure, nomem, nostack, preserves_flags)
                        );
                    }
                }
            }
            black_box(acc);
        }
    };
}

int8_loop!(int8_neon_dotprod, "neon,dotprod", "sdot");
int8_loop!(int8_neon_i8mm, "neon,i8mm", "usmmla");

#[target_feature(enable = "neon")]
fn f32_neon() {
    let (a, b) = (black_box(vdupq_n_f32(0.5)), black_box(vdupq_n_f32(0.25)));
    let mut acc: [float32x4_t; WIDE] = std::array::from_fn(|i| vdupq_n_f32(black_box(i as f32)));
    for _ in 0..ITERATIONS {
        for acc in &mut acc {
            *acc = vfmaq_f32(*acc, a, b);
        }
    }
    black_box(acc);
}
