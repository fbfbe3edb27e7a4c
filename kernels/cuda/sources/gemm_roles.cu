// The products of `gemm_sm90.cu` with specialised warpgroups: one thread of a warpgroup starts copies by the
// copy engine (TMA), which swizzles the rows and fills with zeros beyond the matrix; the other warpgroups
// multiply and run the epilogue. Barriers in shared memory say which stages are full and which are empty, so
// that copies run ahead by up to the number of stages.
//
// A block loops over tiles of the same columns. With TURNS, each tile belongs to one warpgroup: while one
// warpgroup runs its epilogue, the next one multiplies. Without TURNS, all warpgroups share the rows of every
// tile. If the weights of the block's columns fit in shared memory (RESIDENT), they are loaded once; TURNS
// requires that they fit.
//
// Defines: TURNS (0 or 1), THREADS, REGISTERS and COPY_REGISTERS (registers of a thread that multiplies and
// of a thread that copies; 0 keeps the compiler's number), and those of `gemm_sm90.cuh`.
#include "gemm_sm90.cuh"
#include "mbarrier.cuh"

// Number of warpgroups that share a tile, and rows of a tile.
constexpr int SHARERS = TURNS ? 1 : GROUPS_M;
constexpr int BM = 64 * BLOCKS * SHARERS;
// Bytes of one stage in the ring.
constexpr int STAGE = (BM + (RESIDENT ? 0 : BN)) * BK;
constexpr int MULTIPLIERS = 128 * GROUPS_M;
static_assert(THREADS == MULTIPLIERS + 128, "a warpgroup that copies");

// Iterates over the stages in their order: index in the ring, and the parity of the barrier's phase.
struct Stages {
    s32 at;
    u32 parity;

    INLINE void advance() {
        at++;
        if (at == STAGES) at = 0, parity ^= 1;
    }
    INLINE void skip(s32 count) {
        at += count;
        while (at >= STAGES) at -= STAGES, parity ^= 1;
    }
};

struct RolesParams {
    Params gemm;
    // Describe `gemm.a` and `gemm.w` to the copy engine, with boxes of BM and of BN rows of BK bytes.
    TensorMap a, w;
};

// Copies the operands of all tiles of the block; one thread calls it. The weights of the first stages are
// copied before the wait, because no earlier launch writes them.
INLINE void copy_tiles(const RolesParams& r, u8* shared, u8* ring, u64* full, u64* empty, u64* stay, s32 first,
                       s32 stride, s32 n0, s32 steps) {
    s32 ahead = RESIDENT || first >= r.gemm.tiles ? 0 : steps < STAGES ? steps : STAGES;
    auto weights = [&](s32 at, s32 step) {
        mbarrier_arrive_expecting(full + at, STAGE);
        if (!RESIDENT) copy_box(ring + at * STAGE + BM * BK, r.w, step * BK, n0, full + at);
    };
    if (RESIDENT) mbarrier_arrive_expecting(stay, STAY);
#pragma unroll 1
    for (s32 step = 0; step < RESIDENT; step++) copy_box(shared + step * BN * BK, r.w, step * BK, n0, stay);
    for (s32 step = 0; step < ahead; step++) weights(step, step);
    wait_for_previous();
    launch_dependents();
    // Initially every stage is empty: with parity 1, a wait on a barrier that was never used returns at once.
    Stages stage = {0, 1};
    for (s32 tile = first; tile < r.gemm.tiles; tile += stride) {
        s32 m0 = tile / r.gemm.tiles_n * BM;
        for (s32 step = 0; step < steps; step++, stage.advance(), ahead--) {
            mbarrier_wait(empty + stage.at, stage.parity);
            if (ahead <= 0) weights(stage.at, step);
            copy_box(ring + stage.at * STAGE, r.a, step * BK, m0, full + stage.at);
        }
    }
}

// Multiplies and finishes the tiles of this warpgroup.
INLINE void multiply_tiles(const Params& p, const u8* shared, const u8* ring, u64* full, u64* empty, u64* turns, s32 first,
                           s32 stride, s32 n0, s32 steps, const f32* constants, const f32* tail) {
    u32 lane = thread_index() % WARP, warp = thread_index() / WARP % 4;
    s32 group = warpgroup(), within = TURNS ? 0 : group;
    s32 column0 = n0 + 8 * static_cast<s32>(lane % 4);
    Stages stage = {0, 0};
    if (TURNS) {
        stage.skip(group * steps);
        first += group * stride;
        stride *= GROUPS_M;
    }
    // The first warpgroup does not wait for its first turn.
    u32 turn = group == 0;
    auto arrive = [&](u64* barrier) {
        if (lane == 0) mbarrier_arrive(barrier);
    };
    for (s32 tile = first; tile < p.tiles; tile += stride) {
        // This warpgroup has 64 BLOCKS rows; this lane has rows `row0 + 64 block + 8 half` of them.
        s32 row0 = tile / p.tiles_n * BM + static_cast<s32>(64 * BLOCKS * within + 16 * warp + lane / 4);
        Old old;
        load_old(p, old, row0, column0);
        Sum sums[BLOCKS][4 * EIGHTS];
        s32 before = 0;
        if (TURNS) mbarrier_wait(turns + group, turn), turn ^= 1;
        for (s32 step = 0; step < steps; step++) {
            mbarrier_wait(full + stage.at, stage.parity);
            const u8* a = ring + stage.at * STAGE;
            const u8* w = RESIDENT ? shared + step * BN * BK : a + BM * BK;
            wgmma_fence();
            multiply_steps(sums, a + 64 * BLOCKS * within * BK, w, (p.k_bytes - step * BK + 31) / 32, step == 0);
            wgmma_commit();
            // The next warpgroup starts while the last products run. One that waits for a phase of a stage
            // starts after all earlier phases have ended, so no phase is missed.
            if (TURNS && step == steps - 1) arrive(turns + (group + 1 == GROUPS_M ? 0 : group + 1));
            if (step > 0) {
                wgmma_wait<1>();
                arrive(empty + before);
            }
            before = stage.at;
            stage.advance();
        }
        wait_sums(sums);
        arrive(empty + before);
        if (TURNS) stage.skip((GROUPS_M - 1) * steps);
        finish_tile(p, sums, old, constants, n0, tail);
    }
}

// The compiler reallocates registers between warpgroups only if the number of blocks per multiprocessor is
// given.
extern "C" __global__ void __launch_bounds__(THREADS, 1) gemm_roles(const __grid_constant__ RolesParams r) {
    const Params& p = r.gemm;
    u8* shared = shared_memory();
    shared += (1024 - (shared_address(shared) & 1023)) & 1023;
    u8* ring = shared + STAY;
    f32* constants = reinterpret_cast<f32*>(ring + STAGES * STAGE);
    f32* tail = constants + 3 * BN;
    u64* full = reinterpret_cast<u64*>(tail + TAIL_FLOATS);
    u64* empty = full + STAGES;
    u64* turns = empty + STAGES;
    // Counts the weights that stay.
    u64* stay = turns + GROUPS_M;
    if (thread_index() == 0) {
#pragma unroll
        for (int i = 0; i < GROUPS_M; i++) mbarrier_init(turns + i, 4);
#pragma unroll
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(full + i, 1);
            mbarrier_init(empty + i, 4 * SHARERS);
        }
        mbarrier_init(stay, 1);
        fence_barrier_init();
    }
    block_sync();
    // Every tile of this block has the same columns, because the grid is a multiple of the number of tiles
    // along n, or has one block for each tile.
    s32 first = static_cast<s32>(block_x()), stride = static_cast<s32>(blocks_x());
    s32 n0 = first % p.tiles_n * BN, steps = (p.k_bytes + BK - 1) / BK;
    if (warpgroup() == GROUPS_M) {
#if REGISTERS
        fewer_registers<COPY_REGISTERS>();
#endif
        if (thread_index() == MULTIPLIERS) copy_tiles(r, shared, ring, full, empty, stay, first, stride, n0, steps);
    } else {
#if REGISTERS
        more_registers<REGISTERS>();
#endif
        if constexpr (GELU_TABLE) load_gelu(tail, MULTIPLIERS);
        load_constants(p, constants, n0);
        barrier_sync<MULTIPLIERS>(1);
        if (RESIDENT) mbarrier_wait(stay, 0);
        wait_for_previous();
        launch_dependents();
        multiply_tiles(p, shared, ring, full, empty, turns, first, stride, n0, steps, constants, tail);
    }
}
