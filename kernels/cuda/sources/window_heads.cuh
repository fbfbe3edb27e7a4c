// Attention of one head of a window: keys and values into shared memory, queries, probabilities and the
// weighted values.
#pragma once

#include "window.cuh"

// Codes of a warp's rows of a head's queries or keys: words [half][0] and [half][1] are the eight of row
// lane / 4 + 8 half.
struct VectorCodes {
    u32 words[2][2];
#if HI_LO
    // The lo codes, of heads that have them.
    u32 low[2][2];
#endif
};

#if HI_LO
INLINE bool has_low_codes(const Params& p, int head) { return p.hi_lo >> head & 1; }
#endif

#if COSINE

// Normalises and quantizes the vectors whose sums are `sums`. The vector of a row is in four lanes.
INLINE VectorCodes vector_codes(const Params& p, const s32 (&sums)[4][4], const Columns& columns, f32 recip, int head,
                                const Place& at) {
    f32 scale[8], bias[8];
    load8(scale, columns + 8 * (at.lane % 4));
    load8(bias, columns + 32 + 8 * (at.lane % 4));
    VectorCodes codes = {};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (!at.has(half)) continue;
        f32 y[8], rounded[8];
#pragma unroll
        for (int i = 0; i < 8; i++) y[i] = fma_f32(to_f32(sums[i / 2][2 * half + i % 2]), scale[i], bias[i]);
        f32 factor = inverse_length_fast(y) * recip;
#pragma unroll
        for (int i = 0; i < 8; i++) y[i] = y[i] * factor;
        u32x2 words = codes_and_rounded(y, rounded);
        codes.words[half][0] = words.x, codes.words[half][1] = words.y;
#if HI_LO
        if (!has_low_codes(p, head)) continue;
        u32x2 low = lo_codes(y, rounded);
        codes.low[half][0] = low.x, codes.low[half][1] = low.y;
#endif
    }
    return codes;
}

#else

// Quantizes the vectors whose sums are `sums`.
INLINE VectorCodes vector_codes(const Params&, const s32 (&sums)[4][4], const Columns& columns, f32, int, const Place& at) {
    f32 scale[8], bias[8];
    load8(scale, columns + 8 * (at.lane % 4));
    load8(bias, columns + 32 + 8 * (at.lane % 4));
    VectorCodes codes = {};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (!at.has(half)) continue;
        f32 y[8];
#pragma unroll
        for (int i = 0; i < 8; i++) y[i] = fma_saturated_f32(to_f32(sums[i / 2][2 * half + i % 2]), scale[i], bias[i]);
        codes.words[half][0] = codes_of_shares(y[0], y[1], y[2], y[3]);
        codes.words[half][1] = codes_of_shares(y[4], y[5], y[6], y[7]);
    }
    return codes;
}

#endif

// The warp's keys of a head.
INLINE void write_keys(const Params& p, const Constants& constants, Exchange& exchange, const Rows& rows, int head,
                       const Place& at) {
    s32 sums[4][4] = {};
    multiply_columns(sums, 0, constants.qkv[head][1][0], rows, at.lane);
    multiply_columns(sums, 2, constants.qkv[head][1][1], rows, at.lane);
    VectorCodes codes = vector_codes(p, sums, constants.key[head], p.key_recip, head, at);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        exchange.keys[2 * at.tile + half][at.lane] = u32x2{codes.words[half][0], codes.words[half][1]};
#if HI_LO
        exchange.low_keys[2 * at.tile + half][at.lane] = u32x2{codes.low[half][0], codes.low[half][1]};
#endif
    }
}

// The warp's values of a head. The product is that of the weight with the transposed rows, so that a lane has
// several tokens of a channel: the registers of the left operand of 16 rows are those of the right operand of
// two tiles of 8 rows.
INLINE void write_values(const Constants& constants, Exchange& exchange, const Rows& rows, int head, const Place& at) {
#pragma unroll
    for (int part = 0; part < 2; part++) {
        s32 sums[2][4] = {};
#pragma unroll
        for (int step = 0; step < HEADS; step++) {
            u32x4 w = *reinterpret_cast<const u32x4*>(constants.qkv[head][2][part][step] + 16 * at.lane);
            const u32 weight[4] = {w.x, w.y, w.z, w.w};
            const u32 low[2] = {rows[step][0], rows[step][2]}, high[2] = {rows[step][1], rows[step][3]};
            mma_s8(sums[0], weight, low);
            mma_s8(sums[1], weight, high);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 tile = 2 * part + half;
            f32x2 column = constants.value[head][8 * tile + at.lane / 4];
            f32 y[4];
#pragma unroll
            for (int i = 0; i < 4; i++) y[i] = fma_saturated_f32(to_f32(sums[i / 2][2 * half + i % 2]), column.x, column.y);
            u32* word = reinterpret_cast<u32*>(&exchange.values[tile][at.lane]) + at.tile;
            *word = codes_of_shares(y[0], y[1], y[2], y[3]);
        }
    }
}

// The warp's queries of a head, as the left operand of a product.
struct Queries {
    u32 codes[4];
#if HI_LO
    u32 low[4];
#endif
};

INLINE void queries_of(const Params& p, const Constants& constants, const Rows& rows, int head, const Place& at, Queries& q) {
    s32 sums[4][4] = {};
    multiply_columns(sums, 0, constants.qkv[head][0][0], rows, at.lane);
    multiply_columns(sums, 2, constants.qkv[head][0][1], rows, at.lane);
    VectorCodes codes = vector_codes(p, sums, constants.query[head], p.query_recip, head, at);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        q.codes[i] = codes.words[i % 2][i / 2];
#if HI_LO
        q.low[i] = codes.low[i % 2][i / 2];
#endif
    }
}

// The logits of the warp's queries, without the mask. LOW: the head has lo codes.
template <bool LOW>
INLINE void logits_of(const Constants& constants, const Exchange& exchange, const Queries& q, int head, const Place& at,
                      Logits& x) {
    f32 scale = constants.logit_scales[head];
#pragma unroll
    for (int t = 0; t < KEY_TILES; t++) {
        s32 sums[4] = {};
        u32x2 k = exchange.keys[t][at.lane], bias = constants.bias[head][at.tile][t][at.lane];
        const u32 keys[2] = {k.x, k.y}, halves[2] = {bias.x, bias.y};
        mma_s8(sums, q.codes, keys);
        f32 products[4];
#pragma unroll
        for (int i = 0; i < 4; i++) products[i] = to_f32(sums[i]);
#if HI_LO
        if constexpr (LOW) {
            s32 low[4] = {};
            u32x2 word = exchange.low_keys[t][at.lane];
            const u32 low_keys[2] = {word.x, word.y};
            mma_s8(low, q.codes, low_keys);
            mma_s8(low, q.low, keys);
#pragma unroll
            for (int i = 0; i < 4; i++) products[i] = with_lo_codes(sums[i], low[i]);
        }
#endif
#pragma unroll
        for (int i = 0; i < 4; i++) {
            f32 of_pair = half_to_f32(static_cast<u16>(halves[i / 2] >> (16 * (i % 2))));
            x[t][i] = fma_f32(products[i], scale, of_pair);
        }
    }
}

// Attention of the warp's queries: the codes of the head's 32 channels of its rows.
INLINE void attend(const Params& p, const Constants& constants, const Exchange& exchange, const Queries& q, int head,
                   const Place& at, u32 (&out)[4]) {
    Logits x;
#if HI_LO
    if (has_low_codes(p, head)) {
        logits_of<true>(constants, exchange, q, head, at, x);
    } else {
        logits_of<false>(constants, exchange, q, head, at, x);
    }
#else
    logits_of<false>(constants, exchange, q, head, at, x);
#endif
    if (any_lane(at.masked[0] | at.masked[1])) {
#pragma unroll
        for (int i = 0; i < 4 * KEY_TILES; i++) {
            if (at.masked[i / 2 % 2] >> (2 * (i / 4) + i % 2) & 1) x[i / 4][i % 4] = x[i / 4][i % 4] + MASK;
        }
    }
    ProbabilityCodes words = {};
    f32 factor[2] = {};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (at.has(half)) factor[half] = div_f32(p.value_scale, to_f32(probabilities_u8(x, half, words)));
    }
    s32 sums[4][4] = {};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        u32x4 v = exchange.values[j][at.lane];
        const u32 low[2] = {v.x, v.y}, high[2] = {v.z, v.w};
        mma_u8s8(sums[j], words[0], low);
        mma_u8s8(sums[j], words[1], high);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        out[half] = out[2 + half] = 0;
        if (!at.has(half)) continue;
        f32 y[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            y[i] = fma_saturated_f32(to_f32(sums[i / 2][2 * half + i % 2]), factor[half], SHARE_OF_ZERO);
        }
        out[half] = codes_of_shares(y[0], y[1], y[2], y[3]);
        out[2 + half] = codes_of_shares(y[4], y[5], y[6], y[7]);
    }
}
