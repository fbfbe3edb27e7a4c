// The operands of cosine attention (Swin V2): the queries and keys of each head are normalised to length 1
// (`reference::inverse_length`), then quantized with the values.
//
// Entry point: `qk_norm`. Defines: THREADS; HEAD_DIM (columns of a head: 32 or 64); INPUT_F32 (1: the input
// is f32; 0: f16); STORE (STORE_CODES or STORE_HALF).
#include "prelude.cuh"

#define STORE_CODES 0
#define STORE_HALF 1

// Number of groups of 16 columns of a head.
constexpr int GROUPS = HEAD_DIM / 16;

struct Params {
    // Queries, keys and values, `[rows, 3 * channels]`, f32 or f16.
    const void* qkv;
    // First column of the lo codes of each head's queries, then of its keys, `[2, heads]`; negative for heads
    // with one code per value. Null if there are no lo codes.
    const s32* low;
    // `[rows, stride]`, s8 or f16.
    void* out;
    // Set to 1 if f16 input holds a value that is not finite; not used for f32.
    u32* overflow;
    s32 rows, heads;
    // Elements from one row of `out` to the next.
    s32 stride;
    // Reciprocals of the scales of queries, keys and values.
    f32 recip[3];
};

// A lane's values of a vector: channels 16 j + 4 l to 16 j + 4 l + 3 of each group j, for lane l of four.
typedef f32 Values[GROUPS][4];

#if INPUT_F32
INLINE void load_values(f32 (&x)[4], const void* from, u64 at) { load4(x, static_cast<const f32*>(from) + at); }
#else
INLINE void load_values(f32 (&x)[4], const void* from, u64 at) {
    u32x2 words = *reinterpret_cast<const u32x2*>(static_cast<const u16*>(from) + at);
    x[0] = half_to_f32(static_cast<u16>(words.x)), x[1] = half_to_f32(static_cast<u16>(words.x >> 16));
    x[2] = half_to_f32(static_cast<u16>(words.y)), x[3] = half_to_f32(static_cast<u16>(words.y >> 16));
}
#endif

// The reciprocal of the length of the vector that four lanes share. The order of the sums is that of the
// reference.
INLINE f32 inverse_length(const Values& x) {
    f32 sum[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        sum[i] = x[0][i] * x[0][i];
#pragma unroll
        for (int j = 1; j < GROUPS; j++) sum[i] = fma_f32(x[j][i], x[j][i], sum[i]);
        sum[i] = sum[i] + shuffle_xor(sum[i], 2);
        sum[i] = sum[i] + shuffle_xor(sum[i], 1);
    }
    f32 length = sqrt_f32((sum[0] + sum[2]) + (sum[1] + sum[3]));
    return div_f32(1.0f, length < 1e-12f ? 1e-12f : length);
}

// Four lanes share a vector: the query, key or value of a token and head.
KERNEL(qk_norm)(const Params p) {
    wait_for_previous();
    launch_dependents();
    u32 index = block_x() * THREADS + thread_index(), lane = index % 4, vectors = 3 * p.heads;
    bool real = index / 4 < static_cast<u32>(p.rows) * vectors;
    u32 vector = real ? index / 4 : 0;
    u32 row = vector / vectors, slot = vector % vectors, operand = slot / p.heads;
    u32 column = slot * HEAD_DIM + 4 * lane;
    Values x;
    u64 from = static_cast<u64>(row) * vectors * HEAD_DIM + column;
#pragma unroll
    for (int i = 0; i < GROUPS; i++) load_values(x[i], p.qkv, from + 16 * i);
    f32 inverse = inverse_length(x);
    if (!real) return;
#if !INPUT_F32
    f32 sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 4 * GROUPS; i++) sum = sum + x[i / 4][i % 4];
    // Sums of finite halves are always finite.
    if (!finite(sum)) raise_flag(p.overflow);
#endif
    f32 factor = operand == 2 ? 1.0f : inverse;
    u64 to = static_cast<u64>(row) * p.stride + column;
#if STORE == STORE_HALF
    u16* out = static_cast<u16*>(p.out);
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
        u32 low = pack_half2(x[i][0] * factor, x[i][1] * factor), high = pack_half2(x[i][2] * factor, x[i][3] * factor);
        *reinterpret_cast<u32x2*>(out + to + 16 * i) = u32x2{low, high};
    }
#else
    s8* out = static_cast<s8*>(p.out);
    f32 recip = operand == 0 ? p.recip[0] : operand == 1 ? p.recip[1] : p.recip[2];
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) x[i][j] = x[i][j] * factor * recip;
        *reinterpret_cast<u32*>(out + to + 16 * i) = codes_s8x4(x[i][0], x[i][1], x[i][2], x[i][3]);
    }
    if (p.low == nullptr || operand == 2 || p.low[slot] < 0) return;
    to = static_cast<u64>(row) * p.stride + p.low[slot] + 4 * lane;
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
        *reinterpret_cast<u32*>(out + to + 16 * i) =
            codes_s8x4(low_part(x[i][0]), low_part(x[i][1]), low_part(x[i][2]), low_part(x[i][3]));
    }
#endif
}
