// Window attention on f16 queries, keys and values, for windows of 65 to 256 tokens: the f16 counterpart of
// `attention_large_i8.cu`. Sums and softmax are f32. Unnormalised probabilities, as f16, are multiplied with
// the values; the result is divided by their sum.
//
// Defines: those of `attention_large.cuh`.
#include "attention_large.cuh"

// Bytes from one token to the next in shared memory: an odd number of 16-byte chunks, which avoids bank
// conflicts.
constexpr u32 RAW_ROW = 80;
constexpr u32 RAW = RAW_ROWS * RAW_ROW;

// Number of rows that the block copies at once, and how often it does so for a window.
constexpr u32 COPY_ROWS = THREADS / 4;
constexpr u32 COPIES = (RAW_ROWS + COPY_ROWS - 1) / COPY_ROWS;

// Starts copying q, k and v of window `window`. Tokens from index `n` on are filled with zeros.
INLINE void copy_window(const Params& p, u8* raw, u32 window, u32 head, u32 first_query) {
    u32 chunk = thread_index() % 4, first = thread_index() / 4;
    const u16* base = static_cast<const u16*>(p.qkv) + static_cast<u64>(window) * p.n * p.columns + 8 * chunk;
#pragma unroll
    for (u32 c = 0; c < COPIES; c++) {
        u32 row = first + c * COPY_ROWS, operand = operand_of(row), token = token_of(row, operand, first_query);
        if (RAW_ROWS % COPY_ROWS != 0 && row >= RAW_ROWS) continue;
        bool real = token < static_cast<u32>(p.n);
        const u16* from = base + (real ? token * p.columns + column_of(p, operand, head) : 0);
        copy_async_16(raw + row * RAW_ROW + 16 * chunk, from, real ? 16 : 0);
    }
    copy_commit();
}

// A warp's part of a window: its 16 queries, keys and values.
struct Queries {
    u32 halves[2][4];
    const u8 *keys, *values;
    f32 scale;
    Regions regions;
    u32 lane;
};

INLINE void load_queries(Queries& q, const u8* raw, u32 warp) {
    const u8* queries = raw + (16 * warp + q.lane % 16) * RAW_ROW + q.lane / 16 * 16;
    load_matrix_x4(q.halves[0], queries);
    load_matrix_x4(q.halves[1], queries + 32);
    q.keys = raw + (first_row(1) + q.lane % 8) * RAW_ROW + q.lane / 8 * 16;
    q.values = raw + (first_row(2) + q.lane % 8 + q.lane / 8 % 2 * 8) * RAW_ROW + q.lane / 16 * 16;
}

// Computes the logits of a tile of 8 keys. MASKED: the window has regions.
template <bool MASKED>
INLINE void logits_of(const Queries& q, const Bias& bias, int t, f32 (&x)[4]) {
    u32 k[4];
    load_matrix_x4(k, q.keys + 8 * t * RAW_ROW);
    f32 sums[4] = {}, added[4];
    const u32 low[2] = {k[0], k[1]}, high[2] = {k[2], k[3]};
    mma_f16(sums, q.halves[0], low);
    mma_f16(sums, q.halves[1], high);
    bias_of(bias, t, added);
    if (MASKED) mask_bias(q.regions, t, added, q.lane);
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = fma_f32(sums[i], q.scale, added[i]);
}

// Row lane / 4 + 8 half: its largest logit, and the sum of its exponentials.
struct Row {
    f32 largest, total;
};

// Adds the products of the exponentials of 16 keys with their values.
INLINE void add_values(f32 (&sums)[4][4], const u32 (&words)[4], const Queries& q, int pair) {
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
        u32 v[4];
        load_matrix_x4_transposed(v, q.values + 16 * pair * RAW_ROW + 16 * j);
        const u32 even[2] = {v[0], v[1]}, odd[2] = {v[2], v[3]};
        mma_f16(sums[j], words, even);
        mma_f16(sums[j + 1], words, odd);
    }
}

// Computes the weighted sums of the values, and the sums of the weights.
template <bool MASKED>
INLINE void attend(const Queries& q, const Bias& bias, f32 (&sums)[4][4], Row (&rows)[2]) {
    f32 held[HELD > 0 ? HELD : 1][4];
    rows[0].largest = rows[1].largest = from_bits(0xff800000u);
#pragma unroll UNROLL
    for (int t = 0; t < KEY_TILES; t++) {
        f32 x[4];
        logits_of<MASKED>(q, bias, t, x);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            rows[i / 2].largest = max_f32(rows[i / 2].largest, x[i]);
            if (t < HELD) held[t < HELD ? t : 0][i] = x[i];
        }
    }
    rows[0].largest = quad_max(rows[0].largest), rows[1].largest = quad_max(rows[1].largest);
#pragma unroll UNROLL
    for (int pair = 0; pair < PAIRS; pair++) {
        u32 words[4] = {};
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int t = 2 * pair + k;
            f32 x[4];
            if (t >= HELD) logits_of<MASKED>(q, bias, t, x);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (t < HELD) x[i] = held[t < HELD ? t : 0][i];
                x[i] = weight_of(x[i], rows[i / 2].largest);
                rows[i / 2].total = rows[i / 2].total + x[i];
            }
            words[2 * k] = pack_half2(x[0], x[1]), words[2 * k + 1] = pack_half2(x[2], x[3]);
        }
        add_values(sums, words, q, pair);
    }
}

// Stores the rows of a warp, whose queries begin at token `first`.
INLINE void store(const Params& p, const f32 (&sums)[4][4], const Row (&rows)[2], u32 window, u32 head, u32 first, u32 lane) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        f32 factor = div_f32(1.0f, quad_sum(rows[half].total));
        u32 query = first + lane / 4 + 8 * half;
        store_exchanged(p, sums, half, factor, window, query, head, lane);
    }
}

KERNEL(attention_large_f16)(const Params p) {
    u8* raw = shared_memory();
    u32 lane = thread_index() % WARP, warp = thread_index() / WARP, head = block_x() % p.heads;
    u32 begin = block_x() / p.heads * p.windows_each, end = begin + p.windows_each;
    if (end > static_cast<u32>(p.total_windows)) end = p.total_windows;
    u32 first_query = block_y() * QUERIES, first = first_query + 16 * warp;

    Bias bias;
    load_bias(p, bias, raw + 2 * RAW, head, lane, warp);
    wait_for_previous();
    copy_window(p, raw, begin, head, first_query);
    launch_dependents();
    for (u32 window = begin; window < end; window++) {
        const u8* now = raw + (window - begin) % 2 * RAW;
        copy_wait<0>();
        block_sync();
        if (window + 1 < end) copy_window(p, raw + (window + 1 - begin) % 2 * RAW, window + 1, head, first_query);
        Queries q;
        q.lane = lane, q.scale = logit_scale_of(p, head);
        load_queries(q, now, warp);
        f32 sums[4][4] = {};
        Row rows[2] = {};
        if (u32 mask = mask_of(p, window)) {
            q.regions = regions_of(p, mask, first, lane);
            attend<true>(q, bias, sums, rows);
        } else {
            attend<false>(q, bias, sums, rows);
        }
        store(p, sums, rows, window, head, first, lane);
    }
}
