// The products of `gemm_sm90.cu` with specialised warpgroups: one warpgroup copies, the others multiply and
// run the epilogue. Barriers in shared memory say which stages are full and which are empty, so that copies
// run ahead by up to the number of stages.
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

// As `copy_tile`, but run by the copying warpgroup alone, with few registers.
template <int rows>
INLINE void copy_rows(u8* to, const u8* from, s32 row0, s32 row_count, s32 stride, s32 k0, s32 k_bytes, s32 thread) {
    s32 chunk = thread % 8, row = thread / 8, byte = k0 + 16 * chunk;
    s32 in_row = k_bytes - byte < 0 ? 0 : k_bytes - byte > 16 ? 16 : k_bytes - byte;
    to += row * BK + 16 * (chunk ^ (row % 8));
    s32 left = in_row > 0 ? row_count - row0 - row : 0;
    const u8* source = from + static_cast<u64>(row0 + row) * stride + byte;
#pragma unroll 4
    for (int i = 0; i < rows / 16; i++) {
        copy_async_16(to, left > 0 ? source : from, left > 0 ? in_row : 0);
        to += 16 * BK, source += 16 * stride, left -= 16;
    }
}

// Starts copying the weights of the first stages, which no earlier launch writes; returns their number.
INLINE s32 copy_first_weights(const Params& p, u8* ring, s32 first, s32 n0, s32 steps) {
    if (RESIDENT || first >= p.tiles) return 0;
    s32 count = steps < STAGES ? steps : STAGES, thread = static_cast<s32>(thread_index()) - MULTIPLIERS;
    for (s32 step = 0; step < count; step++) {
        copy_rows<BN>(ring + step * STAGE + BM * BK, p.w, n0, p.n_packed, p.ldw, step * BK, p.k_bytes, thread);
    }
    return count;
}

// Copies the operands of all tiles of the block. The weights of the first `copied` stages are on their way.
INLINE void copy_tiles(const Params& p, u8* ring, u64* full, u64* empty, s32 first, s32 stride, s32 n0, s32 steps,
                       s32 copied) {
    s32 thread = static_cast<s32>(thread_index()) - MULTIPLIERS;
    // Initially every stage is empty: with parity 1, a wait on a barrier that was never used returns at once.
    Stages stage = {0, 1};
    for (s32 tile = first; tile < p.tiles; tile += stride) {
        s32 m0 = tile / p.tiles_n * BM;
        for (s32 step = 0; step < steps; step++, stage.advance(), copied--) {
            mbarrier_wait(empty + stage.at, stage.parity);
            u8* to = ring + stage.at * STAGE;
            copy_rows<BM>(to, p.a, m0, p.m, p.lda, step * BK, p.k_bytes, thread);
            if (!RESIDENT && copied <= 0) copy_rows<BN>(to + BM * BK, p.w, n0, p.n_packed, p.ldw, step * BK, p.k_bytes, thread);
            mbarrier_arrive_copies(full + stage.at);
            copy_commit();
        }
    }
    copy_wait<0>();
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
            fence_async_proxy();
            const u8* a = ring + stage.at * STAGE;
            const u8* w = RESIDENT ? shared + step * BN * BK : a + BM * BK;
            wgmma_fence();
            multiply_steps(sums, a + 64 * BLOCKS * within * BK, w, (p.k_bytes - step * BK + 31) / 32, step == 0);
            wgmma_commit();
            if (step > 0) {
                wgmma_wait<1>();
                arrive(empty + before);
            }
            before = stage.at;
            stage.advance();
        }
        // A warpgroup that waits for a phase of a stage starts after all earlier phases have ended, so no
        // phase is missed.
        if (TURNS) arrive(turns + (group + 1 == GROUPS_M ? 0 : group + 1));
        wait_sums(sums);
        arrive(empty + before);
        if (TURNS) stage.skip((GROUPS_M - 1) * steps);
        finish_tile(p, sums, old, constants, column0, tail);
    }
}

// The compiler reallocates registers between warpgroups only if the number of blocks per multiprocessor is
// given.
extern "C" __global__ void __launch_bounds__(THREADS, 1) gemm_roles(const Params p) {
    u8* shared = shared_memory();
    shared += (1024 - (shared_address(shared) & 1023)) & 1023;
    u8* ring = shared + STAY;
    f32* constants = reinterpret_cast<f32*>(ring + STAGES * STAGE);
    f32* tail = constants + 2 * BN;
    u64* full = reinterpret_cast<u64*>(tail + TAIL_FLOATS);
    u64* empty = full + STAGES;
    u64* turns = empty + STAGES;
    if (thread_index() == 0) {
#pragma unroll
        for (int i = 0; i < GROUPS_M; i++) mbarrier_init(turns + i, 4);
#pragma unroll
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(full + i, 128);
            mbarrier_init(empty + i, 4 * SHARERS);
        }
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
        s32 copied = copy_first_weights(p, ring, first, n0, steps);
        wait_for_previous();
        launch_dependents();
        copy_tiles(p, ring, full, empty, first, stride, n0, steps, copied);
    } else {
#if REGISTERS
        more_registers<REGISTERS>();
#endif
#if GELU && STREAM_F32
        load_tail(tail, MULTIPLIERS);
#endif
        load_constants(p, constants, n0);
#pragma unroll
        for (int i = 0; i < RESIDENT; i++) {
            u8* to = shared + i * BN * BK;
            copy_tile<BN, MULTIPLIERS>(to, p.w, n0, p.n_packed, p.ldw, i * BK, p.k_bytes, static_cast<s32>(thread_index()));
        }
        copy_commit();
        copy_wait<0>();
        fence_async_proxy();
        barrier_sync<MULTIPLIERS>(1);
        wait_for_previous();
        launch_dependents();
        multiply_tiles(p, shared, ring, full, empty, turns, first, stride, n0, steps, constants, tail);
    }
}
