// The epilogue of a matrix product, on eight consecutive columns of one row: from sums to the values that the
// plan stores (`reference::epilogue_i8`, `reference::epilogue_f32`). The GEMM kernels use it, and so does
// `dequant.cu`, which runs after a GEMM of cuBLASLt.
//
// Defines: INTEGER (sums are those of INT8 operands), OUTPUT (the layer has an `.output` site), GELU (0: none; with an
// f32 stream GELU_ERF or GELU_QUADRATIC), FAKE
// (quantize and dequantize before a float store), CHANNELS (codes, also those of FAKE, have a scale and a zero
// point for each column), CORRECTED (the INT8 operand has zero points), STORE (one of the STORE_ constants),
// STREAM_F32 (1: the residual stream is f32; 0: f16); NUMBERS, if no value that is quantized can be a NaN;
// WHOLE (the number of columns is a multiple of 8); HALF_GELU (GELU and its codes in packed halves; needs INTEGER,
// GELU, STORE_CODES and WHOLE, without OUTPUT); HEADS (columns are the queries, keys and values of heads
// of 32 channels, and queries and keys are normalised as in `heads.cu`; needs STORE_CODES and WHOLE, without GELU and
// CHANNELS, and a warp whose groups of four lanes have the 32 columns of one head, and which calls `finish8` as a whole).
#pragma once

#include "cosine.cuh"

#define STORE_CODES 0
#define STORE_HALF 1
#define STORE_FLOAT 2
#define STORE_RESIDUAL 3

struct Epilogue {
    // Per column: s_x * s_w for INT8 operands, multiplied by the reciprocal of the `.output` site's scale if
    // there is one. For float operands: that reciprocal. With HALF_GELU, scale and bias are halved, because
    // GELU begins with x / 2.
    const f32* scale;
    // Per column.
    const f32* bias;
    // Per column: reciprocal of the output scale (STORE_CODES, or CHANNELS). Without CHANNELS each aligned
    // group of eight columns has one scale. With CHANNELS and HALF_GELU: `HalfCodes` of every two columns.
    const f32* recip;
    // Per column: zero point, a whole number, and output scale (CHANNELS without HALF_GELU).
    const f32* zero_point;
    const f32* step;
    // Per column: subtracted from the sum (CORRECTED).
    const s32* correction;
    // Bit h is set if the queries and keys of head h have two codes for each value (HEADS).
    u64 two_codes;
    // Token that each row of one image is written to, PAD for padding (STORE_RESIDUAL); null if row r is
    // token r.
    const u32* map;
    // Output: s8, f16 or f32 `[rows, stride]`, or the residual stream `[tokens, stride]`.
    void* out;
    // Number of columns.
    s32 n;
    // Elements from one row of `out` to the next.
    s32 stride;
    // Number of rows and of tokens of one image (STORE_RESIDUAL with a map).
    s32 map_rows, map_tokens;
    // Number of heads (HEADS).
    s32 heads;
    // Scale of the `.output` site.
    f32 output_scale;
    // Reciprocal and value of the scale for FAKE.
    f32 fake_recip, fake_scale;
};

#if HEADS
constexpr s32 HEAD_DIM = 32;
#endif

#if STREAM_F32
typedef f32 Stream;
#else
typedef u16 Stream;
#endif

// Epilogue constants of eight columns.
struct Columns {
    f32 scale[8], bias[8];
#if CHANNELS && HALF_GELU
    // `HalfCodes` of every two columns. They are read where they are used, because registers are few.
    const f32* codes;
#elif CHANNELS
    f32 recip[8], zero_point[8];
#if FAKE
    f32 step[8];
#endif
#elif STORE == STORE_CODES
    f32 recip;
#endif
#if CORRECTED
    s32 correction[8];
#endif
};

// Loads the constants that only CHANNELS and CORRECTED need. Arrays are padded to full groups of 32 columns, so
// reading eight elements inside a group is always in bounds.
INLINE void load_channels(Columns& columns, const Epilogue& e, s32 column) {
#if CHANNELS && HALF_GELU
    columns.codes = e.recip + column;
#elif CHANNELS
    load8(columns.recip, e.recip + column);
    load8(columns.zero_point, e.zero_point + column);
#if FAKE
    load8(columns.step, e.step + column);
#endif
#endif
#if CORRECTED
#pragma unroll
    for (int i = 0; i < 8; i++) columns.correction[i] = e.correction[column + i];
#endif
}

INLINE void load_columns(Columns& columns, const Epilogue& e, s32 column) {
#if INTEGER || OUTPUT
    load8(columns.scale, e.scale + column);
#endif
    load8(columns.bias, e.bias + column);
#if STORE == STORE_CODES && !CHANNELS
    columns.recip = e.recip[column];
#endif
    load_channels(columns, e, column);
}

// The sum of column i of eight, without the zero points of the operand. It is exact in s32.
template <typename Sum>
INLINE Sum corrected(Sum sum, const Columns& columns, int i) {
#if CORRECTED
    return sum - columns.correction[i];
#else
    return sum;
#endif
}

INLINE f32 finish_value(f32 sum, f32 scale, f32 bias, const Epilogue& e, const f32* tail) {
#if OUTPUT
    f32 y = fma_f32(code_f32(sum * scale), e.output_scale, bias);
#elif INTEGER
    f32 y = fma_f32(sum, scale, bias);
#else
    f32 y = sum + bias;
#endif
#if GELU && STREAM_F32
    y = gelu_of_layer(y, tail);
#elif GELU && NUMBERS && STORE == STORE_CODES
    y = gelu_fast(y, max_f32(y, 0.0f));
#elif GELU
    y = gelu_fast(y);
#endif
    return y;
}

// Row of `out` that `row` is written to; PAD if it is not written.
INLINE u32 destination(const Epilogue& e, u32 row) {
#if STORE == STORE_RESIDUAL
    if (e.map == nullptr) return row;
    u32 image = row / e.map_rows;
    u32 token = e.map[row - image * e.map_rows];
    return token == PAD ? PAD : image * e.map_tokens + token;
#else
    return row;
#endif
}

// Stores one value, if columns do not form full groups of eight.
INLINE void store_one(const Epilogue& e, u64 at, f32 y) {
#if STORE == STORE_CODES
    static_cast<s8*>(e.out)[at] = static_cast<s8>(static_cast<s32>(code_f32(y)));
#elif STORE == STORE_HALF
    static_cast<u16*>(e.out)[at] = f32_to_half(y);
#elif STORE == STORE_FLOAT
    static_cast<f32*>(e.out)[at] = y;
#else
    Stream* stream = static_cast<Stream*>(e.out);
#if STREAM_F32
    stream[at] = y + stream[at];
#else
    stream[at] = f32_to_half(y + half_to_f32(stream[at]));
#endif
#endif
}

#if !HALF_GELU
// Turns the sums of eight columns into the values to store (for STORE_CODES: multiplied by the reciprocal of
// the scale, plus the zero point).
INLINE void finish_values(const Epilogue& e, const Columns& columns, f32 (&y)[8], const f32* tail) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        y[i] = finish_value(y[i], columns.scale[i], columns.bias[i], e, tail);
#if CHANNELS
        y[i] = fma_f32(y[i], columns.recip[i], columns.zero_point[i]);
#if FAKE
        y[i] = (code_f32(y[i]) - columns.zero_point[i]) * columns.step[i];
#endif
#else
#if FAKE
        y[i] = fake(y[i], e.fake_recip, e.fake_scale);
#endif
#if STORE == STORE_CODES
        y[i] = y[i] * columns.recip;
#endif
#endif
    }
}
#endif

#if STORE == STORE_CODES
// The codes of eight values that are already multiplied by the reciprocal of their scale.
INLINE u32x2 codes_of_eight(const f32 (&y)[8]) {
#if NUMBERS
    return u32x2{codes_of_numbers(y[0], y[1], y[2], y[3]), codes_of_numbers(y[4], y[5], y[6], y[7])};
#else
    return u32x2{codes_s8x4(y[0], y[1], y[2], y[3]), codes_s8x4(y[4], y[5], y[6], y[7])};
#endif
}

// The codes of the sums of eight columns, four in a word.
INLINE u32x2 codes8(const Epilogue& e, const Columns& columns, f32 (&y)[8], const f32* tail) {
#if HALF_GELU
#if !CHANNELS
    u32 recip = pack_half2(columns.recip, columns.recip);
#endif
    u32 codes[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        f32 low = fma_f32(y[2 * i], columns.scale[2 * i], columns.bias[2 * i]);
        f32 high = fma_f32(y[2 * i + 1], columns.scale[2 * i + 1], columns.bias[2 * i + 1]);
        u32 gelu = gelu_half2(pack_half2_finite(low, high));
#if CHANNELS
        u32x2 of = *reinterpret_cast<const u32x2*>(columns.codes + 2 * i);
        codes[i] = codes_half2(gelu, HalfCodes{of.x, of.y});
#else
        codes[i] = codes_half2(gelu, recip);
#endif
    }
    return u32x2{byte_permute(codes[0], codes[1], 0x6420), byte_permute(codes[2], codes[3], 0x6420)};
#else
    finish_values(e, columns, y, tail);
    return codes_of_eight(y);
#endif
}
#endif

#if HEADS
// The reciprocal of the length of a head's vector, of which this lane holds channels 8 l to 8 l + 7 for l = lane % 4.
INLINE f32 inverse_length(const f32 (&x)[8]) {
#if STREAM_F32
    // The order of the sums is that of `reference::inverse_length`: channels c and c + 16 first, then sums that are 8
    // and 4 channels apart.
    bool upper = thread_index() % 4 >= 2;
    f32 sum[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        f32 own = upper ? x[i] : x[i] * x[i], other = shuffle_xor(own, 2);
        f32 factor = upper ? own : other;
        sum[i] = fma_f32(factor, factor, upper ? other : own);
        sum[i] = sum[i] + shuffle_xor(sum[i], 1);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) sum[i] = sum[i] + sum[i + 4];
    f32 length = sqrt_f32((sum[0] + sum[2]) + (sum[1] + sum[3]));
    return div_f32(1.0f, length < 1e-12f ? 1e-12f : length);
#else
    return inverse_length_fast(x);
#endif
}

// The number of set bits of `mask` below bit `index`.
INLINE s32 bits_below(u64 mask, s32 index) { return count_bits(mask & ((static_cast<u64>(1) << index) - 1)); }

// Turns the sums of eight channels of a vector into their codes, for ROWS rows `targets`, and stores them where `there`;
// also the low codes of queries and keys if the head has them. Vector `slot` is the query, key or value of head
// slot % heads, and must be the same for the whole warp, in a way that the compiler sees: it serialises asynchronous
// products around a branch that may diverge.
template <int ROWS>
INLINE void finish_heads(const Epilogue& e, const Columns& columns, const bool (&there)[ROWS], const u32 (&targets)[ROWS],
                         s32 slot, f32 (&y)[ROWS][8], const f32* tail) {
    s32 channel = 8 * static_cast<s32>(thread_index() % 4), column = HEAD_DIM * slot + channel;
    f32 inverse[ROWS];
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        inverse[row] = 1.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) y[row][i] = finish_value(y[row][i], columns.scale[i], columns.bias[i], e, tail);
    }
    if (slot < 2 * e.heads) {
#pragma unroll
        for (int row = 0; row < ROWS; row++) inverse[row] = inverse_length(y[row]);
    }
    f32 rounded[ROWS][8];
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
#pragma unroll
#if STREAM_F32
        for (int i = 0; i < 8; i++) y[row][i] = y[row][i] * inverse[row] * columns.recip;
#else
        for (int i = 0; i < 8; i++) y[row][i] = y[row][i] * (inverse[row] * columns.recip);
#endif
        u32x2 codes = codes_and_rounded(y[row], rounded[row]);
        s8* out = static_cast<s8*>(e.out) + static_cast<u64>(targets[row]) * e.stride;
        if (there[row]) *reinterpret_cast<u32x2*>(out + column) = codes;
    }
    s32 head = slot < e.heads ? slot : slot - e.heads;
    if (slot >= 2 * e.heads || (e.two_codes >> head & 1) == 0) return;
    // The low codes follow the values: all of the queries, then all of the keys.
    s32 before = bits_below(e.two_codes, head) + (slot < e.heads ? 0 : count_bits(e.two_codes));
    s32 low = HEAD_DIM * (3 * e.heads + before) + channel;
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        u32x2 codes = low_codes(y[row], rounded[row]);
        s8* out = static_cast<s8*>(e.out) + static_cast<u64>(targets[row]) * e.stride;
        if (there[row]) *reinterpret_cast<u32x2*>(out + low) = codes;
    }
}
#endif

// Finishes the eight sums of columns `column..column + 8`, and stores them in row `target` if `there` and if the
// columns exist. `target` may be anything otherwise. With WHOLE, only the store depends on a condition, so that
// the compiler can interleave the arithmetic of several calls.
INLINE void finish8(const Epilogue& e, const Columns& columns, bool there, u32 target, s32 column, f32 (&y)[8],
                    const f32* tail) {
#if !HEADS
    u64 at = static_cast<u64>(target) * e.stride + column;
#endif
#if !WHOLE
    finish_values(e, columns, y, tail);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (there && column + i < e.n) store_one(e, at + i, y[i]);
    }
#else
    there = there && column < e.n;
#if HEADS
    const bool of_row[1] = {there};
    const u32 targets[1] = {target};
    f32 row[1][8];
#pragma unroll
    for (int i = 0; i < 8; i++) row[0][i] = y[i];
    finish_heads(e, columns, of_row, targets, column / HEAD_DIM, row, tail);
#elif STORE == STORE_CODES
    u32x2 codes = codes8(e, columns, y, tail);
    if (there) *reinterpret_cast<u32x2*>(static_cast<s8*>(e.out) + at) = codes;
#else
    finish_values(e, columns, y, tail);
#if STORE == STORE_HALF
    if (there) store8(static_cast<u16*>(e.out) + at, y);
#elif STORE == STORE_FLOAT
    if (there) store8(static_cast<f32*>(e.out) + at, y);
#else
    Stream* stream = static_cast<Stream*>(e.out) + at;
    if (there) {
        f32 old[8];
        load8(old, stream);
#pragma unroll
        for (int i = 0; i < 8; i++) y[i] = y[i] + old[i];
        store8(stream, y);
    }
#endif
#endif
#endif
}
