// Matrix products of activations `[m, k]` and weights `[n, k]`, both with k innermost, on the tensor cores,
// with the epilogue in the same launch. k is counted in bytes: one step takes 32 bytes of k, which are 32
// INT8 codes or 16 halves.
//
// The weights are packed in groups of 32 columns, so that each lane gets the sums of eight consecutive
// columns: packed row 8 j + c of a group holds column 8 (c / 2) + 2 j + c % 2 (n-tile j, column c of the
// tile).
//
// Defines: BM, BN (tile of the block), WM, WN (tile of a warp; WN is a multiple of 32), BK (bytes of k in a
// stage), STAGES, THREADS, and those of `epilogue.cuh`.
#include "gemm.cuh"

constexpr int WARPS_N = BN / WN;
constexpr int TILES_M = WM / 16;
constexpr int GROUPS = WN / 32;
constexpr int CHUNKS = BK / 16;
// Bytes from one row to the next in shared memory: an odd number of 16-byte chunks, so that the rows of a
// matrix load are in different banks.
constexpr int ROW = BK + 16;
constexpr int STAGE = (BM + BN) * ROW;
static_assert(THREADS == 32 * (BM / WM) * WARPS_N, "a warp for each warp tile");
static_assert(BK % 32 == 0 && WN % 32 == 0 && WM % 16 == 0, "whole steps, groups and tiles");
static_assert(STAGES >= 2, "one stage is read while another is filled");

#if INTEGER
INLINE void multiply(Sum (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) { mma_s8(c, a, b); }
#else
INLINE void multiply(Sum (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) { mma_f16(c, a, b); }
#endif

// Starts copying bytes `k0..k0 + BK` of k for `rows` rows from row `row0` on. Rows and bytes outside the
// matrix are filled with zeros.
template <int rows>
INLINE void copy_tile(u8* to, const u8* from, s32 row0, s32 row_count, s32 stride, s32 k0, s32 k_bytes) {
#pragma unroll
    for (int i = thread_index(); i < rows * CHUNKS; i += THREADS) {
        s32 row = i / CHUNKS, byte = k0 + 16 * (i % CHUNKS);
        s32 valid = row0 + row < row_count ? k_bytes - byte : 0;
        valid = valid < 0 ? 0 : valid > 16 ? 16 : valid;
        const u8* source = valid == 0 ? from : from + static_cast<u64>(row0 + row) * stride + byte;
        copy_async_16(to + row * ROW + byte - k0, source, valid);
    }
}

// Processes one stage: sums += a * w over BK bytes.
INLINE void multiply_stage(Sum (&sums)[TILES_M][4 * GROUPS][4], const u8* a, const u8* w, u32 lane) {
    // Rows and 16-byte halves of the matrices whose addresses this lane passes.
    const u8* a_row = a + (lane % 16) * ROW + lane / 16 * 16;
    const u8* w_row = w + (lane % 8 + lane / 16 * 8) * ROW + lane / 8 % 2 * 16;
#pragma unroll
    for (int step = 0; step < BK / 32; step++) {
        u32 af[TILES_M][4], wf[2 * GROUPS][4];
#pragma unroll
        for (int i = 0; i < TILES_M; i++) load_matrix_x4(af[i], a_row + 16 * i * ROW + 32 * step);
#pragma unroll
        for (int j = 0; j < 2 * GROUPS; j++) load_matrix_x4(wf[j], w_row + 16 * j * ROW + 32 * step);
#pragma unroll
        for (int i = 0; i < TILES_M; i++) {
#pragma unroll
            for (int j = 0; j < 4 * GROUPS; j++) {
                const u32 b[2] = {wf[j / 2][j % 2 * 2], wf[j / 2][j % 2 * 2 + 1]};
                multiply(sums[i][j], af[i], b);
            }
        }
    }
}

KERNEL(gemm)(const Params p) {
    u8* shared = shared_memory();
    f32* tail = reinterpret_cast<f32*>(shared + STAGES * STAGE);
    if constexpr (GELU_TABLE) load_gelu(tail, THREADS);
    s32 m0 = static_cast<s32>(block_x() / p.tiles_n) * BM, n0 = static_cast<s32>(block_x() % p.tiles_n) * BN;
    s32 steps = (p.k_bytes + BK - 1) / BK;
    auto fill = [&](s32 step) {
        u8* stage = shared + step % STAGES * STAGE;
        if (step < steps) {
            copy_tile<BM>(stage, p.a, m0, p.m, p.lda, step * BK, p.k_bytes);
            copy_tile<BN>(stage + BM * ROW, p.w, n0, p.n_packed, p.ldw, step * BK, p.k_bytes);
        }
        copy_commit();
    };
    wait_for_previous();
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) fill(i);
    launch_dependents();

    u32 lane = thread_index() % WARP, warp = thread_index() / WARP;
    s32 warp_m = static_cast<s32>(warp / WARPS_N) * WM, warp_n = static_cast<s32>(warp % WARPS_N) * WN;
    Sum sums[TILES_M][4 * GROUPS][4] = {};
    for (s32 step = 0; step < steps; step++) {
        copy_wait<STAGES - 2>();
        block_sync();
        fill(step + STAGES - 1);
        const u8* stage = shared + step % STAGES * STAGE;
        multiply_stage(sums, stage + warp_m * ROW, stage + (BM + warp_n) * ROW, lane);
    }

#pragma unroll
    for (int group = 0; group < GROUPS; group++) {
        s32 column = n0 + warp_n + 32 * group + 8 * static_cast<s32>(lane % 4);
        if (column >= p.epilogue.n) continue;
        Columns columns;
        load_columns(columns, p.epilogue, column);
        load_channels(columns, p.epilogue, column);
#pragma unroll
        for (int i = 0; i < 2 * TILES_M; i++) {
            s32 row = m0 + warp_m + 8 * i + static_cast<s32>(lane / 4);
            u32 target = row < p.m ? destination(p.epilogue, row) : PAD;
            f32 y[8];
#pragma unroll
            for (int j = 0; j < 8; j++) {
                y[j] = sum_f32(corrected(sums[i / 2][4 * group + j / 2][i % 2 * 2 + j % 2], columns, j));
            }
            finish8(p.epilogue, columns, target != PAD, target, column, y, tail);
        }
    }
}
