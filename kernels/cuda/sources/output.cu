// Outputs of the network, written to the memory of their reader, in the order and the type that the reader
// asks for. The values are NaN if a step has raised its flag. A value that is not finite in the type of the
// output raises the output's own flag.
//
// Entry points: `maps`, which writes feature maps, whose rows are tokens of the residual, normalised if the
// map has a norm; and `values`, which copies f32 values in their order.
//
// Defines: THREADS; TYPE (TYPE_F32, TYPE_F16, TYPE_BF16); for `maps` also MAPS, EXACT for an f32 residual,
// which is f16 otherwise, and CHANNELS_FIRST (whether the order of an image is `[columns, tokens]`).
#include "moments.cuh"

#define TYPE_F32 0
#define TYPE_F16 1
#define TYPE_BF16 2

// A feature map.
struct Map {
    // The residual, `[images * tokens, columns]`.
    const void* input;
    // Null without a norm.
    const f32* gamma;
    const f32* beta;
    // As many values as `input` has.
    void* out;
    // Set to 1 if a value is not finite.
    u32* raised;
    // Tokens of an image, and those that a block holds: a power of two from 2 to THREADS / 4.
    s32 tokens, tokens_each;
    // Columns of a row, a multiple of those that 16 bytes of the residual hold.
    s32 columns;
    // The first block that writes this map.
    s32 first_block;
    f32 epsilon;
};

struct MapsParams {
    // `flag_count` flags of the steps.
    const u32* flags;
    s32 flag_count;
    // The number of maps.
    s32 count;
    Map maps[16];
};

struct ValuesParams {
    const f32* input;
    void* out;
    // `flag_count` flags of the steps.
    const u32* flags;
    // Set to 1 if a value is not finite.
    u32* raised;
    s32 flag_count;
    s32 count;
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
INLINE bool any_flag(const u32* flags, s32 count, u32* word) {
    if (thread_index() == 0) *word = 0;
    block_sync();
    u32 raised = 0;
    for (s32 i = thread_index(); i < count; i += THREADS) raised |= flags[i];
    if (raised != 0) raise_flag(word);
    block_sync();
    return *word != 0;
}

#if defined(MAPS)

#if defined(EXACT)
typedef f32 Value;
#else
typedef u16 Value;
#endif

// Columns that a thread reads at once, in 16 bytes.
constexpr int AT_ONCE = 16 / sizeof(Value);
// Values that one store writes: of two tokens, and of the columns of one.
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
    // Bytes of a token: an odd number of 16-byte chunks, so that lanes that read the same columns of
    // successive tokens use different banks.
    u32 row;
    const RowNorm* norms;
};

INLINE Tokens tokens_of(const Map& p, u8* rows, RowNorm* norms) {
    u32 blocks = (p.tokens + p.tokens_each - 1) / p.tokens_each, block = block_x() - p.first_block, image = block / blocks;
    u32 first = (block - image * blocks) * p.tokens_each, left = p.tokens - first, each = p.tokens_each;
    return Tokens{image, first, left < each ? left : each, rows, static_cast<u32>(p.columns * sizeof(Value)) | 16, norms};
}

// Starts copying the rows of the tokens to shared memory.
INLINE void copy_rows(const Map& p, const Tokens& tokens, u8* rows) {
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
INLINE void compute_norms(const Map& p, const Tokens& tokens, RowNorm* norms) {
    u32 token = thread_index() / 4, last = tokens.count - 1;
    // Whole warps leave.
    if (token / (WARP / 4) * (WARP / 4) > last) return;
    s32 lane = thread_index() % 4;
    const Value* row = reinterpret_cast<const Value*>(tokens.rows + (token < last ? token : last) * tokens.row);
    RowNorm norm = row_norm(p.columns, pieces_of(p.columns, lane), p.epsilon,
                            [&](s32 i) { return values4(row + 16 * i + 4 * lane); });
    if (lane == 0 && token <= last) norms[token] = norm;
}

// Columns of a token, and its norm.
struct Columns {
    u32x4 values;
    RowNorm norm;

    INLINE Columns(const Map& p, const Tokens& tokens, u32 token, s32 at) {
        values = *reinterpret_cast<const u32x4*>(tokens.rows + token * tokens.row + at * sizeof(Value));
        norm = p.gamma != nullptr ? tokens.norms[token] : RowNorm{0.0f, 0.0f, 0.0f};
    }

    // Computes four of the columns, from column `at` of the token on, which is column `4 part` here. A thread
    // computes so few at a time that its registers allow many blocks.
    INLINE void four(const Map& p, int part, s32 at, bool invalid, Out (&to)[4]) const {
        const u32 words[4] = {values.x, values.y, values.z, values.w};
        f32 x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
#if defined(EXACT)
            x[i] = from_bits(words[i]);
#else
            u32 word = words[2 * part + i / 2];
            x[i] = half_to_f32(static_cast<u16>(i % 2 == 0 ? word : word >> 16));
#endif
        }
        if (p.gamma != nullptr) {
            f32 gamma[4], beta[4];
            load4(gamma, p.gamma + at), load4(beta, p.beta + at);
#pragma unroll
            for (int i = 0; i < 4; i++) x[i] = apply(norm, x[i], gamma[i], beta[i]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) to[i] = convert(invalid ? from_bits(0x7fc00000) : x[i]);
    }
};

#if CHANNELS_FIRST

// Writes the columns of the tokens: a thread has two tokens, and neighbouring threads write neighbouring
// tokens of a column. Returns whether all values are finite.
INLINE bool store(const Map& p, const Tokens& tokens, bool invalid) {
    u32 pairs = p.tokens_each / 2, token = 2 * (thread_index() % pairs);
    if (token >= tokens.count) return true;
    bool both = token + 1 < tokens.count, all = true;
    // A pair of an image with an odd number of tokens is not aligned in every column.
    bool together = both && p.tokens % 2 == 0 && reinterpret_cast<u64>(p.out) % sizeof(Pair) == 0;
    u64 first = static_cast<u64>(tokens.image) * p.columns * p.tokens + tokens.first + token;
    for (s32 at = AT_ONCE * (thread_index() / pairs); at < p.columns; at += AT_ONCE * (THREADS / pairs)) {
        Columns a(p, tokens, token, at), b(p, tokens, both ? token + 1 : token, at);
#pragma unroll
        for (int part = 0; part < AT_ONCE / 4; part++) {
            Out x[4], y[4];
            a.four(p, part, at + 4 * part, invalid, x);
            b.four(p, part, at + 4 * part, invalid, y);
            Out* to = static_cast<Out*>(p.out) + first + static_cast<u64>(at + 4 * part) * p.tokens;
#pragma unroll
            for (int i = 0; i < 4; i++, to += p.tokens) {
                all = all && finite_out(x[i]) && finite_out(y[i]);
                if (together) {
                    *reinterpret_cast<Pair*>(to) = Pair{{x[i], y[i]}};
                } else {
                    to[0] = x[i];
                    if (both) to[1] = y[i];
                }
            }
        }
    }
    return all;
}

#else

// Writes the rows of the tokens. Returns whether all values are finite.
INLINE bool store(const Map& p, const Tokens& tokens, bool invalid) {
    u32 groups = p.columns / AT_ONCE;
    u64 first = static_cast<u64>(tokens.image) * p.tokens + tokens.first;
    bool aligned = reinterpret_cast<u64>(p.out) % alignof(Group) == 0, all = true;
    for (u32 i = thread_index(); i < tokens.count * groups; i += THREADS) {
        u32 token = i / groups;
        s32 at = AT_ONCE * (i - token * groups);
        Columns columns(p, tokens, token, at);
        Group group;
#pragma unroll
        for (int part = 0; part < AT_ONCE / 4; part++) {
            Out x[4];
            columns.four(p, part, at + 4 * part, invalid, x);
#pragma unroll
            for (int k = 0; k < 4; k++) group.values[4 * part + k] = x[k], all = all && finite_out(x[k]);
        }
        Out* to = static_cast<Out*>(p.out) + first * p.columns + static_cast<u64>(AT_ONCE) * i;
        if (aligned) {
            *reinterpret_cast<Group*>(to) = group;
        } else {
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) to[k] = group.values[k];
        }
    }
    return all;
}

#endif

KERNEL(maps)(const MapsParams p) {
    s32 index = 0;
    while (index + 1 < p.count && static_cast<s32>(block_x()) >= p.maps[index + 1].first_block) index++;
    const Map& map = p.maps[index];
    RowNorm* norms = reinterpret_cast<RowNorm*>(shared_memory());
    u32* word = reinterpret_cast<u32*>(norms + map.tokens_each);
    u8* rows = reinterpret_cast<u8*>(word + 4);
    Tokens tokens = tokens_of(map, rows, norms);
    wait_for_previous();
    launch_dependents();
    copy_rows(map, tokens, rows);
    bool invalid = any_flag(p.flags, p.flag_count, word);
    copy_wait<0>();
    block_sync();
    if (map.gamma != nullptr) {
        compute_norms(map, tokens, norms);
        block_sync();
    }
    if (!store(map, tokens, invalid)) raise_flag(map.raised);
}

#else

KERNEL(values)(const ValuesParams p) {
    wait_for_previous();
    launch_dependents();
    bool invalid = any_flag(p.flags, p.flag_count, reinterpret_cast<u32*>(shared_memory()));
    s32 at = static_cast<s32>(block_x()) * THREADS + static_cast<s32>(thread_index());
    if (at >= p.count) return;
    Out y = convert(invalid ? from_bits(0x7fc00000) : p.input[at]);
    static_cast<Out*>(p.out)[at] = y;
    if (!finite_out(y)) raise_flag(p.raised);
}

#endif
