// The products of `gemm.cu` for sm_90a: asynchronous matrix products of warpgroups, which read both operands from shared
// memory. Weights are packed as there, and so a lane ends with eight consecutive columns.
//
// Defines: GROUPS_M (warpgroups along m), BLOCKS (of 64 rows that each of them has), BN (columns: 32, 64, 96, 128, 192, 256),
// STAGES (of 128 bytes of k: all of k, or at least 3), THREADS, and those of `epilogue.cuh`.
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
    // Tiles along n.
    s32 tiles_n;
    Epilogue epilogue;
};

constexpr int BM = 64 * GROUPS_M * BLOCKS;
// Bytes of k in a stage.
constexpr int BK = 128;
constexpr int STAGE = (BM + BN) * BK;
constexpr int EIGHTS = BN / 8;
constexpr int GROUPS = BN / 32;
static_assert(THREADS == 128 * GROUPS_M, "a warpgroup for each group of rows");

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

#define PREFETCH (STORE == STORE_RESIDUAL && !STREAM_F32)

KERNEL(gemm_sm90)(const Params p) {
    u8* shared = shared_memory();
    shared += (1024 - (static_cast<u32>(__cvta_generic_to_shared(shared)) & 1023)) & 1023;
    f32* tail = reinterpret_cast<f32*>(shared + STAGES * STAGE);
#if GELU && STREAM_F32
    load_tail(tail, THREADS);
#endif
    s32 m0 = static_cast<s32>(block_x() / p.tiles_n) * BM, n0 = static_cast<s32>(block_x() % p.tiles_n) * BN;
    s32 steps = (p.k_bytes + BK - 1) / BK;
    auto fill = [&](s32 step) {
        u8* stage = shared + step % STAGES * STAGE;
        if (step < steps) {
            copy_tile<BM>(stage, p.a, m0, p.m, p.lda, step * BK, p.k_bytes);
            copy_tile<BN>(stage + BM * BK, p.w, n0, p.n_packed, p.ldw, step * BK, p.k_bytes);
        }
        copy_commit();
    };
    wait_for_previous();
#pragma unroll
    for (int i = 0; i < STAGES; i++) fill(i);
    launch_dependents();

    u32 lane = thread_index() % WARP, warp = thread_index() / WARP % 4, group = thread_index() / 128;
    // Rows 64 BLOCKS of this warpgroup; the lane's are `row0 + 64 block + 8 half`.
    s32 row0 = m0 + static_cast<s32>(64 * BLOCKS * group + 16 * warp + lane / 4);
    s32 column0 = n0 + 8 * static_cast<s32>(lane % 4);
#if PREFETCH
    u32 targets[2 * BLOCKS];
    u32x4 old[2 * BLOCKS][GROUPS];
#pragma unroll
    for (int i = 0; i < 2 * BLOCKS; i++) {
        s32 row = row0 + 32 * (i & ~1) + 8 * (i & 1);
        targets[i] = row < p.m ? destination(p.epilogue, row) : PAD;
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
            bool there = targets[i] != PAD && column0 + 32 * j < p.epilogue.n && whole_eights(p.epilogue);
            u64 at = static_cast<u64>(targets[i]) * p.epilogue.stride + column0 + 32 * j;
            const Stream* stream = static_cast<const Stream*>(p.epilogue.out);
            old[i][j] = there ? *reinterpret_cast<const u32x4*>(stream + at) : u32x4{0, 0, 0, 0};
        }
    }
#endif
    Sum sums[BLOCKS][4 * EIGHTS];
    for (s32 step = 0; step < steps; step++) {
        // Of the groups of copies closed so far, those of later steps may still be on their way.
        if (step == 0) {
            copy_wait<STAGES - 1>();
        } else if (step == 1) {
            copy_wait<(STAGES >= 2 ? STAGES - 2 : 0)>();
        } else {
            copy_wait<(STAGES >= 3 ? STAGES - 3 : 0)>();
        }
        // The products of two steps ago are done with their stage, which is filled again below.
        if (step >= 2) wgmma_wait<1>();
        fence_async_proxy();
        block_sync();
        const u8* stage = shared + step % STAGES * STAGE;
        s32 left = (p.k_bytes - step * BK + 31) / 32;
        wgmma_fence();
        const u8* a = stage + 64 * BLOCKS * group * BK;
        multiply_steps(sums, a, stage + BM * BK, left, step == 0);
        wgmma_commit();
        if (step >= 2) fill(step - 2 + STAGES);
    }
    wgmma_wait<0>();

#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        s32 column = column0 + 32 * j;
        if (column >= p.epilogue.n) continue;
        Columns columns;
        load_columns(columns, p.epilogue, column);
#pragma unroll
        for (int i = 0; i < 2 * BLOCKS; i++) {
            f32 y[8];
#pragma unroll
            for (int k = 0; k < 8; k++) y[k] = sum_f32(sums[i / 2][4 * (4 * j + k / 2) + i % 2 * 2 + k % 2]);
#if PREFETCH
            if (targets[i] == PAD) continue;
            if (whole_eights(p.epilogue)) {
                finish_values(p.epilogue, columns, y, tail);
                const u32 words[4] = {old[i][j].x, old[i][j].y, old[i][j].z, old[i][j].w};
#pragma unroll
                for (int k = 0; k < 8; k++) y[k] = y[k] + half_to_f32(static_cast<u16>(words[k / 2] >> (16 * (k % 2))));
                u64 at = static_cast<u64>(targets[i]) * p.epilogue.stride + column;
                store8(static_cast<Stream*>(p.epilogue.out) + at, y);
                continue;
            }
            finish8(p.epilogue, columns, targets[i], column, y, tail);
#else
            s32 row = row0 + 32 * (i & ~1) + 8 * (i & 1);
            if (row >= p.m) continue;
            u32 target = destination(p.epilogue, row);
            if (target == PAD) continue;
            finish8(p.epilogue, columns, target, column, y, tail);
#endif
        }
    }
}
