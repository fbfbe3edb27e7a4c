// Code that the forward and backward passes of attention in training share, for one head of one window. Each
// thread computes tiles of 4 x 4 values in f32. CHUNK queries at a time are processed against all keys.
//
// Defines: THREADS; N, tokens of a window; CHUNK, a multiple of 4; SITES, a bit mask of the enabled sites
// among queries, keys, values and scores; PROBS, one of the PROBS_ constants.
#pragma once

#include "train.cuh"

#define PROBS_FLOAT 0
#define PROBS_U8 1
#define PROBS_S8 2

// Channels of a head, and floats from one row of them to the next in shared memory.
constexpr s32 D = 32;
constexpr s32 ROW = D + 4;
// Tokens padded to full tiles, number of tiles, and floats from one row of scores to the next.
constexpr s32 PADDED = (N + 3) / 4 * 4;
constexpr s32 TILES = PADDED / 4;
constexpr s32 STRIDE = PADDED + 4;
constexpr s32 CHUNK_TILES = CHUNK / 4;
// Number of keys per lane where a warp processes a row of scores.
constexpr int KEYS = (PADDED + 31) / 32;
static_assert(CHUNK % 4 == 0 && THREADS >= 8 * TILES && THREADS % 32 == 0, "every tile of values has a thread");

struct Params {
    // `[windows * N, 3 * heads * D]`.
    const f32* qkv;
    // `[heads, N, N]`.
    const f32* bias;
    // `[mask_windows, N, N]`, or null.
    const f32* mask;
    // Backward: gradient of the output, `[windows * N, heads * D]`.
    const f32* grad;
    // Forward: the output, `[windows * N, heads * D]`; backward: the gradient of `qkv`.
    f32* out;
    // Backward: gradients of the bias, summed over the windows of a part, `[parts, heads, N, N]`.
    f32* dbias;
    // Backward: gradients of the scales, in the order of `steps`, `[parts, heads, 5]`.
    f32* dsteps;
    s32 windows, heads, mask_windows, parts;
    f32 scale;
    // Scales of queries, keys, values, scores and probabilities.
    Step steps[5];
};

INLINE u32 warp_index() { return thread_index() / WARP; }
INLINE s32 lane_index() { return static_cast<s32>(thread_index() % WARP); }

// One head of one window.
struct Head {
    const f32* q;
    const f32* bias;
    // Null if no window is masked.
    const f32* mask;
    // Floats from one row of qkv to the next, and from queries to keys.
    u64 width;
    s32 channels;
};

INLINE Head head_of(const Params& p, s32 window, s32 head) {
    s32 channels = p.heads * D;
    u64 width = 3 * static_cast<u64>(channels);
    const f32* mask = p.mask == nullptr ? nullptr : p.mask + static_cast<u64>(window % p.mask_windows) * (N * N);
    return Head{p.qkv + static_cast<u64>(window) * N * width + head * D, p.bias + static_cast<u64>(head) * (N * N), mask,
                width, channels};
}

// Copies `count` rows from row `first` of a window on into shared memory, fake-quantized if their site is on.
// Rows beyond the window become zeros.
template <bool on>
INLINE void load_rows(f32* to, const f32* from, u64 width, s32 first, s32 count, const Step& step) {
    for (s32 i = thread_index(); i < count * (D / 4); i += THREADS) {
        s32 row = first + i / (D / 4), at = 4 * (i % (D / 4));
        f32 x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (row < N) load_values(x, from + row * width + at);
        if (on) {
#pragma unroll
            for (int k = 0; k < 4; k++) x[k] = rounded(x[k], step);
        }
        store_values(to + i / (D / 4) * ROW + at, x);
    }
}

// Computes the products of all rows of a chunk with all rows of the window, `[CHUNK, STRIDE]`.
INLINE void dot_rows(f32* out, const f32* chunk, const f32* all) {
    for (s32 tile = thread_index(); tile < CHUNK_TILES * TILES; tile += THREADS) {
        s32 i = tile / TILES, j = tile % TILES;
        f32 sums[4][4] = {};
#pragma unroll
        for (s32 at = 0; at < D; at += 4) {
            f32 y[4][4];
#pragma unroll
            for (int b = 0; b < 4; b++) load_values(y[b], all + (j + b * TILES) * ROW + at);
#pragma unroll
            for (int a = 0; a < 4; a++) {
                f32 x[4];
                load_values(x, chunk + (i + a * CHUNK_TILES) * ROW + at);
#pragma unroll
                for (int b = 0; b < 4; b++) {
#pragma unroll
                    for (int k = 0; k < 4; k++) sums[a][b] = fma_f32(x[k], y[b][k], sums[a][b]);
                }
            }
        }
#pragma unroll
        for (int a = 0; a < 4; a++) {
#pragma unroll
            for (int b = 0; b < 4; b++) out[(i + a * CHUNK_TILES) * STRIDE + j + b * TILES] = sums[a][b];
        }
    }
}

// Multiplies rows `tile + k * CHUNK_TILES` of a chunk's weights `[CHUNK, STRIDE]` with the rows of a window,
// for four channels from `at` on.
INLINE void mix_rows(f32 (&sums)[4][4], const f32* weights, const f32* rows, s32 tile, s32 at) {
#pragma unroll 2
    for (s32 j = 0; j < PADDED; j += 4) {
        f32 w[4][4];
#pragma unroll
        for (int a = 0; a < 4; a++) load_values(w[a], weights + (tile + a * CHUNK_TILES) * STRIDE + j);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            f32 x[4];
            load_values(x, rows + (j + k) * ROW + at);
#pragma unroll
            for (int a = 0; a < 4; a++) {
#pragma unroll
                for (int b = 0; b < 4; b++) sums[a][b] = fma_f32(w[a][k], x[b], sums[a][b]);
            }
        }
    }
}

// Intermediate values of a row of scores, which a warp computes with `KEYS` elements per lane; elements
// beyond the window are 0.
struct Row {
    // The sums `q . k`, the softmax (kind u8: the exponentials), and the weights of the values before
    // `factor`.
    f32 scores[KEYS], soft[KEYS], probs[KEYS];
    // Factor of the product with the values.
    f32 factor;
};

INLINE s32 key_of(int i) { return lane_index() + 32 * i; }

INLINE void softmax_row(const Params& p, const Head& head, const f32* scores, s32 query, Row& row) {
    f32 highest = from_bits(0xff800000u), total = 0.0f;
#pragma unroll
    for (int i = 0; i < KEYS; i++) {
        s32 key = key_of(i);
        row.scores[i] = row.soft[i] = 0.0f;
        if (key < N) {
            row.scores[i] = scores[key];
            f32 score = SITES & 8 ? rounded(row.scores[i], p.steps[3]) : row.scores[i];
            f32 added = head.bias[query * N + key];
            if (head.mask != nullptr) added = added + head.mask[query * N + key];
            row.soft[i] = fma_f32(score, p.scale, added);
            highest = max_f32(highest, row.soft[i]);
        }
    }
    highest = warp_max(highest);
#pragma unroll
    for (int i = 0; i < KEYS; i++) {
        f32 below = row.soft[i] - highest, floor = from_bits(FLOOR_BITS);
        row.soft[i] = key_of(i) < N ? exp_below(floor > below ? floor : below) : 0.0f;
        row.probs[i] = PROBS == PROBS_U8 ? rint_f32(255.0f * row.soft[i]) : row.soft[i];
        total = total + row.probs[i];
    }
    row.factor = div_f32(1.0f, warp_sum(total));
    if constexpr (PROBS != PROBS_U8) {
#pragma unroll
        for (int i = 0; i < KEYS; i++) {
            row.soft[i] = row.soft[i] * row.factor;
            row.probs[i] = PROBS == PROBS_S8 ? rounded(row.soft[i], p.steps[4]) : row.soft[i];
        }
        row.factor = 1.0f;
    }
}
