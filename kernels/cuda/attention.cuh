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

// Tokens of a window, or of a tile of one, that a block of four warps holds.
constexpr u32 TOKENS = 64;
// Bytes from channel to channel of transposed values: an odd number of 16-byte chunks.
constexpr u32 VALUE_ROW = 80;

// Of a warp's 16 queries and all keys: elements [tile][2 half + b] are row lane / 4 + 8 half, key 8 tile + 2 (lane % 4) + b.
typedef f32 Logits[KEY_TILES][4];
typedef f32 Bias[KEY_TILES][4];

// The bias of the warp's queries, of windows of up to 64 tokens.
INLINE void load_bias(const Params& p, Bias& bias, u32 head, u32 lane, u32 warp) {
#pragma unroll
    for (int t = 0; t < KEY_TILES; t++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 row = 16 * warp + lane / 4 + i / 2 * 8;
            bias[t][i] = p.bias[(head * TOKENS + row) * TOKENS + 8 * t + 2 * (lane % 4) + i % 2];
        }
    }
}

// The bias with the mask of a window that has the regions `regions`.
INLINE void mask_bias(const u8* regions, const Bias& bias, Bias& masked, u32 lane, u32 warp) {
    u32 row = 16 * warp + lane / 4;
    const u8 of_row[2] = {regions[row], regions[row + 8]};
#pragma unroll
    for (int t = 0; t < KEY_TILES; t++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            bool same = regions[8 * t + 2 * (lane % 4) + i % 2] == of_row[i / 2];
            masked[t][i] = same ? bias[t][i] : bias[t][i] + MASKED;
        }
    }
}

// Transposes 64 tokens of INT8 values, `raw_row` bytes apart, by blocks of 4 tokens and 4 channels, one for each of 128 threads. Word w of a channel holds tokens 16 (w / 4) + 2 (w % 4) +
// {0, 1, 8, 9}; row 8 j + c holds channel 8 (c / 2) + 2 j + c % 2, so that a lane ends with consecutive channels.
template <u32 raw_row>
INLINE void transpose_values(const u8* raw, u8* transposed) {
    u32 channel = thread_index() % 8 * 4, word = thread_index() / 8;
    const u8* from = raw + (16 * (word / 4) + 2 * (word % 4)) * raw_row + channel;
    u32 a = *reinterpret_cast<const u32*>(from), b = *reinterpret_cast<const u32*>(from + raw_row);
    u32 c = *reinterpret_cast<const u32*>(from + 8 * raw_row), d = *reinterpret_cast<const u32*>(from + 9 * raw_row);
    u32 ab_low = byte_permute(a, b, 0x5140), ab_high = byte_permute(a, b, 0x7362);
    u32 cd_low = byte_permute(c, d, 0x5140), cd_high = byte_permute(c, d, 0x7362);
    const u32 words[4] = {byte_permute(ab_low, cd_low, 0x5410), byte_permute(ab_low, cd_low, 0x7632),
                          byte_permute(ab_high, cd_high, 0x5410), byte_permute(ab_high, cd_high, 0x7632)};
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
        u32 at = channel + k, row = at / 2 % 4 * 8 + at / 8 * 2 + at % 2;
        *reinterpret_cast<u32*>(transposed + row * VALUE_ROW + 4 * word) = words[k];
    }
}

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
