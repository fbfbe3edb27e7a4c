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
    // The residual, `[images * tokens, columns]`; for `values` f32 `[tokens]`.
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
    // Tokens of an image, and those that a block holds: a power of two from 2 to THREADS / 4. For `values`, `tokens` is the number of
    // values.
    s32 tokens, tokens_each;
    // Columns of a row, a multiple of those that 16 bytes of the residual hold.
    s32 columns;
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

#if defined(EXACT)
typedef f32 Value;
#else
typedef u16 Value;
#endif

// Columns that a thread has at once: those of 16 bytes of the residual.
constexpr int AT_ONCE = 16 / sizeof(Value);
// Values that one store writes: of two tokens, and of columns of one.
struct alignas(2 * sizeof(Out)) Pair {
    Out values[2];
};
struct alignas(AT_ONCE * sizeof(Out) < 16 ? AT_ONCE * sizeof(Out) : 16) Group {
    Out values[AT_ONCE];
};

// The tokens of a block, which belong to one image, and their place in shared memory.
struct Tokens {
    u32 image, first, count;
    const u8* rows;
    // Bytes of a token: an odd number of 16-byte chunks, so that lanes that read the same columns of successive tokens use
    // different banks.
    u32 row;
    const RowNorm* norms;
};

INLINE Tokens tokens_of(const Params& p, u8* rows, RowNorm* norms) {
    u32 blocks = (p.tokens + p.tokens_each - 1) / p.tokens_each, image = block_x() / blocks;
    u32 first = (block_x() - image * blocks) * p.tokens_each, left = p.tokens - first, each = p.tokens_each;
    return Tokens{image, first, left < each ? left : each, rows, static_cast<u32>(p.columns * sizeof(Value)) | 16, norms};
}

// Starts copying the rows of the tokens to shared memory.
INLINE void copy_rows(const Params& p, const Tokens& tokens, u8* rows) {
    u64 first = static_cast<u64>(tokens.image) * p.tokens + tokens.first;
    const u8* from = static_cast<const u8*>(p.input) + first * p.columns * sizeof(Value);
    u32 chunks = p.columns * sizeof(Value) / 16;
    for (u32 i = thread_index(); i < tokens.count * chunks; i += THREADS) {
        u32 token = i / chunks, chunk = i - token * chunks;
        copy_async_16(rows + token * tokens.row + 16 * chunk, from + static_cast<u64>(16) * i, 16);
    }
    copy_commit();
}

// Computes the norms of the tokens. Four lanes share one.
INLINE void compute_norms(const Params& p, const Tokens& tokens, RowNorm* norms) {
    u32 token = thread_index() / 4, last = tokens.count - 1;
    // Whole warps leave.
    if (token / (WARP / 4) * (WARP / 4) > last) return;
    s32 lane = thread_index() % 4;
    const Value* row = reinterpret_cast<const Value*>(tokens.rows + (token < last ? token : last) * tokens.row);
    RowNorm norm = row_norm(p.columns, pieces_of(p.columns, lane), p.epsilon,
                            [&](s32 i) { return values4(row + 16 * i + 4 * lane); });
    if (lane == 0 && token <= last) norms[token] = norm;
}

// Computes columns `at..at + AT_ONCE` of a token.
INLINE void values_of(const Params& p, const Tokens& tokens, u32 token, s32 at, bool invalid, Group& to) {
    f32 x[AT_ONCE];
    load_group(x, reinterpret_cast<const Value*>(tokens.rows + token * tokens.row) + at);
#if NORM
    RowNorm norm = tokens.norms[token];
#pragma unroll
    for (int i = 0; i < AT_ONCE; i += 4) {
        f32 gamma[4], beta[4];
        load4(gamma, p.gamma + at + i), load4(beta, p.beta + at + i);
#pragma unroll
        for (int k = 0; k < 4; k++) x[i + k] = apply(norm, x[i + k], gamma[k], beta[k]);
    }
#endif
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) to.values[i] = convert(invalid ? from_bits(0x7fc00000) : x[i]);
}

INLINE bool all_finite(const Group& x) {
    bool all = true;
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) all = all && finite_out(x.values[i]);
    return all;
}

#if CHANNELS_FIRST

// Writes the columns of the tokens: a thread has two tokens, and neighbouring threads write neighbouring tokens of a column.
// Returns whether all values are finite.
INLINE bool store(const Params& p, const Tokens& tokens, bool invalid) {
    u32 pairs = p.tokens_each / 2, token = 2 * (thread_index() % pairs);
    if (token >= tokens.count) return true;
    bool both = token + 1 < tokens.count, all = true;
    // A pair of an image with an odd number of tokens is not aligned in every column.
    bool together = both && p.tokens % 2 == 0 && reinterpret_cast<u64>(p.out) % sizeof(Pair) == 0;
    for (s32 at = AT_ONCE * (thread_index() / pairs); at < p.columns; at += AT_ONCE * (THREADS / pairs)) {
        Group x, y;
        values_of(p, tokens, token, at, invalid, x);
        values_of(p, tokens, both ? token + 1 : token, at, invalid, y);
        all = all && all_finite(x) && all_finite(y);
        u64 column = static_cast<u64>(tokens.image) * p.columns + at;
        Out* to = static_cast<Out*>(p.out) + column * p.tokens + tokens.first + token;
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++, to += p.tokens) {
            if (together) {
                *reinterpret_cast<Pair*>(to) = Pair{{x.values[i], y.values[i]}};
            } else {
                to[0] = x.values[i];
                if (both) to[1] = y.values[i];
            }
        }
    }
    return all;
}

#else

// Writes the rows of the tokens. Returns whether all values are finite.
INLINE bool store(const Params& p, const Tokens& tokens, bool invalid) {
    u32 groups = p.columns / AT_ONCE;
    u64 first = static_cast<u64>(tokens.image) * p.tokens + tokens.first;
    bool aligned = reinterpret_cast<u64>(p.out) % alignof(Group) == 0, all = true;
    for (u32 i = thread_index(); i < tokens.count * groups; i += THREADS) {
        u32 token = i / groups;
        Group x;
        values_of(p, tokens, token, AT_ONCE * (i - token * groups), invalid, x);
        all = all && all_finite(x);
        Out* to = static_cast<Out*>(p.out) + first * p.columns + static_cast<u64>(AT_ONCE) * i;
        if (aligned) {
            *reinterpret_cast<Group*>(to) = x;
        } else {
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) to[k] = x.values[k];
        }
    }
    return all;
}

#endif

KERNEL(feature_map)(const Params p) {
    RowNorm* norms = reinterpret_cast<RowNorm*>(shared_memory());
    u32* word = reinterpret_cast<u32*>(norms + p.tokens_each);
    u8* rows = reinterpret_cast<u8*>(word + 4);
    Tokens tokens = tokens_of(p, rows, norms);
    wait_for_previous();
    launch_dependents();
    copy_rows(p, tokens, rows);
    bool invalid = any_flag(p, word);
    copy_wait<0>();
    block_sync();
#if NORM
    compute_norms(p, tokens, norms);
    block_sync();
#endif
    if (!store(p, tokens, invalid)) raise_flag(p.raised);
}

#else

KERNEL(values)(const Params p) {
    wait_for_previous();
    launch_dependents();
    bool invalid = any_flag(p, reinterpret_cast<u32*>(shared_memory()));
    s32 at = static_cast<s32>(block_x()) * THREADS + static_cast<s32>(thread_index());
    if (at >= p.tokens) return;
    f32 x = static_cast<const f32*>(p.input)[at];
    Out y = convert(invalid ? from_bits(0x7fc00000) : x);
    static_cast<Out*>(p.out)[at] = y;
    if (!finite_out(y)) raise_flag(p.raised);
}

#endif
