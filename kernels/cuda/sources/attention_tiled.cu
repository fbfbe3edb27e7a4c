// Window attention that the kernels for whole windows leave over (`AttentionConfig::whole`): windows of more
// than 256 tokens, and heads of 64 columns. A block processes 64 queries of one window and head. It passes
// over the keys in tiles of 64: once for the maximum logit of each query, and once for the product with the
// values. For probabilities of kind s8, a pass between them computes the sum of the exponentials. Each pass
// computes the products q . k again, which is cheaper than storing them.
//
// Entry points: `attention_i8_tiled`, `attention_f16_tiled`. Defines: those of `attention.cuh` except
// KEY_TILES; INTEGER; PROBS_S8 if INTEGER is set. THREADS is 128.
#define KEY_TILES 8
#include "attention_tile.cuh"

// Number of groups of 32 channels of a head.
constexpr u32 GROUPS = HEAD_DIM / 32;

#if INTEGER
typedef s8 Element;
// Bytes of a tile of transposed values, and of the 32 channels of a group.
constexpr u32 VALUE_TILE = HEAD_DIM * VALUE_ROW, VALUE_GROUP = 32 * VALUE_ROW;
// Codes, and with HI_LO lo codes.
typedef u32 Queries[OPERANDS - 2][GROUPS][4];
typedef u32 Probabilities[2][4];
typedef s32 Sums[GROUPS][4][4];
#else
typedef u16 Element;
typedef u32 Queries[2 * GROUPS][4];
typedef u32 Probabilities[4][4];
typedef f32 Sums[GROUPS][4][4];
#endif
// Bytes from one token to the next in shared memory: an odd number of 16-byte chunks, which avoids bank
// conflicts.
constexpr u32 ROW = HEAD_DIM * sizeof(Element) + 16;
constexpr u32 ROW_CHUNKS = HEAD_DIM * sizeof(Element) / 16;

// Starts copying `count` tokens of operand `operand` (q, k or v) from token `first` on. Tokens from index `n`
// on are filled with zeros.
INLINE void copy_tokens(const Params& p, u8* to, u32 operand, u32 first, u32 count, u32 window, u32 head) {
    bool present = has_operand(p, operand, head);
    s32 column = present ? column_of(p, operand, head) : 0;
    const Element* base = static_cast<const Element*>(p.qkv) + static_cast<u64>(window) * p.n * p.columns;
    for (u32 i = thread_index(); i < count * ROW_CHUNKS; i += THREADS) {
        u32 token = i / ROW_CHUNKS, chunk = i % ROW_CHUNKS;
        bool real = first + token < static_cast<u32>(p.n) && present;
        u64 at = static_cast<u64>(first + token) * p.columns + column + chunk * (16 / sizeof(Element));
        copy_async_16(to + token * ROW + 16 * chunk, base + (real ? at : 0), real ? 16 : 0);
    }
}

// Bias rows and regions of a lane's two queries, and the factor of their logits.
struct Rows {
    f32 scale;
    const f32* bias[2];
    // Regions of the window's tokens; null if the window is not masked.
    const u8* regions;
    u8 region[2];
};

INLINE Rows rows_of(const Params& p, u32 window, u32 head, u32 query, u32 padded) {
    Rows rows;
    rows.scale = logit_scale_of(p, head);
    u32 mask = mask_of(p, window);
    rows.regions = mask != 0 ? p.regions + mask * padded : nullptr;
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        rows.bias[half] = static_cast<const f32*>(p.bias) + (static_cast<u64>(head) * padded + query + 8 * half) * padded;
        rows.region[half] = mask != 0 ? rows.regions[query + 8 * half] : 0;
    }
    return rows;
}

// Lo codes are `low` bytes after the codes.
INLINE void load_queries(Queries& q, const u8* queries, u32 low, u32 lane, u32 warp) {
    const u8* row = queries + (16 * warp + lane % 16) * ROW + lane / 16 * 16;
#if INTEGER
#pragma unroll
    for (u32 group = 0; group < GROUPS; group++) {
        load_matrix_x4(q[0][group], row + 32 * group);
#if HI_LO
        load_matrix_x4(q[1][group], row + low + 32 * group);
#endif
    }
#else
#pragma unroll
    for (u32 part = 0; part < 2 * GROUPS; part++) load_matrix_x4(q[part], row + 32 * part);
#endif
}

// Computes q . k for keys 8 t to 8 t + 7 of a tile; `keys` is the tile in shared memory, and lo codes are
// `low` bytes after it.
INLINE void scores(f32 (&x)[4], const Queries& q, const u8* keys, u32 low, int t, u32 lane) {
#if INTEGER
    const u8* from = keys + (16 * (t / 2) + lane % 8 + lane / 16 * 8) * ROW + lane / 8 % 2 * 16;
    s32 sums[4] = {}, low_sums[4] = {};
#pragma unroll
    for (u32 group = 0; group < GROUPS; group++) {
        u32 k[4];
        load_matrix_x4(k, from + 32 * group);
        const u32 b[2] = {k[t % 2 * 2], k[t % 2 * 2 + 1]};
        mma_s8(sums, q[0][group], b);
#if HI_LO
        u32 k_low[4];
        load_matrix_x4(k_low, from + low + 32 * group);
        const u32 b_low[2] = {k_low[t % 2 * 2], k_low[t % 2 * 2 + 1]};
        mma_s8(low_sums, q[0][group], b_low);
        mma_s8(low_sums, q[1][group], b);
#endif
    }
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = HI_LO ? with_lo_codes(sums[i], low_sums[i]) : to_f32(sums[i]);
#else
    const u8* from = keys + (8 * t + lane % 8) * ROW + lane / 8 * 16;
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = 0.0f;
#pragma unroll
    for (u32 group = 0; group < GROUPS; group++) {
        u32 k[4];
        load_matrix_x4(k, from + 64 * group);
        const u32 first[2] = {k[0], k[1]}, second[2] = {k[2], k[3]};
        mma_f16(x, q[2 * group], first);
        mma_f16(x, q[2 * group + 1], second);
    }
#endif
}

// Computes the logits of a tile of keys: element [t][2 half + b] belongs to row lane / 4 + 8 half
// and key 8 t + 2 (lane % 4) + b of the tile.
INLINE void logits_of(const Params& p, const Queries& q, const Rows& rows, const u8* keys, u32 low, u32 first,
                      f32 (&x)[8][4], u32 lane) {
#pragma unroll
    for (int t = 0; t < 8; t++) {
        scores(x[t], q, keys, low, t, lane);
        u32 key = first + 8 * t + 2 * (lane % 4);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            f32x2 bias = *reinterpret_cast<const f32x2*>(rows.bias[half] + key);
            if (rows.regions != nullptr) {
                bias.x = rows.regions[key] == rows.region[half] ? bias.x : bias.x + from_bits(MASK_BITS);
                bias.y = rows.regions[key + 1] == rows.region[half] ? bias.y : bias.y + from_bits(MASK_BITS);
            }
            x[t][2 * half] = fma_f32(x[t][2 * half], rows.scale, bias.x);
            x[t][2 * half + 1] = fma_f32(x[t][2 * half + 1], rows.scale, bias.y);
        }
    }
}

// Running state of one of a lane's two rows, updated by each pass over the keys.
struct RowState {
    f32 largest;
#if INTEGER && !PROBS_S8
    u32 total;
#elif INTEGER
    f32 sums[2][2];
    f32 inverse;
#else
    f32 total;
#endif
};

#if INTEGER

// Computes the codes of a tile's probabilities, in the layout that the product with the values reads.
INLINE void codes_of(const Params& p, const f32 (&x)[8][4], RowState& row, int half, Probabilities& words) {
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
        const f32 logits[4] = {x[2 * pair][2 * half], x[2 * pair][2 * half + 1], x[2 * pair + 1][2 * half],
                               x[2 * pair + 1][2 * half + 1]};
#if PROBS_S8
        s32 code[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            code[i] = round_s32((weight_of(logits[i], row.largest) * row.inverse) * p.probs_recip);
        }
        words[pair / 2][pair % 2 * 2 + half] = pack_s8x4(code[0], code[1], code[2], code[3]);
#else
        u32 word = low_bytes(code_of(logits[0], row.largest), code_of(logits[1], row.largest),
                             code_of(logits[2], row.largest), code_of(logits[3], row.largest));
        row.total = add_bytes(word, row.total);
        words[pair / 2][pair % 2 * 2 + half] = word;
#endif
    }
}

#if PROBS_S8
// Adds a tile's exponentials to the partial sums by the key index mod 16; padding adds zero.
INLINE void sum_weights(const Params& p, const f32 (&x)[8][4], RowState& row, int half, u32 first, u32 lane) {
#pragma unroll
    for (int t = 0; t < 8; t++) {
#pragma unroll
        for (int b = 0; b < 2; b++) {
            bool real = first + 8 * t + 2 * (lane % 4) + b < static_cast<u32>(p.n);
            f32 e = real ? weight_of(x[t][2 * half + b], row.largest) : 0.0f;
            row.sums[t % 2][b] = row.sums[t % 2][b] + e;
        }
    }
}
#endif

INLINE void add_values(s32 (&sums)[4][4], const Probabilities& words, const u8* transposed, u32 lane) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        u32 v[4];
        load_matrix_x4(v, transposed + (8 * j + lane % 8) * VALUE_ROW + lane / 8 * 16);
#pragma unroll
        for (int step = 0; step < 2; step++) {
            const u32 b[2] = {v[2 * step], v[2 * step + 1]};
            multiply_values(sums[j], words[step], b);
        }
    }
}

INLINE f32 factor_of(const Params& p, const RowState& row) {
#if PROBS_S8
    return p.probs_scale * p.value_scale;
#else
    return div_f32(p.value_scale, to_f32(static_cast<s32>(quad_sum(row.total))));
#endif
}

#else

INLINE void codes_of(const Params&, const f32 (&x)[8][4], RowState& row, int half, Probabilities& words) {
#pragma unroll
    for (int t = 0; t < 8; t++) {
        f32 e[2];
#pragma unroll
        for (int b = 0; b < 2; b++) {
            e[b] = weight_of(x[t][2 * half + b], row.largest);
            row.total = row.total + e[b];
        }
        words[t / 2][t % 2 * 2 + half] = pack_half2(e[0], e[1]);
    }
}

INLINE void add_values(f32 (&sums)[4][4], const Probabilities& words, const u8* values, u32 lane) {
    const u8* row = values + (lane % 8 + lane / 8 % 2 * 8) * ROW + lane / 16 * 16;
#pragma unroll
    for (int step = 0; step < 4; step++) {
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            u32 v[4];
            load_matrix_x4_transposed(v, row + 16 * step * ROW + 32 * pair);
            const u32 first[2] = {v[0], v[1]}, second[2] = {v[2], v[3]};
            mma_f16(sums[2 * pair], words[step], first);
            mma_f16(sums[2 * pair + 1], words[step], second);
        }
    }
}

INLINE f32 factor_of(const Params&, const RowState& row) { return div_f32(1.0f, quad_sum(row.total)); }

// Stores channels 8 j + 2 (lane % 4) and 8 j + 2 (lane % 4) + 1 of a group of 32 of a row, for each n-tile j.
INLINE void store_row(const Params& p, const f32 (&sums)[4][4], int half, f32 factor, u32 window, u32 query, u32 group, u32 lane) {
    if (query >= static_cast<u32>(p.n)) return;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        f32 y[2] = {sums[j][2 * half] * factor, sums[j][2 * half + 1] * factor};
        u64 to = place_of(p, window, query, group) + 8 * j + 2 * (lane % 4);
#if STORE == STORE_CODES
        u32 codes = pack_s8x4(round_s32(y[0] * p.recip), round_s32(y[1] * p.recip), 0, 0);
        *reinterpret_cast<u16*>(static_cast<s8*>(p.out) + to) = static_cast<u16>(codes);
#else
#if FAKE
        y[0] = fake(y[0], p.recip, p.scale), y[1] = fake(y[1], p.recip, p.scale);
#endif
        *reinterpret_cast<u32*>(static_cast<u16*>(p.out) + to) = pack_half2(y[0], y[1]);
#endif
    }
}

#endif

#if INTEGER
KERNEL(attention_i8_tiled)(const Params p) {
#else
KERNEL(attention_f16_tiled)(const Params p) {
#endif
    u32 lane = thread_index() % WARP, warp = thread_index() / WARP;
    u32 head = block_x() % p.heads, window = block_x() / p.heads, first_query = block_y() * TOKENS;
    u32 tiles = (p.n + TOKENS - 1) / TOKENS, padded = tiles * TOKENS;
    u8* queries = shared_memory();
    u8* keys = queries + TOKENS * ROW;
    u8* values = keys + padded * ROW;
    wait_for_previous();
    launch_dependents();
    copy_tokens(p, queries, 0, first_query, TOKENS, window, head);
    copy_tokens(p, keys, 1, 0, padded, window, head);
    copy_tokens(p, values, 2, 0, padded, window, head);
    // Bytes from codes to lo codes, which follow the transposed values.
    u32 low = 0;
#if HI_LO
    low = (TOKENS + 2 * padded) * ROW + tiles * VALUE_TILE;
    copy_tokens(p, queries + low, 3, first_query, TOKENS, window, head);
    copy_tokens(p, keys + low, 4, 0, padded, window, head);
#endif
    copy_commit();
    copy_wait<0>();
    block_sync();
#if INTEGER
    u8* transposed = values + padded * ROW;
    for (u32 tile = 0; tile < tiles; tile++) {
        for (u32 group = 0; group < GROUPS; group++) {
            u8* to = transposed + tile * VALUE_TILE + group * VALUE_GROUP;
            transpose_values<ROW>(values + tile * TOKENS * ROW + 32 * group, to);
        }
    }
    block_sync();
#endif
    Queries q;
    load_queries(q, queries, low, lane, warp);
    Rows rows = rows_of(p, window, head, first_query + 16 * warp + lane / 4, padded);
    RowState state[2] = {};
    f32 x[8][4];
    state[0].largest = state[1].largest = from_bits(0xff800000u);
    for (u32 tile = 0; tile < tiles; tile++) {
        logits_of(p, q, rows, keys + tile * TOKENS * ROW, low, tile * TOKENS, x, lane);
#pragma unroll
        for (int t = 0; t < 8; t++) {
#pragma unroll
            for (int i = 0; i < 4; i++) state[i / 2].largest = max_f32(state[i / 2].largest, x[t][i]);
        }
    }
    state[0].largest = quad_max(state[0].largest), state[1].largest = quad_max(state[1].largest);
#if INTEGER && PROBS_S8
    for (u32 tile = 0; tile < tiles; tile++) {
        logits_of(p, q, rows, keys + tile * TOKENS * ROW, low, tile * TOKENS, x, lane);
        sum_weights(p, x, state[0], 0, tile * TOKENS, lane);
        sum_weights(p, x, state[1], 1, tile * TOKENS, lane);
    }
    state[0].inverse = inverse_of(state[0].sums), state[1].inverse = inverse_of(state[1].sums);
#endif
    Sums sums = {};
    for (u32 tile = 0; tile < tiles; tile++) {
        logits_of(p, q, rows, keys + tile * TOKENS * ROW, low, tile * TOKENS, x, lane);
        Probabilities words;
        codes_of(p, x, state[0], 0, words);
        codes_of(p, x, state[1], 1, words);
#pragma unroll
        for (u32 group = 0; group < GROUPS; group++) {
#if INTEGER
            add_values(sums[group], words, transposed + tile * VALUE_TILE + group * VALUE_GROUP, lane);
#else
            add_values(sums[group], words, values + tile * TOKENS * ROW + 64 * group, lane);
#endif
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 query = first_query + 16 * warp + lane / 4 + 8 * half;
        f32 factor = factor_of(p, state[half]);
#pragma unroll
        for (u32 group = 0; group < GROUPS; group++) {
            store_row(p, sums[group], half, factor, window, query, head * GROUPS + group, lane);
        }
    }
}
