// The end of the network in f32: LayerNorm with the mean over tokens, and a linear layer for few rows.
//
// Entry points: `pool` and `linear_f32`. Defines: THREADS; POOL, RESIDUAL_F32, STORE and FAKE for `pool`, and
// CHUNKS (chunks of 128 columns of a row) if the residual is f16; OUTPUT for `linear_f32`.
#include "moments.cuh"

#if defined(POOL)

#define STORE_CODES 0
#define STORE_HALF 1
#define STORE_FLOAT 2

struct PoolParams {
    // The residual, `[images * tokens, columns]`.
    const void* residual;
    const f32* gamma;
    const f32* beta;
    // `[images, stride]`.
    void* out;
    // Set to 1 if an f16 residual holds a value that is not finite; null for an f32 residual.
    u32* overflow;
    s32 tokens, columns, stride;
    // Tokens whose norms are in shared memory at a time, for an f32 residual.
    s32 tokens_each;
    f32 epsilon;
    // Reciprocal of the output scale, and the output scale itself.
    f32 recip, scale;
};

#if RESIDUAL_F32
typedef f32 Residual;
#else
typedef u16 Residual;
constexpr s32 WARPS = THREADS / WARP;
#endif

#if RESIDUAL_F32

// Computes the LayerNorm statistics of the first `tokens` tokens of `residual`; four lanes share a token.
INLINE void norms_of(const PoolParams& p, const Residual* residual, s32 tokens, RowNorm* norms) {
    s32 lane = thread_index() % 4, rounds = (tokens + THREADS / 4 - 1) / (THREADS / 4);
    for (s32 round = 0; round < rounds; round++) {
        s32 token = round * (THREADS / 4) + thread_index() / 4;
        bool real = token < tokens;
        const Residual* row = residual + static_cast<u64>(real ? token : 0) * p.columns;
        RowNorm norm = row_norm(p.columns, pieces_of(p.columns, lane), p.epsilon,
                                [&](s32 i) { return values4(row + 16 * i + 4 * lane); });
        if (real && lane == 0) norms[token] = norm;
    }
}

#else

INLINE f32 warp_sum(f32 x) {
#pragma unroll
    for (u32 mask = 16; mask > 0; mask /= 2) x = x + shuffle_xor(x, mask);
    return x;
}

// The columns of a lane of one row: 4 (lane + 32 chunk) to 4 (lane + 32 chunk) + 3 of each chunk; zeros
// beyond the row.
struct Row {
    f32x4 values[CHUNKS];

    INLINE void load(const Residual* row, s32 columns, s32 lane) {
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            s32 at = 4 * (lane + WARP * i);
            values[i] = at < columns ? values4(row + at) : f32x4{0.0f, 0.0f, 0.0f, 0.0f};
        }
    }

    INLINE f32 sum() const {
        f32 sum = 0.0f;
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) sum = sum + ((values[i].x + values[i].y) + (values[i].z + values[i].w));
        return warp_sum(sum);
    }

    // Subtracts `mean` from the values, and returns the sum of their squares.
    INLINE f32 center(f32 mean, s32 columns, s32 lane) {
        f32 square = 0.0f;
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            f32x4& v = values[i];
            if (4 * (lane + WARP * i) < columns) v = f32x4{v.x - mean, v.y - mean, v.z - mean, v.w - mean};
            square = fma_f32(v.x, v.x, fma_f32(v.y, v.y, fma_f32(v.z, v.z, fma_f32(v.w, v.w, square))));
        }
        return warp_sum(square);
    }
};

// Adds the normalised tokens of an image, without gamma and beta: `[WARPS][128 CHUNKS]` sums, one row for
// each warp, which processes every WARPS-th token.
INLINE void sum_tokens(const PoolParams& p, const Residual* residual, f32* partial) {
    s32 lane = thread_index() % WARP, warp = thread_index() / WARP;
    f32x4 sums[CHUNKS];
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) sums[i] = f32x4{0.0f, 0.0f, 0.0f, 0.0f};
    for (s32 token = warp; token < p.tokens; token += WARPS) {
        Row row;
        row.load(residual + static_cast<u64>(token) * p.columns, p.columns, lane);
        f32 mean = div_f32(row.sum(), to_f32(p.columns));
        f32 variance = div_f32(row.center(mean, p.columns, lane), to_f32(p.columns));
        f32 inverse = rsqrt_f32(variance + p.epsilon);
        // A value that is not finite makes the variance of its row not finite.
        if (lane == 0 && !finite(variance)) raise_flag(p.overflow);
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            const f32x4& v = row.values[i];
            f32x4& sum = sums[i];
            sum = f32x4{fma_f32(v.x, inverse, sum.x), fma_f32(v.y, inverse, sum.y), fma_f32(v.z, inverse, sum.z),
                        fma_f32(v.w, inverse, sum.w)};
        }
    }
    f32x4* to = reinterpret_cast<f32x4*>(partial + warp * 4 * WARP * CHUNKS);
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) to[lane + WARP * i] = sums[i];
}

#endif

// Stores the mean `y` of a column.
INLINE void store_mean(const PoolParams& p, s32 column, f32 y) {
    u64 at = static_cast<u64>(block_x()) * p.stride + column;
#if STORE == STORE_CODES
    static_cast<s8*>(p.out)[at] = static_cast<s8>(static_cast<s32>(code_f32(y * p.recip)));
#else
#if FAKE
    y = fake(y, p.recip, p.scale);
#endif
#if STORE == STORE_HALF
    static_cast<u16*>(p.out)[at] = f32_to_half(y);
#else
    static_cast<f32*>(p.out)[at] = y;
#endif
#endif
}

#if RESIDUAL_F32

// Adds the first `tokens` tokens of `residual`, normalised, to the sum of each column. A thread has columns
// of its own.
INLINE void add_columns(const PoolParams& p, const Residual* residual, s32 tokens, const RowNorm* norms, f32* sums) {
    for (s32 column = thread_index(); column < p.columns; column += THREADS) {
        f32 gamma = p.gamma[column], beta = p.beta[column], sum = sums[column];
#pragma unroll 8
        for (s32 token = 0; token < tokens; token++) {
            sum = sum + apply(norms[token], residual[static_cast<u64>(token) * p.columns + column], gamma, beta);
        }
        sums[column] = sum;
    }
}

#endif

// Computes the mean of the normalised tokens of an image for each block. With an f32 residual the tokens are
// summed in their order.
KERNEL(pool)(const PoolParams p) {
    f32* shared = reinterpret_cast<f32*>(shared_memory());
    wait_for_previous();
    launch_dependents();
    const Residual* residual = static_cast<const Residual*>(p.residual) + static_cast<u64>(block_x()) * p.tokens * p.columns;
#if RESIDUAL_F32
    RowNorm* norms = reinterpret_cast<RowNorm*>(shared);
    f32* sums = reinterpret_cast<f32*>(norms + p.tokens_each);
    for (s32 column = thread_index(); column < p.columns; column += THREADS) sums[column] = 0.0f;
    for (s32 rest = p.tokens; rest > 0; rest -= p.tokens_each) {
        s32 tokens = rest < p.tokens_each ? rest : p.tokens_each;
        norms_of(p, residual, tokens, norms);
        block_sync();
        add_columns(p, residual, tokens, norms, sums);
        block_sync();
        residual += static_cast<u64>(tokens) * p.columns;
    }
    for (s32 column = thread_index(); column < p.columns; column += THREADS) {
        store_mean(p, column, div_f32(sums[column], to_f32(p.tokens)));
    }
#else
    sum_tokens(p, residual, shared);
    block_sync();
    for (s32 column = thread_index(); column < p.columns; column += THREADS) {
        f32 sum = 0.0f;
#pragma unroll
        for (s32 warp = 0; warp < WARPS; warp++) sum = sum + shared[warp * 4 * WARP * CHUNKS + column];
        store_mean(p, column, fma_f32(div_f32(sum, to_f32(p.tokens)), p.gamma[column], p.beta[column]));
    }
#endif
}

#else

struct LinearParams {
    // `[m, k]`.
    const f32* x;
    // `[k, n]`; a row takes `stride` floats in memory, n padded to a multiple of 4.
    const f32* w;
    const f32* bias;
    // Reciprocal and value of the `.output` site's scale.
    f32 output_recip, output_scale;
    // `[m, n]`.
    f32* out;
    s32 m, n, k, stride;
};

// Columns and rows of a block, and k values of a stage.
constexpr int COLUMNS = 32;
constexpr int ROWS = 16;
constexpr int DEPTH = 64;
constexpr int STAGES = 4;
constexpr int STAGE = DEPTH * COLUMNS + ROWS * DEPTH;
static_assert(THREADS == 128, "32 columns by 4 groups of rows");
constexpr int EACH = ROWS / 4;

// Starts copying one stage of the block's weights, `[DEPTH][COLUMNS]`, and rows, `[ROWS][DEPTH]`.
INLINE void copy_stage(const LinearParams& p, f32* to, s32 k0, s32 row0, s32 column0) {
    for (s32 i = thread_index(); i < DEPTH * COLUMNS / 4; i += THREADS) {
        s32 k = k0 + i / (COLUMNS / 4), column = column0 + 4 * (i % (COLUMNS / 4));
        bool real = k < p.k && column < p.stride;
        copy_async_16(to + 4 * i, p.w + (real ? static_cast<u64>(k) * p.stride + column : 0), real ? 16 : 0);
    }
    for (s32 i = thread_index(); i < ROWS * DEPTH / 4; i += THREADS) {
        s32 row = row0 + i / (DEPTH / 4), k = k0 + 4 * (i % (DEPTH / 4));
        s32 valid = row < p.m ? 4 * (p.k - k) : 0;
        valid = valid < 0 ? 0 : valid > 16 ? 16 : valid;
        copy_async_16(to + DEPTH * COLUMNS + 4 * i, p.x + (valid ? static_cast<u64>(row) * p.k + k : 0), valid);
    }
    copy_commit();
}

// Each sum is a sequence of fused multiply-adds in the order of k. Zeros beyond k do not change it.
KERNEL(linear_f32)(const LinearParams p) {
    f32* shared = reinterpret_cast<f32*>(shared_memory());
    s32 column0 = static_cast<s32>(block_x()) * COLUMNS, row0 = static_cast<s32>(block_y()) * ROWS;
    s32 lane = thread_index() % COLUMNS, group = thread_index() / COLUMNS * EACH;
    s32 stages = (p.k + DEPTH - 1) / DEPTH;
    wait_for_previous();
    launch_dependents();
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < stages) {
            copy_stage(p, shared + i * STAGE, i * DEPTH, row0, column0);
        } else {
            copy_commit();
        }
    }
    f32 sums[EACH] = {};
    for (s32 stage = 0; stage < stages; stage++) {
        copy_wait<STAGES - 2>();
        block_sync();
        s32 next = stage + STAGES - 1;
        if (next < stages) {
            copy_stage(p, shared + next % STAGES * STAGE, next * DEPTH, row0, column0);
        } else {
            copy_commit();
        }
        const f32* w = shared + stage % STAGES * STAGE;
        const f32* x = w + DEPTH * COLUMNS + group * DEPTH;
        s32 depth = p.k - stage * DEPTH < DEPTH ? p.k - stage * DEPTH : DEPTH;
#pragma unroll 16
        for (s32 k = 0; k < depth; k++) {
#pragma unroll
            for (int i = 0; i < EACH; i++) sums[i] = fma_f32(x[i * DEPTH + k], w[k * COLUMNS + lane], sums[i]);
        }
    }
    s32 column = column0 + lane;
    if (column >= p.n) return;
    f32 bias = p.bias[column];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        s32 row = row0 + group + i;
        if (row >= p.m) continue;
#if OUTPUT
        f32 y = fma_f32(code_f32(sums[i] * p.output_recip), p.output_scale, bias);
#else
        f32 y = sums[i] + bias;
#endif
        p.out[static_cast<u64>(row) * p.n + column] = y;
    }
}

#endif
