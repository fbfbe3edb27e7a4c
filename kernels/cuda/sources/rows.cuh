// Rows gathered from the residual stream, and how they are stored. A row has one source token (shift and
// window partition) or four (merging of 2 x 2 tokens).
//
// Defines: THREADS, PIECES (source tokens of a row: 1 or 4), STORE (STORE_CODES, STORE_HALF, STORE_FLOAT),
// FAKE (quantize and dequantize before a float store); EXACT for f32 input, which is f16 otherwise.
#pragma once

#include "prelude.cuh"

#define STORE_CODES 0
#define STORE_HALF 1
#define STORE_FLOAT 2

struct Params {
    // The residual, `[images * tokens, columns / PIECES]`; with ADD the branch, `[images * rows, columns]`.
    const void* input;
    // Tokens of each row of one image, `[rows, PIECES]`, PAD for padding; null if row r is token r.
    const u32* map;
    // Null for `rows`.
    const f32* gamma;
    const f32* beta;
    // `[images * rows, stride]`; with ADD the residual, `[images * tokens, columns]`.
    void* out;
    // Set to 1 if f16 input holds a value that is not finite; not used for f32.
    u32* overflow;
    // With ADD_CODES: the codes of the residual, `[images * tokens, stride]`, null if none are stored; and
    // the row of each token of one image, null if token t is row t.
    s8* codes;
    const u32* code_rows;
    // Number of rows of all images.
    s32 total_rows;
    // Number of rows and of tokens of one image.
    s32 rows, tokens;
    // Number of columns of a row, over all pieces.
    s32 columns;
    // Elements from one row of `out`, or of `codes`, to the next.
    s32 stride;
    f32 epsilon;
    // Reciprocal of the output scale, and the output scale itself.
    f32 recip, scale;
};

// The value to store for `y`.
INLINE f32 stored(const Params& p, f32 y) {
#if STORE == STORE_CODES
    return y * p.recip;
#elif FAKE
    return fake(y, p.recip, p.scale);
#else
    return y;
#endif
}

// Stores four values from `at` on.
INLINE void store_values(const Params& p, u64 at, const f32 (&values)[4]) {
    const f32 y[4] = {stored(p, values[0]), stored(p, values[1]), stored(p, values[2]), stored(p, values[3])};
#if STORE == STORE_CODES
    *reinterpret_cast<u32*>(static_cast<s8*>(p.out) + at) = codes_s8x4(y[0], y[1], y[2], y[3]);
#elif STORE == STORE_HALF
    *reinterpret_cast<u32x2*>(static_cast<u16*>(p.out) + at) = u32x2{pack_half2(y[0], y[1]), pack_half2(y[2], y[3])};
#else
    *reinterpret_cast<f32x4*>(static_cast<f32*>(p.out) + at) = f32x4{y[0], y[1], y[2], y[3]};
#endif
}

// Stores eight values from `at` on.
INLINE void store_values(const Params& p, u64 at, f32 (&y)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) y[i] = stored(p, y[i]);
#if STORE == STORE_CODES
    store8(static_cast<s8*>(p.out) + at, y);
#elif STORE == STORE_HALF
    store8(static_cast<u16*>(p.out) + at, y);
#else
    store8(static_cast<f32*>(p.out) + at, y);
#endif
}

// Index in the residual, over all images, of the token for piece `piece` of row `row`; PAD for padding.
INLINE u32 source(const Params& p, u32 row, s32 piece) {
    if (p.map == nullptr) return row;
    u32 image = row / p.rows;
    u32 token = p.map[(row - image * p.rows) * PIECES + piece];
    return token == PAD ? PAD : image * p.tokens + token;
}

#if defined(EXACT)
typedef f32 Value;
#else
typedef u16 Value;
#endif
// Columns that are read at once, in 16 bytes.
constexpr int AT_ONCE = 16 / sizeof(Value);

