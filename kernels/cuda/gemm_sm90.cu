// The products of `gemm.cu` for sm_90a: asynchronous matrix products of warpgroups, which read both operands from shared
// memory. Weights are packed as there, and so a lane ends with eight consecutive columns.
//
// A block walks over tiles of the same columns. Its stages are a ring that runs on from tile to tile: while it finishes one
// tile, the operands of the next are on their way. Where the weights of its columns fit (RESIDENT), they are loaded once.
//
// Defines: GROUPS_M (warpgroups along m), BLOCKS (of 64 rows that each of them has), BN (columns: 32, 64, 96, 128, 192, 256),
// STAGES (of 128 bytes of k, at least 3), RESIDENT (stages of k whose weights stay in shared memory: all of k; or 0),
// THREADS, and those of `epilogue.cuh`.
#include "epilogue.cuh"
#include "wgmma.cuh"

struct Params {
    // `[m, lda]` and `[n padded to 32, ldw]`, strides in bytes, multiples of 16.
    const u8* a;
    const u8* w;
    s32 m;
    // Rows of `w`.
    s32 n_packed;
    // Bytes of k.
    s32 k_bytes;
    s32 lda, ldw;
    // Tiles along n, and all of them.
    s32 tiles_n, tiles;
    Epilogue epilogue;
};

constexpr int BM = 64 * GROUPS_M * BLOCKS;
// Bytes of k in a stage.
constexpr int BK = 128;
// Bytes of a stage of the ring, and of the weights that stay.
constexpr int STAGE = (BM + (RESIDENT ? 0 : BN)) * BK;
constexpr int STAY = RESIDENT * BN * BK;
constexpr int EIGHTS = BN / 8;
constexpr int GROUPS = BN / 32;
static_assert(THREADS == 128 * GROUPS_M, "a warpgroup for each group of rows");
static_assert(STAGES >= 3, "one stage is read, one is done, one is filled");

#if INTEGER
typedef s32 Sum;
INLINE f32 sum_f32(Sum x) { return to_f32(x); }
#else
typedef f32 Sum;
INLINE f32 sum_f32(Sum x) { return x; }
#endif

// Starts copying `rows` rows of k bytes `k0..k0 + BK` from row `row0` on; rows and bytes that are not there become zeros.
template <int rows>
INLINE void copy_tile(u8* to, const u8* from, s32 row0, s32 row_count, s32 stride, s32 k0, s32 k_bytes) {
    s32 chunk = thread_index() % 8, byte = k0 + 16 * chunk;
    s32 in_row = k_bytes - byte < 0 ? 0 : k_bytes - byte > 16 ? 16 : k_bytes - byte;
#pragma unroll
    for (int i = 0; i < (rows + THREADS / 8 - 1) / (THREADS / 8); i++) {
        s32 row = i * (THREADS / 8) + thread_index() / 8;
        if (rows % (THREADS / 8) != 0 && row >= rows) break;
        s32 valid = row0 + row < row_count ? in_row : 0;
        const u8* source = valid == 0 ? from : from + static_cast<u64>(row0 + row) * stride + byte;
        copy_async_16(to + row * BK + 16 * (chunk ^ (row % 8)), source, valid);
    }
}

// Starts sums (+)= a * w over `steps` steps of 32 bytes.
INLINE void multiply_steps(Sum (&sums)[BLOCKS][4 * EIGHTS], const u8* a, const u8* w, int steps, bool first) {
    u64 b = tile_descriptor(w);
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) {
        u64 d = tile_descriptor(a + 64 * BK * block);
#pragma unroll
        for (int step = 0; step < BK / 32; step++) {
            if (step >= steps) break;
            s32 add = !first || step > 0;
#if INTEGER
            Wgmma<BN>::i8(sums[block], d + 2 * step, b + 2 * step, add);
#else
            Wgmma<BN>::f16(sums[block], d + 2 * step, b + 2 * step, add);
#endif
        }
    }
}

// Whether a lane has registers to spare for what of the stream it adds to.
#define PREFETCH (STORE == STORE_RESIDUAL && !STREAM_F32 && BLOCKS * BN <= 192 && THREADS <= 384)

// A place in the sequence of stages that a block goes through.
struct Cursor {
    s32 tile, step;

    INLINE void advance(s32 steps, s32 stride) {
        step++;
        if (step == steps) step = 0, tile += stride;
    }
};

// Waits for the copies of stage `index` of the sequence; those of later stages may still be on their way.
INLINE void wait_stage(s32 index) {
    if (index == 0) {
        copy_wait<STAGES - 1>();
    } else if (index == 1) {
        copy_wait<STAGES - 2>();
    } else {
        copy_wait<STAGES - 3>();
    }
}

// Scale and bias of the block's columns, in shared memory.
struct Constants {
    const f32* scale;
    const f32* bias;
};

INLINE void load_constants(const Params& p, f32* to, s32 n0) {
    for (s32 i = thread_index(); i < BN; i += THREADS) {
        bool there = n0 + i < p.n_packed;
#if INTEGER || OUTPUT
        to[i] = there ? p.epilogue.scale[n0 + i] : 0.0f;
#endif
        to[BN + i] = there ? p.epilogue.bias[n0 + i] : 0.0f;
    }
}

// What of the stream a lane adds to, loaded ahead.
struct Old {
    u32 targets[2 * BLOCKS];
#if PREFETCH
    u32x4 values[2 * BLOCKS][GROUPS];
#endif
};

INLINE void load_old(const Params& p, Old& old, s32 row0, s32 column0) {
#pragma unroll
    for (int i = 0; i < 2 * BLOCKS; i++) {
        s32 row = row0 + 32 * (i & ~1) + 8 * (i & 1);
        old.targets[i] = row < p.m ? destination(p.epilogue, row) : PAD;
#if PREFETCH
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
            bool there = old.targets[i] != PAD && column0 + 32 * j < p.epilogue.n && whole_eights(p.epilogue);
            u64 at = static_cast<u64>(old.targets[i]) * p.epilogue.stride + column0 + 32 * j;
            const Stream* stream = static_cast<const Stream*>(p.epilogue.out);
            old.values[i][j] = there ? *reinterpret_cast<const u32x4*>(stream + at) : u32x4{0, 0, 0, 0};
        }
#endif
    }
}

// Finishes a tile: row i of a lane is `old.targets[i]`.
INLINE void finish_tile(const Params& p, const Sum (&sums)[BLOCKS][4 * EIGHTS], const Old& old, const f32* constants,
                        s32 column0, const f32* tail) {
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        s32 column = column0 + 32 * j;
        if (column >= p.epilogue.n) continue;
        Columns columns;
        const f32* at_column = constants + column % BN;
#if INTEGER || OUTPUT
        load8(columns.scale, at_column);
#endif
        load8(columns.bias, at_column + BN);
#if STORE == STORE_CODES
        columns.recip = p.epilogue.recip[column];
#endif
#pragma unroll
        for (int i = 0; i < 2 * BLOCKS; i++) {
            if (old.targets[i] == PAD) continue;
            f32 y[8];
#pragma unroll
            for (int k = 0; k < 8; k++) y[k] = sum_f32(sums[i / 2][4 * (4 * j + k / 2) + i % 2 * 2 + k % 2]);
#if PREFETCH
            if (whole_eights(p.epilogue)) {
                finish_values(p.epilogue, columns, y, tail);
                const u32x4& v = old.values[i][j];
                const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                for (int k = 0; k < 8; k++) y[k] = y[k] + half_to_f32(static_cast<u16>(words[k / 2] >> (16 * (k % 2))));
                u64 at = static_cast<u64>(old.targets[i]) * p.epilogue.stride + column;
                store8(static_cast<Stream*>(p.epilogue.out) + at, y);
                continue;
            }
#endif
            finish8(p.epilogue, columns, old.targets[i], column, y, tail);
        }
    }
}

KERNEL(gemm_sm90)(const Params p) {
    u8* shared = shared_memory();
    shared += (1024 - (static_cast<u32>(__cvta_generic_to_shared(shared)) & 1023)) & 1023;
    u8* ring = shared + STAY;
    f32* constants = reinterpret_cast<f32*>(ring + STAGES * STAGE);
    f32* tail = constants + 2 * BN;
#if GELU && STREAM_F32
    load_tail(tail, THREADS);
#endif
    // Every tile of this block has the same columns: the grid is a multiple of the tiles along n, or covers all tiles.
    s32 first = static_cast<s32>(block_x()), stride = static_cast<s32>(blocks_x());
    s32 n0 = first % p.tiles_n * BN, steps = (p.k_bytes + BK - 1) / BK;
    load_constants(p, constants, n0);
#pragma unroll
    for (int i = 0; i < RESIDENT; i++) copy_tile<BN>(shared + i * BN * BK, p.w, n0, p.n_packed, p.ldw, i * BK, p.k_bytes);
    wait_for_previous();

    Cursor fetch = {first, 0};
    s32 fetched = 0;
    auto fill = [&]() {
        u8* stage = ring + fetched % STAGES * STAGE;
        if (fetch.tile < p.tiles) {
            s32 m0 = fetch.tile / p.tiles_n * BM, k0 = fetch.step * BK;
            copy_tile<BM>(stage, p.a, m0, p.m, p.lda, k0, p.k_bytes);
            if (!RESIDENT) copy_tile<BN>(stage + BM * BK, p.w, n0, p.n_packed, p.ldw, k0, p.k_bytes);
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
        // Of the 64 BLOCKS rows of this warpgroup, the lane's are `row0 + 64 block + 8 half`.
        s32 row0 = tile / p.tiles_n * BM + static_cast<s32>(64 * BLOCKS * group + 16 * warp + lane / 4);
        Old old;
        load_old(p, old, row0, column0);
        Sum sums[BLOCKS][4 * EIGHTS];
        for (s32 step = 0; step < steps; step++, index++) {
            wait_stage(index);
            // The products of two stages ago are done with theirs, which is filled again below.
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
        wgmma_wait<0>();
        finish_tile(p, sums, old, constants, column0, tail);
    }
}
