// Code that the attention kernels share: parameters, bias and mask, and stores. The head dimension is 32.
//
// Defines: STORE (STORE_CODES or STORE_HALF), FAKE (quantize and dequantize before a float store), THREADS,
// and those of `softmax.cuh`; BIAS (the place of the bias: BIAS_REGISTERS, BIAS_SHARED, BIAS_GLOBAL or, for windows in tiles,
// BIAS_ROWS), HALF_BIAS (1: shared or global bias is f16), HELD (number of tiles of 8 keys whose logits stay in registers; those of
// others are computed again for each pass over them); MASK_BITS, the bits of the f32 that is added to a logit if its query and its key lie in
// different regions (a parameter of the launch would cost registers); HEAD_SCALES (1: each head has a factor of its
// own); for codes also HI_LO (1: queries and keys of some heads have lo codes).
#pragma once

#include "cosine.cuh"
#include "softmax.cuh"

#define STORE_CODES 0
#define STORE_HALF 1

#define BIAS_REGISTERS 0
#define BIAS_SHARED 1
#define BIAS_GLOBAL 2
#define BIAS_ROWS 3

constexpr u32 HEAD_DIM = 32;

struct Params {
    // Queries, keys and values of every window, `[windows * n, columns]`, s8 or f16. Lo codes follow the values.
    const void* qkv;
    // With HEAD_SCALES: `logit_scale` of each head.
    const f32* logit_scales;
    // With HI_LO: first column of the lo codes of each head's queries, then of its keys, `[2, heads]`; negative
    // for heads with one code per value.
    const s32* low;
    // Relative position bias, -inf for padding keys. BIAS_ROWS: f32, `[heads, padded, padded]` (padded: n rounded up to a
    // multiple of 64). Else f32 or f16, `[heads, padded / 16, KEY_TILES, 32, 4]` (padded: the queries of all blocks of a
    // window): for 16 queries and 8 keys the four elements of each lane, in the layout of `Logits`.
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

// Number of keys and values that a block holds at once: those of a window, or of a tile of one.
constexpr u32 TOKENS = KEY_TILES <= 8 ? 64 : 8 * KEY_TILES;
// Number of pairs of tiles of 8 keys, and of products with 32 values that the keys need.
constexpr int PAIRS = (KEY_TILES + 1) / 2, HELD_PAIRS = (HELD + 1) / 2, STEPS = KEY_TILES <= 8 ? 2 : (PAIRS + 1) / 2;
// How far the passes over pairs of tiles and over steps are unrolled: whole, if logits stay in registers; else so far that
// registers suffice.
constexpr int UNROLL = HELD > 0 ? KEY_TILES : OPERANDS == 3 ? 4 : 2, STEP_UNROLL = HELD > 0 ? KEY_TILES : OPERANDS == 3 ? 2 : 1;
// Number of queries that a block holds: 16 for each warp.
constexpr u32 QUERIES = THREADS / WARP * 16;
// Number of rows of all operands that a block holds at once.
constexpr u32 RAW_ROWS = OPERANDS == 5 ? 2 * QUERIES + 3 * TOKENS : QUERIES + 2 * TOKENS;
// Bytes from one channel of the transposed values to the next: an odd number of 16-byte chunks, which avoids
// bank conflicts.
constexpr u32 VALUE_ROW = 32 * STEPS + 16;

// The first row of an operand: queries, keys, values, then the lo codes of queries and of keys.
INLINE constexpr u32 first_row(u32 operand) {
    return operand == 0 ? 0 : operand <= 3 ? QUERIES + (operand - 1) * TOKENS : 2 * QUERIES + 2 * TOKENS;
}
// The operand of a row.
INLINE u32 operand_of(u32 row) {
    u32 operand = 0;
#pragma unroll
    for (u32 next = 1; next < OPERANDS; next++) operand += row >= first_row(next);
    return operand;
}
// The token of a row of an operand, if the block's queries begin at token `first_query`.
INLINE u32 token_of(u32 row, u32 operand, u32 first_query) {
    return row - first_row(operand) + (operand % 3 == 0 ? first_query : 0);
}

// The mask of window `window`.
INLINE u32 mask_of(const Params& p, u32 window) { return p.masks != nullptr ? p.masks[window % p.windows] : 0; }

#if BIAS != BIAS_ROWS

#if BIAS == BIAS_REGISTERS
// The bias of the warp's queries, in the layout of `Logits`.
typedef f32 Bias[KEY_TILES][4];
#elif HALF_BIAS
// The bias of a lane's elements of the first tile, as halves; a tile later, 32 words later.
typedef const u32x2* Bias;
#else
typedef const f32x4* Bias;
#endif

#if BIAS == BIAS_REGISTERS

// Loads the bias of the warp's queries.
INLINE void load_bias(const Params& p, Bias& bias, u8*, u32 head, u32 lane, u32 warp) {
#pragma unroll
    for (int t = 0; t < KEY_TILES; t++) {
        f32x4 words = static_cast<const f32x4*>(p.bias)[((head * (QUERIES / 16) + warp) * KEY_TILES + t) * WARP + lane];
        bias[t][0] = words.x, bias[t][1] = words.y, bias[t][2] = words.z, bias[t][3] = words.w;
    }
}

INLINE void bias_of(const Bias& bias, int t, f32 (&b)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) b[i] = bias[t][i];
}

#else

// Finds the bias of the warp's queries; where it is to lie in shared memory, at `shared`, starts copying that of all warps. The
// copies belong to the thread's next group.
INLINE void load_bias(const Params& p, Bias& bias, u8* shared, u32 head, u32 lane, u32 warp) {
    constexpr u32 warps = THREADS / WARP, words = warps * KEY_TILES * WARP;
    Bias all = static_cast<Bias>(p.bias) + (head * blocks_y() + block_y()) * words;
#if BIAS == BIAS_SHARED
    constexpr u32 bytes = words * sizeof(*all);
    const u8* from = reinterpret_cast<const u8*>(all);
    for (u32 at = 16 * thread_index(); at < bytes; at += 16 * THREADS) copy_async_16(shared + at, from + at, 16);
    all = reinterpret_cast<Bias>(shared);
#endif
    bias = all + warp * KEY_TILES * WARP + lane;
}

INLINE void bias_of(const Bias& bias, int t, f32 (&b)[4]) {
#if HALF_BIAS
    u32x2 words = bias[t * WARP];
    b[0] = half_to_f32(static_cast<u16>(words.x)), b[1] = half_to_f32(static_cast<u16>(words.x >> 16));
    b[2] = half_to_f32(static_cast<u16>(words.y)), b[3] = half_to_f32(static_cast<u16>(words.y >> 16));
#else
    f32x4 words = bias[t * WARP];
    b[0] = words.x, b[1] = words.y, b[2] = words.z, b[3] = words.w;
#endif
}

#endif

// Regions of the keys of a window, and of a lane's two queries.
struct Regions {
    const u8* keys;
    u8 queries[2];
};

// Regions under mask `mask`; the warp's queries begin at token `first`.
INLINE Regions regions_of(const Params& p, u32 mask, u32 first, u32 lane) {
    const u8* keys = p.regions + mask * blocks_y() * QUERIES;
    return Regions{keys, {keys[first + lane / 4], keys[first + lane / 4 + 8]}};
}

// Adds the mask to the bias of a tile.
INLINE void mask_bias(const Regions& regions, int t, f32 (&b)[4], u32 lane) {
    const u8* keys = regions.keys + 8 * t + 2 * (lane % 4);
#pragma unroll
    for (int i = 0; i < 4; i++) b[i] = keys[i % 2] == regions.queries[i / 2] ? b[i] : b[i] + from_bits(MASK_BITS);
}

#endif

// Transposes `TOKENS` tokens of INT8 values that lie `raw_row` bytes apart, in blocks of 4 tokens and 4 channels. Word w of
// a channel holds tokens 16 (w / 4) + 2 (w % 4) + {0, 1, 8, 9}.
// Row 8 j + c holds channel 8 (c / 2) + 2 j + c % 2, so that each lane gets the sums of consecutive channels.
template <u32 raw_row>
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
        *reinterpret_cast<u32*>(transposed + row * VALUE_ROW + 4 * word) = words[k];
    }
}

template <u32 raw_row>
INLINE void transpose_values(const u8* raw, u8* transposed) {
#pragma unroll
    for (u32 round = 0; round < (2 * TOKENS + THREADS - 1) / THREADS; round++) {
        u32 block = thread_index() + round * THREADS;
        if (block < 2 * TOKENS) transpose_block<raw_row>(raw, transposed, block);
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
