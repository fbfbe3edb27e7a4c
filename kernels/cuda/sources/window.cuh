// A window in the registers of a group of four warps: parameters, constants in shared memory, and the rows of
// each lane. `window_block.cu` describes the layout and the defines.
#pragma once

#define EXACT 0
#include "cosine.cuh"
#include "softmax.cuh"

// Added to a logit if its query and its key lie in different regions: -100 log2(e), because logits are in
// units of ln(2).
constexpr f32 MASK = -144.26950408889634f;

// The weights of more heads do not fit any multiprocessor.
constexpr int MOST_HEADS = 8;

struct Params {
    // The residual stream, f16 `[images * tokens, channels]`, which is updated.
    u16* residual;
    // Token of each row of one image's windows, `[windows * TOKENS]`; PAD for padding.
    const u32* map;
    // `Constants`.
    const u8* constants;
    // Region of each token under each mask, `[masks, 64]`. Mask 0 is not read, because it masks nothing.
    const u8* regions;
    // Mask of each window of one image, `[windows]`; null if no window is masked.
    const u8* masks;
    // Set to 1 if the residual holds a value that is not finite.
    u32* overflow;
    // Number of windows in all images and in one image, and of tokens in one image.
    s32 total_windows, windows, tokens;
    f32 epsilon;
    // Scale of the values, divided by 255 times the scale of the projection's input.
    f32 value_scale;
    // COSINE: the reciprocal of the scale of QKV's input, divided by 255, and those of the queries and of the
    // keys.
    f32 input_recip, query_recip, key_recip;
    // Bit h is set if the queries and keys of head h have hi and lo codes for each value.
    u32 hi_lo;
};

// Number of heads, and of groups of 32 channels.
constexpr int CHANNELS = 32 * HEADS;
static_assert(TOKENS > 48 && TOKENS <= 64, "every warp has rows");
static_assert(HEADS <= MOST_HEADS, "each head has a factor");
constexpr int WARPS = 4;
// Bytes of a fragment: the part of a weight that a warp multiplies at once, 16 columns and 32 channels.
constexpr int FRAGMENT = 512;

// Scale and bias of 32 columns: `scale[32]`, then `bias[32]`. A sum becomes `sum * scale + bias`.
typedef f32 Columns[64];

// The constants in shared memory. A code c is computed as (c + 128) / 255, which saturates at 0 and 1 (see
// `codes_of_shares`); scales and biases that precede a quantization include this.
struct Constants {
    // Rows of the QKV weight for each head: q, k and v, each as two halves of 16 columns.
    u8 qkv[HEADS][3][2][HEADS][FRAGMENT];
    // The projection's weight: groups of 32 columns, halves of 16 columns, heads.
    u8 proj[HEADS][2][HEADS][FRAGMENT];
    // Relative position bias in units of ln(2), as halves: the four of each lane for each tile of keys.
    u32x2 bias[HEADS][WARPS][KEY_TILES][WARP];
    // Of the LayerNorm: gamma in place of the scale, beta in place of the bias.
    Columns norm[HEADS];
    // With COSINE no quantization follows these directly.
    Columns query[HEADS], key[HEADS];
    // Scale and bias of a head's values, in the order of the packed rows.
    f32x2 value[HEADS][32];
    Columns out[HEADS];
    // Factor that turns sums of q . k into logits in units of ln(2), for each head.
    f32 logit_scales[MOST_HEADS];
};

// Keys and values of a head of one window, in the layout in which the products read them.
struct Exchange {
    // For each tile of 8 keys: the eight channels of each lane.
    u32x2 keys[8][WARP];
    // For each tile of 8 channels: for each lane, four keys of each warp.
    u32x4 values[4][WARP];
#if HI_LO
    // As `keys`, for heads with hi and lo codes.
    u32x2 low_keys[8][WARP];
#endif
};

// A warp's 16 rows of codes, 32 channels at a time: the registers of the left operand of a product.
typedef u32 Rows[HEADS][4];

// The rows of this lane: row 16 `tile` + lane / 4 of its window, and that row + 8.
struct Place {
    u32 lane, tile;
    // Index of each row in the residual; PAD if there is none.
    u32 tokens[2];
    // For each row, one bit for each of the lane's keys that lies in another region: bit 2 (key tile) + b of
    // element b of `Logits`.
    u32 masked[2];

    // Whether any of the warp's rows `half` is one of the window.
    INLINE bool has(int half) const { return TOKENS % 16 == 0 || TOKENS % 16 > 8 || half == 0 || tile != TOKENS / 16; }
};

// The bits of `Place::masked`.
INLINE void compare_regions(const u8* regions, Place& at) {
    u32 row = 16 * at.tile + at.lane / 4;
    const u8 of_row[2] = {regions[row], regions[row + 8]};
#pragma unroll
    for (int i = 0; i < 2 * KEY_TILES; i++) {
        u8 key = regions[8 * (i / 2) + 2 * (at.lane % 4) + i % 2];
        at.masked[0] |= static_cast<u32>(key != of_row[0]) << i;
        at.masked[1] |= static_cast<u32>(key != of_row[1]) << i;
    }
}

INLINE Place place_of(const Params& p, u32 window, u32 lane, u32 tile) {
    Place at = {lane, tile, {PAD, PAD}, {0, 0}};
    u32 image = window / p.windows, of_image = window - image * p.windows;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 row = 16 * tile + lane / 4 + 8 * half;
        u32 token = row < TOKENS ? p.map[of_image * TOKENS + row] : PAD;
        if (token != PAD) at.tokens[half] = image * p.tokens + token;
    }
    u32 mask = p.masks != nullptr ? p.masks[of_image] : 0;
    if (mask != 0) compare_regions(p.regions + mask * 64, at);
    return at;
}

// Adds the products of a warp's rows with 16 columns: sums [0] are those of the first tile of 8 columns.
INLINE void multiply_columns(s32 (&sums)[4][4], int first, const u8 (&weight)[HEADS][FRAGMENT], const Rows& rows, u32 lane) {
#pragma unroll
    for (int step = 0; step < HEADS; step++) {
        u32x4 w = *reinterpret_cast<const u32x4*>(weight[step] + 16 * lane);
        const u32 low[2] = {w.x, w.y}, high[2] = {w.z, w.w};
        mma_s8(sums[first], rows[step], low);
        mma_s8(sums[first + 1], rows[step], high);
    }
}

// Eight channels of each group of 32 for each of a lane's two rows, as halves.
typedef u32x4 Halves[2][HEADS];

INLINE void load_rows(const Params& p, const Place& at, Halves& x) {
#pragma unroll
    for (int i = 0; i < 2 * HEADS; i++) {
        u32 token = at.tokens[i / HEADS];
        const u16* from = p.residual + static_cast<u64>(token) * CHANNELS + 32 * (i % HEADS) + 8 * (at.lane % 4);
        x[i / HEADS][i % HEADS] = token == PAD ? u32x4{0, 0, 0, 0} : *reinterpret_cast<const u32x4*>(from);
    }
}

// The sums of a warp's rows: that of row lane / 4 + 8 half is sums [2 half]. The product with ones adds up
// the rows.
INLINE void row_sums(const Halves& x, f32 (&sums)[4]) {
    const u32 ones[2] = {0x3c003c00u, 0x3c003c00u};
#pragma unroll
    for (int i = 0; i < HEADS; i++) {
        const u32 low[4] = {x[0][i].x, x[1][i].x, x[0][i].y, x[1][i].y};
        const u32 high[4] = {x[0][i].z, x[1][i].z, x[0][i].w, x[1][i].w};
        mma_f16(sums, low, ones);
        mma_f16(sums, high, ones);
    }
}

// The statistics of LayerNorm of a lane's rows: a value x becomes (x inverse + shift) gamma + beta.
struct RowNorms {
    f32 inverse[2], shift[2];
};

INLINE RowNorms row_norms(const Params& p, const Halves& x, const Place& at) {
    RowNorms norms = {};
    f32 sums[4] = {};
    row_sums(x, sums);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (!at.has(half)) continue;
        f32 mean = sums[2 * half] * (1.0f / CHANNELS), square = 0.0f;
#pragma unroll
        for (int i = 0; i < HEADS; i++) {
            f32 y[8];
            unpack8(y, x[half][i]);
#pragma unroll
            for (int k = 0; k < 8; k++) square = fma_f32(y[k] - mean, y[k] - mean, square);
        }
        f32 variance = quad_sum(square) * (1.0f / CHANNELS);
        // A value that is not finite makes the variance of its row not finite.
        if (!finite(variance)) raise_flag(p.overflow);
        norms.inverse[half] = rsqrt_f32(variance + p.epsilon);
        norms.shift[half] = -mean * norms.inverse[half];
    }
    return norms;
}
