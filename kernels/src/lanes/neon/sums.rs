//! Sums over the lanes of registers.

use std::arch::aarch64::*;

/// The fold of sixteen lanes: the halves are added, then halves of halves.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn fold([a, b]: [[float32x4_t; 2]; 2]) -> f32 {
    let x = vaddq_f32(vaddq_f32(a[0], b[0]), vaddq_f32(a[1], b[1]));
    vpadds_f32(vadd_f32(vget_low_f32(x), vget_high_f32(x)))
}

/// Lane `i` is the fold of register `i`.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn folds(x: &[[float32x4_t; 2]; 4]) -> float32x4_t {
    let fours = |i: usize| vreinterpretq_f64_f32(vaddq_f32(x[i][0], x[i][1]));
    let twos = |a, b| {
        let (low, high) = (vtrn1q_f64(a, b), vtrn2q_f64(a, b));
        vaddq_f32(vreinterpretq_f32_f64(low), vreinterpretq_f32_f64(high))
    };
    vpaddq_f32(twos(fours(0), fours(1)), twos(fours(2), fours(3)))
}

/// The halves of sixteen elements are added, then halves of halves.
#[inline]
#[target_feature(enable = "neon")]
fn fold_f64(x: [float64x2_t; 8]) -> f64 {
    let four = |i: usize| vaddq_f64(vaddq_f64(x[i], x[i + 4]), vaddq_f64(x[i + 2], x[i + 6]));
    vpaddd_f64(vaddq_f64(four(0), four(1)))
}

/// Sixteen partial sums of elements, and of their squares.
#[derive(Clone, Copy)]
struct Moments([float64x2_t; 8], [float64x2_t; 8]);

impl Moments {
    /// Adds the sixteen elements of a block.
    #[inline]
    #[target_feature(enable = "neon")]
    fn add_block(&mut self, x: &[f32; 16]) {
        for quarter in 0..4 {
            // SAFETY: four of 16 values.
            let x = unsafe { vld1q_f32(x[4 * quarter..].as_ptr()) };
            self.add(2 * quarter, vcvt_f64_f32(vget_low_f32(x)));
            self.add(2 * quarter + 1, vcvt_high_f64_f32(x));
        }
    }

    /// Adds two elements to the partial sums in register `at`.
    #[inline]
    #[target_feature(enable = "neon")]
    fn add(&mut self, at: usize, x: float64x2_t) {
        self.0[at] = vaddq_f64(self.0[at], x);
        self.1[at] = vfmaq_f64(self.1[at], x, x);
    }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn moments(x: &[f32]) -> [f64; 2] {
    let mut sums = Moments([vdupq_n_f64(0.0); 8], [vdupq_n_f64(0.0); 8]);
    let (blocks, rest) = x.as_chunks::<16>();
    for x in blocks {
        sums.add_block(x);
    }
    // The zeros after the last elements change no sum.
    let mut tail = [0.0; 16];
    tail[..rest.len()].copy_from_slice(rest);
    if !rest.is_empty() {
        sums.add_block(&tail);
    }
    [fold_f64(sums.0), fold_f64(sums.1)]
}
