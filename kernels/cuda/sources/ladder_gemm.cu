// The first rungs of the GEMM ladder: `out[m, n] = a[m, k] * w[n, k]^T` in f32. One thread computes each
// output and sums in the order of k. `swinq bench gemm` measures them; no engine runs them.
//
// Defines: TILE (side of the tile of `gemm_shared`), THREADS (TILE * TILE).
#include "ladder_gemm.cuh"

static_assert(THREADS == TILE * TILE, "a thread for each output of a tile");

// Reads every operand from global memory.
KERNEL(gemm_naive)(const Params p) {
    u64 index = static_cast<u64>(block_x()) * THREADS + thread_index();
    if (index >= static_cast<u64>(p.m) * p.n) return;
    const f32* a = p.a + index / p.n * p.k;
    const f32* w = p.w + index % p.n * p.k;
    f32 sum = 0.0f;
    for (s32 i = 0; i < p.k; i++) sum = fma_f32(a[i], w[i], sum);
    p.out[index] = sum;
}

// Copies tiles of both operands to shared memory, where each value is read TILE times.
KERNEL(gemm_shared)(const Params p) {
    // One column more than the tile, so that the threads of a warp read a column of `w` from different banks.
    constexpr s32 ROW = TILE + 1;
    f32* a_tile = reinterpret_cast<f32*>(shared_memory());
    f32* w_tile = a_tile + TILE * ROW;
    s32 tiles_n = (p.n + TILE - 1) / TILE;
    s32 y = static_cast<s32>(thread_index()) / TILE, x = static_cast<s32>(thread_index()) % TILE;
    s32 m0 = static_cast<s32>(block_x()) / tiles_n * TILE, n0 = static_cast<s32>(block_x()) % tiles_n * TILE;
    f32 sum = 0.0f;
    for (s32 k0 = 0; k0 < p.k; k0 += TILE) {
        bool a_real = m0 + y < p.m && k0 + x < p.k, w_real = n0 + y < p.n && k0 + x < p.k;
        a_tile[y * ROW + x] = a_real ? p.a[static_cast<u64>(m0 + y) * p.k + k0 + x] : 0.0f;
        w_tile[y * ROW + x] = w_real ? p.w[static_cast<u64>(n0 + y) * p.k + k0 + x] : 0.0f;
        block_sync();
#pragma unroll
        for (s32 i = 0; i < TILE; i++) sum = fma_f32(a_tile[y * ROW + i], w_tile[x * ROW + i], sum);
        block_sync();
    }
    if (m0 + y < p.m && n0 + x < p.n) p.out[static_cast<u64>(m0 + y) * p.n + n0 + x] = sum;
}
