// The scales of weights in training, computed on the device: from the largest magnitude of each row, or from
// learned ratios.
//
// Entry points: `row_maxima`, `scale_table`. Defines: THREADS.
#include "train.cuh"

struct Params {
    // `row_maxima`: the weight, `[rows, columns]`; `scale_table` with learned scales: the ratios, `[rows]`.
    const f32* x;
    // Factors of the columns, `[2, columns]`, of which the first row is used, or null.
    const f32* factors;
    // With learned scales: the initial scales, `[rows]`; else null.
    const f32* base;
    // The largest magnitudes of the parts of each row, `[rows, parts]`.
    f32* maxima;
    // Scales, their reciprocals and the factors of their gradients, `[3, rows]`.
    f32* table;
    u32 rows, columns, parts;
    // The largest code, and the factor of the gradients of learned scales.
    f32 largest, gradient_scale;
};

// Number of values that a block processes.
constexpr u32 PART = 16 * THREADS;

// Block (x, y) finds the largest magnitude of part x of row y. A NaN counts as nothing.
KERNEL(row_maxima)(const Params p) {
    f32* shared = reinterpret_cast<f32*>(shared_memory());
    const f32* x = p.x + static_cast<u64>(block_y()) * p.columns;
    f32 most = 0.0f;
    for (u32 i = thread_index(); i < PART; i += THREADS) {
        u32 at = block_x() * PART + i;
        if (at >= p.columns) break;
        f32 value = p.factors == nullptr ? x[at] : x[at] * p.factors[at];
        most = max_f32(most, abs_f32(value));
    }
    most = warp_max(most);
    if (thread_index() % WARP == 0) shared[thread_index() / WARP] = most;
    block_sync();
    if (thread_index() != 0) return;
    for (u32 i = 1; i < THREADS / WARP; i++) most = max_f32(most, shared[i]);
    p.maxima[static_cast<u64>(block_y()) * p.parts + block_x()] = most;
}

// Thread i writes the scale of row i. A row of zeros has the scale 1.
KERNEL(scale_table)(const Params p) {
    u32 row = block_x() * THREADS + thread_index();
    if (row >= p.rows) return;
    f32 scale, factor = 1.0f;
    if (p.base != nullptr) {
        scale = p.base[row] * p.x[row];
        factor = p.base[row] * p.gradient_scale;
    } else {
        f32 most = 0.0f;
        for (u32 i = 0; i < p.parts; i++) most = max_f32(most, p.maxima[static_cast<u64>(row) * p.parts + i]);
        scale = div_f32(most, p.largest);
        if (!finite(div_f32(1.0f, scale))) scale = 1.0f;
    }
    p.table[row] = scale;
    p.table[p.rows + row] = div_f32(1.0f, scale);
    p.table[2 * p.rows + row] = factor;
}
