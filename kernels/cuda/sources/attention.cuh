// Code that the attention kernels share: parameters, bias and mask, and stores.
//
// Defines: STORE (STORE_CODES or STORE_HALF), FAKE (quantize and dequantize before a float store), THREADS,
// and those of `softmax.cuh`; MASK_BITS, the bits of the f32 that is added to a logit if its query and its
// key lie in different regions (a parameter of the launch would cost registers); HEAD_SCALES (1: each head
// has a factor of its own); for codes also HI_LO (1: queries and keys of some heads have lo codes); in tiles
// also HEAD_DIM (columns of a head: 32 or 64).
#pragma once

#include "cosine.cuh"
#include "softmax.cuh"

#define STORE_CODES 0
#define STORE_HALF 1

#ifndef HEAD_DIM
#define HEAD_DIM 32
#endif

struct Params {
    // Queries, keys and values of every window, `[windows * n, columns]`, s8 or f16. Lo codes follow the
    // values.
    const void* qkv;
    // With HEAD_SCALES: `logit_scale` of each head.
    const f32* logit_scales;
    // With HI_LO: first column of the lo codes of each head's queries, then of its keys, `[2, heads]`;
    // negative for heads with one code per value.
    const s32* low;
    // Relative position bias, -inf for padding keys, in one of two layouts. Windows of up to 64 tokens, and
    // in tiles: f32, `[heads, padded, padded]` (padded: n rounded up to a multiple of 64). Others: f32 or
    // f16, `[heads, padded / 16, KEY_TILES, 32, 4]` (padded: the queries of all blocks of a window): for 16
    // queries and 8 keys the four elements of each lane, in the layout of `Logits`.
    const void* bias;
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

// The mask of window `window`.
INLINE u32 mask_of(const Params& p, u32 window) { return p.masks != nullptr ? p.masks[window % p.windows] : 0; }

// Transposes a block of 4 tokens and 4 channels of INT8 values that lie `raw_row` bytes apart, to channels
// that lie `value_row` bytes apart. Word w of a channel holds tokens 16 (w / 4) + 2 (w % 4) + {0, 1, 8, 9}.
// Row 8 j + c holds channel 8 (c / 2) + 2 j + c % 2, so that each lane gets the sums of consecutive channels.
template <u32 raw_row, u32 value_row>
INLINE void transpose_block(const u8* raw, u8* transposed, u32 block) {
    u32 channel = block % 8 * 4, word = block / 8;
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
        *reinterpret_cast<u32*>(transposed + row * value_row + 4 * word) = words[k];
    }
}

#ifdef PROBS_S8
// Adds the products of the codes of probabilities with values.
INLINE void multiply_values(s32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#if PROBS_S8
    mma_s8(c, a, b);
#else
    mma_u8s8(c, a, b);
#endif
}
#endif

// The first channel of a group of 32 channels of a query in the output: those of a head, or half of them.
INLINE u64 place_of(const Params& p, u32 window, u32 query, u32 group) {
    return (static_cast<u64>(window) * p.n + query) * p.heads * HEAD_DIM + group * 32;
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

// Stores row lane / 4 + 8 `half` of integer sums, multiplied by `factor`, as that of query `query`, if there
// is one: channels 8 (lane % 4) to 8 (lane % 4) + 7 of a group of 32.
INLINE void store_row(const Params& p, const s32 (&sums)[4][4], int half, f32 factor, u32 window, u32 query, u32 group, u32 lane) {
    if (query >= static_cast<u32>(p.n)) return;
    f32 y[8];
#pragma unroll
    for (int i = 0; i < 8; i++) y[i] = to_f32(sums[i / 2][2 * half + i % 2]) * factor;
    store_channels(p, place_of(p, window, query, group) + 8 * (lane % 4), y);
}

// Transposes a 4 x 4 matrix of words that four lanes hold: word j of lane i and word i of lane j are
// exchanged.
INLINE void transpose_quad(u32 (&x)[4], u32 lane) {
#pragma unroll
    for (u32 step = 1; step < 4; step *= 2) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            if (i & step) continue;
            bool upper = lane & step;
            u32 send = upper ? x[i] : x[i + step];
            u32 got = shuffle_xor(send, step);
            if (upper) {
                x[i] = got;
            } else {
                x[i + step] = got;
            }
        }
    }
}

// `store_row` for f32 sums. The four lanes of a row exchange their channels, so that each stores eight that
// follow each other.
INLINE void store_exchanged(const Params& p, const f32 (&sums)[4][4], int half, f32 factor, u32 window, u32 query, u32 head,
                            u32 lane) {
    u32 out[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        f32 y[2] = {sums[j][2 * half] * factor, sums[j][2 * half + 1] * factor};
#if STORE == STORE_CODES
        out[j] = pack_s8x4(round_s32(y[0] * p.recip), round_s32(y[1] * p.recip), 0, 0);
#else
#if FAKE
        y[0] = fake(y[0], p.recip, p.scale), y[1] = fake(y[1], p.recip, p.scale);
#endif
        out[j] = pack_half2(y[0], y[1]);
#endif
    }
    transpose_quad(out, lane);
    if (query >= static_cast<u32>(p.n)) return;
    u64 at = place_of(p, window, query, head) + 8 * (lane % 4);
#if STORE == STORE_CODES
    *reinterpret_cast<u32x2*>(static_cast<s8*>(p.out) + at) = u32x2{out[0] | out[1] << 16, out[2] | out[3] << 16};
#else
    *reinterpret_cast<u32x4*>(static_cast<u16*>(p.out) + at) = u32x4{out[0], out[1], out[2], out[3]};
#endif
}
