// An output of the network, written to the memory of its reader: rows of a tensor, normalised if the output has a norm, in
// the order and the type that the reader asks for. The values are NaN if a step has raised its flag. A value that is not
// finite in the type of the output raises the output's own flag.
//
// Entry points: `feature_map`, whose rows are tokens of the residual; and `values`, which copies f32 values in their order.
//
// Defines: THREADS; TYPE (TYPE_F32, TYPE_F16, TYPE_BF16); for `feature_map` also MAP, EXACT for an f32 residual, which is f16
// otherwise, NORM (whether there is a norm), and CHANNELS_FIRST (whether the order of an image is `[columns, tokens]`).
#include "moments.cuh"

#define TYPE_F32 0
#define TYPE_F16 1
#define TYPE_BF16 2

struct Params {
    // The residual, `[images * tokens, columns]`; for `values` f32 `[total]`.
    const void* input;
    // Null without a norm.
    const f32* gamma;
    const f32* beta;
    // As many values as `input` has.
    void* out;
    // `flag_count` flags of the steps.
    const u32* flags;
    // Set to 1 if a value of the output is not finite.
    u32* raised;
    s32 flag_count;
    // Tokens of an image and of all images; for `values`, `total` is the number of values.
    s32 tokens, total;
    // Columns of a row, and those that a block writes: a multiple of 32, unless it writes all.
    s32 columns, columns_each;
    f32 epsilon;
};

#if TYPE == TYPE_F32
typedef f32 Out;
INLINE Out convert(f32 x) { return x; }
INLINE bool finite_out(Out x) { return finite(x); }
#elif TYPE == TYPE_F16
typedef u16 Out;
INLINE Out convert(f32 x) { return f32_to_half(x); }
INLINE bool finite_out(Out x) { return (x & 0x7c00) != 0x7c00; }
#else
typedef u16 Out;
// Rounds to the nearest, ties to even; a NaN stays one.
INLINE Out convert(f32 x) {
    u32 word = bits(x);
    if (x != x) return static_cast<u16>(word >> 16 | 0x40);
    return static_cast<u16>((word + 0x7fff + (word >> 16 & 1)) >> 16);
}
INLINE bool finite_out(Out x) { return (x & 0x7f80) != 0x7f80; }
#endif

// Whether a step has raised its flag. Every thread of the block calls it; `word` is in shared memory.
INLINE bool any_flag(const Params& p, u32* word) {
    if (thread_index() == 0) *word = 0;
    block_sync();
    u32 raised = 0;
    for (s32 i = thread_index(); i < p.flag_count; i += THREADS) raised |= p.flags[i];
    if (raised != 0) raise_flag(word);
    block_sync();
    return *word != 0;
}

#if defined(MAP)

// Four lanes share a token.
constexpr s32 TOKENS = THREADS / 4;
// Columns of a tile in shared memory, `[TILE][TOKENS + 1]`.
constexpr s32 TILE = 32;
constexpr s32 TILE_ROW = TOKENS + 1;

#if defined(EXACT)
typedef f32 Value;
#else
typedef u16 Value;
#endif

// Writes the columns `chunk..` of the tile to the block's tokens, which begin at `first`: neighbouring threads write
// neighbouring tokens of a column.
INLINE void store_tile(const Params& p, const f32* tile, s32 first, s32 chunk, s32 end, bool& all_finite) {
    for (s32 i = thread_index(); i < TILE * TOKENS; i += THREADS) {
        s32 column = chunk + i / TOKENS, local = i % TOKENS, token = first + local;
        if (column >= end || token >= p.total) continue;
        s32 image = token / p.tokens;
        Out y = convert(tile[i / TOKENS * TILE_ROW + local]);
        all_finite = all_finite && finite_out(y);
        u64 row = static_cast<u64>(image) * p.columns + column;
        static_cast<Out*>(p.out)[row * p.tokens + (token - image * p.tokens)] = y;
    }
}

// Writes four columns of a token.
INLINE void store_row(const Params& p, s32 token, s32 column, const f32 (&y)[4], bool& all_finite) {
    Out* to = static_cast<Out*>(p.out) + static_cast<u64>(token) * p.columns + column;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        to[i] = convert(y[i]);
        all_finite = all_finite && finite_out(to[i]);
    }
}

KERNEL(feature_map)(const Params p) {
    f32* tile = reinterpret_cast<f32*>(shared_memory());
    wait_for_previous();
    launch_dependents();
    bool invalid = any_flag(p, reinterpret_cast<u32*>(tile + TILE * TILE_ROW));
    s32 lane = thread_index() % 4, local = thread_index() / 4, first = static_cast<s32>(block_x()) * TOKENS;
    bool real = first + local < p.total, all_finite = true;
    const Value* row = static_cast<const Value*>(p.input) + static_cast<u64>(real ? first + local : 0) * p.columns;
#if NORM
    RowNorm norm = row_norm(p.columns, pieces_of(p.columns, lane), p.epsilon,
                            [&](s32 i) { return values4(row + 16 * i + 4 * lane); });
#endif
    s32 begin = static_cast<s32>(block_y()) * p.columns_each;
    s32 end = begin + p.columns_each < p.columns ? begin + p.columns_each : p.columns;
    for (s32 chunk = begin; chunk < end; chunk += TILE) {
#pragma unroll
        for (s32 at = 4 * lane; at < TILE; at += 16) {
            if (chunk + at >= end) continue;
            f32x4 x = values4(row + chunk + at);
            f32 y[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
#if NORM
                y[i] = apply(norm, y[i], p.gamma[chunk + at + i], p.beta[chunk + at + i]);
#endif
                if (invalid) y[i] = from_bits(0x7fc00000);
#if CHANNELS_FIRST
                tile[(at + i) * TILE_ROW + local] = y[i];
#endif
            }
#if !CHANNELS_FIRST
            if (real) store_row(p, first + local, chunk + at, y, all_finite);
#endif
        }
#if CHANNELS_FIRST
        block_sync();
        store_tile(p, tile, first, chunk, end, all_finite);
        block_sync();
#endif
    }
    if (!all_finite) raise_flag(p.raised);
}

#else

KERNEL(values)(const Params p) {
    wait_for_previous();
    launch_dependents();
    bool invalid = any_flag(p, reinterpret_cast<u32*>(shared_memory()));
    s32 at = static_cast<s32>(block_x()) * THREADS + static_cast<s32>(thread_index());
    if (at >= p.total) return;
    f32 x = static_cast<const f32*>(p.input)[at];
    Out y = convert(invalid ? from_bits(0x7fc00000) : x);
    static_cast<Out*>(p.out)[at] = y;
    if (!finite_out(y)) raise_flag(p.raised);
}

#endif
