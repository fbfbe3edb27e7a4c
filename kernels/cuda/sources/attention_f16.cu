// Window attention on f16 queries, keys and values, for windows of up to 64 tokens: the f16 counterpart of
// `attention_i8.cu`. Sums and softmax are f32. Unnormalised probabilities, as f16, are multiplied with the
// values; the result is divided by their sum.
//
// Defines: those of `attention.cuh`. THREADS is 128.

// For sm_100 and later the compiler would spill a register without a number of blocks.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000 && !defined(MIN_BLOCKS)
#define MIN_BLOCKS 4
#endif
#include "attention_tile.cuh"

// Bytes from one token to the next in shared memory: an odd number of 16-byte chunks, which avoids bank
// conflicts.
constexpr u32 RAW_ROW = 80;
constexpr u32 RAW = 3 * TOKENS * RAW_ROW;

// Number of 16-byte copies that each thread starts for a window.
constexpr int COPIES = 3 * TOKENS * 4 / THREADS;

// Starts copying q, k and v of window `window`. Tokens from index `n` on are filled with zeros.
INLINE void copy_window(const Params& p, u8* raw, u32 window, u32 head) {
    u32 chunk = thread_index() % 4, first = thread_index() / 4;
    const u16* base = static_cast<const u16*>(p.qkv) + static_cast<u64>(window) * p.n * p.columns + 8 * chunk;
#pragma unroll
    for (u32 c = 0; c < COPIES; c++) {
        u32 row = first + c * (THREADS / 4), token = row % TOKENS, operand = row / TOKENS;
        bool real = token < static_cast<u32>(p.n);
        const u16* from = base + (real ? token * p.columns + column_of(p, operand, head) : 0);
        copy_async_16(raw + row * RAW_ROW + 16 * chunk, from, real ? 16 : 0);
    }
    copy_commit();
}

// Computes the logits of the warp's 16 queries, in the layout of `Logits`.
INLINE void logits_of(const u8* raw, f32 scale, const Bias& bias, Logits& x, u32 lane, u32 warp) {
    u32 q[2][4];
    const u8* queries = raw + (16 * warp + lane % 16) * RAW_ROW + lane / 16 * 16;
    load_matrix_x4(q[0], queries);
    load_matrix_x4(q[1], queries + 32);
    const u8* keys = raw + TOKENS * RAW_ROW + lane % 8 * RAW_ROW + lane / 8 * 16;
#pragma unroll
    for (int t = 0; t < KEY_TILES; t++) {
        u32 k[4];
        load_matrix_x4(k, keys + 8 * t * RAW_ROW);
        f32 sums[4] = {};
        const u32 low[2] = {k[0], k[1]}, high[2] = {k[2], k[3]};
        mma_f16(sums, q[0], low);
        mma_f16(sums, q[1], high);
#pragma unroll
        for (int i = 0; i < 4; i++) x[t][i] = fma_f32(sums[i], scale, bias[t][i]);
    }
}

// Words of probabilities, `[step][register]`, in the layout that the product with the values reads.
typedef u32 Probabilities[4][4];

// Writes e^(x - largest) of row lane / 4 + 8 `half` as f16; returns the reciprocal of their sum.
INLINE f32 probabilities(const Logits& x, int half, Probabilities& words) {
    f32 largest = x[0][2 * half];
#pragma unroll
    for (int t = 0; t < KEY_TILES; t++) largest = max_f32(largest, max_f32(x[t][2 * half], x[t][2 * half + 1]));
    largest = quad_max(largest);
    f32 total = 0.0f;
#pragma unroll
    for (int t = 0; t < 8; t++) {
        f32 e[2] = {0.0f, 0.0f};
#pragma unroll
        for (int b = 0; b < 2; b++) {
            if (t < KEY_TILES) {
                e[b] = weight_of(x[t < KEY_TILES ? t : 0][2 * half + b], largest);
            }
            total = total + e[b];
        }
        words[t / 2][t % 2 * 2 + half] = pack_half2(e[0], e[1]);
    }
    return div_f32(1.0f, quad_sum(total));
}

// Multiplies the probabilities with the values and stores the result.
INLINE void weighted_values(const Params& p, const u8* values, const Probabilities& words, const f32 (&factor)[2], u32 window,
                            u32 head, u32 lane, u32 warp) {
    f32 sums[4][4] = {};
    const u8* row = values + (lane % 8 + lane / 8 % 2 * 8) * RAW_ROW + lane / 16 * 16;
#pragma unroll
    for (int step = 0; step < 4; step++) {
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            u32 v[4];
            load_matrix_x4_transposed(v, row + 16 * step * RAW_ROW + 32 * pair);
            const u32 first[2] = {v[0], v[1]}, second[2] = {v[2], v[3]};
            mma_f16(sums[2 * pair], words[step], first);
            mma_f16(sums[2 * pair + 1], words[step], second);
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 query = 16 * warp + lane / 4 + 8 * half;
        store_exchanged(p, sums, half, factor[half], window, query, head, lane);
    }
}

KERNEL(attention_f16)(const Params p) {
    u8* raw = shared_memory();
    u32 lane = thread_index() % WARP, warp = thread_index() / WARP, head = block_x() % p.heads;
    u32 first = block_x() / p.heads * p.windows_each, last = first + p.windows_each;
    if (last > static_cast<u32>(p.total_windows)) last = p.total_windows;

    f32 scale = logit_scale_of(p, head);
    Bias bias;
    load_bias(p, bias, head, lane, warp);
    wait_for_previous();
    copy_window(p, raw, first, head);
    launch_dependents();
    for (u32 window = first; window < last; window++) {
        const u8* now = raw + (window - first) % 2 * RAW;
        copy_wait<0>();
        block_sync();
        if (window + 1 < last) copy_window(p, raw + (window + 1 - first) % 2 * RAW, window + 1, head);
        Logits x;
        if (u32 mask = mask_of(p, window)) {
            mask_bias(p.regions + mask * TOKENS, bias, x, lane, warp);
            logits_of(now, scale, x, x, lane, warp);
        } else {
            logits_of(now, scale, bias, x, lane, warp);
        }
        Probabilities words;
        const f32 factor[2] = {probabilities(x, 0, words), probabilities(x, 1, words)};
        weighted_values(p, now + 2 * TOKENS * RAW_ROW, words, factor, window, head, lane, warp);
    }
}
