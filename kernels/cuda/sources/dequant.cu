// The epilogue after a GEMM of cuBLASLt: from its s32 or f32 sums, or from the codes of an `.output` site, to
// the values that the plan stores.
//
// Defines: those of `epilogue.cuh`; CODES_IN (1: the GEMM's result is s8 codes of the `.output` site; 0: it
// is s32 if INTEGER is set, else f32); THREADS.
#include "epilogue.cuh"

#if HEADS
#error "a thread has eight columns of a head, and its neighbours may have ended"
#endif

struct Params {
    // `[m, ld]`.
    const void* sums;
    s32 m, ld;
    Epilogue epilogue;
};

KERNEL(dequant)(const Params p) {
    f32* tail = reinterpret_cast<f32*>(shared_memory());
    if constexpr (GELU_TABLE) {
        load_gelu(tail, THREADS);
        block_sync();
    }
    wait_for_previous();
    launch_dependents();
    s32 eights = (p.epilogue.n + 7) / 8;
    u32 index = block_x() * THREADS + thread_index();
    u32 row = index / eights;
    if (row >= static_cast<u32>(p.m)) return;
    s32 column = 8 * static_cast<s32>(index - row * eights);
    u32 target = destination(p.epilogue, row);
    if (target == PAD) return;
    Columns columns;
    load_columns(columns, p.epilogue, column);
    load_channels(columns, p.epilogue, column);
    u64 at = static_cast<u64>(row) * p.ld + column;
    f32 y[8];
#if CODES_IN
    static_assert(!CORRECTED, "codes of the `.output` site can no longer be corrected");
    u32x2 codes = *reinterpret_cast<const u32x2*>(static_cast<const s8*>(p.sums) + at);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        u32 word = i < 4 ? codes.x : codes.y;
        // Take the code itself: cuBLASLt has already applied the scale of the `.output` site.
        y[i] = to_f32(static_cast<s8>(word >> (8 * (i % 4))));
        columns.scale[i] = 1.0f;
    }
#else
#if INTEGER
    const s32* sums = static_cast<const s32*>(p.sums) + at;
#pragma unroll
    for (int i = 0; i < 8; i++) y[i] = to_f32(corrected(sums[i], columns, i));
#else
    load8(y, static_cast<const f32*>(p.sums) + at);
#endif
#endif
    finish8(p.epilogue, columns, true, target, column, y, tail);
}
