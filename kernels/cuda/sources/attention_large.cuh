// Whole windows of more than 64 tokens: the operands that a block has in shared memory, bias and mask.
//
// Defines: those of `attention.cuh`; THREADS, 32 for each 16 queries of a block; KEY_TILES, which is even;
// HELD (number of tiles of 8 keys whose logits stay in registers, even; those of others are computed again
// for each pass over them); SHARED_BIAS (1: the bias lies in shared memory; 0: it is read through the
// caches), HALF_BIAS (1: it is f16).
#pragma once

#include "attention.cuh"

// Number of keys and values that a block holds at once: those of a window.
constexpr u32 TOKENS = 8 * KEY_TILES;
// Number of pairs of tiles of 8 keys, and of products with 32 values that the keys need.
constexpr int PAIRS = KEY_TILES / 2, STEPS = (PAIRS + 1) / 2;
// How far the passes over the keys are unrolled: whole, if logits stay in registers; else not, so that
// registers suffice.
constexpr int UNROLL = HELD > 0 ? KEY_TILES : 1;
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

#if HALF_BIAS
// The bias of a lane's elements of the first tile, as halves; that of a tile later is 32 words later.
typedef const u32x2* Bias;
#else
typedef const f32x4* Bias;
#endif

// Finds the bias of the warp's queries; with SHARED_BIAS, starts copying that of all warps to `shared`. The
// copies belong to the thread's next group.
INLINE void load_bias(const Params& p, Bias& bias, u8* shared, u32 head, u32 lane, u32 warp) {
    constexpr u32 warps = THREADS / WARP, words = warps * KEY_TILES * WARP;
    Bias all = static_cast<Bias>(p.bias) + (head * blocks_y() + block_y()) * words;
#if SHARED_BIAS
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

// Transposes the INT8 values of a window, which lie `raw_row` bytes apart.
template <u32 raw_row>
INLINE void transpose_values(const u8* raw, u8* transposed) {
#pragma unroll
    for (u32 round = 0; round < (2 * TOKENS + THREADS - 1) / THREADS; round++) {
        u32 block = thread_index() + round * THREADS;
        if (block < 2 * TOKENS) transpose_block<raw_row, VALUE_ROW>(raw, transposed, block);
    }
}
