// The epilogue of a matrix product: what happens to the sums of eight consecutive columns of a row. The GEMM
// kernels use it, and so does `dequant.cu`, which runs after a GEMM of cuBLASLt. `reference::epilogue_i8` and
// `reference::epilogue_f32` define it.
//
// These are the steps, in their order. The words in capitals are options: 0 or 1, unless stated.
//
// 1. `corrected`. CORRECTED: the INT8 operand has zero points, whose term is subtracted from the sum.
// 2. `layer_value`. INTEGER: operands are INT8, and the sum is multiplied by their scales. OUTPUT: the layer
//    has an `.output` site, which quantizes and dequantizes the product. Then the bias is added.
// 3. `activated`. GELU: 0 for none; with an f32 residual GELU_ERF or GELU_QUADRATIC; with an f16 residual an
//    approximation.
// 4. `quantized`, if codes are stored: division by their scale. CHANNELS: each column has its own scale and
//    zero point. FAKE: the value is also dequantized, and stored as a float.
// 5. The store: `codes_of_eight`, `store_floats` or `add8`; without WHOLE (the number of columns is a
//    multiple of 8) `store_one`. STORE: STORE_CODES, STORE_HALF, STORE_FLOAT, or STORE_RESIDUAL, which adds
//    to the residual stream, in the row that `destination` returns. RESIDUAL_F32: the residual is f32; else
//    f16.
//
// `finish8` is the whole, from step 2 on. Two options replace steps:
//
// - HALF_GELU: `codes_in_halves` for steps 2 to 4, in packed halves. It needs INTEGER, GELU, STORE_CODES and
//   WHOLE, without OUTPUT.
// - HEADS: `finish_heads` for steps 4 and 5. Columns are the queries, keys and values of heads of 32
//   channels, and queries and keys are normalised as in `qk_norm.cu`. It needs STORE_CODES and WHOLE, without
//   GELU and CHANNELS, and a warp whose groups of four lanes have the 32 columns of one head, and which calls
//   `finish8` as a whole.
//
// A kernel defines NUMBERS as 1 if no value that is quantized can be a NaN.
//
// On the host, `LinearKind` (kind.rs) has the options and defines them, and `EpilogueArrays` (epilogue.rs)
// has the constants. A new option is a field of `LinearKind`, a line above and an `if constexpr` in its step.
// A new constant is a field of `Epilogue`, which `EpilogueArrays::params` sets, and of `Columns` if each
// column has its own.
#pragma once

#include "cosine.cuh"

#define STORE_CODES 0
#define STORE_HALF 1
#define STORE_FLOAT 2
#define STORE_RESIDUAL 3

#if !defined(NUMBERS)
#define NUMBERS 0
#endif

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
    // Bit h is set if the queries and keys of head h have hi and lo codes for each value (HEADS).
    u64 hi_lo;
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

constexpr s32 HEAD_DIM = 32;
// Whether step 3 reads a table in shared memory, which `load_gelu` fills.
constexpr bool GELU_TABLE = GELU && RESIDUAL_F32;

#if RESIDUAL_F32
typedef f32 Residual;
#else
typedef u16 Residual;
#endif

// The constants of eight columns. Constants for steps that are off are not set.
struct Columns {
    f32 scale[8], bias[8], recip[8], zero_point[8], step[8];
    s32 correction[8];
    // `HalfCodes` of every two columns. They are read where they are used, because registers are few.
    const f32* half_codes;
};

// Loads the constants of columns `column..column + 8` from the arrays `from`: those of `Epilogue`, or copies.
template <typename Arrays>
INLINE void load_columns(Columns& columns, const Arrays& from, s32 column) {
    if constexpr (INTEGER || OUTPUT) load8(columns.scale, from.scale + column);
    load8(columns.bias, from.bias + column);
    if constexpr (CHANNELS && HALF_GELU) columns.half_codes = from.recip + column;
    if constexpr (STORE == STORE_CODES && !CHANNELS) {
        columns.recip[0] = from.recip[column];
#pragma unroll
        for (int i = 1; i < 8; i++) columns.recip[i] = columns.recip[0];
    }
}

// Whether there are constants that `load_channels` loads.
constexpr bool MORE_CONSTANTS = (CHANNELS && !HALF_GELU) || CORRECTED;

// Loads the constants that only CHANNELS and CORRECTED need. Arrays are padded to full groups of 32 columns,
// so reading eight elements inside a group is always in bounds.
INLINE void load_channels(Columns& columns, const Epilogue& e, s32 column) {
    if constexpr (CHANNELS && !HALF_GELU) {
        load8(columns.recip, e.recip + column);
        load8(columns.zero_point, e.zero_point + column);
        if constexpr (FAKE) load8(columns.step, e.step + column);
    }
    if constexpr (CORRECTED) {
#pragma unroll
        for (int i = 0; i < 8; i++) columns.correction[i] = e.correction[column + i];
    }
}

// Row of `out` that `row` is written to; PAD if it is not written.
INLINE u32 destination(const Epilogue& e, u32 row) {
    if constexpr (STORE == STORE_RESIDUAL) {
        if (e.map == nullptr) return row;
        u32 image = row / e.map_rows;
        u32 token = e.map[row - image * e.map_rows];
        return token == PAD ? PAD : image * e.map_tokens + token;
    } else {
        return row;
    }
}

// Step 1, for column i of eight. The result is exact in s32.
template <typename Sum>
INLINE Sum corrected(Sum sum, const Columns& columns, int i) {
    if constexpr (CORRECTED) return sum - columns.correction[i];
    return sum;
}

// Step 2.
INLINE f32 layer_value(f32 sum, const Columns& columns, int i, const Epilogue& e) {
    if constexpr (OUTPUT) return fma_f32(code_f32(sum * columns.scale[i]), e.output_scale, columns.bias[i]);
    if constexpr (INTEGER) return fma_f32(sum, columns.scale[i], columns.bias[i]);
    return sum + columns.bias[i];
}

// Step 3. `tail` is the table of GELU.
INLINE f32 activated(f32 y, const f32* tail) {
    if constexpr (GELU_TABLE) return gelu_of_layer(y, tail);
    if constexpr (GELU && NUMBERS && STORE == STORE_CODES) return gelu_fast(y, max_f32(y, 0.0f));
    if constexpr (GELU != 0) return gelu_fast(y);
    return y;
}

// Step 4. The result for STORE_CODES is not rounded yet.
INLINE f32 quantized(f32 y, const Columns& columns, int i, const Epilogue& e) {
    if constexpr (CHANNELS) {
        y = fma_f32(y, columns.recip[i], columns.zero_point[i]);
        return FAKE ? (code_f32(y) - columns.zero_point[i]) * columns.step[i] : y;
    }
    if constexpr (FAKE) return fake(y, e.fake_recip, e.fake_scale);
    return STORE == STORE_CODES ? y * columns.recip[i] : y;
}

// Steps 2 to 4.
INLINE void finish_values(const Epilogue& e, const Columns& columns, f32 (&y)[8], const f32* tail) {
#pragma unroll
    for (int i = 0; i < 8; i++) y[i] = quantized(activated(layer_value(y[i], columns, i, e), tail), columns, i, e);
}

// The codes of eight values that are already multiplied by the reciprocal of their scale.
INLINE u32x2 codes_of_eight(const f32 (&y)[8]) {
    if constexpr (NUMBERS) {
        return u32x2{codes_of_numbers(y[0], y[1], y[2], y[3]), codes_of_numbers(y[4], y[5], y[6], y[7])};
    }
    return u32x2{codes_s8x4(y[0], y[1], y[2], y[3]), codes_s8x4(y[4], y[5], y[6], y[7])};
}

// Steps 2 to 4 and the rounding in packed halves: the codes of the sums of eight columns, four in a word.
INLINE u32x2 codes_in_halves(const Columns& columns, const f32 (&y)[8]) {
    u32 recip = 0, codes[4];
    if constexpr (!CHANNELS) recip = pack_half2(columns.recip[0], columns.recip[0]);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        f32 low = fma_f32(y[2 * i], columns.scale[2 * i], columns.bias[2 * i]);
        f32 high = fma_f32(y[2 * i + 1], columns.scale[2 * i + 1], columns.bias[2 * i + 1]);
        u32 gelu = gelu_half2(pack_half2_finite(low, high));
        if constexpr (CHANNELS) {
            u32x2 of = *reinterpret_cast<const u32x2*>(columns.half_codes + 2 * i);
            codes[i] = codes_half2(gelu, HalfCodes{of.x, of.y});
        } else {
            codes[i] = codes_half2(gelu, recip);
        }
    }
    return u32x2{byte_permute(codes[0], codes[1], 0x6420), byte_permute(codes[2], codes[3], 0x6420)};
}

// Steps 2 to 4, and the codes of the sums of eight columns, four in a word.
INLINE u32x2 codes8(const Epilogue& e, const Columns& columns, f32 (&y)[8], const f32* tail) {
    if constexpr (HALF_GELU) return codes_in_halves(columns, y);
    finish_values(e, columns, y, tail);
    return codes_of_eight(y);
}

// Step 5 of one value, if columns do not form full groups of eight.
INLINE void store_one(const Epilogue& e, u64 at, f32 y) {
    if constexpr (STORE == STORE_CODES) {
        static_cast<s8*>(e.out)[at] = static_cast<s8>(static_cast<s32>(code_f32(y)));
    } else if constexpr (STORE == STORE_HALF) {
        static_cast<u16*>(e.out)[at] = f32_to_half(y);
    } else if constexpr (STORE == STORE_FLOAT) {
        static_cast<f32*>(e.out)[at] = y;
    } else {
        Residual* residual = static_cast<Residual*>(e.out) + at;
        if constexpr (RESIDUAL_F32) {
            *residual = y + *residual;
        } else {
            *residual = f32_to_half(y + half_to_f32(*residual));
        }
    }
}

// Step 5 of STORE_HALF and STORE_FLOAT.
INLINE void store_floats(const Epilogue& e, u64 at, const f32 (&y)[8]) {
    if constexpr (STORE == STORE_HALF) {
        store8(static_cast<u16*>(e.out) + at, y);
    } else {
        store8(static_cast<f32*>(e.out) + at, y);
    }
}

// Step 5 of STORE_RESIDUAL, in registers: adds the `old` values of the residual.
INLINE void add_old(f32 (&y)[8], const f32 (&old)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) y[i] = y[i] + old[i];
}

// Step 5 of STORE_RESIDUAL.
INLINE void add8(Residual* residual, f32 (&y)[8]) {
    f32 old[8];
    load8(old, residual);
    add_old(y, old);
    store8(residual, y);
}

// Step 5 of STORE_RESIDUAL for an f32 residual, if columns form full groups of four alone: adds the first
// `count` columns.
INLINE void add_fours(Residual* residual, const f32 (&y)[8], s32 count) {
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
        if (i >= count) continue;
        f32x4* to = reinterpret_cast<f32x4*>(residual + i);
        f32x4 old = *to;
        *to = f32x4{y[i] + old.x, y[i + 1] + old.y, y[i + 2] + old.z, y[i + 3] + old.w};
    }
}

// The reciprocal of the length of a head's vector, of which this lane holds channels 8 l to 8 l + 7 for l =
// lane % 4.
INLINE f32 inverse_length(const f32 (&x)[8]) {
    if constexpr (!RESIDUAL_F32) return inverse_length_fast(x);
    // The order of the sums is that of `reference::inverse_length`: channels c and c + 16 first, then sums
    // that are 8 and 4 channels apart.
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
}

// The number of set bits of `mask` below bit `index`.
INLINE s32 bits_below(u64 mask, s32 index) { return count_bits(mask & ((static_cast<u64>(1) << index) - 1)); }

// Turns the sums of eight channels of a vector into their codes, for ROWS rows `targets`, and stores them
// where `there`; also the lo codes of queries and keys if the head has them. Vector `slot` is the query, key
// or value of head slot % heads, and must be the same for the whole warp, in a way that the compiler sees: it
// serialises asynchronous products around a branch that may diverge.
template <int ROWS>
INLINE void finish_heads(const Epilogue& e, const Columns& columns, const bool (&there)[ROWS], const u32 (&targets)[ROWS],
                         s32 slot, f32 (&y)[ROWS][8], const f32* tail) {
    s32 channel = 8 * static_cast<s32>(thread_index() % 4), column = HEAD_DIM * slot + channel;
    f32 inverse[ROWS];
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        inverse[row] = 1.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) y[row][i] = activated(layer_value(y[row][i], columns, i, e), tail);
    }
    if (slot < 2 * e.heads) {
#pragma unroll
        for (int row = 0; row < ROWS; row++) inverse[row] = inverse_length(y[row]);
    }
    f32 rounded[ROWS][8];
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            f32 recip = columns.recip[0];
            y[row][i] = RESIDUAL_F32 ? y[row][i] * inverse[row] * recip : y[row][i] * (inverse[row] * recip);
        }
        u32x2 codes = codes_and_rounded(y[row], rounded[row]);
        s8* out = static_cast<s8*>(e.out) + static_cast<u64>(targets[row]) * e.stride;
        if (there[row]) *reinterpret_cast<u32x2*>(out + column) = codes;
    }
    s32 head = slot < e.heads ? slot : slot - e.heads;
    if (slot >= 2 * e.heads || (e.hi_lo >> head & 1) == 0) return;
    // The lo codes follow the values: all of the queries, then all of the keys.
    s32 before = bits_below(e.hi_lo, head) + (slot < e.heads ? 0 : count_bits(e.hi_lo));
    s32 low = HEAD_DIM * (3 * e.heads + before) + channel;
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        u32x2 codes = lo_codes(y[row], rounded[row]);
        s8* out = static_cast<s8*>(e.out) + static_cast<u64>(targets[row]) * e.stride;
        if (there[row]) *reinterpret_cast<u32x2*>(out + low) = codes;
    }
}

// Finishes the eight sums of columns `column..column + 8`, and stores them in row `target` if `there` and if
// the columns exist. `target` may be anything otherwise. With WHOLE, only the store depends on a condition,
// so that the compiler can interleave the arithmetic of several calls.
INLINE void finish8(const Epilogue& e, const Columns& columns, bool there, u32 target, s32 column, f32 (&y)[8],
                    const f32* tail) {
    u64 at = static_cast<u64>(target) * e.stride + column;
    if constexpr (!WHOLE) {
        finish_values(e, columns, y, tail);
        if constexpr (STORE == STORE_RESIDUAL && RESIDUAL_F32) {
            if (e.n % 4 == 0) {
                if (there) add_fours(static_cast<Residual*>(e.out) + at, y, e.n - column);
                return;
            }
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (there && column + i < e.n) store_one(e, at + i, y[i]);
        }
        return;
    }
    there = there && column < e.n;
    if constexpr (HEADS) {
        finish_heads<1>(e, columns, {there}, {target}, column / HEAD_DIM, reinterpret_cast<f32(&)[1][8]>(y), tail);
    } else if constexpr (STORE == STORE_CODES) {
        u32x2 codes = codes8(e, columns, y, tail);
        if (there) *reinterpret_cast<u32x2*>(static_cast<s8*>(e.out) + at) = codes;
    } else if constexpr (STORE == STORE_RESIDUAL) {
        finish_values(e, columns, y, tail);
        Residual* residual = static_cast<Residual*>(e.out) + at;
        if (there) add8(residual, y);
    } else {
        finish_values(e, columns, y, tail);
        if (there) store_floats(e, at, y);
    }
}
