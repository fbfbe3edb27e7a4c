// Code that the attention kernels share: parameters, bias and mask, and stores. The head dimension is 32.
//
// Defines: STORE (STORE_CODES or STORE_HALF), FAKE (quantize and dequantize before a float store), THREADS,
// and those of `softmax.cuh`; MASK_BITS, the bits of the f32 that is added to a logit if its query and its key lie in
// different regions (a parameter of the launch would cost registers); HEAD_SCALES (1: each head has a factor of its
// own); for codes also HI_LO (1: queries and keys of some heads have lo codes).
#pragma once

#include "cosine.cuh"
#include "softmax.cuh"

#define STORE_CODES 0
#define STORE_HALF 1

constexpr u32 HEAD_DIM = 32;

struct Params {
    // Queries, keys and values of every window, `[windows * n, columns]`, s8 or f16. Lo codes follow the values.
    const void* qkv;
    // With HEAD_SCALES: `logit_scale` of each head.
    const f32* logit_scales;
    // With HI_LO: first column of the lo codes of each head's queries, then of its keys, `[2, heads]`; negative
    // for heads with one code per value.
    const s32* low;
    // Relative position bias, `[heads, padded, padded]`; -inf for padding keys (padded: n rounded up to a
    // multiple of 64).
    const f32* bias;
    // Region of each token under each mask, `[masks, padded]`. Mask 0 is not read, because it masks nothing.
    const u8* regions;
    // Mask of each window of one image, `[windows]`; null if no window is masked.
    const u8* masks;
    // `[windows * n, channels]`.
    void* out;
    // Number of windows in all images, and in one image.
    s32 total_windows, windows;
    // Number of tokens of a window.
    s32 n;
    s32 heads;
    // Elements from one token of `qkv` to the next.
    s32 columns;
    // Number of windows that a block processes.
    s32 windows_each;
    // Factor that turns sums of q . k into logits: `s_q * s_k * scale` for codes, `scale` alone for f16.
    f32 logit_scale;
    // Scale of the values, then the scale of the probabilities and its reciprocal (probabilities of kind s8).
    f32 value_scale, probs_scale, probs_recip;
    // Reciprocal of the output scale, and the output scale itself.
    f32 recip, scale;
};

#if HI_LO
// Queries, keys, values, lo codes of queries and of keys.
constexpr u32 OPERANDS = 5;
#else
constexpr u32 OPERANDS = 3;
#endif

// Whether a head has an operand: only some heads have lo codes.
INLINE bool has_operand(const Params& p, u32 operand, u32 head) {
#if HI_LO
    return operand < 3 || p.low[(operand - 3) * p.heads + head] >= 0;
#else
    return true;
#endif
}

// First column of an operand that a head has.
INLINE s32 column_of(const Params& p, u32 operand, u32 head) {
#if HI_LO
    if (operand >= 3) return p.low[(operand - 3) * p.heads + head];
#endif
    return static_cast<s32>((operand * p.heads + head) * HEAD_DIM);
}

// The factor of the logits of a head. One for all heads is a constant of the launch, which takes no register.
INLINE f32 logit_scale_of(const Params& p, u32 head) {
#if HEAD_SCALES
    return p.logit_scales[head];
#else
    return p.logit_scale;
#endif
}

// Number of tokens that a block of four warps processes at once: a window, or a tile of one.
constexpr u32 TOKENS = 64;
// Bytes from one channel of the transposed values to the next: an odd number of 16-byte chunks, which avoids
// bank conflicts.
constexpr u32 VALUE_ROW = 80;

// Bias of the same elements.
typedef f32 Bias[KEY_TILES][4];

// Loads the bias of the warp's queries, for windows of up to 64 tokens.
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

// The mask of window `window`.
INLINE u32 mask_of(const Params& p, u32 window) { return p.masks != nullptr ? p.masks[window % p.windows] : 0; }

// Adds the mask to the bias, for a window whose tokens lie in the regions `regions`.
INLINE void mask_bias(const u8* regions, const Bias& bias, Bias& masked, u32 lane, u32 warp) {
    u32 row = 16 * warp + lane / 4;
    const u8 of_row[2] = {regions[row], regions[row + 8]};
#pragma unroll
    for (int t = 0; t < KEY_TILES; t++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            bool same = regions[8 * t + 2 * (lane % 4) + i % 2] == of_row[i / 2];
            masked[t][i] = same ? bias[t][i] : bias[t][i] + from_bits(MASK_BITS);
        }
    }
}

// Transposes 64 tokens of INT8 values that lie `raw_row` bytes apart. Each of 128 threads transposes a block
// of 4 tokens and 4 channels. Word w of a channel holds tokens 16 (w / 4) + 2 (w % 4) + {0, 1, 8, 9}.
// Row 8 j + c holds channel 8 (c / 2) + 2 j + c % 2, so that each lane gets the sums of consecutive channels.
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
