// Operations on the values of a layer's columns: the bias and GELU of the MLP's hidden layer, fake
// quantization with a scale and a zero point for each column, the conversion to the type of matrix products,
// and the sums of columns; forward and backward in one pass each.
//
// Entry points: `columns_forward`, `columns_backward`. Defines: THREADS; VECTOR (values per access, 1 or 4);
// OUT, the type of the results; GELU (1: the values are x + bias, then GELU); FAKE, one of the FAKE_
// constants; STEPS (whether the gradient of the common scale is computed).
#include "train.cuh"

#define FAKE_OFF 0
#define FAKE_TENSOR 1
#define FAKE_COLUMNS 2

struct Params {
    // `[rows, columns]`: the values before bias and GELU.
    const f32* x;
    // Backward: the gradient of the results, `[rows, columns]`.
    const f32* grad;
    // With GELU: `[columns]`.
    const f32* bias;
    // With FAKE_COLUMNS: reciprocals of the scales, zero points and scales, `[3, columns]`.
    const f32* table;
    // Forward: the results; backward: the gradient of `x`. `[rows, columns]`.
    Operand* out;
    // Backward: the sums of the gradient of `x`, before it is rounded, over the rows of each part,
    // `[parts, columns]`.
    f32* sums;
    // Backward with STEPS: the part of each block in the gradient of the common scale.
    f32* steps;
    u32 rows, columns, rows_of_part;
    // FAKE_TENSOR: the scale; FAKE_COLUMNS: the common scale, of which those of the columns are multiples.
    f32 recip, scale;
};

// Number of warps, which take turns with the rows.
constexpr u32 GROUPS = THREADS / WARP;

// The constants of the columns of a thread.
struct Columns {
    f32 bias[VECTOR], recip[VECTOR], zero[VECTOR], scale[VECTOR];
};

INLINE u32 first_column() { return (block_x() * WARP + thread_index() % WARP) * VECTOR; }

INLINE Columns columns_at(const Params& p, u32 at) {
    Columns c;
#if GELU
    load_values(c.bias, p.bias + at);
#endif
#if FAKE == FAKE_COLUMNS
    load_values(c.recip, p.table + at);
    load_values(c.zero, p.table + p.columns + at);
    load_values(c.scale, p.table + 2 * p.columns + at);
#endif
    return c;
}

// The value before fake quantization.
INLINE f32 activated(const Columns& c, int k, f32 x, const f32* tail) {
#if GELU
    return gelu(x + c.bias[k], tail);
#else
    return x;
#endif
}

INLINE f32 faked(const Params& p, const Columns& c, int k, f32 x) {
#if FAKE == FAKE_TENSOR
    return rounded(x, Step{p.recip, p.scale});
#elif FAKE == FAKE_COLUMNS
    f32 scaled = fma_f32(x, c.recip[k], c.zero[k]);
    f32 code = scaled != scaled ? 0.0f : rint_f32(clamp_f32(scaled, LOW, HIGH));
    return (code - c.zero[k]) * c.scale[k];
#else
    return x;
#endif
}

// The gradient before fake quantization from that behind it. Adds to the gradient of the common scale.
INLINE f32 passed(const Params& p, const Columns& c, int k, f32 x, f32 grad, f32& step) {
#if FAKE == FAKE_TENSOR
    return clipped(x, grad, p.recip, LOW, HIGH, step);
#elif FAKE == FAKE_COLUMNS
    f32 scaled = fma_f32(x, c.recip[k], c.zero[k]);
    bool inside = clamp_f32(scaled, LOW * EDGE, HIGH * EDGE) == scaled;
    f32 code = rint_f32(clamp_f32(scaled, LOW, HIGH));
    f32 slope = code - c.zero[k] - (inside ? scaled - c.zero[k] : 0.0f);
    step = step + grad * div_f32(c.scale[k], p.scale) * slope;
    return inside ? grad : 0.0f;
#else
    return grad;
#endif
}

// Shared memory: the coefficients of GELU, then a value for each thread's columns.
INLINE f32* load_shared() {
    f32* tail = reinterpret_cast<f32*>(shared_memory());
    if (GELU) {
        load_tail(tail, THREADS);
        block_sync();
    }
    return tail;
}

// Block (x, y) processes 32 * VECTOR columns of the rows of part y.
KERNEL(columns_forward)(const Params p) {
    const f32* tail = load_shared();
    u32 at = first_column(), first = block_y() * p.rows_of_part;
    u32 end = first + p.rows_of_part < p.rows ? first + p.rows_of_part : p.rows;
    if (at >= p.columns) return;
    Columns c = columns_at(p, at);
#pragma unroll 4
    for (u32 row = first + thread_index() / WARP; row < end; row += GROUPS) {
        u64 place = static_cast<u64>(row) * p.columns + at;
        f32 x[VECTOR];
        load_values(x, p.x + place);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) x[k] = faked(p, c, k, activated(c, k, x[k], tail));
        store_values(p.out + place, x);
    }
}

// Adds the sums of the block's warps, and stores those of the columns.
INLINE void store_sums(const Params& p, f32* shared, u32 at, const f32 (&sums)[VECTOR]) {
    u32 warp = thread_index() / WARP, lane = thread_index() % WARP;
#pragma unroll
    for (int k = 0; k < VECTOR; k++) shared[(warp * VECTOR + k) * WARP + lane] = sums[k];
    block_sync();
    if (warp > 0 || at >= p.columns) return;
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
        f32 sum = sums[k];
        for (u32 i = 1; i < GROUPS; i++) sum = sum + shared[(i * VECTOR + k) * WARP + lane];
        p.sums[static_cast<u64>(block_y()) * p.columns + at + k] = sum;
    }
}

KERNEL(columns_backward)(const Params p) {
    f32* tail = load_shared();
    f32* shared = tail + TAIL_FLOATS;
    u32 at = first_column(), first = block_y() * p.rows_of_part;
    u32 end = first + p.rows_of_part < p.rows ? first + p.rows_of_part : p.rows;
    f32 sums[VECTOR] = {}, step = 0.0f;
    if (at < p.columns) {
        Columns c = columns_at(p, at);
#pragma unroll 2
        for (u32 row = first + thread_index() / WARP; row < end; row += GROUPS) {
            u64 place = static_cast<u64>(row) * p.columns + at;
            f32 x[VECTOR] = {}, grad[VECTOR];
            load_values(grad, p.grad + place);
            if (GELU || FAKE != FAKE_OFF) load_values(x, p.x + place);
#pragma unroll
            for (int k = 0; k < VECTOR; k++) {
                grad[k] = passed(p, c, k, activated(c, k, x[k], tail), grad[k], step);
#if GELU
                grad[k] = grad[k] * gelu_derivative(x[k] + c.bias[k], tail);
#endif
                sums[k] = sums[k] + grad[k];
            }
            store_values(p.out + place, grad);
        }
    }
    store_sums(p, shared, at, sums);
#if STEPS
    block_sync();
    step = block_sum(step, shared);
    if (thread_index() == 0) p.steps[block_y() * blocks_x() + block_x()] = step;
#endif
}
