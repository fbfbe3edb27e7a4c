// Cosine attention (Swin V2): the common parts of the kernels that normalise and quantize queries and keys,
// or that multiply them.
#pragma once

#include "prelude.cuh"

// The reciprocal of the length of a vector, of an f16 residual; each of four lanes holds eight of its values.
INLINE f32 inverse_length_fast(const f32 (&x)[8]) {
    f32 sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) sum = fma_f32(x[i], x[i], sum);
    sum = sum + shuffle_xor(sum, 1);
    return rsqrt_approx(max_f32(sum + shuffle_xor(sum, 2), 1e-24f));
}

// The codes of eight values that are multiplied by the reciprocal of their scale, in the low bytes of
// `rounded`.
INLINE u32x2 codes_and_rounded(const f32 (&y)[8], f32 (&rounded)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) rounded[i] = max_f32(min_f32(y[i], 127.0f), -128.0f) + ROUNDER;
    return u32x2{low_bytes(bits(rounded[0]), bits(rounded[1]), bits(rounded[2]), bits(rounded[3])),
                 low_bytes(bits(rounded[4]), bits(rounded[5]), bits(rounded[6]), bits(rounded[7]))};
}

// The lo codes of eight values: `low_part` without conversion instructions, whose throughput is low.
INLINE u32x2 lo_codes(const f32 (&y)[8], f32 (&rounded)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        f32 rest = y[i] - (rounded[i] - ROUNDER);
        rounded[i] = fma_f32(max_f32(min_f32(rest, 127.0f / 256.0f), -127.0f / 256.0f), 256.0f, ROUNDER);
    }
    return u32x2{low_bytes(bits(rounded[0]), bits(rounded[1]), bits(rounded[2]), bits(rounded[3])),
                 low_bytes(bits(rounded[4]), bits(rounded[5]), bits(rounded[6]), bits(rounded[7]))};
}

// `hh + (hl + lh) / 256`, where `hh` is the product of the codes, and `hl` and `lh` are those of codes and lo
// codes.
INLINE f32 with_lo_codes(s32 hh, s32 hl_and_lh) { return fma_f32(to_f32(hl_and_lh), 1.0f / 256.0f, to_f32(hh)); }
