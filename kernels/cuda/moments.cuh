// LayerNorm statistics of one row as the reference defines them (`reference::RowNorm`); four lanes hold the
// sums of a row.
#pragma once

#include "prelude.cuh"

// Padded to four words, so that one 16-byte load from shared memory reads it.
struct alignas(16) RowNorm {
    f32 mean, inverse, shift;
};

INLINE f32 apply(const RowNorm& norm, f32 x, f32 gamma, f32 beta) {
    return fma_f32(fma_f32(x - norm.mean, norm.inverse, norm.shift), gamma, beta);
}

// Sixteen partial sums of a row and of its squares, by the index mod 16; each of four neighbouring lanes
// holds four.
struct Moments {
    f64 sum[4], square[4];

    INLINE void clear() {
#pragma unroll
        for (int i = 0; i < 4; i++) sum[i] = square[i] = 0.0;
    }

    // Adds the lane's next four elements: indexes 16 i + 4 (lane % 4) to 16 i + 4 (lane % 4) + 3.
    INLINE void add(const f32x4& x) {
        const f32 values[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            f64 value = static_cast<f64>(values[i]);
            sum[i] = sum[i] + value;
            square[i] = fma_f64(value, value, square[i]);
        }
    }

    // Returns the statistics of a row of `count` elements to each of the four lanes.
    INLINE RowNorm norm(s32 count, f32 epsilon) {
        f64 total = fold(sum), squares = fold(square);
        f64 n = static_cast<f64>(count);
        f64 mean = div_f64(total, n);
        f64 variance = max_f64(div_f64(squares, n) - mean * mean, 0.0);
        f64 inverse = div_f64(1.0, sqrt_f64(variance + static_cast<f64>(epsilon)));
        f32 rounded = static_cast<f32>(mean);
        f32 shift = static_cast<f32>((static_cast<f64>(rounded) - mean) * inverse);
        return RowNorm{rounded, static_cast<f32>(inverse), shift};
    }

  private:
    // Adds the upper half of the partial sums to the lower half until one is left: lanes 2, 3 to lanes 0, 1,
    // then lane 1 to lane 0, then within the lane. Addition commutes, so every lane gets the same sum.
    static INLINE f64 fold(f64 (&x)[4]) {
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = x[i] + shuffle_xor(x[i], 2);
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = x[i] + shuffle_xor(x[i], 1);
        return (x[0] + x[2]) + (x[1] + x[3]);
    }
};
