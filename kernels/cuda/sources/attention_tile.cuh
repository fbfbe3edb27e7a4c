// Tiles of 64 tokens, for the attention kernels that process one at a time.
#pragma once

#include "attention.cuh"

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
            bias[t][i] = static_cast<const f32*>(p.bias)[(head * TOKENS + row) * TOKENS + 8 * t + 2 * (lane % 4) + i % 2];
        }
    }
}

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
// of 4 tokens and 4 channels.
template <u32 raw_row>
INLINE void transpose_values(const u8* raw, u8* transposed) {
    transpose_block<raw_row, VALUE_ROW>(raw, transposed, thread_index());
}
