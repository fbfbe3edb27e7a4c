// Operations on rows in training: a gather by an index map, a bias, and column sums in a fixed order.
//
// Entry points: `gather`, `add_bias`, `column_sums`. Defines: THREADS; VECTOR (values per access, 1 or 4) for
// the first two.
#include "train.cuh"

#if defined(VECTOR)

struct GatherParams {
    // `[images * source_rows, columns]`.
    const f32* x;
    // Source row, in its image, of each row of an image; PAD gives a row of zeros.
    const u32* index;
    // For `add_bias`: `[columns]`.
    const f32* bias;
    // `[images * rows, columns]`.
    f32* out;
    u32 rows, source_rows, columns;
    // Total number of values, divided by VECTOR.
    u32 total;
};

KERNEL(gather)(const GatherParams p) {
    u32 i = block_x() * THREADS + thread_index();
    if (i >= p.total) return;
    u32 pieces = p.columns / VECTOR;
    u32 row = i / pieces, at = VECTOR * (i - row * pieces);
    u32 image = row / p.rows;
    u32 source = p.index[row - image * p.rows];
    f32 x[VECTOR] = {};
    if (source != PAD) load_values(x, p.x + (static_cast<u64>(image) * p.source_rows + source) * p.columns + at);
    store_values(p.out + static_cast<u64>(row) * p.columns + at, x);
}

KERNEL(add_bias)(const GatherParams p) {
    u32 i = block_x() * THREADS + thread_index();
    if (i >= p.total) return;
    f32 x[VECTOR], bias[VECTOR];
    load_values(x, p.x + static_cast<u64>(VECTOR) * i);
    load_values(bias, p.bias + VECTOR * (i % (p.columns / VECTOR)));
#pragma unroll
    for (int k = 0; k < VECTOR; k++) x[k] = x[k] + bias[k];
    store_values(p.out + static_cast<u64>(VECTOR) * i, x);
}

#else

struct SumParams {
    // `[rows, columns]`.
    const f32* x;
    // Sums over parts of the rows, `[parts, columns]`.
    f32* out;
    u32 rows, columns, rows_of_part;
};

// Sums the columns of block x over the rows of part y: each warp adds every eighth row of 32 columns.
KERNEL(column_sums)(const SumParams p) {
    constexpr u32 GROUPS = THREADS / WARP;
    f32* shared = reinterpret_cast<f32*>(shared_memory());
    u32 column = block_x() * WARP + thread_index() % WARP;
    u32 first = block_y() * p.rows_of_part;
    u32 end = first + p.rows_of_part < p.rows ? first + p.rows_of_part : p.rows;
    f32 sum = 0.0f;
    if (column < p.columns) {
#pragma unroll 8
        for (u32 row = first + thread_index() / WARP; row < end; row += GROUPS) {
            sum = sum + p.x[static_cast<u64>(row) * p.columns + column];
        }
    }
    shared[thread_index()] = sum;
    block_sync();
    if (thread_index() >= WARP || column >= p.columns) return;
    for (u32 i = 1; i < GROUPS; i++) sum = sum + shared[i * WARP + thread_index()];
    p.out[static_cast<u64>(block_y()) * p.columns + column] = sum;
}

#endif
