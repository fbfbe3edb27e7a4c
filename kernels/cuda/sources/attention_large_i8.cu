// Window attention on INT8 queries, keys and values, for windows of 65 to 256 tokens
// (`reference::attention_window`).
//
// A block processes one head and loops over windows; it has all queries of a window, or half of them. Each of
// its warps has 16 queries. Their logits stay in registers as far as they fit. The product of probabilities
// and values sums integers over the keys, so the order of the keys does not change the result. The
// probabilities therefore stay in the registers that hold them, and the values are transposed to match this
// order.
//
// Defines: those of `attention_large.cuh`, and PROBS_S8 (1: probabilities of kind s8; 0: kind u8).
#include "attention_large.cuh"

// Bytes from one token to the next in `raw`: an odd number of 16-byte chunks, which avoids bank conflicts.
constexpr u32 RAW_ROW = 48;
constexpr u32 RAW = RAW_ROWS * RAW_ROW;

// Number of 16-byte copies that each thread starts for a window.
constexpr u32 COPIES = (RAW_ROWS * 2 + THREADS - 1) / THREADS;

// Starts copying the operands of window `window`. Tokens from index `n` on are filled with zeros.
INLINE void copy_window(const Params& p, u8* raw, u32 window, u32 head, u32 first_query) {
    u32 half = thread_index() % 2, first = thread_index() / 2;
    const s8* base = static_cast<const s8*>(p.qkv) + static_cast<u64>(window) * p.n * p.columns + 16 * half;
#pragma unroll
    for (u32 c = 0; c < COPIES; c++) {
        u32 row = first + c * (THREADS / 2), operand = operand_of(row), token = token_of(row, operand, first_query);
        if (RAW_ROWS * 2 % THREADS != 0 && row >= RAW_ROWS) continue;
        bool real = token < static_cast<u32>(p.n) && has_operand(p, operand, head);
        const s8* from = base + (real ? token * p.columns + column_of(p, operand, head) : 0);
        copy_async_16(raw + row * RAW_ROW + 16 * half, from, real ? 16 : 0);
    }
    copy_commit();
}

// A warp's part of a window: its 16 queries, and the keys.
struct Queries {
    u32 codes[4], low[4];
    const u8* keys;
    f32 scale;
    Regions regions;
    u32 lane;
};

// LOW: the head has lo codes.
template <bool LOW>
INLINE void load_queries(Queries& q, const u8* raw, u32 warp) {
    const u8* queries = raw + (16 * warp + q.lane % 16) * RAW_ROW + q.lane / 16 * 16;
    load_matrix_x4(q.codes, queries);
    if (LOW) load_matrix_x4(q.low, queries + first_row(3) * RAW_ROW);
    q.keys = raw + (first_row(1) + q.lane % 8 + q.lane / 16 * 8) * RAW_ROW + q.lane / 8 % 2 * 16;
}

// Logits of two tiles of 8 keys, in the layout of `Logits`.
typedef f32 Pair[2][4];

// Computes the logits of a pair of tiles. MASKED: the window has regions.
template <bool LOW, bool MASKED>
INLINE void logits_of(const Queries& q, const Bias& bias, int pair, Pair& x) {
    u32 k[4], k_low[4];
    load_matrix_x4(k, q.keys + 16 * pair * RAW_ROW);
    if (LOW) load_matrix_x4(k_low, q.keys + (first_row(4) - first_row(1) + 16 * pair) * RAW_ROW);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int t = 2 * pair + i;
        s32 sums[4] = {}, low[4] = {};
        const u32 b[2] = {k[2 * i], k[2 * i + 1]};
        mma_s8(sums, q.codes, b);
        if (LOW) {
            const u32 b_low[2] = {k_low[2 * i], k_low[2 * i + 1]};
            mma_s8(low, q.codes, b_low);
            mma_s8(low, q.low, b);
        }
        f32 added[4];
        bias_of(bias, t, added);
        if (MASKED) mask_bias(q.regions, t, added, q.lane);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            x[i][k] = fma_f32(LOW ? with_lo_codes(sums[k], low[k]) : to_f32(sums[k]), q.scale, added[k]);
        }
    }
}

// The logits that stay in registers.
typedef Pair Held[HELD / 2 > 0 ? HELD / 2 : 1];

// The logits of a pair that `held` has, or computes them.
template <bool LOW, bool MASKED>
INLINE void logits_again(const Queries& q, const Bias& bias, int pair, const Held& held, Pair& x) {
    if (pair >= HELD / 2) {
        logits_of<LOW, MASKED>(q, bias, pair, x);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) x[i / 4][i % 4] = held[pair < HELD / 2 ? pair : 0][i / 4][i % 4];
}

// The probabilities of row lane / 4 + 8 half: the largest logit, and the sums of the codes or of the
// exponentials.
struct Row {
    f32 largest;
#if PROBS_S8
    // Partial sums by the key index mod 16, that is, by the parity of the tile and the column.
    f32 sums[2][2], inverse;
#else
    u32 total;
#endif
};

#if PROBS_S8

// Replaces the logits of a pair by their exponentials, and adds these to the sums. Those of padding are zero.
INLINE void add_weights(const Params& p, Row& row, Pair& x, int half, int pair, u32 lane) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int t = 2 * pair + i / 2, b = i % 2;
        bool real = 8 * t + 2 * static_cast<int>(lane % 4) + b < p.n;
        f32 e = real ? weight_of(x[i / 2][2 * half + b], row.largest) : 0.0f;
        x[i / 2][2 * half + b] = e;
        row.sums[i / 2][b] = row.sums[i / 2][b] + e;
    }
}

// The codes of a pair, whose exponentials are `x` if it is held, else whose logits.
INLINE u32 codes_of(const Params& p, Row& row, const Pair& x, int half, int pair) {
    s32 code[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        f32 value = x[i / 2][2 * half + i % 2];
        f32 weight = pair < HELD / 2 ? value : weight_of(value, row.largest);
        code[i] = round_s32((weight * row.inverse) * p.probs_recip);
    }
    return pack_s8x4(code[0], code[1], code[2], code[3]);
}

// The factor of the product with the values.
INLINE f32 factor_of(const Params& p, const Row&) { return p.probs_scale * p.value_scale; }

#else

// The codes 255 e^(x - largest) of a pair, which it adds to the total.
INLINE u32 codes_of(const Params&, Row& row, const Pair& x, int half, int pair) {
    u32 code[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        code[i] = code_of(x[i / 2][2 * half + i % 2], row.largest);
    }
    u32 word = low_bytes(code[0], code[1], code[2], code[3]);
    row.total = add_bytes(word, row.total);
    return word;
}

// The factor of the product with the values.
INLINE f32 factor_of(const Params& p, const Row& row) {
    return div_f32(p.value_scale, to_f32(static_cast<s32>(quad_sum(row.total))));
}

#endif

// Adds the products of the probabilities of 32 keys with their values.
INLINE void add_values(s32 (&sums)[4][4], const u32 (&words)[4], const u8* transposed, int step, u32 lane) {
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
        u32 v[4];
        load_matrix_x4(v, transposed + (8 * j + lane % 8 + lane / 16 * 8) * VALUE_ROW + 32 * step + lane / 8 % 2 * 16);
        const u32 even[2] = {v[0], v[1]}, odd[2] = {v[2], v[3]};
        multiply_values(sums[j], words, even);
        multiply_values(sums[j + 1], words, odd);
    }
}

// Computes the weighted sums of the values, and the factors of both rows.
template <bool LOW, bool MASKED>
INLINE void attend(const Params& p, const Queries& q, const Bias& bias, const u8* transposed, s32 (&sums)[4][4], Row (&rows)[2]) {
    Held held;
    rows[0].largest = rows[1].largest = from_bits(0xff800000u);
#pragma unroll UNROLL
    for (int pair = 0; pair < PAIRS; pair++) {
        Pair x;
        logits_of<LOW, MASKED>(q, bias, pair, x);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            f32& largest = rows[i % 4 / 2].largest;
            largest = max_f32(largest, x[i / 4][i % 4]);
            if (pair < HELD / 2) held[pair < HELD / 2 ? pair : 0][i / 4][i % 4] = x[i / 4][i % 4];
        }
    }
    rows[0].largest = quad_max(rows[0].largest), rows[1].largest = quad_max(rows[1].largest);
#if PROBS_S8
#pragma unroll UNROLL
    for (int pair = 0; pair < PAIRS; pair++) {
        Pair x;
        logits_again<LOW, MASKED>(q, bias, pair, held, x);
        add_weights(p, rows[0], x, 0, pair, q.lane);
        add_weights(p, rows[1], x, 1, pair, q.lane);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (pair < HELD / 2) held[pair < HELD / 2 ? pair : 0][i / 4][i % 4] = x[i / 4][i % 4];
        }
    }
    rows[0].inverse = inverse_of(rows[0].sums), rows[1].inverse = inverse_of(rows[1].sums);
#endif
#pragma unroll UNROLL
    for (int step = 0; step < STEPS; step++) {
        u32 words[4] = {};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int pair = 2 * step + i;
            if (pair == PAIRS) continue;
            Pair x;
            logits_again<LOW, MASKED>(q, bias, pair, held, x);
            words[2 * i] = codes_of(p, rows[0], x, 0, pair);
            words[2 * i + 1] = codes_of(p, rows[1], x, 1, pair);
        }
        add_values(sums, words, transposed, step, q.lane);
    }
}

// The same for a window whose mask it looks up; the warp's queries begin at token `first`.
template <bool LOW>
INLINE void attend_masked(const Params& p, Queries& q, const u8* raw, const Bias& bias, const u8* transposed, u32 window, u32 first,
                          u32 warp, s32 (&sums)[4][4], Row (&rows)[2]) {
    load_queries<LOW>(q, raw, warp);
    if (u32 mask = mask_of(p, window)) {
        q.regions = regions_of(p, mask, first, q.lane);
        attend<LOW, true>(p, q, bias, transposed, sums, rows);
    } else {
        attend<LOW, false>(p, q, bias, transposed, sums, rows);
    }
}

// Stores the rows of a warp, whose queries begin at token `first`.
INLINE void store(const Params& p, const s32 (&sums)[4][4], const Row (&rows)[2], u32 window, u32 head, u32 first, u32 lane) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        f32 factor = factor_of(p, rows[half]);
        u32 query = first + lane / 4 + 8 * half;
        store_row(p, sums, half, factor, window, query, head, lane);
    }
}

KERNEL(attention_large_i8)(const Params p) {
    u8* raw = shared_memory();
    u8* transposed = raw + 2 * RAW;
    u32 lane = thread_index() % WARP, warp = thread_index() / WARP, head = block_x() % p.heads;
    u32 begin = block_x() / p.heads * p.windows_each, end = begin + p.windows_each;
    if (end > static_cast<u32>(p.total_windows)) end = p.total_windows;
    u32 first_query = block_y() * QUERIES, first = first_query + 16 * warp;

    Bias bias;
    load_bias(p, bias, transposed + HEAD_DIM * VALUE_ROW, head, lane, warp);
    wait_for_previous();
    copy_window(p, raw, begin, head, first_query);
    launch_dependents();
    for (u32 window = begin; window < end; window++) {
        const u8* now = raw + (window - begin) % 2 * RAW;
        copy_wait<0>();
        block_sync();
        if (window + 1 < end) copy_window(p, raw + (window + 1 - begin) % 2 * RAW, window + 1, head, first_query);
        transpose_values<RAW_ROW>(now + first_row(2) * RAW_ROW, transposed);
        block_sync();
        Queries q;
        q.lane = lane, q.scale = logit_scale_of(p, head);
        s32 sums[4][4] = {};
        Row rows[2] = {};
        if (HI_LO && has_operand(p, 3, head)) {
            attend_masked<HI_LO>(p, q, now, bias, transposed, window, first, warp, sums, rows);
        } else {
            attend_masked<false>(p, q, now, bias, transposed, window, first, warp, sums, rows);
        }
        store(p, sums, rows, window, head, first, lane);
        // The next window's values overwrite these. The first barrier of the loop ensures that no warp still
        // reads them.
    }
}
