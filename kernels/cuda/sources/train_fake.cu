// Fake quantization of the rows of a matrix: forward, the straight-through gradient, and the gradient of the
// scales in two stages. Each row may have its own scale.
//
// Entry points: `fake_forward`, `fake_backward`, `fake_steps`. Defines: THREADS; VECTOR (values per access, 1
// or 4); TABLE (1: scales are in memory, one per row, and a NaN stays a NaN; 0: one scale in the parameters,
// and a NaN becomes 0); FACTORS (whether the columns have factors, which are multiplied before fake
// quantization and divided out behind it); STEPS (whether the gradients of scales are computed); OUT, the
// type of the results of `fake_forward`.
#include "train.cuh"

struct Params {
    // `[rows, columns]`.
    const f32* x;
    const f32* grad;
    // Scales, their reciprocals and the factors of their gradients: `[3, rows]`.
    const f32* table;
    // With FACTORS: the factors of the columns and their reciprocals, `[2, columns]`.
    const f32* factors;
    // `[rows, columns]`; for `fake_backward` and `fake_steps`, whose results are f32, see `out_f32`.
    Operand* out;
    // Sums over parts of the rows, `[rows, parts]`.
    f32* partial;
    u32 rows, columns, parts;
    // Range to which codes are clamped.
    f32 low, high;
    // Used if there is no table.
    f32 scale, recip, factor;
};

// Number of values that a block processes.
constexpr u32 PART = 16 * THREADS;

INLINE Step step_of(const Params& p, u32 row) {
#if TABLE
    return Step{p.table[p.rows + row], p.table[row]};
#else
    return Step{p.recip, p.scale};
#endif
}

// The gradients: `[rows, columns]`; for `fake_steps`, `[rows]`.
INLINE f32* out_f32(const Params& p) { return reinterpret_cast<f32*>(p.out); }

// Multiplies values from column `at` on by the factors of their columns, or by the reciprocals of these.
template <bool reciprocals>
INLINE void scale_columns(const Params& p, f32 (&x)[VECTOR], u32 at) {
#if FACTORS
    f32 factors[VECTOR];
    load_values(factors, p.factors + (reciprocals ? p.columns : 0) + at);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) x[k] = x[k] * factors[k];
#endif
}

INLINE f32 faked(const Params& p, f32 x, const Step& step) {
    f32 scaled = x * step.recip;
    f32 value = rint_f32(clamp_f32(scaled, p.low, p.high)) * step.scale;
#if TABLE
    return scaled != scaled ? scaled : value;
#else
    return scaled != scaled ? 0.0f : value;
#endif
}

// Block (x, y) processes part x of row y.
KERNEL(fake_forward)(const Params p) {
    u32 row = block_y();
    Step step = step_of(p, row);
    const f32* x = p.x + static_cast<u64>(row) * p.columns;
    Operand* out = p.out + static_cast<u64>(row) * p.columns;
#pragma unroll
    for (u32 i = 0; i < PART; i += VECTOR * THREADS) {
        u32 at = block_x() * PART + i + VECTOR * thread_index();
        if (at >= p.columns) break;
        f32 v[VECTOR];
        load_values(v, x + at);
        scale_columns<false>(p, v, at);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) v[k] = faked(p, v[k], step);
        scale_columns<true>(p, v, at);
        store_values(out + at, v);
    }
}

KERNEL(fake_backward)(const Params p) {
    u32 row = block_y();
    Step step = step_of(p, row);
    u64 start = static_cast<u64>(row) * p.columns;
    f32 sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < PART; i += VECTOR * THREADS) {
        u32 at = block_x() * PART + i + VECTOR * thread_index();
        if (at >= p.columns) break;
        f32 x[VECTOR], grad[VECTOR];
        load_values(x, p.x + start + at);
        load_values(grad, p.grad + start + at);
        scale_columns<false>(p, x, at);
        scale_columns<true>(p, grad, at);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) grad[k] = clipped(x[k], grad[k], step.recip, p.low, p.high, sum);
        scale_columns<false>(p, grad, at);
        store_values(out_f32(p) + start + at, grad);
    }
#if STEPS
    sum = block_sum(sum, reinterpret_cast<f32*>(shared_memory()));
    if (thread_index() == 0) p.partial[static_cast<u64>(row) * p.parts + block_x()] = sum;
#endif
}

// Block x adds the sums of all parts of row x and multiplies the result by the row's factor.
KERNEL(fake_steps)(const Params p) {
    f64* sums = reinterpret_cast<f64*>(shared_memory());
    const f32* partial = p.partial + static_cast<u64>(block_x()) * p.parts;
    f64 sum = 0.0;
    for (u32 i = thread_index(); i < p.parts; i += THREADS) sum = sum + static_cast<f64>(partial[i]);
    sums[thread_index()] = sum;
    block_sync();
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        if (thread_index() < half) sums[thread_index()] = sums[thread_index()] + sums[thread_index() + half];
        block_sync();
    }
    if (thread_index() != 0) return;
#if TABLE
    f32 factor = p.table[2 * p.rows + block_x()];
#else
    f32 factor = p.factor;
#endif
    out_f32(p)[block_x()] = static_cast<f32>(sums[0]) * factor;
}
