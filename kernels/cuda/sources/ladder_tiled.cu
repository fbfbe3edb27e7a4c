// A rung of the GEMM ladder: `out[m, n] = a[m, k] * w[n, k]^T` in f32 for any sizes. Each thread keeps a tile
// of 8 x 8 outputs in registers. `swinq bench gemm` measures it; no engine runs it.
//
// Shared memory has two stages: while one is read, the other is loaded to registers and written. Both
// operands are stored with k outermost, so that a thread reads four neighbouring rows at once.
//
// Defines: BM, BN (tile of the block), BK (k values of a stage), GROUP (number of tile rows that blocks
// process together, column by column, so that concurrent blocks share operands in the L2 cache; 1: row by
// row), THREADS (BM / 8 * BN / 8).
#include "ladder_gemm.cuh"

constexpr s32 THREADS_N = BN / 8;
// Floats from one k to the next in a tile. With a BK of 8, the writes of a warp go to different banks.
constexpr s32 A_ROW = BM + 4, W_ROW = BN + 4;
constexpr s32 STAGE = BK * (A_ROW + W_ROW);
// Number of four-element vectors along k in a stage, and number of vectors that each thread loads.
constexpr s32 QUADS = BK / 4;
constexpr s32 A_LOADS = BM * QUADS / THREADS, W_LOADS = BN * QUADS / THREADS;
static_assert(THREADS == BM / 8 * THREADS_N, "a thread for each 8 x 8 outputs");
static_assert(BM * QUADS % THREADS == 0 && BN * QUADS % THREADS == 0, "whole loads");
static_assert(BM % 8 == 0 && BN % 8 == 0 && BK % 4 == 0, "whole vectors");

// Computes the first row and column of this block's tile.
INLINE void place(const Params& p, s32& m0, s32& n0) {
    s32 tiles_m = (p.m + BM - 1) / BM, tiles_n = (p.n + BN - 1) / BN;
    s32 block = static_cast<s32>(block_x()), group = block / (GROUP * tiles_n);
    s32 first = group * GROUP, rows = tiles_m - first < GROUP ? tiles_m - first : GROUP;
    s32 within = block - group * GROUP * tiles_n;
    m0 = (first + within % rows) * BM;
    n0 = within / rows * BN;
}

// Loads this thread's part of `LOADS * THREADS / QUADS` rows, from row `row0` and k index `k0` on. Elements
// outside the matrix are 0.
template <s32 LOADS>
INLINE void load_part(f32x4 (&part)[LOADS], const f32* from, s32 row0, s32 rows, s32 k0, s32 k) {
#pragma unroll
    for (s32 i = 0; i < LOADS; i++) {
        s32 index = static_cast<s32>(thread_index()) + i * THREADS;
        s32 row = row0 + index / QUADS, at = k0 + index % QUADS * 4;
        const f32* source = from + static_cast<u64>(row) * k + at;
        part[i] = f32x4{0.0f, 0.0f, 0.0f, 0.0f};
        if (row >= rows || at >= k) continue;
        if (k % 4 == 0) {
            part[i] = *reinterpret_cast<const f32x4*>(source);
        } else {
            part[i].x = source[0];
            if (at + 1 < k) part[i].y = source[1];
            if (at + 2 < k) part[i].z = source[2];
            if (at + 3 < k) part[i].w = source[3];
        }
    }
}

// Writes the part to a tile that has `ROW` floats from one k to the next.
template <s32 LOADS, s32 ROW>
INLINE void store_part(f32* tile, const f32x4 (&part)[LOADS]) {
#pragma unroll
    for (s32 i = 0; i < LOADS; i++) {
        s32 index = static_cast<s32>(thread_index()) + i * THREADS;
        f32* to = tile + index % QUADS * 4 * ROW + index / QUADS;
        to[0] = part[i].x, to[ROW] = part[i].y, to[2 * ROW] = part[i].z, to[3 * ROW] = part[i].w;
    }
}

// Reads eight rows of a tile for one k: four from `from` on, and four from `from + half` on.
INLINE void read8(f32 (&x)[8], const f32* from, s32 half) {
    f32x4 low = *reinterpret_cast<const f32x4*>(from), high = *reinterpret_cast<const f32x4*>(from + half);
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
    x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

INLINE void multiply_stage(f32 (&sums)[8][8], const f32* a_tile, const f32* w_tile, s32 y, s32 x) {
#pragma unroll
    for (s32 i = 0; i < BK; i++) {
        f32 a[8], w[8];
        read8(a, a_tile + i * A_ROW + 4 * y, BM / 2);
        read8(w, w_tile + i * W_ROW + 4 * x, BN / 2);
#pragma unroll
        for (s32 r = 0; r < 8; r++) {
#pragma unroll
            for (s32 c = 0; c < 8; c++) sums[r][c] = fma_f32(a[r], w[c], sums[r][c]);
        }
    }
}

// Stores four sums of a row, from column `column` on.
INLINE void store4(const Params& p, s32 row, s32 column, f32x4 sums) {
    if (row >= p.m || column >= p.n) return;
    f32* to = p.out + static_cast<u64>(row) * p.n + column;
    if (p.n % 4 == 0) {
        *reinterpret_cast<f32x4*>(to) = sums;
        return;
    }
    to[0] = sums.x;
    if (column + 1 < p.n) to[1] = sums.y;
    if (column + 2 < p.n) to[2] = sums.z;
    if (column + 3 < p.n) to[3] = sums.w;
}

KERNEL(gemm_tiled)(const Params p) {
    f32* shared = reinterpret_cast<f32*>(shared_memory());
    s32 m0, n0;
    place(p, m0, n0);
    s32 y = static_cast<s32>(thread_index()) / THREADS_N, x = static_cast<s32>(thread_index()) % THREADS_N;
    f32x4 a_part[A_LOADS], w_part[W_LOADS];
    load_part<A_LOADS>(a_part, p.a, m0, p.m, 0, p.k);
    load_part<W_LOADS>(w_part, p.w, n0, p.n, 0, p.k);
    store_part<A_LOADS, A_ROW>(shared, a_part);
    store_part<W_LOADS, W_ROW>(shared + BK * A_ROW, w_part);
    block_sync();

    f32 sums[8][8] = {};
    s32 steps = (p.k + BK - 1) / BK;
    for (s32 step = 0; step < steps; step++) {
        f32* now = shared + step % 2 * STAGE;
        f32* next = shared + (step + 1) % 2 * STAGE;
        bool more = step + 1 < steps;
        if (more) {
            load_part<A_LOADS>(a_part, p.a, m0, p.m, (step + 1) * BK, p.k);
            load_part<W_LOADS>(w_part, p.w, n0, p.n, (step + 1) * BK, p.k);
        }
        multiply_stage(sums, now, now + BK * A_ROW, y, x);
        if (more) {
            store_part<A_LOADS, A_ROW>(next, a_part);
            store_part<W_LOADS, W_ROW>(next + BK * A_ROW, w_part);
        }
        block_sync();
    }

#pragma unroll
    for (s32 r = 0; r < 8; r++) {
        s32 row = m0 + 4 * y + r % 4 + r / 4 * (BM / 2), column = n0 + 4 * x;
        store4(p, row, column, f32x4{sums[r][0], sums[r][1], sums[r][2], sums[r][3]});
        store4(p, row, column + BN / 2, f32x4{sums[r][4], sums[r][5], sums[r][6], sums[r][7]});
    }
}
