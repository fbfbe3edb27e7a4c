// LayerNorm in training: the forward pass, and the gradients of its input, weight and bias. The gradients of
// weight and bias are summed over the rows of each block.
//
// Entry points: `norm_forward`, `norm_backward`. Defines: THREADS; ROW_THREADS, the threads per row (a warp
// or the whole block); CHUNKS, the columns per thread.
#include "train.cuh"

struct Params {
    // `[rows, columns]`.
    const f32* x;
    const f32* weight;
    // Forward only.
    const f32* bias;
    // Backward only: `[rows, columns]`.
    const f32* grad;
    // `[rows, columns]`.
    f32* out;
    // Backward only: gradients of weight and bias, `[blocks, 2, columns]`.
    f32* partial;
    s32 rows, columns;
    // Number of rows that a block processes.
    s32 rows_of_block;
    f32 epsilon;
};

// Number of rows that a block processes at the same time.
constexpr s32 GROUPS = THREADS / ROW_THREADS;
static_assert(ROW_THREADS == WARP || ROW_THREADS == THREADS, "a row is a warp's or the block's");

INLINE f32 row_sum(f32 x) {
    if constexpr (ROW_THREADS == WARP) {
        return warp_sum(x);
    } else {
        return block_sum(x, reinterpret_cast<f32*>(shared_memory()));
    }
}

INLINE s32 column_of(int chunk) { return static_cast<s32>(thread_index()) % ROW_THREADS + chunk * ROW_THREADS; }

// Subtracts its mean from a row and returns the reciprocal of its standard deviation. Elements beyond the
// columns are 0.
INLINE f32 centre(const Params& p, s32 row, f32 (&x)[CHUNKS]) {
    const f32* from = p.x + static_cast<u64>(row) * p.columns;
    f32 sum = 0.0f, square = 0.0f;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        x[i] = column_of(i) < p.columns ? from[column_of(i)] : 0.0f;
        sum = sum + x[i];
    }
    f32 mean = div_f32(row_sum(sum), to_f32(p.columns));
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        x[i] = column_of(i) < p.columns ? x[i] - mean : 0.0f;
        square = fma_f32(x[i], x[i], square);
    }
    return rsqrt_f32(div_f32(row_sum(square), to_f32(p.columns)) + p.epsilon);
}

KERNEL(norm_forward)(const Params p) {
    s32 row = static_cast<s32>(block_x()) * GROUPS + static_cast<s32>(thread_index()) / ROW_THREADS;
    if (row >= p.rows) return;
    f32 x[CHUNKS];
    f32 inverse = centre(p, row, x);
    f32* out = p.out + static_cast<u64>(row) * p.columns;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        s32 at = column_of(i);
        if (at < p.columns) out[at] = fma_f32(x[i] * inverse, p.weight[at], p.bias[at]);
    }
}

// Computes the gradient of a row of the input; adds to the gradients of weight and bias.
INLINE void row_gradient(const Params& p, s32 row, f32 (&dweight)[CHUNKS], f32 (&dbias)[CHUNKS]) {
    f32 unit[CHUNKS], g[CHUNKS];
    f32 inverse = centre(p, row, unit);
    const f32* grad = p.grad + static_cast<u64>(row) * p.columns;
    f32 sum = 0.0f, along = 0.0f;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        s32 at = column_of(i);
        f32 dy = at < p.columns ? grad[at] : 0.0f;
        unit[i] = unit[i] * inverse;
        g[i] = at < p.columns ? dy * p.weight[at] : 0.0f;
        dweight[i] = fma_f32(dy, unit[i], dweight[i]);
        dbias[i] = dbias[i] + dy;
        sum = sum + g[i];
        along = fma_f32(g[i], unit[i], along);
    }
    f32 mean = div_f32(row_sum(sum), to_f32(p.columns));
    along = div_f32(row_sum(along), to_f32(p.columns));
    f32* out = p.out + static_cast<u64>(row) * p.columns;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        if (column_of(i) < p.columns) out[column_of(i)] = inverse * (g[i] - mean - unit[i] * along);
    }
}

// Sums `x` over the row groups of the block and stores the result for the columns from `to` on.
INLINE void store_sums(const Params& p, const f32 (&x)[CHUNKS], f32* to) {
    f32* shared = reinterpret_cast<f32*>(shared_memory());
    s32 group = static_cast<s32>(thread_index()) / ROW_THREADS;
    // With a single group there is nothing to add: it stores directly.
    f32* own = GROUPS == 1 ? to : shared + group * p.columns;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        if (column_of(i) < p.columns) own[column_of(i)] = x[i];
    }
    if constexpr (GROUPS > 1) {
        block_sync();
        for (s32 at = thread_index(); at < p.columns; at += THREADS) {
            f32 sum = shared[at];
            for (s32 i = 1; i < GROUPS; i++) sum = sum + shared[i * p.columns + at];
            to[at] = sum;
        }
        block_sync();
    }
}

KERNEL(norm_backward)(const Params p) {
    f32 dweight[CHUNKS], dbias[CHUNKS];
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) dweight[i] = dbias[i] = 0.0f;
    s32 first = static_cast<s32>(block_x()) * p.rows_of_block;
    s32 end = first + p.rows_of_block < p.rows ? first + p.rows_of_block : p.rows;
    for (s32 row = first + static_cast<s32>(thread_index()) / ROW_THREADS; row < end; row += GROUPS) {
        row_gradient(p, row, dweight, dbias);
    }
    f32* partial = p.partial + static_cast<u64>(block_x()) * 2 * p.columns;
    store_sums(p, dweight, partial);
    store_sums(p, dbias, partial + p.columns);
}
