// Rows gathered from the residual stream without a norm (Swin V2), in the order and the type that the next
// linear layer reads.
//
// Entry point: `rows`. Defines: those of `rows.cuh`.
#include "rows.cuh"

// A thread copies AT_ONCE columns of a row. `map` is read before the wait, because no launch writes it.
KERNEL(rows)(const Params p) {
    u32 groups = p.columns / AT_ONCE, index = block_x() * THREADS + thread_index();
    u32 row = index / groups;
    s32 at = AT_ONCE * (index % groups), piece_columns = p.columns / PIECES, piece = at / piece_columns;
    bool real = row < static_cast<u32>(p.total_rows);
    u32 token = source(p, real ? row : 0, piece);
    wait_for_previous();
    launch_dependents();
    if (!real) return;
    f32 x[AT_ONCE] = {};
    if (token != PAD) {
        u64 offset = static_cast<u64>(token) * piece_columns + (at - piece * piece_columns);
        load_group(x, static_cast<const Value*>(p.input) + offset);
    }
#if !defined(EXACT)
    // Sums of finite halves are always finite.
    f32 sum = 0.0f;
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) sum = sum + x[i];
    if (!finite(sum)) raise_flag(p.overflow);
#endif
    store_values(p, static_cast<u64>(row) * p.stride + at, x);
}
