// Gradient of a table whose rows were read by an index map, summed in a fixed order.
//
// Entry point: `table_gradient`. Defines: THREADS.
#include "train.cuh"

struct Params {
    // `[heads, pairs]`.
    const f32* grad;
    // Row of the table that each pair reads.
    const u32* index;
    // `[rows, heads]`.
    f32* out;
    u32 pairs, heads;
};

// Block (x, y) computes row x and head y.
KERNEL(table_gradient)(const Params p) {
    const f32* grad = p.grad + static_cast<u64>(block_y()) * p.pairs;
    f32 sum = 0.0f;
    for (u32 i = thread_index(); i < p.pairs; i += THREADS) {
        if (p.index[i] == block_x()) sum = sum + grad[i];
    }
    sum = block_sum(sum, reinterpret_cast<f32*>(shared_memory()));
    if (thread_index() == 0) p.out[block_x() * p.heads + block_y()] = sum;
}
