// The products of `gemm.cu` for sm_90a, with asynchronous matrix products of warpgroups (`wgmma`), which read
// both operands from shared memory.
//
// A block loops over tiles of the same columns. Its ring of stages continues from tile to tile: while it
// finishes one tile, the operands of the next are being copied. If the weights of the block's columns fit in
// shared memory (RESIDENT), they are loaded once.
//
// Defines: STAGES, which is at least 3; THREADS; those of `gemm_sm90.cuh`.
#include "gemm_sm90.cuh"

constexpr int BM = 64 * GROUPS_M * BLOCKS;
// Bytes of one stage in the ring.
constexpr int STAGE = (BM + (RESIDENT ? 0 : BN)) * BK;
static_assert(THREADS == 128 * GROUPS_M, "a warpgroup for each group of rows");
static_assert(STAGES >= 3, "one stage is read, one is done, one is filled");

template <int rows>
INLINE void copy_all(u8* to, const u8* from, s32 row0, s32 row_count, s32 stride, s32 k0, s32 k_bytes) {
    copy_tile<rows, THREADS>(to, from, row0, row_count, stride, k0, k_bytes, static_cast<s32>(thread_index()));
}

// Waits for the copies of stage `index` of the sequence. Copies of later stages may still be in flight.
INLINE void wait_stage(s32 index) {
    if (index == 0) {
        copy_wait<STAGES - 1>();
    } else if (index == 1) {
        copy_wait<STAGES - 2>();
    } else {
        copy_wait<STAGES - 3>();
    }
}

KERNEL(gemm_sm90)(const Params p) {
    u8* shared = shared_memory();
    shared += (1024 - (static_cast<u32>(__cvta_generic_to_shared(shared)) & 1023)) & 1023;
    u8* ring = shared + STAY;
    f32* constants = reinterpret_cast<f32*>(ring + STAGES * STAGE);
    f32* tail = constants + 3 * BN;
    if constexpr (GELU_TABLE) load_gelu(tail, THREADS);
    // Every tile of this block has the same columns, because the grid is a multiple of the number of tiles
    // along n, or has one block for each tile.
    s32 first = static_cast<s32>(block_x()), stride = static_cast<s32>(blocks_x());
    s32 n0 = first % p.tiles_n * BN, steps = (p.k_bytes + BK - 1) / BK;
    load_constants(p, constants, n0);
#pragma unroll
    for (int i = 0; i < RESIDENT; i++) copy_all<BN>(shared + i * BN * BK, p.w, n0, p.n_packed, p.ldw, i * BK, p.k_bytes);
    wait_for_previous();

    Cursor fetch = {first, 0};
    s32 fetched = 0;
    auto fill = [&]() {
        u8* stage = ring + fetched % STAGES * STAGE;
        if (fetch.tile < p.tiles) {
            s32 m0 = fetch.tile / p.tiles_n * BM, k0 = fetch.step * BK;
            copy_all<BM>(stage, p.a, m0, p.m, p.lda, k0, p.k_bytes);
            if (!RESIDENT) copy_all<BN>(stage + BM * BK, p.w, n0, p.n_packed, p.ldw, k0, p.k_bytes);
        }
        copy_commit();
        fetched++;
        fetch.advance(steps, stride);
    };
#pragma unroll
    for (int i = 0; i < STAGES; i++) fill();
    launch_dependents();

    u32 lane = thread_index() % WARP, warp = thread_index() / WARP % 4, group = thread_index() / 128;
    s32 column0 = n0 + 8 * static_cast<s32>(lane % 4), index = 0;
    for (s32 tile = first; tile < p.tiles; tile += stride) {
        // This warpgroup has 64 BLOCKS rows; this lane has rows `row0 + 64 block + 8 half` of them.
        s32 row0 = tile / p.tiles_n * BM + static_cast<s32>(64 * BLOCKS * group + 16 * warp + lane / 4);
        Old old;
        load_old(p, old, row0, column0);
        Sum sums[BLOCKS][4 * EIGHTS];
        for (s32 step = 0; step < steps; step++, index++) {
            wait_stage(index);
            // The stage of two steps ago is refilled below, so its products must be done.
            if (step >= 2) wgmma_wait<1>();
            fence_async_proxy();
            block_sync();
            const u8* stage = ring + index % STAGES * STAGE;
            const u8* w = RESIDENT ? shared + step * BN * BK : stage + BM * BK;
            wgmma_fence();
            multiply_steps(sums, stage + 64 * BLOCKS * group * BK, w, (p.k_bytes - step * BK + 31) / 32, step == 0);
            wgmma_commit();
            if (index >= 2) fill();
        }
        wait_sums(sums);
        finish_tile(p, sums, old, constants, n0, tail);
    }
}
