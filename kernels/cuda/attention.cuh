// What the attention kernels share: parameters, bias and mask, and where results go. Head dimension 32.
//
// Defines: KEY_TILES (keys of a window padded to 8, in eights), STORE (STORE_CODES, STORE_HALF), FAKE, THREADS, EXACT (the
// bits of the reference; otherwise the exponential unit).
#pragma once

#include "prelude.cuh"

#define STORE_CODES 0
#define STORE_HALF 1

// What is added to a logit whose query and key lie in different regions. Without EXACT logits are in units of ln(2): their
// scale and bias come multiplied by log2(e).
#if EXACT
constexpr f32 MASKED = -100.0f;
#else
constexpr f32 MASKED = -144.26950408889634f;
#endif
constexpr u32 HEAD_DIM = 32;

struct Params {
    // Queries, keys and values of every window, `[windows * n, 3 * channels]`, s8 or f16.
    const void* qkv;
    // Relative position bias, `[heads, padded, padded]`, -inf for the keys that pad (padded: n rounded up to 64).
    const f32* bias;
    // Region of each token of each window of one image, `[windows, padded]`; null where nothing is masked.
    const u8* regions;
    // Whether a window of one image has more than one region, `[windows]`.
    const u8* masked;
    // `[windows * n, channels]`.
    void* out;
    // Windows of all images, windows of one image.
    s32 total_windows, windows;
    // Tokens of a window.
    s32 n;
    s32 heads;
    // Windows for each block.
    s32 windows_each;
    // From the sums of q . k to logits: `s_q * s_k * scale`, or `scale` alone in float.
    f32 logit_scale;
    // Step of the values, and of the probabilities and its reciprocal (kind s8).
    f32 value_scale, probs_scale, probs_recip;
    // The step stored with and its reciprocal.
    f32 recip, scale;
};

// Stores eight consecutive channels of a row.
INLINE void store_channels(const Params& p, u64 at, f32 (&y)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
#if STORE == STORE_CODES
        y[i] = y[i] * p.recip;
#elif FAKE
        y[i] = fake(y[i], p.recip, p.scale);
#endif
    }
#if STORE == STORE_CODES
    store8(static_cast<s8*>(p.out) + at, y);
#else
    store8(static_cast<u16*>(p.out) + at, y);
#endif
}

// e^(logit - largest).
INLINE f32 weight_of(f32 logit, f32 largest) {
#if EXACT
    return exp_below(max_f32(logit - largest, from_bits(FLOOR_BITS)));
#else
    return exp2_approx(logit - largest);
#endif
}

// 255 e^(logit - largest) as an integer in the low byte.
INLINE u32 code_of(f32 logit, f32 largest) {
#if EXACT
    return bits(255.0f * weight_of(logit, largest) + ROUNDER);
#else
    return bits(fma_f32(255.0f, weight_of(logit, largest), ROUNDER));
#endif
}

// The low bytes of four words.
INLINE u32 low_bytes(u32 a, u32 b, u32 c, u32 d) {
    return byte_permute(byte_permute(a, b, 0x0040), byte_permute(c, d, 0x0040), 0x5410);
}

// The largest over the four lanes of a row; the sum.
INLINE f32 quad_max(f32 x) {
    x = max_f32(x, shuffle_xor(x, 1));
    return max_f32(x, shuffle_xor(x, 2));
}
INLINE u32 quad_sum(u32 x) {
    x = x + shuffle_xor(x, 1);
    return x + shuffle_xor(x, 2);
}
INLINE f32 quad_sum(f32 x) {
    x = x + shuffle_xor(x, 1);
    return x + shuffle_xor(x, 2);
}
