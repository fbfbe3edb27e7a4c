// Window attention on INT8 queries, keys and values, for windows of up to 64 tokens
// (`reference::attention_window`).
//
// A block processes one head and loops over windows. Each of its four warps has 16 queries and keeps their
// bias in registers. The product of probabilities and values sums integers over the keys, so the order of the
// keys does not change the result. The probabilities therefore stay in the registers that hold them, and the
// values are transposed to match this order.
//
// Defines: those of `attention.cuh`, and PROBS_S8 (1: probabilities of kind s8; 0: kind u8). THREADS is 128.

// The more blocks, the more windows are in flight on a multiprocessor; elsewhere the limit on registers would
// spill. With hi and lo codes, and for sm_100 and later, the compiler would spill a register without a number
// of blocks; for sm_80 and large windows with hi and lo codes it would use so many that a block less fits.
// `AttentionConfig::launch` counts on these numbers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define MIN_BLOCKS (HI_LO ? 3 : 4)
#elif defined(__CUDA_ARCH__) && (__CUDA_ARCH__ >= 900 || (__CUDA_ARCH__ == 800 && KEY_TILES > 7)) && HI_LO
#define MIN_BLOCKS 4
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && !EXACT && !PROBS_S8
#define MIN_BLOCKS (KEY_TILES <= 7 && !HEAD_SCALES ? 6 : 5)
#endif
#include "attention_tile.cuh"

// Bytes from one token to the next in `raw`: an odd number of 16-byte chunks, which avoids bank conflicts.
constexpr u32 RAW_ROW = 48;
constexpr u32 RAW = OPERANDS * TOKENS * RAW_ROW;

// Number of 16-byte copies that each thread starts for a window.
constexpr int COPIES = OPERANDS * TOKENS * 2 / THREADS;

// Sources of a thread's copies, as offsets within a window, and their destinations, as offsets within `raw`.
struct Copies {
    u32 from[COPIES], to[COPIES], valid[COPIES];
};

INLINE Copies copies_of(const Params& p, u32 head) {
    Copies copies;
#pragma unroll
    for (int c = 0; c < COPIES; c++) {
        u32 i = thread_index() + c * THREADS;
        u32 half = i % 2, token = i / 2 % TOKENS, operand = i / 2 / TOKENS;
        bool real = token < static_cast<u32>(p.n) && has_operand(p, operand, head);
        copies.from[c] = real ? token * p.columns + column_of(p, operand, head) + 16 * half : 0;
        copies.to[c] = (operand * TOKENS + token) * RAW_ROW + 16 * half;
        copies.valid[c] = real ? 16 : 0;
    }
    return copies;
}

// Starts copying the operands of window `window`. Tokens from index `n` on are filled with zeros.
INLINE void copy_window(const Params& p, const Copies& copies, u8* raw, u32 window) {
    const s8* base = static_cast<const s8*>(p.qkv) + static_cast<u64>(window) * p.n * p.columns;
#pragma unroll
    for (int c = 0; c < COPIES; c++) copy_async_16(raw + copies.to[c], base + copies.from[c], copies.valid[c]);
    copy_commit();
}

// Computes the logits of the warp's 16 queries, in the layout of `Logits`. LOW: the head has lo codes.
template <bool LOW>
INLINE void logits_of(const u8* raw, f32 scale, const Bias& bias, Logits& x, u32 lane, u32 warp) {
    u32 q[4], q_low[4];
    load_matrix_x4(q, raw + (16 * warp + lane % 16) * RAW_ROW + lane / 16 * 16);
    if (LOW) load_matrix_x4(q_low, raw + (3 * TOKENS + 16 * warp + lane % 16) * RAW_ROW + lane / 16 * 16);
    const u8* keys = raw + TOKENS * RAW_ROW + (lane % 8 + lane / 16 * 8) * RAW_ROW + lane / 8 % 2 * 16;
#pragma unroll
    for (int pair = 0; pair < (KEY_TILES + 1) / 2; pair++) {
        u32 k[4], k_low[4];
        load_matrix_x4(k, keys + 16 * pair * RAW_ROW);
        if (LOW) load_matrix_x4(k_low, keys + (3 * TOKENS + 16 * pair) * RAW_ROW);
#pragma unroll
        for (int t = 2 * pair; t < 2 * pair + 2 && t < KEY_TILES; t++) {
            s32 sums[4] = {};
            const u32 b[2] = {k[t % 2 * 2], k[t % 2 * 2 + 1]};
            mma_s8(sums, q, b);
            s32 low[4] = {};
            if (LOW) {
                const u32 b_low[2] = {k_low[t % 2 * 2], k_low[t % 2 * 2 + 1]};
                mma_s8(low, q, b_low);
                mma_s8(low, q_low, b);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x[t][i] = fma_f32(LOW ? with_lo_codes(sums[i], low[i]) : to_f32(sums[i]), scale, bias[t][i]);
            }
        }
    }
}

// The same with the mask of the window.
template <bool LOW>
INLINE void masked_logits(const Params& p, const u8* raw, u32 window, u32 head, const Bias& bias, Logits& x, u32 lane, u32 warp) {
    if (u32 mask = mask_of(p, window)) {
        mask_bias(p.regions + mask * TOKENS, bias, x, lane, warp);
        logits_of<LOW>(raw, logit_scale_of(p, head), x, x, lane, warp);
    } else {
        logits_of<LOW>(raw, logit_scale_of(p, head), bias, x, lane, warp);
    }
}

#if PROBS_S8

// Computes the softmax of row lane / 4 + 8 `half` and writes its codes; returns the factor of the product
// with the values.
INLINE f32 probabilities(const Params& p, const Logits& x, int half, ProbabilityCodes& words, u32 lane) {
    f32 largest = row_max(x, half);
    // Partial sums by the key index mod 16, that is, by the parity of the tile and the column.
    f32 e[KEY_TILES][2], sums[2][2] = {};
#pragma unroll
    for (int t = 0; t < KEY_TILES; t++) {
#pragma unroll
        for (int b = 0; b < 2; b++) {
            bool real = 8 * t + 2 * static_cast<int>(lane % 4) + b < p.n;
            e[t][b] = real ? weight_of(x[t][2 * half + b], largest) : 0.0f;
            sums[t % 2][b] = sums[t % 2][b] + e[t][b];
        }
    }
    f32 inverse = inverse_of(sums);
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
        s32 code[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int t = 2 * pair + i / 2;
            code[i] = t < KEY_TILES ? round_s32((e[t < KEY_TILES ? t : 0][i % 2] * inverse) * p.probs_recip) : 0;
        }
        words[pair / 2][pair % 2 * 2 + half] = pack_s8x4(code[0], code[1], code[2], code[3]);
    }
    return p.probs_scale * p.value_scale;
}

#else

// Writes the codes 255 e^(x - largest) of row lane / 4 + 8 `half`; returns the factor of the product with the
// values.
INLINE f32 probabilities(const Params& p, const Logits& x, int half, ProbabilityCodes& words, u32) {
    return div_f32(p.value_scale, to_f32(probabilities_u8(x, half, words)));
}

#endif

// Multiplies the probabilities with the values and stores the result.
INLINE void weighted_values(const Params& p, const u8* transposed, const ProbabilityCodes& words, const f32 (&factor)[2],
                            u32 window, u32 head, u32 lane, u32 warp) {
    s32 sums[4][4] = {};
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
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 query = 16 * warp + lane / 4 + 8 * half;
        store_row(p, sums, half, factor[half], window, query, head, lane);
    }
}

KERNEL(attention_i8)(const Params p) {
    u8* raw = shared_memory();
    u8* transposed = raw + 2 * RAW;
    u32 lane = thread_index() % WARP, warp = thread_index() / WARP, head = block_x() % p.heads;
    u32 first = block_x() / p.heads * p.windows_each, last = first + p.windows_each;
    if (last > static_cast<u32>(p.total_windows)) last = p.total_windows;

    Bias bias;
    load_bias(p, bias, head, lane, warp);
    wait_for_previous();
    Copies copies = copies_of(p, head);
    copy_window(p, copies, raw, first);
    launch_dependents();
    for (u32 window = first; window < last; window++) {
        const u8* now = raw + (window - first) % 2 * RAW;
        copy_wait<0>();
        block_sync();
        if (window + 1 < last) copy_window(p, copies, raw + (window + 1 - first) % 2 * RAW, window + 1);
        transpose_values<RAW_ROW>(now + 2 * TOKENS * RAW_ROW, transposed);
        Logits x;
        if (HI_LO && has_operand(p, 3, head)) {
            masked_logits<HI_LO>(p, now, window, head, bias, x, lane, warp);
        } else {
            masked_logits<false>(p, now, window, head, bias, x, lane, warp);
        }
        ProbabilityCodes words;
        const f32 factor[2] = {probabilities(p, x, 0, words, lane), probabilities(p, x, 1, words, lane)};
        block_sync();
        weighted_values(p, transposed, words, factor, window, head, lane, warp);
        // The next window's values overwrite these. The first barrier of the loop ensures that no warp still
        // reads them.
    }
}
